"""A run whose driver was killed before it could write its levels and findings: whoever reads it sees them all the same."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import distbench
from distbench.analysis.outcome import run_errors, run_outcome
from distbench.report.compare import compare_runs
from distbench.report.export import export
from distbench.report.figures import report_figures
from distbench.sim.embedded import EmbeddedServer
from distbench.store.reader import open_run
from tests.support.small_run import small_run
from tests.support.stub_server import ONE_MODEL, STREAM, Answer, Reply, Seen, stub_server

pytestmark = pytest.mark.slow

FIGURES = (
    "level",
    "connections",
    "output_token_rate",
    "request_rate",
    "ttft_p99_s",
    "requests_ok",
    "verdict",
)


@pytest.fixture(scope="module")
def whole_run(fast_server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a finished run."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    small_run(fast_server.url, path, connections="4", requests=80)
    return path


@pytest.fixture
def killed_run(whole_run: Path, tmp_path: Path) -> Path:
    """Give a copy of it as a killed driver leaves it."""
    path = shutil.copytree(whole_run, tmp_path / "killed")
    (path / "levels.parquet").unlink()
    (path / "findings.json").unlink()
    info = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps(info | {"status": "running"}))
    return path


def figures(rows: Sequence[Mapping[Any, object]]) -> list[tuple[object, ...]]:
    """Return the figures of rows that are compared."""
    return [tuple(row[name] for name in FIGURES) for row in rows]


def test_every_reader_of_a_killed_run_has_its_levels(killed_run: Path, whole_run: Path) -> None:
    """Report, Python API and export give what the whole run's files hold."""
    expected = figures(pq.read_table(whole_run / "levels.parquet").to_pylist())
    run = open_run(killed_run)
    out = BytesIO()
    export(run, "parquet", out, table="levels")
    assert figures(run_outcome(run).rows) == expected
    assert figures(report_figures(run).rows) == expected
    assert figures(pq.read_table(BytesIO(out.getvalue())).to_pylist()) == expected
    loaded = distbench.load(killed_run)
    assert figures(loaded.levels.to_dict("records")) == expected
    assert loaded.findings["peak"] == json.loads((whole_run / "findings.json").read_text())["peak"]


def test_a_killed_run_can_be_compared(killed_run: Path, whole_run: Path) -> None:
    """Its level is found again at the same connections."""
    compared = compare_runs([str(whole_run), str(killed_run)], [])
    assert [point.connections for point in compared.comparisons[0].points] == [4]


def test_errors_are_counted_alike_from_rows_and_from_levels(tmp_path: Path) -> None:
    """Every request fails: the rows, read in parts, and the judged levels count the same kinds and numbers."""
    routes: dict[str, Answer] = {"GET /v1/models": ONE_MODEL, "POST /v1/chat/completions": _once_then_busy()}
    with stub_server(routes) as (url, _):
        result = small_run(url, tmp_path / "r", no_metrics=True, connections="2", requests=12)
    run = open_run(tmp_path / "r")
    outcome = run_outcome(run)
    assert outcome.verdict is None
    assert run_errors(run, outcome) == result.errors
    assert sum(count for count, _ in result.errors.values()) == 12


def _once_then_busy() -> Callable[[Seen], Reply]:
    answers = iter([STREAM])
    return lambda _: next(answers, Reply(503, {"error": {"message": "busy"}}))
