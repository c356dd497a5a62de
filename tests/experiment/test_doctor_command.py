"""The doctor as a whole, over real sockets: what a user is told of servers that are well, and of those that are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from distbench.cli.doctor import check_lines
from distbench.core.plan_io import build_plan
from distbench.errors import PlanError
from distbench.experiment.doctor.check import Check, Group, Status, exit_code, ok, warn
from distbench.experiment.doctor.examination import Examination, examine
from distbench.experiment.doctor.self_test import run_self_test
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings
from tests.experiment.doctor_readings import machine
from tests.fleet.ray_nodes import ray_nodes
from tests.sim.servers import ServerThread
from tests.support.scripted import refused_port
from tests.support.stub_server import ONE_MODEL, STREAM, Answer, Reply, stub_server

CHAT = "POST /v1/chat/completions"
MODELS = "GET /v1/models"
METRICS = "GET /metrics"
STEPS_OF_5_MS = StepTimeSettings(
    fixed_s=0.005, weights_s=0.0, per_sequence_s=0.0, per_prefill_token_s=0.0, per_kv_token_s=0.0
)


def examined(
    *urls: str, environ: dict[str, str] | None = None, **flags: Any
) -> tuple[dict[str, Check], dict[Group, list[Check]]]:
    """Examine a good machine and these targets without a self-test; return the target's lines by name, and all by group."""
    given = {name.replace("_", "-"): value for name, value in flags.items()}
    plan = build_plan("run", {}, {"urls": list(urls), "timeout-connect": "2s", **given})
    groups: dict[Group, list[Check]] = {group: [] for group in Group}
    order = Examination(plan=plan, has_target=True, self_test_s=0.0)
    for group, check in examine(order, environ or {}, lambda _: None, read=machine):
        groups[group].append(check)
    return {check.name: check for check in groups[Group.TARGET]}, groups


def of_stub(routes: dict[str, Answer], **more: Any) -> tuple[dict[str, Check], dict[Group, list[Check]]]:
    """Examine a stub server with these routes."""
    with stub_server(routes) as (url, _):
        return examined(url, **more)


@pytest.fixture(scope="module")
def buffered() -> Iterator[str]:
    """A simulated server with 5 ms steps that lets tokens go 64 at a time, as a buffering proxy does."""
    thread = ServerThread(SimSettings(model="tiny", step_time=STEPS_OF_5_MS, faults=("buffering:tokens=64",)))
    yield thread.start().url
    thread.stop()


def test_a_good_server_passes_every_line(fast_server: EmbeddedServer) -> None:
    """The simulator is usable, streams, counts tokens exactly and bears vLLM's names."""
    lines, groups = examined(fast_server.url)
    assert {name: check.status.value for name, check in lines.items()} == {
        "dns": "ok",
        "connect": "ok",
        "usable": "ok",
        "prompt lengths": "ok",
        "stream": "ok",
        "proxy": "ok",
        "server metrics": "ok",
    }
    assert lines["server metrics"].values["family"] == "vLLM"
    assert exit_code(groups) == 0


def test_a_buffered_stream_is_noticed(buffered: str) -> None:
    """32 tokens at 5 ms each arrive together: a warning, not a failure."""
    lines, groups = examined(buffered)
    assert lines["stream"].status is Status.WARN
    # Unbuffered there are 32; on a busy machine the end of the answer may come apart from the rest.
    assert lines["stream"].values["tokens"] == 32
    assert lines["stream"].values["lumps"] <= 2
    assert lines["stream"].values["e2e_s"] >= 0.16
    assert "proxy_buffering off" in str(lines["stream"].advice)
    assert exit_code(groups) == 0


def test_a_few_requests_are_all_that_is_sent() -> None:
    """Two requests for completions, 33 tokens in all; the rest are questions about the server."""
    with stub_server({MODELS: ONE_MODEL, CHAT: STREAM}) as (url, seen):
        examined(url)
    assert [asked.body["max_tokens"] for asked in seen if asked.path.endswith("completions")] == [1, 32]
    assert len(seen) < 12


@pytest.mark.parametrize(
    ("routes", "text"),
    [
        ({}, "/metrics answered HTTP 404"),
        (
            {METRICS: Reply(body=b"my_requests_total 3\n", headers={"Content-Type": "text/plain"})},
            "no known metric",
        ),
        ({METRICS: Reply(body=b'DCGM_FI_DEV_GPU_UTIL{gpu="0"} 3\n')}, "of no server that is known"),
    ],
    ids=["none", "foreign", "dcgm"],
)
def test_metrics_of_an_unknown_server_are_a_warning(routes: dict[str, Answer], text: str) -> None:
    """The target stays usable; what is lost without metrics is said."""
    lines, groups = of_stub({MODELS: ONE_MODEL, CHAT: STREAM, **routes})
    assert lines["server metrics"].status is Status.WARN
    assert text in lines["server metrics"].text
    assert "--no-metrics" in str(lines["server metrics"].advice) or "--metrics-url" in str(
        lines["server metrics"].advice
    )
    assert exit_code(groups) == 0


def test_a_proxy_and_a_compressor_are_noticed() -> None:
    """A Via header, and gzip where identity was asked."""
    headers = {**STREAM.headers, "Via": "1.1 gate", "Server": "nginx"}
    lines, _ = of_stub({MODELS: ONE_MODEL, CHAT: Reply(body=STREAM.body, headers=headers)})
    assert (lines["proxy"].status, "via: 1.1 gate" in lines["proxy"].text) == (Status.WARN, True)


