"""What a new user gets wrong first: each ends with one clear message, the right exit code and no traceback."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stub_server import ONE_MODEL, STREAM, Answer, Reply, stub_server

CHAT = "POST /v1/chat/completions"
MODELS = "GET /v1/models"


def distbench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "distbench.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


def refused(result: subprocess.CompletedProcess[str], code: int) -> str:
    """Return the message of a refused command; it must be short, on stderr, and no traceback."""
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert len(result.stderr.splitlines()) < 12
    return result.stderr


@pytest.fixture(scope="module")
def usable() -> Iterator[str]:
    """A server that passes the preflight."""
    with stub_server({MODELS: ONE_MODEL, CHAT: STREAM}) as (url, _):
        yield url


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], ["no target", "http://127.0.0.1:8000"]),
        (["run", "127.0.0.1:8000"], ["must begin with http://"]),
        (["run", "http://h:1", "--connections", "0"], ["connections must be at least 1, got 0"]),
        (["run", "http://h:1", "--connections", "many"], ["--connections", "whole number"]),
        (["run", "http://h:1", "--pattern", "poisson"], ["needs a rate"]),
        (["run", "http://h:1", "--timeout-total", "soon"], ["--timeout-total", "500ms"]),
        (["run", "http://user:pw@h:1"], ["--api-key-env"]),
        (["run", "http://h:1", "--slo", "speed=1s"], ["slo", "ttft"]),
        (["capacity", "http://h:1", "--start", "8", "--max", "4"], ["max (4) is below start (8)"]),
        (["run", "http://h:1", "--plan", "no-such.toml"], ["no-such.toml", "No such file"]),
        (["run", "http://h:1", "--conections", "3"], ["--conections", "--connections"]),
        (["rnu", "http://h:1"], ["No such command", "rnu"]),
        (["capacity", "--resume", "no-such-run"], ["no-such-run"]),
    ],
    ids=lambda value: (
        " ".join(value) if isinstance(value, list) and value[0] in ("run", "capacity", "rnu") else ""
    ),
)
def test_wrong_options_are_exit_code_two(arguments: list[str], words: list[str]) -> None:
    """Options and plans are checked before anything else, and the message says what to write."""
    text = refused(distbench(*arguments), 2)
    assert [word for word in words if word not in text] == []
    assert ":pw@" not in text


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    """Problems of the plan file and of the flags come in one list; a typo is named with what was meant."""
    plan = tmp_path / "plan.toml"
    plan.write_text('conections = 3\nrequests = 0\n[slo]\nttft = "fast"\n')
    text = refused(distbench("run", "http://h:1", "--plan", str(plan), "--rate", "x"), 2)
    wanted = [
        "4 problems",
        "'conections'; did you mean 'connections'",
        "requests must be at least 1",
        "--rate",
        "'fast'",
    ]
    assert [word for word in wanted if word not in text] == []


def test_an_output_that_is_taken_is_refused(tmp_path: Path) -> None:
    """A directory with something in it is never written to, and the target is not even asked."""
    (tmp_path / "notes").write_text("mine")
    assert "not empty" in refused(distbench("run", "http://127.0.0.1:1", "--output", str(tmp_path)), 2)


@pytest.mark.slow
def test_an_output_that_cannot_be_written_is_refused() -> None:
    """/proc takes no folders, from root neither."""
    assert "/proc/runs" in refused(distbench("run", "http://127.0.0.1:1", "--output", "/proc/runs"), 2)


@pytest.mark.slow
def test_a_missing_dataset_is_refused(tmp_path: Path) -> None:
    """The file of a data set is opened before anything is asked of the target."""
    text = refused(
        distbench(
            "run", "http://127.0.0.1:1", "--dataset", "jsonl", "--dataset-path", str(tmp_path / "x.jsonl")
        ),
        2,
    )
    assert "x.jsonl" in text


def test_a_closed_port_is_exit_code_four(tmp_path: Path) -> None:
    """Nothing listens: one sentence, and no run directory is left."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        text = refused(distbench("run", url, "--output", str(tmp_path / "r")), 4)
    assert "is the server running there?" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("routes", "options", "words"),
    [
        ({MODELS: ONE_MODEL, CHAT: STREAM}, ["--model", "gpt-x"], ["no model 'gpt-x'", "m"]),
        ({MODELS: Reply(401, {"error": "Unauthorized"})}, [], ["401", "--api-key-env"]),
        (
            {MODELS: ONE_MODEL, CHAT: Reply(400, {"error": {"message": "no chat template"}})},
            [],
            ["no chat template"],
        ),
    ],
    ids=["unknown-model", "401", "400"],
)
def test_a_target_that_refuses_is_exit_code_four(
    routes: dict[str, Answer], options: list[str], words: list[str], tmp_path: Path
) -> None:
    """The server's own words are shown, with what to do."""
    with stub_server(routes) as (url, _):
        text = refused(distbench("run", url, *options, "--output", str(tmp_path / "r")), 4)
    assert [word for word in words if word not in text] == []


@pytest.mark.slow
def test_the_key_is_never_shown(tmp_path: Path) -> None:
    """A key that is refused is named by its variable."""
    with stub_server({MODELS: Reply(401, {"error": "Unauthorized"})}) as (url, _):
        result = distbench(
            "run", url, "--api-key-env", "MY_KEY", "--output", str(tmp_path / "r"), MY_KEY="sk-secret"
        )
    text = refused(result, 4)
    assert "the key in MY_KEY is refused" in text
    assert "sk-secret" not in text


@pytest.mark.slow
def test_dry_run_sends_nothing_and_tells_the_plan(tmp_path: Path) -> None:
    """The target does not even exist; the levels, the prompts and an estimate are told."""
    result = distbench(
        "capacity", "http://127.0.0.1:1", "--max", "4", "--dry-run", "--output", str(tmp_path / "r")
    )
    assert result.returncode == 0, result.stderr
    assert [
        word
        for word in ("estimated_time_s", '"connections": 4', "max_tokens: 128")
        if word not in result.stdout
    ] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.ray
def test_more_clients_than_cpus_is_exit_code_two_with_both_numbers(usable: str, tmp_path: Path) -> None:
    """A fleet that cannot be placed is refused in seconds, not waited for."""
    text = refused(
        distbench(
            "run", usable, "--clients", "500", "--quiet", "--output", str(tmp_path / "r"), "--no-metrics"
        ),
        2,
    )
    assert "500 clients asked" in text
    assert f"{os.cpu_count()} can be placed" in text
