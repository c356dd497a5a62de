"""The packing experiment: its levels, what is said of the context beforehand, and what it finds on a server with a small KV cache."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from distbench.analysis.level_row import empty_level_row
from distbench.cli.load import shapes as shapes_command
from distbench.cli.options import plan_from_context
from distbench.core.levels import LevelSpec
from distbench.core.plan import Plan
from distbench.core.plan_io import build_plan
from distbench.core.summary import LevelSummary, describe
from distbench.core.workload import build_workload
from distbench.errors import PlanError
from distbench.experiment.commands import run_plan
from distbench.experiment.observer import SilentObserver
from distbench.experiment.preflight import check_target
from distbench.experiment.result import RunResult
from distbench.experiment.shapes import fit_shapes, packings_of, shape_levels, shapes_population
from distbench.experiment.tokenizing import measure_tokens
from distbench.report.forms import report_text
from distbench.report.shapes_table import shapes_table
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from distbench.store.reader import open_run
from tests.experiment.conftest import FAST_STEPS
from tests.support.vllm import VllmServers

_ROOT = Path(__file__).resolve().parents[2]
_DISTBENCH = Path(sys.executable).with_name("distbench")


def plan(**flags: Any) -> Plan:
    """Return a shapes plan without Ray."""
    settings = {"urls": ["http://h:1"], "ray-address": "none", "clients": 1}
    return build_plan("shapes", {}, settings | {k.replace("_", "-"): v for k, v in flags.items()})


class Told(SilentObserver):
    """Keeps what is told beforehand, and the rows."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.rows: list[Mapping[str, Any]] = []

    def tell(self, text: str) -> None:
        """Keep it."""
        self.lines.append(text)

    def note(self, text: str) -> None:
        """Keep it too."""
        self.lines.append(text)

    def level_done(self, row: Mapping[str, Any]) -> None:
        """Keep the row."""
        self.rows.append(row)


def test_each_packing_runs_at_n_and_at_n_over_k_connections() -> None:
    """The same 1,600 messages each time: 1,600 requests of 1, 400 of 4, 200 of 8; one message always is among them."""
    made = shape_levels(plan(connections="32", requests=1600, users_per_request="4,8"))
    assert [(s.level, s.users_per_request, s.connections, s.requests) for s in made] == [
        (0, 1, 32, 1600),
        (1, 4, 32, 400),
        (2, 4, 8, 400),
        (3, 8, 32, 200),
        (4, 8, 4, 200),
    ]


def test_repeats_visit_every_shape_again_interleaved() -> None:
    """A drift of the server then meets all shapes alike."""
    made = shape_levels(plan(connections="8", requests=100, users_per_request="1,2", repeats=2))
    visits = [(s.repeat, s.users_per_request, s.connections) for s in made]
    assert visits == [(r, *shape) for r in range(3) for shape in ((1, 8), (2, 8), (2, 4))]
    assert [s.level for s in made] == list(range(9))


def test_the_default_population_fills_the_largest_packing() -> None:
    """8 requests a connection of 8 messages at 32 connections: 2,048; a duration alone ends levels by itself."""
    assert shapes_population(plan()) == 2048
    assert shapes_population(plan(connections="16", users_per_request="1,2")) == 400
    assert shapes_population(plan(requests=77)) == 77
    timed = plan(duration="20s", connections="8", users_per_request="2")
    assert shapes_population(timed) is None
    assert [(s.requests, s.duration_s, s.connections) for s in shape_levels(timed)] == [
        (None, 20.0, 8),
        (None, 20.0, 8),
        (None, 20.0, 4),
    ]


def test_the_default_packings_are_powers_of_two() -> None:
    """Unless others are asked for; 1 is the reference."""
    assert packings_of(plan()) == (1, 2, 4, 8)
    assert packings_of(plan(users_per_request="3")) == (1, 3)


