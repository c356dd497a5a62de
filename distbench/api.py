"""
distbench from Python (floor above experiment and report): load a run, or carry out a plan.

    import distbench

    run = distbench.load("runs/20261129T200131Z-5f0c91ab")
    run.levels[["connections", "output_token_rate", "ttft_p99_s"]]

Tables are pandas frames whose columns are Arrow's (nothing is converted, null stays null), or Arrow tables. docs/python-api.md shows
DuckDB and Polars on the files themselves.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import pyarrow as pa

from distbench.analysis.outcome import RunOutcome, run_outcome
from distbench.core.plan import Plan
from distbench.core.plan_io import build_plan
from distbench.errors import PlanError
from distbench.store.reader import RunData, open_run
from distbench.store.runinfo import RunInfo

if TYPE_CHECKING:
    from distbench.experiment.observer import Observer

TableName = Literal["requests", "levels", "clients", "server"]


class Run:
    """
    One run directory, finished or not. Nothing is read before it is asked for, and each table at most once.

    Attributes:
        exit_code: What the command would have ended with; None where the run was loaded and not carried out here.
    """

    def __init__(self, data: RunData, exit_code: int | None = None) -> None:
        self._data = data
        self.exit_code = exit_code

    def __repr__(self) -> str:
        return f"<distbench.Run {self.path} ({self.info.command}, {self.status})>"

    @property
    def path(self) -> str:
        """Return the run directory, path or URI."""
        return self._data.uri

    @property
    def info(self) -> RunInfo:
        """Return run.json: versions, hosts, clocks, totals, notes."""
        return self._data.info

    @property
    def status(self) -> str:
        """Return running, complete, incomplete or interrupted."""
        return self._data.info.status

    @cached_property
    def plan(self) -> dict[str, Any]:
        """Return the effective plan, as plan.toml has it."""
        return self._data.plan()

    @cached_property
    def findings(self) -> dict[str, Any]:
        """Return verdict, limit, peak, knee, findings, as findings.json has them; a run that was killed is judged from its rows."""
        return self._outcome.findings

    @cached_property
    def _outcome(self) -> RunOutcome:
        return run_outcome(self._data)

    @cached_property
    def requests(self) -> pd.DataFrame:
        """Return all requests, one row each; to_arrow("requests", columns) reads fewer columns."""
        return _frame(self.to_arrow("requests"))

    @cached_property
    def levels(self) -> pd.DataFrame:
        """Return one row a level, as levels.parquet has them; a run that was killed is judged from its rows."""
        return _frame(self.to_arrow("levels"))

    @cached_property
    def clients(self) -> pd.DataFrame:
        """Return the health samples of the clients, about one a second each."""
        return _frame(self.to_arrow("clients"))

    @cached_property
    def server(self) -> pd.DataFrame:
        """Return the scraped series of the servers: time_ns, target, name, labels, value."""
        return _frame(self.to_arrow("server"))

    def to_arrow(
        self, table: TableName = "requests", columns: Sequence[str] | None = None, *, level: int | None = None
    ) -> pa.Table:
        """
        Return one table as Arrow.

        Args:
            table: requests | levels | clients | server.
            columns: Only these; None: all.
            level: Of requests, only this level; None: all.

        Raises:
            KeyError: there is no such table or column.
            StoreError: a file cannot be read.
        """
        if table == "requests":
            return self._data.requests(level, columns)
        readers: dict[str, Callable[[], pa.Table]] = {
            "levels": self._outcome.table,
            "clients": self._data.clients,
            "server": self._data.server,
        }
        whole = readers[table]()
        return whole if columns is None else whole.select(list(columns))

    def to_html(self) -> str:
        """Return the report as one self-contained HTML page."""
        from distbench.report.html import report_html

        return report_html(self._data)

    def _repr_html_(self) -> str:
        """Show the levels in a notebook."""
        shown = ["connections", "output_token_rate", "request_rate", "ttft_p50_s", "ttft_p99_s", "verdict"]
        return str(self.levels[shown].to_html())


def load(path: str | os.PathLike[str]) -> Run:
    """
    Open a run directory.

    Args:
        path: Directory, or a URI that pyarrow.fs opens.

    Raises:
        StoreError: it is no run directory, or of another schema version.
    """
    return Run(open_run(path))


def run(plan: Plan | Mapping[str, Any] | str | os.PathLike[str], *, observer: Observer | None = None) -> Run:
    """
    Carry out a plan and return its run; Ctrl-C ends it in order and keeps what was measured.

    Args:
        plan: A Plan; its table, with the keys of docs/plan-reference.md and "command"; or the path of a plan.toml.
        observer: Gets told while it runs; None: nobody.

    Returns:
        The run; its exit_code is what the command would have ended with.

    Raises:
        PlanError, StoreError, TargetError, FleetError: it could not start.
    """
    from distbench.experiment.commands import run_plan

    result = run_plan(_as_plan(plan), observer)
    return Run(open_run(result.run), result.exit_code)


def _as_plan(plan: Plan | Mapping[str, Any] | str | os.PathLike[str]) -> Plan:
    if isinstance(plan, Plan):
        return plan
    name = "plan"
    if not isinstance(plan, Mapping):
        name = os.fspath(plan)
        try:
            plan = tomllib.loads(Path(name).read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise PlanError([f"plan {name}: cannot be read: {error}"]) from None
    return build_plan(str(plan.get("command", "run")), plan, {}, file_name=name)


def _frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)
