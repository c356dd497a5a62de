"""A run directory on a network mount (sshfs, over the real SFTP server): written, read, and lost in the middle of a run."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings
from distbench.store.reader import open_run
from tests.support.command import SMALL, Command
from tests.support.needs import find_command

pytestmark = [pytest.mark.slow, pytest.mark.hosts]

SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
)
STEPS = StepTimeSettings(
    fixed_s=0.01, weights_s=0.0, per_sequence_s=0.0, per_prefill_token_s=0.0, per_kv_token_s=0.0
)


class Share:
    """
    A folder of a file server, mounted here.

    Attributes:
        behind: The folder on the server's side.
        mount: Where it is mounted.
    """

    def __init__(self, folder: Path, sshfs: str, sftp_server: str) -> None:
        self.behind, self.mount = folder / "behind", folder / "mount"
        self.behind.mkdir()
        self.mount.mkdir()
        near, far = socket.socketpair()
        with near, far:
            self._server = subprocess.Popen([sftp_server], stdin=far.fileno(), stdout=far.fileno())
            self._sshfs = subprocess.Popen(
                [sshfs, f"server:{self.behind}", str(self.mount), "-f", "-o", "passive"],
                stdin=near.fileno(),
                stdout=near.fileno(),
            )
        limit_s = time.monotonic() + 10
        while not os.path.ismount(self.mount) and self._sshfs.poll() is None and time.monotonic() < limit_s:
            time.sleep(0.05)

    @property
    def is_mounted(self) -> bool:
        """Whether the folder is there."""
        return os.path.ismount(self.mount)

    def lose(self) -> None:
        """Let the file server die."""
        self._server.kill()
        self._server.wait()

    def close(self) -> None:
        """Unmount; a dead mount is let go of."""
        subprocess.run(["umount", "--lazy", self.mount], check=False, capture_output=True)
        for process in (self._sshfs, self._server):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()


@pytest.fixture
def share(tmp_path: Path) -> Iterator[Share]:
    """Give a mounted share."""
    sshfs = find_command("sshfs")
    sftp_server = next((path for path in SFTP_SERVERS if Path(path).exists()), None)
    if sshfs is None or sftp_server is None:
        pytest.skip("a network mount needs sshfs and openssh's sftp-server")
    share = Share(tmp_path, sshfs, sftp_server)
    try:
        if not share.is_mounted:
            # The kernel's matter, which no package brings.
            pytest.skip("this machine's kernel does not let a file system be mounted by FUSE")
        yield share
    finally:
        share.close()


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """Give a server."""
    with EmbeddedServer(SimSettings(step_time=STEPS)) as server:
        yield server


def test_a_run_is_written_to_a_share_and_read_from_both_sides(share: Share, server: EmbeddedServer) -> None:
    """What the file server has is the whole run; the directory is taken for everybody who mounts it."""
    options = ("--connections", "4", "--requests", "60", *SMALL, "--ray-address", "none")
    with Command("run", server.url, *options, output=share.mount / "r") as command:
        assert command.wait(60) == 0
    for side in (share.mount, share.behind):
        run = open_run(side / "r")
        assert run.info.status == "complete"
        assert run.requests(columns=["index"]).num_rows == 60 + 4
    with Command("run", server.url, *options, output=share.mount / "r") as again:
        assert again.wait(60) == 2
        assert "is not empty; name one that is absent or empty" in again.shown


def test_a_share_that_goes_away_ends_the_run_and_keeps_what_it_has(
    share: Share, server: EmbeddedServer
) -> None:
    """The command says what it could not write; on the file server is everything up to the last flush."""
    options = ("--connections", "4", "--requests", "20000", *SMALL, "--ray-address", "none")
    with Command("run", server.url, *options, output=share.mount / "r") as command:
        command.wait_for_rows()
        share.lose()
        assert command.wait(60) == 1
        assert "is not there any more" in command.shown
        assert "Traceback" not in command.shown
    run = open_run(share.behind / "r")
    assert run.info.status == "running"
    kept = run.requests(columns=["outcome"]).column(0).to_pylist()
    assert kept.count("ok") == len(kept) > 0
