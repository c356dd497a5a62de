"""The commands that read run directories: exit codes, files that are not overwritten, one message per mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distbench.cli.main import invoke
from tests.support.synthetic_run import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small run."""
    path = tmp_path_factory.mktemp("runs") / "base"
    return write_run(path, connections=(4, 8), requests=80, repeats=2, seats=6, chunks=False)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same on a server that is a fifth slower."""
    path = tmp_path_factory.mktemp("runs") / "slower"
    return write_run(
        path, connections=(4, 8), requests=80, repeats=2, seats=6, chunks=False, speed=0.8, seed=7
    )


def test_report_prints_text_and_writes_html(
    run: Path, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Text goes to stdout; --html writes the file and prints nothing."""
    assert invoke(["report", str(run)]) == 0
    assert b"output tokens/s" in capfdbinary.readouterr().out

    assert invoke(["report", str(run), "--html", str(tmp_path / "r.html")]) == 0
    assert capfdbinary.readouterr().out == b""
    assert (tmp_path / "r.html").read_text().startswith("<!doctype html>")


def test_report_formats(run: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """JSON is one object, Markdown begins with its title."""
    assert invoke(["report", str(run), "--format", "json"]) == 0
    assert json.loads(capfdbinary.readouterr().out)["info"]["command"] == "capacity"
    assert invoke(["report", str(run), "--format", "markdown"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"# distbench capacity")


def test_file_is_not_overwritten_unasked(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file that exists is kept, with exit code 2 and one line that names --force; --force replaces it."""
    target = tmp_path / "out.csv"
    target.write_text("mine")

    assert invoke(["export", str(run), "--format", "csv", "--output", str(target)]) == 2
    assert target.read_text() == "mine"
    assert capfd.readouterr().err == f"distbench: {target} exists; --force overwrites it\n"

    assert invoke(["export", str(run), "--format", "csv", "--output", str(target), "--force"]) == 0
    assert target.read_text().startswith('"level",')
    assert list(tmp_path.iterdir()) == [target]


def test_failed_export_leaves_no_file(run: Path, tmp_path: Path) -> None:
    """A refused export leaves neither a file nor a temporary one."""
    arguments = ["export", str(run), "--format", "csv", "--level", "77", "--output", str(tmp_path / "x.csv")]

    assert invoke(arguments) == 2
    assert list(tmp_path.iterdir()) == []


def test_folder_that_is_not_there_is_told(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A file in a folder that does not exist ends with exit code 2 and one line."""
    assert invoke(["report", str(run), "--html", str(tmp_path / "no" / "r.html")]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("command", [["report"], ["export", "--format", "csv"], ["compare", "elsewhere"]])
def test_what_is_no_run_is_refused(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A folder without run.json ends with exit code 2 and one line, no traceback."""
    assert invoke([*command, str(tmp_path)]) == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


def test_compare_exits_3_on_a_regression(run: Path, slower: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A fifth less throughput misses -5 %, and does not miss -50 %; without a gate the exit code is 0."""
    both = ["compare", str(run), str(slower)]

    assert invoke(both) == 0
    assert invoke([*both, "--fail-on", "throughput:-5%"]) == 3
    assert "regression: throughput:-5%" in capfd.readouterr().out
    assert invoke([*both, "--fail-on", "throughput:-50%", "--fail-on", "ttft_p99:+200%"]) == 0


def test_compare_reads_gates_before_runs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Wrong gates are told at once, all of them, with exit code 2, before any run is opened."""
    arguments = ["compare", "a", "b", "--fail-on", "throughput:+5%", "--fail-on", "speed:-5%"]

    assert invoke(arguments) == 2
    assert capfd.readouterr().err.startswith("distbench: 2 problems:")


def test_gate_that_cannot_be_judged_exits_2(run: Path) -> None:
    """A place that the runs do not have in common is not passed in silence."""
    assert invoke(["compare", str(run), str(run), "--fail-on", "throughput@99:-5%"]) == 2


def test_compare_needs_two_runs(run: Path) -> None:
    """One run alone is a usage error."""
    assert invoke(["compare", str(run)]) == 2


def test_compare_writes_html_and_json(
    run: Path, slower: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """--html writes the page, --format json prints the object beside it."""
    page = tmp_path / "c.html"

    assert invoke(["compare", str(run), str(slower), "--html", str(page), "--format", "json"]) == 0
    assert json.loads(capfd.readouterr().out)["comparisons"][0]["same_workload"] is True
    assert "comparison-data" in page.read_text()
