"""A run directory is made for one run alone, and its small files appear whole or not at all."""

from __future__ import annotations

import datetime
import json
import math
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from distbench.core.levels import LevelSpec
from distbench.errors import EXIT_USAGE, StoreError
from distbench.store.jsonio import clean, dumps, loads
from distbench.store.rundir import RunDir, new_run_name
from distbench.store.runinfo import RunInfo, Totals, info_from_json, level_entry
from distbench.store.schema import LEVELS, SCHEMA_VERSION


def strict(data: bytes) -> Any:
    """Read JSON and refuse NaN and Infinity, as jq and JavaScript do."""

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} in JSON")

    return json.loads(data, parse_constant=refuse)


def test_two_runs_in_the_same_second_have_different_names() -> None:
    """The name's random part, not its time, keeps runs apart."""
    now = datetime.datetime(2026, 11, 29, 20, 1, 31, tzinfo=datetime.UTC)
    names = {new_run_name(now) for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("20261129T200131Z-") for name in names)


def test_default_directory_is_below_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name the run gets one of its own below runs/, private to its owner."""
    monkeypatch.chdir(tmp_path)
    first, second = RunDir.create(), RunDir.create()
    assert first.uri != second.uri
    assert Path(first.uri).parent == Path("runs")
    assert stat.S_IMODE(Path(first.uri).stat().st_mode) == 0o700


def test_files_are_private_even_in_a_folder_that_is_not(tmp_path: Path) -> None:
    """An empty folder of the user keeps its mode; what is written into it is readable by its owner only."""
    tmp_path.chmod(0o755)
    RunDir.create(tmp_path).write_info(RunInfo())
    assert stat.S_IMODE((tmp_path / "run.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_missing_parents_are_made(tmp_path: Path) -> None:
    """The parents of the run directory need not be there."""
    RunDir.create(tmp_path / "a" / "b" / "run")
    assert (tmp_path / "a" / "b" / "run").is_dir()


def test_a_directory_is_taken_once(tmp_path: Path) -> None:
    """The second run with the same directory is refused, though the first has written no file yet."""
    RunDir.create(tmp_path / "run")
    with pytest.raises(StoreError, match=r"is not empty; name one that is absent or empty$") as caught:
        RunDir.create(tmp_path / "run")
    assert caught.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.write_text("x"), "is a file; name a folder that is absent or empty"),
        (lambda p: (p.mkdir(), (p / "old").touch()), "is not empty"),
        (lambda p: p.symlink_to(p.parent / "nowhere"), "is a file"),
    ],
    ids=["file", "not-empty", "dangling-link"],
)
def test_what_is_no_empty_folder_is_refused(tmp_path: Path, make: Any, message: str) -> None:
    """A file, a folder with something in it or a dangling link is refused in one sentence, and left as it was."""
    path = tmp_path / "run"
    make(path)
    with pytest.raises(StoreError, match=message) as caught:
        RunDir.create(path)
    assert "\n" not in str(caught.value)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error says which directory and why."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        StoreError, match=r"cannot create the run directory .*file/run: (File exists|Not a directory)"
    ):
        RunDir.create(tmp_path / "file" / "run")
    with pytest.raises(StoreError, match="cannot create the run directory /proc/run"):
        RunDir.create("/proc/run")


def test_a_run_that_never_started_leaves_nothing(tmp_path: Path) -> None:
    """Discarding removes what creating made, and nothing that was written or there before."""
    created = RunDir.create(tmp_path / "a")
    created.discard()
    assert not (tmp_path / "a").exists()
    (tmp_path / "b").mkdir()
    RunDir.create(tmp_path / "b").discard()
    assert list((tmp_path / "b").iterdir()) == []
    kept = RunDir.create(tmp_path / "c")
    kept.write_info(RunInfo())
    kept.discard()
    assert (tmp_path / "c" / "run.json").exists()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails half-way leaves the file of before and no temporary one."""
    run = RunDir.create(tmp_path / "run")
    run.write_info(RunInfo(status="running"))

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match=r"cannot write .*run\.json: No space left on device"):
        run.write_info(RunInfo(status="complete"))
    assert strict((tmp_path / "run" / "run.json").read_bytes())["status"] == "running"
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["requests", "run.json"]


def test_json_has_null_and_a_reason_where_a_number_is_not_finite() -> None:
    """NaN and Infinity never reach a file: null stands there, and a key beside it says what it was."""
    value = {
        "rate": math.inf,
        "mean": np.float64("nan"),
        "mean_reason": "no observations",
        "list": [math.nan, 1.5],
    }
    assert strict(dumps(value)) == {
        "rate": None,
        "rate_reason": "not finite: inf",
        "mean": None,
        "mean_reason": "no observations",
        "list": [None, 1.5],
    }