def fitted(context: int | None, **flags: Any) -> tuple[list[LevelSpec], list[str]]:
    """Return levels and notes of a plan: 93 + 70 words and 40 output tokens per message, approximate lengths."""
    wanted = {
        "requests": 80,
        "connections": "2",
        "system_tokens": 93,
        "user_tokens": 70,
        "output_tokens": 40,
    }
    made = plan(**(wanted | flags))
    workload = build_workload(made, population=shapes_population(made))
    levels = shape_levels(made)
    return fit_shapes(levels, describe(workload, levels, max_model_len=context).levels, context)


def test_a_packing_that_cannot_fit_is_left_out_and_said() -> None:
    """Of 8 messages a prompt has 653 words: a context of 640 has no room for it. Of 4 (373 + 160) there is room."""
    levels, notes = fitted(640)
    assert sorted({spec.users_per_request for spec in levels}) == [1, 2, 4]
    assert notes == [
        "8 user messages per request do not fit the model's context of 640 tokens (a prompt has up to 653, its answer 320): that "
        "packing is left out"
    ]


def test_a_packing_whose_answers_are_cut_is_kept_and_said() -> None:
    """653 + 320 exceed 900, 653 alone does not: what is cut is worth measuring."""
    levels, notes = fitted(900)
    assert sorted({spec.users_per_request for spec in levels}) == [1, 2, 4, 8]
    assert notes == [
        "8 user messages per request: 10 of 10 requests ask for more than is left of the model's context of 900 tokens; their answers "
        "will be cut short and count by the part that was answered"
    ]


def test_an_unknown_context_leaves_nothing_out() -> None:
    """The server did not tell: nothing can be said."""
    levels, notes = fitted(None)
    assert (len(levels), notes) == (7, [])


def test_too_few_requests_for_a_window_are_said() -> None:
    """160 messages are 20 requests of 8 on 16 connections: one each, of five that are needed."""
    _, notes = fitted(None, requests=160, connections="16", users_per_request="1,8")
    assert notes == [
        "too few requests for a measuring window at 8 x 16 connections: these will not be ranked; --requests 640 or more gives each "
        "connection 5"
    ]


def test_no_packing_that_fits_is_a_bad_plan() -> None:
    """Exit code 2, before anything is sent; here by the summary of a workload of which nothing fits."""
    made = plan(requests=40, connections="4", system_tokens=10, user_tokens=10, output_tokens=10)
    levels = shape_levels(made)
    summaries = describe(build_workload(made), levels, max_model_len=1000).levels
    none: list[LevelSummary] = [
        dataclasses.replace(s, refused=s.sampled, too_long=s.sampled) for s in summaries
    ]
    with pytest.raises(PlanError, match="no packing fits the model's context of 1000 tokens"):
        fit_shapes(levels, none, 1000)


@pytest.fixture(scope="module")
def short_context() -> Iterator[EmbeddedServer]:
    """A fast server with a context of 128 tokens."""
    settings = SimSettings(
        max_num_seqs=8, max_model_len=128, num_blocks=512, block_size=16, step_time=FAST_STEPS
    )
    with EmbeddedServer(settings) as server:
        yield server


def shapes(url: str, output: Path, observer: Told, **flags: Any) -> RunResult:
    """Run the experiment."""
    return run_plan(plan(urls=[url], output=str(output), **flags), observer)


