"""The packing experiment: its levels, what is said of the context beforehand, and what it finds on a server with a small KV cache."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from distbench.analysis.level_row import empty_level_row
from distbench.core.levels import LevelSpec
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
from distbench.sim.step_time import StepTimeSettings
from distbench.store.reader import open_run
from tests.experiment.conftest import FAST_STEPS
from tests.support.vllm import VllmServers

# The limits of a small GPU in small: 256 blocks of 32 tokens, 64 sequences, a context of 1,024.
_SMALL = SimSettings(
    max_num_seqs=64,
    max_model_len=1024,
    block_size=32,
    num_blocks=256,
    step_time=StepTimeSettings(
        fixed_s=0.006, weights_s=0.0, per_sequence_s=0.0001, per_prefill_token_s=0.00001, per_kv_token_s=1e-7
    ),
)
# A system part of 1.3 times a user message, 40 tokens to answer each.
_ORIGIN = {"system-tokens": 91, "user-tokens": 70, "output-tokens": 40, "no-stream": True}


def plan(**flags: Any) -> Any:
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


def check_packing(result: RunResult, expected_hits: float) -> None:
    """
    Check what the origin saw, on any server with a small KV cache.

    With packing hits fall and KV use rises, there are preemptions, and messages/s do not grow in proportion. One message a request
    hits 50 to 60 %, the block-exact calculation within two points, by the server's counters and by usage.
    """
    rows = {(row["users_per_request"], row["connections"]): row for row in result.rows if row["repeat"] == 0}
    assert result.exit_code == 0
    most = max(connections for _, connections in rows)
    one, two, four = (rows[users, most] for users in (1, 2, 4))
    assert 0.5 <= one["prefix_hit_ratio"] <= 0.6
    assert one["prefix_hit_ratio"] == pytest.approx(expected_hits, abs=0.02)
    assert one["cached_tokens_ratio"] == pytest.approx(expected_hits, abs=0.02)
    assert one["prefix_hit_ratio"] > two["prefix_hit_ratio"] + 0.1 > four["prefix_hit_ratio"] + 0.2
    assert four["kv_usage_mean"] > one["kv_usage_mean"]
    assert two["preemptions"] + four["preemptions"] > 0
    assert four["running_mean"] < 0.7 * one["running_mean"]
    assert two["user_message_rate"] < 1.5 * one["user_message_rate"]
    assert four["user_message_rate"] < 2 * one["user_message_rate"]
    assert four["request_rate"] < 0.5 * one["request_rate"]
    findings = result.findings
    assert [(s["users_per_request"], s["connections"]) for s in findings["shapes"]] == sorted(rows)
    assert findings["findings"][0]["kind"] == "packing"
    (reason,) = [
        f
        for f in findings["findings"]
        if f["kind"] == "packing_shape" and f["evidence"]["users_per_request"] == 4
    ]
    assert "the prefix-cache hit rate fell from" in " ".join(reason["evidence"]["reasons"])


def observe_packing(url: str, output: Path, block_tokens: int, **flags: Any) -> None:
    """Run the origin's experiment, and check what it saw; the block-exact calculation comes from the prompts alone."""
    told = Told()
    made = plan(urls=[url], output=str(output), users_per_request="1,2,4", **_ORIGIN, **flags)
    calibration = measure_tokens(made, check_target(made.target, {}), {}, told)
    workload = build_workload(made, calibration=calibration, population=shapes_population(made))
    (expected,) = describe(workload, shape_levels(made)[:1], block_tokens=block_tokens).levels
    check_packing(run_plan(made, told), expected.hit_ratio)


@pytest.mark.slow
def test_packing_on_the_simulator(tmp_path: Path) -> None:
    """256 blocks of 32: what the origin saw."""
    with EmbeddedServer(_SMALL) as server:
        observe_packing(server.url, tmp_path / "r", 32, connections="64", requests=1280, warmup=32)


@pytest.mark.vllm
def test_packing_on_vllm(vllm_servers: VllmServers, tmp_path: Path) -> None:
    """The same on the real one. The server is shared: a seed of our own, so that its cache knows none of the prompts."""
    url = vllm_servers.url()
    observe_packing(url, tmp_path / "r", 32, connections="64", requests=640, warmup=16, seed=4711)
