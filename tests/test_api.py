"""The Python API: frames with Arrow's types, light to import, plans from tables and files; and every example of its page runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

import distbench
from distbench.core.plan_io import build_plan
from distbench.errors import PlanError, StoreError
from distbench.experiment import commands
from distbench.experiment.result import RunResult
from distbench.store.schema import LEVELS, REQUESTS
from tests.support.synthetic_run import write_run

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small run directory."""
    return write_run(
        tmp_path_factory.mktemp("api") / "run", connections=(4, 8), requests=60, repeats=1, seats=6
    )


def test_importing_the_package_loads_nothing_heavy() -> None:
    """`import distbench` loads neither pandas nor Arrow nor numpy; the names come when they are used."""
    script = (
        "import sys, distbench\n"
        "heavy = {'pandas', 'pyarrow', 'numpy', 'ray', 'plotly'}\n"
        "print(sorted(heavy & sys.modules.keys()), callable(distbench.load), callable(distbench.run))\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)

    assert ran.stdout == "[] True True\n"


def test_unknown_name_is_an_attribute_error() -> None:
    """A name that is not there fails as in any module."""
    with pytest.raises(AttributeError, match="no attribute 'loads'"):
        distbench.__getattr__("loads")


def test_frames_have_arrow_types_and_all_columns(path: Path) -> None:
    """Each frame has the columns of its schema, with Arrow's types: null stays null and integers stay integers."""
    run = distbench.load(path)

    assert list(run.requests.columns) == REQUESTS.names
    assert list(run.levels.columns) == LEVELS.names
    assert all(isinstance(dtype, pd.ArrowDtype) for dtype in run.requests.dtypes)
    assert str(run.requests["sent_ns"].dtype) == "int64[pyarrow]"
    assert run.requests["scheduled_ns"].isna().all()
    assert len(run.clients) > 0
    assert set(run.server["name"]) > {"vllm:num_requests_running"}


def test_arrow_reads_only_what_is_asked_for(path: Path) -> None:
    """to_arrow gives the named columns of the named level."""
    table = distbench.load(path).to_arrow("requests", ["sent_ns", "outcome"], level=1)

    assert table.schema.names == ["sent_ns", "outcome"]
    assert table.num_rows == 60
    assert distbench.load(path).to_arrow("levels").num_rows == 4


def test_run_tells_of_itself(path: Path) -> None:
    """Status, plan and findings are those of the files; a notebook gets a table, a page is HTML."""
    run = distbench.load(path)

    assert (run.status, run.exit_code) == ("complete", None)
    assert run.plan["command"] == run.info.command == "capacity"
    assert run.findings["schema"] == 1
    assert repr(run) == f"<distbench.Run {path} (capacity, complete)>"
    assert "<table" in run._repr_html_()


def test_load_refuses_what_is_no_run(tmp_path: Path) -> None:
    """A folder without run.json is a StoreError."""
    with pytest.raises(StoreError, match="not a run directory"):
        distbench.load(tmp_path)


@pytest.mark.parametrize("form", ["table", "file", "plan"])
def test_run_takes_a_plan_in_any_form(
    form: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table, a plan file and a Plan are the same plan; what comes back is the loaded run with its exit code."""
    table = {"command": "run", "urls": ["http://127.0.0.1:1"], "connections": 4}
    (tmp_path / "plan.toml").write_text('command = "run"\nurls = ["http://127.0.0.1:1"]\nconnections = 4\n')
    given: dict[str, Any] = {
        "table": table,
        "file": tmp_path / "plan.toml",
        "plan": build_plan("run", table, {}),
    }
    seen = []

    def carry_out(plan: object, observer: object) -> RunResult:
        seen.append(plan)
        return RunResult(
            run=str(path), status="complete", exit_code=3, rows=(), findings={}, errors={}, notes=()
        )

    monkeypatch.setattr(commands, "run_plan", carry_out)

    run = distbench.run(given[form])

    assert seen == [build_plan("run", table, {})]
    assert (run.path, run.exit_code) == (str(path), 3)


def test_run_refuses_a_wrong_plan(tmp_path: Path) -> None:
    """All problems of a plan are told, and a plan file that is not there is one of them."""
    with pytest.raises(PlanError) as caught:
        distbench.run({"command": "run", "urls": [], "connections": 0})
    assert len(caught.value.problems) == 2

    with pytest.raises(PlanError, match="cannot be read"):
        distbench.run(tmp_path / "none.toml")


def test_examples_of_the_page_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every example of docs/python-api.md that reads a run works on a run as it is."""
    text = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    examples = [block for block in _BLOCK.findall(text) if "distbench.run(" not in block]
    (path.parent / "runs").mkdir(exist_ok=True)
    link = path.parent / "runs" / "mine"
    if not link.exists():
        link.symlink_to(path)
    monkeypatch.chdir(path.parent)

    assert len(examples) >= 4
    names: dict[str, Any] = {}
    for example in examples:
        exec(compile(example, "docs/python-api.md", "exec"), names)
    levels = pq.read_table(path / "levels.parquet").to_pylist()
    assert int(names["answered"]) == sum(level["requests_ok"] for level in levels)
