"""A Ray of our own: on loopback, quiet, and gone afterwards."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import ROOT

pytestmark = pytest.mark.ray

_SCRIPT = """
import json, os, sys
import psutil
from distbench.fleet.ray_fleet import RayFleet
from distbench.fleet.ray_runtime import RayRuntime

runtime = RayRuntime()
fleet = RayFleet(1, runtime)
hosts = fleet.start()
addresses = set()
for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
    for connection in process.net_connections(kind="inet"):
        if connection.status == psutil.CONN_LISTEN:
            addresses.add(connection.laddr.ip)
folder = str(runtime.folder)
pids = [process.pid for process in psutil.Process().children(recursive=True)]
fleet.close()
runtime.close()
print(json.dumps({
    "addresses": sorted(addresses), "node": hosts[0].address, "folder": folder, "pids": pids,
    "auth": os.environ.get("RAY_AUTH_MODE"),
}))
"""


_ORPHAN = """
import json, subprocess
import ray
from distbench.fleet.ray_runtime import RayRuntime

DETACHED = ["sh", "-c", "setsid sleep 60 >/dev/null & echo $!"]

def lives(pid):
    # One that has ended and was not waited for is still listed.
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return bool(file.read())
    except OSError:
        return False

runtime = RayRuntime()
runtime.start()
detach = ray.remote(lambda: int(subprocess.check_output(DETACHED)))
orphan, other = ray.get(detach.remote()), subprocess.Popen(["sleep", "60"])
was_there = lives(orphan)
runtime.close()
print(json.dumps({"was_there": was_there, "is_there": lives(orphan), "other": other.poll()}))
other.kill()
other.wait()
"""


def test_what_ray_did_not_end_is_ended() -> None:
    """A process that has left Ray's tree, as an agent does whose raylet is gone, ends with our Ray; one of the driver's own does not."""
    assert json.loads(_printed(_ORPHAN, dict(os.environ))) == {
        "was_there": True,
        "is_there": False,
        "other": None,
    }


def test_our_own_ray_is_local_quiet_and_leaves_nothing(tmp_path: Path) -> None:
    """All listeners on loopback, nothing on stdout but ours, no token in the home, no folder and no process left."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    printed = _printed(_SCRIPT, environment | {"HOME": str(tmp_path)})
    assert len(printed.splitlines()) == 1, printed
    found = json.loads(printed)
    assert set(found["addresses"]) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert found["node"] == "127.0.0.1"
    assert found["auth"] is None
    assert not Path(found["folder"]).exists()
    assert not (tmp_path / ".ray").exists()
    assert [pid for pid in found["pids"] if _is_ray(pid)] == []


def _printed(script: str, environment: dict[str, str]) -> str:
    """Run a program in a process of its own, which Ray asks for; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _is_ray(pid: int) -> bool:
    try:
        return b"ray" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
