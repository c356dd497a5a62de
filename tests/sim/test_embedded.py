"""The server as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from distbench.sim.embedded import EmbeddedServer, EmbeddedServerError
from distbench.sim.settings import SimSettings
from tests.sim.servers import FAST, chat, eventually, get, post


def gone(pid: int) -> bool:
    """Tell whether a process has ended (a zombie has)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_embedded_server_serves_and_ends() -> None:
    """It has its settings, its key included, answers, and is gone behind the context."""
    with EmbeddedServer(SimSettings(model="tiny", api_key="sekret", step_time=FAST)) as server:
        pid = server.pid
        assert get(f"{server.url}/health").status_code == 200
        headers = {"Authorization": "Bearer sekret"}
        assert post(f"{server.url}/v1/chat/completions", json=chat(), headers=headers).status_code == 200
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            assert b"sekret" not in file.read()
    assert gone(pid)


def test_embedded_server_tells_why_it_did_not_start() -> None:
    """A truth log in a folder that does not exist is named."""
    with pytest.raises(EmbeddedServerError, match="no-such-folder"):
        EmbeddedServer(SimSettings(truth_log="/no-such-folder/truth.jsonl")).start()


def test_child_ends_with_its_parent() -> None:
    """A parent that is killed takes the server along."""
    code = (
        "import sys; from distbench.sim.embedded import EmbeddedServer; from distbench.sim.settings import SimSettings;"
        "server = EmbeddedServer(SimSettings()).start(); print(server.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdin is not None
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert not gone(pid)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(5)
    parent.stdin.close()
    parent.stdout.close()
    assert eventually(lambda: gone(pid))