def test_json_takes_what_analysis_hands_over() -> None:
    """Numpy numbers and arrays, dataclasses, sets, tuples and odd texts all have their JSON."""
    spec = LevelSpec(level=1, connections=8, requests=80, warmup=8)
    cleaned = clean({"n": np.int64(3), "a": np.array([1, 2]), "s": {2, 1}, "b": np.bool_(True), 7: spec})
    assert (cleaned["n"], cleaned["a"], cleaned["s"], cleaned["b"]) == (3, [1, 2], [1, 2], True)
    assert cleaned["7"]["connections"] == 8
    assert strict(dumps({"text": "\ud800 日"})) == {"text": "\ud800 日"}


@pytest.mark.parametrize("data", [b"{", b"[1]", b'"x"', b"\xff"], ids=["torn", "list", "text", "not-utf8"])
def test_what_is_no_json_object_is_refused(data: bytes) -> None:
    """A torn or foreign file is named in one StoreError."""
    with pytest.raises(StoreError, match=r"^run\.json is not"):
        loads(data, "run.json")


def test_run_info_comes_back_with_keys_of_a_newer_writer() -> None:
    """run.json read and written again keeps what this version does not know."""
    spec = LevelSpec(level=2, connections=8, requests=80, warmup=8)
    info = RunInfo(
        status="complete",
        totals=Totals(planned=80, ok=79, failed=1),
        levels=[level_entry(spec, start_ns=5)],
        extra={"future": 1},
    )
    written = strict(dumps(info.to_json()))
    assert written["schema"] == SCHEMA_VERSION
    assert written["future"] == 1
    back = info_from_json(written, "x")
    assert back.totals == Totals(planned=80, ok=79, failed=1)
    assert back.extra == {"future": 1}
    assert back.level_specs() == [spec]
    assert strict(dumps(back.to_json())) == written


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"schema": SCHEMA_VERSION + 1, "status": "complete"},
            "is of schema version 2, this distbench reads version 1",
        ),
        ({}, "is not a run directory"),
        ({"schema": SCHEMA_VERSION, "status": "odd"}, "status must be one of"),
    ],
    ids=["newer", "foreign", "odd-status"],
)
def test_other_run_json_is_refused(values: dict[str, Any], message: str) -> None:
    """Another schema version or no run's file is refused with a sentence."""
    with pytest.raises(StoreError, match=message):
        info_from_json(values, "RUN")


def test_plan_and_levels_are_written_in_their_formats(tmp_path: Path) -> None:
    """plan.toml is TOML without the settings at None; levels.parquet has the schema of the contract."""
    run = RunDir.create(tmp_path / "run")
    run.write_plan({"command": "run", "urls": ["http://h:1/v1"], "model": None, "seed": 0})
    run.write_levels(LEVELS.empty_table())
    table = tomllib.loads((tmp_path / "run" / "plan.toml").read_text())
    assert table == {"command": "run", "urls": ["http://h:1/v1"], "seed": 0}
    assert pq.read_schema(tmp_path / "run" / "levels.parquet").equals(LEVELS)


def test_access_keys_of_the_output_are_written_nowhere(tmp_path: Path) -> None:
    """A URI with keys in it is written without them, in plan.toml and in run.json."""
    plan = {"output": "s3://AKEY:SKEY@bucket/run?secret_key=SKEY", "seed": 0}
    run = RunDir.create(tmp_path / "run")
    run.write_plan(plan)
    run.write_info(RunInfo(plan=plan))
    for name in ("plan.toml", "run.json"):
        text = (tmp_path / "run" / name).read_text()
        assert "KEY" not in text
        assert "s3://bucket/run" in text


def test_room_is_set_aside_for_the_end_and_seen_by_no_reader(tmp_path: Path) -> None:
    """Half a megabyte that the disk has for certain; a run that never started leaves it no more than anything else."""
    run = RunDir.create(tmp_path / "r")
    run.storage.reserve()
    assert sum(path.stat().st_size for path in (tmp_path / "r").rglob("*") if path.is_file()) == 512 * 1024
    assert run.storage.names("") == []
    run.storage.release()
    run.storage.release()
    assert [path for path in (tmp_path / "r").rglob("*") if path.is_file()] == []
    run.storage.reserve()
    run.discard()
    assert not (tmp_path / "r").exists()
