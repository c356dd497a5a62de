"""What run.json says: the state, settings, machines, clocks and totals of a run (floor F2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from distbench.core.levels import LevelSpec
from distbench.errors import StoreError
from distbench.store.schema import SCHEMA_VERSION

STATUSES = ("running", "complete", "incomplete", "interrupted")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Measured requests of the whole run; planned = ok + failed + cut + dropped + lost once it has ended."""

    planned: int = 0
    ok: int = 0
    failed: int = 0
    cut: int = 0
    dropped: int = 0
    lost: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """
    The content of run.json. It holds no key, ever.

    Attributes:
        schema: Version of the run directory's format.
        status: running | complete | incomplete | interrupted.
        command: run | capacity | shapes.
        plan: The effective plan, as plan.toml has it.
        versions: Program -> version (distbench, python, ray, pyarrow, ...).
        hosts: One object per client: where it lives (HostInfo).
        clients_per_host: Host -> number of clients that it really held.
        clock_offsets_start, clock_offsets_end: One object per client (ClockOffset), before and after the load; [] = not measured.
        epoch_wall_ns: Wall time (UTC, unix) of the run's epoch, which all stamps of the dataset count from.
        epoch_monotonic_ns: The same instant on the driver's CLOCK_MONOTONIC.
        ended_wall_ns: Wall time of the end; None while it runs or where it was killed.
        seeds: Purpose -> seed.
        totals: Requests by outcome.
        levels: One object per level in order: its settings (LevelSpec), and what the driver adds to them.
        notes: Sentences on what a reader should know (a lost client, fewer clients than asked, ...).
        extra: Keys of a newer writer, kept as they are.
    """

    schema: int = SCHEMA_VERSION
    status: str = "running"
    command: str = "run"
    plan: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versions: Mapping[str, str] = dataclasses.field(default_factory=dict)
    hosts: Sequence[Mapping[str, Any]] = ()
    clients_per_host: Mapping[str, int] = dataclasses.field(default_factory=dict)
    clock_offsets_start: Sequence[Mapping[str, Any]] = ()
    clock_offsets_end: Sequence[Mapping[str, Any]] = ()
    epoch_wall_ns: int = 0
    epoch_monotonic_ns: int = 0
    ended_wall_ns: int | None = None
    seeds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    totals: Totals = dataclasses.field(default_factory=Totals)
    levels: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status must be one of {', '.join(STATUSES)}, got {self.status!r}")

    def to_json(self) -> dict[str, Any]:
        """Return the object of run.json, keys of a newer writer included."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "extra"}
        return {**values, "totals": dataclasses.asdict(self.totals), **self.extra}

    def level_specs(self) -> list[LevelSpec]:
        """Return the levels' settings; what the driver added to them is left out."""
        known = {f.name for f in dataclasses.fields(LevelSpec)}
        return [LevelSpec(**{k: v for k, v in level.items() if k in known}) for level in self.levels]


def level_entry(spec: LevelSpec, **more: Any) -> dict[str, Any]:
    """Return the object of one level for RunInfo.levels, with what the driver wants to add (start, lost clients, ...)."""
    return {**dataclasses.asdict(spec), **more}


def info_from_json(values: Mapping[str, Any], where: str) -> RunInfo:
    """
    Read the object of run.json.

    Args:
        values: The object.
        where: The run directory, named in errors.

    Raises:
        StoreError: it is of another schema version, or no run's; unknown keys are kept in extra.
    """
    if "schema" not in values or "status" not in values:
        raise StoreError(f"{where} is not a run directory: its run.json has no schema and status")
    if values["schema"] != SCHEMA_VERSION:
        raise StoreError(
            f"{where} is of schema version {values['schema']}, this distbench reads version {SCHEMA_VERSION}; "
            "use the version of distbench that wrote it (run.json: versions)"
        )
    fields = {f.name for f in dataclasses.fields(RunInfo)} - {"extra", "totals"}
    known = {key: value for key, value in values.items() if key in fields}
    totals_fields = {f.name for f in dataclasses.fields(Totals)}
    totals = {k: v for k, v in dict(values.get("totals", {})).items() if k in totals_fields}
    extra = {k: v for k, v in values.items() if k not in fields and k != "totals"}
    try:
        return RunInfo(**known, totals=Totals(**totals), extra=extra)
    except ValueError as error:
        raise StoreError(f"{where}: run.json: {error}") from None
