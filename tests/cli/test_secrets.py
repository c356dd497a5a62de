"""A key is in memory and in the environment, and nowhere else that anybody could look."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from tests.support.command import SMALL, Command

pytestmark = [pytest.mark.slow, pytest.mark.ray]

KEY = "sk-0f7b-only-in-memory"
OTHER = "hunter2-of-the-proxy"


def test_a_key_is_in_no_file_no_command_line_and_on_no_screen(tmp_path: Path) -> None:
    """
    Looked at while a run with a Ray of its own goes on: all command lines, all that Ray has written; afterwards all that the run wrote
    and showed. A header that looks secret is treated like the key.
    """
    # Ray's sockets need a short path.
    folder = Path(tempfile.mkdtemp(prefix="db-sec-", dir="/tmp"))
    options = ("--connections", "4", "--requests", "20000", "--api-key-env", "SERVER_KEY", *SMALL[:-1])
    secrets = {"SERVER_KEY": KEY, "TMPDIR": str(folder)}
    try:
        with (
            EmbeddedServer(SimSettings(api_key=KEY)) as server,
            Command(
                "run", server.url, *options, "--header", f"X-Proxy-Password={OTHER}",
                output=tmp_path / "r", terminal=True, environment=secrets,
            ) as command,
        ):  # fmt: skip
            command.wait_for_rows(90)
            lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in command.processes()]
            by_ray = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
            command.signal(signal.SIGINT)
            assert command.wait(30) == 130
            shown = command.shown
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    written = [path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()]
    assert (len(lines) > 5, len(by_ray) > 10, len(written) > 5) == (True, True, True)
    for text in (*lines, *by_ray, *written, shown.encode()):
        assert KEY.encode() not in text
    # The user put this one into the command line; from there it goes no further.
    for text in (*by_ray, *written, shown.encode()):
        assert OTHER.encode() not in text


def test_what_a_run_writes_is_for_its_owner_only(tmp_path: Path) -> None:
    """Whatever the umask is: no file or folder of it can be read by others."""
    options = ("--ray-address", "none", "--connections", "2", "--requests", "8", *SMALL[:-1])
    with (
        EmbeddedServer(SimSettings()) as server,
        Command("run", server.url, *options, output=tmp_path / "r") as command,
    ):
        assert command.wait(60) == 0
    paths = [tmp_path / "r", *(tmp_path / "r").rglob("*")]
    assert len(paths) > 8
    assert [str(path) for path in paths if path.stat().st_mode & 0o077] == []
