"""Part files hold every row that was handed over, appear whole, and appear in time."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from distbench.errors import StoreError
from distbench.store.reader import RunData, open_run
from distbench.store.recorder import Recorder
from distbench.store.rundir import RunDir
from distbench.store.runinfo import RunInfo
from distbench.store.schema import REQUESTS
from distbench.store.storage import RemoteStorage
from tests.store.tables import clients_table, requests_table, server_table


class ManualTime:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def new_run(path: Path) -> RunDir:
    """Return a run directory that open_run accepts."""
    run = RunDir.create(path)
    run.write_info(RunInfo())
    return run


def test_parts_are_written_when_their_time_has_come(tmp_path: Path) -> None:
    """A part waits for the given time after its first row, however many rows follow; then tick writes it."""
    clock = ManualTime()
    recorder = Recorder(new_run(tmp_path / "run"), flush_after_s=2.5, now_s=clock)
    recorder.add_requests(requests_table(3, level=3, client=7), level=3, client=7)
    clock.now_s = 2.4
    recorder.add_requests(requests_table(2, level=3, client=7, first=3), level=3, client=7)
    assert recorder.tick() == 0
    assert recorder.rows_waiting == 5
    clock.now_s = 2.5
    assert recorder.tick() == 1
    part = tmp_path / "run" / "requests" / "level-0003" / "client-0007-00000.parquet"
    assert pq.read_table(part, partitioning=None)["index"].to_pylist() == [0, 1, 2, 3, 4]
    assert (recorder.rows_waiting, recorder.rows_written) == (0, 5)


def test_a_large_part_is_written_at_once(tmp_path: Path) -> None:
    """The number of rows bounds what waits in memory."""
    recorder = Recorder(new_run(tmp_path / "run"), max_rows=4)
    for first in (0, 3, 6):
        recorder.add_requests(requests_table(3, first=first), level=0, client=0)
    assert recorder.rows_waiting == 3
    recorder.close()
    names = sorted(p.name for p in (tmp_path / "run" / "requests" / "level-0000").iterdir())
    assert names == ["client-0000-00000.parquet", "client-0000-00001.parquet"]


def test_all_three_kinds_have_their_place(tmp_path: Path) -> None:
    """Health samples and scraped series go to the folders of the contract."""
    run = new_run(tmp_path / "run")
    recorder = Recorder(run)
    recorder.add_clients(clients_table([1, 2], client=7), client=7)
    recorder.add_server(server_table([1.0, None]))
    recorder.close()
    assert run.storage.names("clients") == ["clients/client-0007-00000.parquet"]
    assert run.storage.names("server") == ["server/server-00000.parquet"]
    assert open_run(tmp_path / "run").server()["value"].to_pylist() == [1.0, None]


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    """A second recorder never writes over the parts of the first."""
    run = new_run(tmp_path / "run")
    for times in ([1], [2]):
        recorder = Recorder(RunDir.reopen(run.uri))
        recorder.add_clients(clients_table(times, client=0), client=0)
        recorder.close()
    assert open_run(run.uri).clients()["time_ns"].to_pylist() == [1, 2]


def test_another_schema_is_refused(tmp_path: Path) -> None:
    """Every part has the one schema; a table of another is a bug of the caller, told at once."""
    recorder = Recorder(new_run(tmp_path / "run"))
    with pytest.raises(ValueError, match="another schema"):
        recorder.add_requests(pa.table({"level": [1]}), level=1, client=0)


def test_a_full_disk_keeps_the_rows_and_leaves_nothing_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a write fails the error says where and why, no part file is left, and the rows are written when space is back."""
    recorder = Recorder(new_run(tmp_path / "run"))
    recorder.add_requests(requests_table(3), level=0, client=0)
    real_write = os.write

    def fail(_: int, __: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(StoreError, match=r"client-0000-00000\.parquet: No space left on device"):
        recorder.flush()
    assert [p for p in (tmp_path / "run").rglob("*") if p.is_file() and p.name != "run.json"] == []
    monkeypatch.setattr(os, "write", real_write)
    recorder.close()
    assert open_run(tmp_path / "run").requests().num_rows == 3


def test_a_file_size_limit_of_the_system_is_a_store_error(tmp_path: Path) -> None:
    """A real refusal of the kernel (file too large) half-way through a part leaves no part and no temporary file."""
    recorder = Recorder(new_run(tmp_path / "run"))
    recorder.add_requests(requests_table(2_000, error_text="x"), level=0, client=0)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, hard))
    try:
        with pytest.raises(StoreError, match="File too large"):
            recorder.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "run" / "requests" / "level-0000").iterdir()) == []
    assert recorder.rows_waiting == 2_000


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """On a file system of 64 KiB earlier parts stay readable when a later one does not fit."""
    mount = tmp_path / "small"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], check=False, capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("this system lets nobody mount")
    try:
        recorder = Recorder(new_run(mount / "run"))
        recorder.add_requests(requests_table(5), level=0, client=0)
        recorder.flush()
        noise = pa.array([os.urandom(150).hex() for _ in range(1_000)])
        big = requests_table(1_000, first=5)
        big = big.set_column(big.schema.get_field_index("error_text"), REQUESTS.field("error_text"), noise)
        recorder.add_requests(big, level=0, client=0)
        with pytest.raises(StoreError, match="No space left on device"):
            recorder.flush()
        data = open_run(mount / "run")
        assert data.requests().num_rows == 5
        assert data.skipped == {}
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_store_behind_pyarrow_takes_the_same_files() -> None:
    """Any file system of pyarrow.fs gets the same names; what is not an object store gets them by a move."""
    storage = RemoteStorage(pafs._MockFileSystem(), "bucket/run", "mock://bucket/run")
    storage.create_root()
    run = RunDir(storage)
    run.write_info(RunInfo(status="complete"))
    recorder = Recorder(run)
    recorder.add_requests(requests_table(4, level=1, client=2), level=1, client=2)
    recorder.close()
    assert storage.names("") == ["requests/level-0001/client-0002-00000.parquet", "run.json"]
    assert RunData(storage, RunInfo()).requests(level=1).num_rows == 4
    with pytest.raises(StoreError, match="is not empty"):
        storage.create_root()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    batches=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 5)), max_size=12),
    max_rows=st.integers(1, 9),
    ticks=st.sets(st.integers(0, 11)),
)
def test_rows_in_are_rows_out(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[int, int, int]],
    max_rows: int,
    ticks: set[int],
) -> None:
    """Whatever the order, sizes and flushes, every row handed over is read back once."""
    path = tmp_path_factory.mktemp("property") / "run"
    recorder = Recorder(new_run(path), max_rows=max_rows)
    expected: list[tuple[int, int, int]] = []
    for at, (level, client, size) in enumerate(batches):
        table = requests_table(size, level=level, client=client, first=at * 100)
        recorder.add_requests(table, level=level, client=client)
        expected += [(level, client, at * 100 + i) for i in range(size)]
        if at in ticks:
            recorder.tick(now_s=float("inf"))
    recorder.close()
    table = open_run(path).requests()
    assert table.schema == REQUESTS
    rows = zip(*(table[name].to_pylist() for name in ("level", "client", "index")), strict=True)
    assert sorted(rows) == sorted(expected)


_WRITER = """
import sys
from distbench.store.recorder import Recorder
from distbench.store.rundir import RunDir
from distbench.store.runinfo import RunInfo
from tests.store.tables import requests_table
run = RunDir.create(sys.argv[1])
run.write_info(RunInfo())
recorder = Recorder(run, max_rows=100)
for i in range(1_000_000):
    recorder.add_requests(requests_table(100, first=100 * i, error_text="x" * 300), level=0, client=0)
    print(i, flush=True)
"""


@pytest.mark.slow
def test_a_killed_writer_leaves_all_earlier_parts(tmp_path: Path) -> None:
    """SIGKILL in the middle of writing: what was announced as written is readable, nothing torn bears a result's name."""
    path = tmp_path / "run"
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert writer.stdout is not None
    with writer.stdout as lines:
        while int(lines.readline()) < 20:
            pass
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        announced = 21 + sum(1 for line in lines if line.endswith(b"\n"))
    data = open_run(path)
    assert data.info.status == "running"
    rows = data.requests().num_rows
    assert rows >= announced * 100
    assert data.skipped == {}