def test_a_refused_key_is_exit_code_four_and_never_shown() -> None:
    """401: the variable is named, the key is in no line."""
    refusing: dict[str, Answer] = {MODELS: Reply(401, {"error": "Unauthorized"})}
    lines, groups = of_stub(refusing, environ={"K": "sk-secret"}, api_key_env="K")
    assert (lines["usable"].status, lines["usable"].advice) == (Status.FAIL, "the key in K is refused")
    assert "stream" not in lines
    assert exit_code(groups) == 4
    assert "sk-secret" not in json.dumps([check.to_json() for checks in groups.values() for check in checks])


def test_a_key_that_is_not_set_is_a_problem_of_the_options() -> None:
    """Nothing is looked at before it is."""
    with pytest.raises(PlanError, match="the environment variable K is not set"):
        examined("http://127.0.0.1:1", environ={}, api_key_env="K")


def test_roots_that_cannot_be_read_are_found_first() -> None:
    """They are the user's fault, not the target's."""
    with pytest.raises(PlanError, match="no such file"):
        examined("https://127.0.0.1:1", ca_file="no-such.pem")


def test_a_closed_port_is_exit_code_four_and_said_once() -> None:
    """Nothing listens: one failure, and no further lines about what cannot be."""
    lines, groups = examined(f"http://127.0.0.1:{refused_port()}")
    assert {name: check.status.value for name, check in lines.items()} == {"dns": "ok", "connect": "fail"}
    assert exit_code(groups) == 4


def test_of_two_replicas_the_broken_one_is_named(fast_server: EmbeddedServer) -> None:
    """The line sums both up; the good one is examined all the same."""
    broken = f"http://127.0.0.1:{refused_port()}/v1"
    lines, groups = examined(fast_server.url, broken)
    assert lines["connect"].text.startswith(f"{broken}: cannot connect")
    assert len(lines["connect"].parts) == 2
    assert lines["usable"].status is Status.OK
    assert exit_code(groups) == 4


LONG = warn(
    "open files", "one two three four five six seven eight nine ten", "raise --the-limit of open files now"
)


@pytest.mark.parametrize("width", [30, 48, 64, 80, 120])
def test_lines_keep_within_the_terminal(width: int) -> None:
    """No line is longer than the terminal is wide or ends in spaces, and no word is lost."""
    text = check_lines(LONG, width).plain
    assert max(len(line) for line in text.splitlines()) <= width
    assert [line for line in text.splitlines() if line != line.rstrip()] == []
    assert " ".join(text.split()).replace("open files: ", "open files ") == (
        f"warn {LONG.name} {LONG.text} -> {LONG.advice}"
    )


def test_piped_lines_are_not_broken() -> None:
    """One line each, aligned, so that grep finds them whole."""
    assert check_lines(ok("dns", "fine"), None).plain == "ok    dns             fine"
    assert check_lines(LONG, None).plain.splitlines()[0] == f"warn  open files      {LONG.text}"


def distbench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "distbench.cli.main", "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "NO_COLOR": "1", **environment},
        check=False,
    )


@pytest.mark.slow
def test_the_command_in_words(fast_server: EmbeddedServer) -> None:
    """Headings, lines, a last sentence; nothing on stderr, no colour; wrong options are exit code 2."""
    done = distbench(fast_server.url, "--no-self-test")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if line in ("Machine", "Ray", "Target", "Load")] == [
        "Machine",
        "Ray",
        "Target",
        "Load",
    ]
    assert lines[-1].startswith("Ready")
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    wrong = distbench("--connections", "many")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--connections" in wrong.stderr


@pytest.mark.slow
def test_the_command_in_json() -> None:
    """One object on stdout, with the exit code of the process, a status and the readings of each line."""
    done = distbench(f"http://127.0.0.1:{refused_port()}", "--no-self-test", "--json")
    assert done.returncode == 4
    told = json.loads(done.stdout)
    assert (told["schema"], told["status"], told["exit_code"]) == (1, "fail", 4)
    by_name = {check["name"]: check for check in told["checks"]}
    assert (by_name["connect"]["group"], by_name["connect"]["status"]) == ("target", "fail")
    assert by_name["open files"]["values"]["connections"] == 1024


@pytest.mark.slow
def test_one_client_is_measured() -> None:
    """The self-test reads tokens of the embedded server, none of its requests fails, and CPU time was spent."""
    test = run_self_test(1.0)
    assert test.failed == 0
    assert test.tokens > 100
    assert 0 < test.cpu_s < test.wall_s * (os.cpu_count() or 1)


@pytest.mark.ray
def test_the_command_on_a_cluster(fast_server: EmbeddedServer) -> None:
    """All three nodes tell their versions and readings; clocks and connects come from the two that may hold clients."""
    with ray_nodes({"num_cpus": 1}, {"num_cpus": 1}) as nodes:
        options = ("--ray-address", nodes.address, "--no-self-test", "--json")
        # Ray would else take the loopback address of this cluster for that of a network card.
        done = distbench(fast_server.url, *options, RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
    assert done.returncode == 0, done.stdout + done.stderr
    by_name = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert by_name["ray"]["text"] == "3 nodes, room for 2 clients"
    assert len(by_name["ray"]["values"]["nodes"]) == len(by_name["open files"]["parts"]) == 3
    assert (by_name["versions"]["status"], by_name["versions"]["values"]["differing"]) == ("ok", {})
    assert by_name["clock offsets"]["text"] == "all clients read one clock"
    assert len(by_name["wall clocks"]["values"]["ahead_s"]) == 2
    assert len(by_name["connect"]["values"]["connect_s"]) == 3  # the driver's own try, and the clients'
    assert by_name["clients"]["values"]["places"] == 2
