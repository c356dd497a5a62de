"""
A run whose directory is in an object store: a real server of the S3 API (a folder behind it), reached as pyarrow reaches any.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from distbench.errors import StoreError
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from distbench.store.reader import open_run
from distbench.store.rundir import RunDir
from tests.support.command import SMALL, Command
from tests.support.ports import free_port

pytestmark = pytest.mark.slow

SECRET = "store-secret-4d1c"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "store-key",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
}


class Store:
    """A store with one bucket, "bench"; its objects are files below folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        command = [sys.executable, "-m", "localbucket", "--port", str(self.port), str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end_s = time.monotonic() + 20
        while True:
            try:
                httpx.put(f"http://127.0.0.1:{self.port}/bench").raise_for_status()
                return
            except httpx.TransportError:
                assert time.monotonic() < end_s
                time.sleep(0.1)

    def uri(self, name: str) -> str:
        """Return the URI of a folder."""
        return f"s3://bench/{name}?scheme=http&endpoint_override=127.0.0.1:{self.port}&region=us-east-1"

    def close(self) -> None:
        """End it; the objects stay."""
        self.process.kill()
        self.process.wait(10)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """Give a store."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "objects").mkdir()
    store = Store(tmp_path / "objects")
    yield store
    store.close()


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """Give a simulated server."""
    with EmbeddedServer(SimSettings()) as server:
        yield server


def distbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "distbench.cli.main", *arguments],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_run_goes_to_the_store_and_is_reported_from_it(store: Store, server: EmbeddedServer) -> None:
    """
    The same files as in a folder, all rows in them; no key of the store is in any, nor on the screen.

    The directory is taken then: another run is refused.
    """
    run = ("run", server.url, "--ray-address", "none", "--connections", "4", "--requests", "40", *SMALL[:-1])
    done = distbench(*run, "--output", store.uri("runs/first"))
    assert done.returncode == 0, done.stderr
    assert "everything is in s3://bench/runs/first" in done.stdout
    data = open_run(store.uri("runs/first"))
    assert (data.info.status, data.info.totals.ok) == ("complete", 40)
    phases = data.requests(columns=["phase"]).column(0).to_pylist()
    assert (phases.count("measured"), phases.count("warmup")) == (40, 4)
    assert data.server().num_rows > 0
    root = store.folder / "bench/runs/first"
    names = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}
    assert {"run.json", "plan.toml", "levels.parquet", "findings.json"} <= names
    assert [name for name in names if name.endswith(".tmp")] == []
    written = b"".join(path.read_bytes() for path in store.folder.rglob("*") if path.is_file())
    assert SECRET.encode() not in written
    assert SECRET not in done.stdout + done.stderr

    shown = distbench("report", store.uri("runs/first"))
    assert (shown.returncode, "40" in shown.stdout) == (0, True), shown.stderr
    again = distbench(*run, "--output", store.uri("runs/first"))
    assert again.returncode == 2
    assert "s3://bench/runs/first is not empty" in again.stderr


def test_a_bucket_that_is_not_there_is_refused_before_any_request(
    store: Store, server: EmbeddedServer
) -> None:
    """Exit code 2, the store's own words, and no key."""
    done = distbench("run", server.url, "--output", store.uri("x").replace("bench", "nowhere"))
    assert done.returncode == 2
    assert "s3://nowhere/x" in done.stderr
    assert SECRET not in done.stderr


def test_keys_in_the_uri_are_never_shown(store: Store) -> None:
    """Who writes them into the URI finds them in no message."""
    uri = store.uri("r").replace("s3://", f"s3://me:{SECRET}@").replace("bench", "nowhere")
    with pytest.raises(StoreError) as caught:
        RunDir.create(uri)
    assert SECRET not in str(caught.value)


def test_a_store_that_goes_away_ends_the_run_in_order(store: Store, server: EmbeddedServer) -> None:
    """Kill -9 of the store: exit code 1 and one sentence; the parts that were uploaded can be read when it is back."""
    options = ("--ray-address", "none", "--connections", "4", "--requests", "20000", *SMALL)
    with Command("run", server.url, *options, output=store.uri("runs/lost")) as command:
        folder = store.folder / "bench/runs/lost/requests"
        command.wait_until(lambda: list(folder.rglob("*.parquet")))
        os.kill(store.process.pid, signal.SIGKILL)
        assert command.wait(60) == 1
        assert "the run ended early: cannot write s3://bench/runs/lost/" in " ".join(command.shown.split())
        assert "Traceback" not in command.shown
    kept = open_run(store.folder / "bench/runs/lost")
    assert kept.info.status == "running"
    assert kept.requests().num_rows > 0