@pytest.mark.slow
def test_a_packing_without_room_is_left_out_and_a_cut_one_counts_by_its_part(
    short_context: EmbeddedServer, tmp_path: Path
) -> None:
    """
    A context of 128: 1 x 30 + 40 fits, of 2 x 30 the answer of 80 is cut, of 8 (240 tokens) nothing fits. The notes are in run.json, user
    messages/s follow the tokens and not the requests, and all forms of the report tell the same.
    """
    told = Told()
    wanted = {"system_tokens": 0, "user_tokens": 30, "output_tokens": 40, "users_per_request": "1,2,8"}
    result = shapes(short_context.url, tmp_path / "r", told, connections="4", requests=48, warmup=0, **wanted)
    assert (result.status, result.exit_code) == ("complete", 0)
    assert [(row["users_per_request"], row["connections"]) for row in result.rows] == [(1, 4), (2, 4), (2, 2)]
    run = open_run(tmp_path / "r")
    for words in ("8 user messages per request do not fit", "24 of 24 requests ask for more than is left"):
        assert any(words in line for line in told.lines)
        assert any(words in note for note in run.info.notes)

    whole, packed = result.rows[0], result.rows[1]
    assert (whole["requests_clamped"], whole["answered_ratio"]) == (0, 1.0)
    part = (128 - packed["prompt_tokens_mean"]) / 80
    assert (packed["requests_clamped"], packed["answered_ratio"]) == (24, pytest.approx(part))
    assert packed["user_message_rate_whole"] == pytest.approx(packed["request_rate_whole"] * 2 * part)

    saved = run.findings()
    assert saved is not None
    assert [(s["users_per_request"], s["connections"]) for s in saved["shapes"]] == [(1, 4), (2, 2), (2, 4)]
    assert saved["findings"][0]["kind"] == "packing"
    assert "packing_clamped" in {finding["kind"] for finding in saved["findings"]}
    text = report_text(run, "text", to_file=True).decode()
    assert text.splitlines()[1].split()[:3] == ["packed", "connections", "messages/s"]
    assert saved["findings"][0]["text"][:40] in " ".join(text.split())
    assert "do not fit the model's context" in report_text(run, "markdown", to_file=True).decode()
    assert json.loads(report_text(run, "json", to_file=True))["findings"]["shapes"] == saved["shapes"]


def test_nothing_that_fits_sends_nothing(short_context: EmbeddedServer, tmp_path: Path) -> None:
    """200 tokens do not fit 128: exit code 2, and no run directory stays behind."""
    with pytest.raises(PlanError, match="cannot fit the model's context of 128"):
        shapes(short_context.url, tmp_path / "r", Told(), requests=8, connections="2", user_tokens=200)
    assert not (tmp_path / "r").exists()


def test_the_table_keeps_within_narrow_terminals() -> None:
    """80 columns hold packing, messages/s, hits, KV use and the verdict; the best of a full server stands out."""
    rows = [
        empty_level_row(
            users_per_request=users,
            connections=64,
            user_message_rate=rate,
            prefix_hit_ratio=0.519,
            kv_usage_mean=0.66,
            requests_clamped=0,
            verdict="saturated",
            limit="kv_memory",
            valid=True,
        )
        for users, rate in ((1, 103.0), (2, 111.0))
    ]
    console = Console(width=80, record=True, file=io.StringIO(), force_terminal=True)
    console.print(shapes_table(rows, 80))
    heading, first, second = console.export_text(styles=True).splitlines()
    assert re.sub(r"\x1b\[[0-9;]*m", "", heading).split() == [
        *("packed", "connections", "messages/s", "hits", "KV", "mean", "verdict")
    ]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", first).split()
    assert plain == ["1", "64", "103", "52%", "66%", "saturated:", "kv", "memory"]
    assert "\x1b[1;32m111" in second.replace(" ", "")


def check_packing(levels: Sequence[Mapping[str, Any]], findings: Mapping[str, Any], expected: float) -> None:
    """
    Check what the origin saw, on any server with a small KV cache.

    With packing hits fall and KV use rises, there are preemptions, and messages/s do not grow in proportion. One message a request
    hits 50 to 60 %, the block-exact calculation within two points, by the server's counters and by usage.
    """
    rows = {(row["users_per_request"], row["connections"]): row for row in levels if row["repeat"] == 0}
    most = max(connections for _, connections in rows)
    one, two, four = (rows[users, most] for users in (1, 2, 4))
    assert 0.5 <= one["prefix_hit_ratio"] <= 0.6
    assert one["prefix_hit_ratio"] == pytest.approx(expected, abs=0.02)
    assert one["cached_tokens_ratio"] == pytest.approx(expected, abs=0.02)
    assert one["prefix_hit_ratio"] > two["prefix_hit_ratio"] + 0.1 > four["prefix_hit_ratio"] + 0.2
    assert four["kv_usage_mean"] > one["kv_usage_mean"]
    assert two["preemptions"] + four["preemptions"] > 0
    assert four["running_mean"] < 0.7 * one["running_mean"]
    # Wide bounds: the machine may be shared. Proportional growth would be 2 and 4.
    assert two["user_message_rate"] < 1.8 * one["user_message_rate"]
    assert four["user_message_rate"] < 2 * one["user_message_rate"]
    assert [(s["users_per_request"], s["connections"]) for s in findings["shapes"]] == sorted(rows)
    assert findings["findings"][0]["kind"] == "packing"


def expected_hits(made: Plan, block_tokens: int) -> float:
    """Return the block-exact hit ratio of the unpacked shape: from the prompts alone, in a cache of endless room."""
    calibration = measure_tokens(made, check_target(made.target, {}), {}, SilentObserver())
    workload = build_workload(made, calibration=calibration, population=shapes_population(made))
    (level,) = describe(workload, shape_levels(made)[:1], block_tokens=block_tokens).levels
    return level.hit_ratio


def commands_of(page: Path) -> dict[str, list[str]]:
    """Return the distbench commands of a page's shell blocks: subcommand -> its arguments."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines if line.startswith("distbench")]
    return {name: [word for word in rest if word != "&"] for _, name, *rest in words}


@contextlib.contextmanager
def serving(arguments: Sequence[str]) -> Iterator[str]:
    """Run distbench sim with some arguments at a port of its own, and give its URL."""
    port = arguments.index("--port")
    command = [str(_DISTBENCH), "sim", *arguments[:port], "--port", "0", *arguments[port + 2 :]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


@pytest.mark.slow
def test_the_example_of_the_page_shows_what_packing_does(tmp_path: Path) -> None:
    """The commands of docs/packing.md, as they stand there but for the port and the place: what the origin saw, on the simulator."""
    commands = commands_of(_ROOT / "docs" / "packing.md")
    with serving(commands["sim"]) as url:
        _, *flags = commands["shapes"]
        output = flags.index("--output")
        flags[output + 1] = str(tmp_path / "r")
        ran = subprocess.run(
            [str(_DISTBENCH), "shapes", url, *flags, "--ray-address", "none", "--json"],
            stdout=subprocess.PIPE,
            check=True,
        )
        made = plan_from_context("shapes", shapes_command.make_context("shapes", [url, *flags]))
        expected = expected_hits(made, block_tokens=32)
    told = json.loads(ran.stdout)
    check_packing(told["levels"], told["findings"], expected)
    shown = subprocess.run([str(_DISTBENCH), "report", told["run"]], stdout=subprocess.PIPE, check=True)
    assert told["findings"]["findings"][0]["text"][:40] in " ".join(shown.stdout.decode().split())


@pytest.mark.vllm
def test_packing_on_vllm(vllm_servers: VllmServers, tmp_path: Path) -> None:
    """
    The same on the real one: 64 blocks of 32 tokens, so that few requests fill it and a busy machine is done in time.

    The server may be shared: a seed of our own, so that its cache knows none of the prompts.
    """
    made = plan(
        urls=[vllm_servers.url("--num-gpu-blocks-override", "64", "--max-num-seqs", "32")],
        output=str(tmp_path / "r"),
        users_per_request="1,2,4",
        connections="12",
        requests=144,
        warmup=4,
        seed=4711,
        system_tokens=91,
        user_tokens=70,
        output_tokens=40,
        no_stream=True,
    )
    result = run_plan(made)
    assert result.exit_code == 0
    check_packing(result.rows, result.findings, expected_hits(made, block_tokens=32))
