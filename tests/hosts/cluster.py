"""The cluster of docs/cluster.md on machines made of namespaces: an administrator's, a head, two client hosts, a server."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.hosts.machines import CHECKOUT, Machine, Network, install_environment, wait_for
from tests.support.needs import ROOT

SERVER_PORT = 8000
# Ray's import alone takes seconds on a busy machine, and `ray up` does it a dozen times.
COMMAND_LIMIT_S = 150.0


@dataclasses.dataclass(frozen=True, slots=True)
class Cluster:
    """
    Machines that belong together.

    Attributes:
        admin: Where the user sits; it has the project and the key.
        head, workers: What cluster.yaml names; the monotonic clocks of the workers are far ahead, each by another time.
        server: Runs the simulated server; not in the Ray cluster.
    """

    admin: Machine
    head: Machine
    workers: tuple[Machine, ...]
    server: Machine

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://{self.server.address}:{SERVER_PORT}"

    @property
    def truth(self) -> Path:
        """The server's own log of what it served."""
        return self.server.folder / "tmp/truth.jsonl"

    def type(self, line: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command line where the user sits, in the project's folder."""
        return self.admin.run(
            "bash", "--login", "-c", f"cd {CHECKOUT} && {line}", limit_s=COMMAND_LIMIT_S, check=check
        )

    def served(self) -> list[dict[str, Any]]:
        """Return the finished requests of the server's log."""
        lines = self.truth.read_text().splitlines() if self.truth.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]


@contextlib.contextmanager
def machines() -> Iterator[Cluster]:
    """Start the machines, blank but for Python, ssh and the packages; the server serves."""
    with Network() as network:
        admin, head = network.add("admin"), network.add("head")
        workers = (
            network.add("worker1", monotonic_ahead_s=100_000),
            network.add("worker2", monotonic_ahead_s=200_000),
        )
        cluster = Cluster(admin, head, workers, network.add("server"))
        for machine in (*workers, head, admin, cluster.server):
            install_environment(machine)
        admin.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/.ssh/id_ed25519")
        for machine in (head, *workers):
            machine.start_sshd((admin.home / ".ssh/id_ed25519.pub").read_text())
        _check_out(admin, filled_in(head, workers))
        _check_out(cluster.server, "")
        start_server(cluster)
        yield cluster


def filled_in(head: Machine, workers: tuple[Machine, ...]) -> str:
    """Return the shipped cluster.yaml with the places that it asks to fill in filled in, and nothing else changed."""
    text = (ROOT / "cluster.yaml").read_text()
    for pattern, value in (
        (r"head_ip: \S+", f"head_ip: {head.address}"),
        (r"worker_ips: \[.*?\]", f"worker_ips: [{', '.join(w.address for w in workers)}]"),
        (r"ssh_user: \S+", "ssh_user: root"),
    ):
        text, count = re.subn(pattern, value, text)
        assert count == 1, pattern
    return text


def start_server(cluster: Cluster) -> None:
    """Start the simulated server, 5 ms a step, and wait until it listens."""
    log = (cluster.server.folder / "sim.log").open("ab")
    cluster.server.spawn(
        f"{CHECKOUT}/.venv/bin/distbench", "sim", "--host", "0.0.0.0", "--port", str(SERVER_PORT),
        "--truth-log", "/tmp/truth.jsonl", "--step-fixed", "0.005", "--step-weights", "0", "--step-per-sequence", "0",
        "--max-num-seqs", "8", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
    )  # fmt: skip
    log.close()
    probe = f"exec 3<>/dev/tcp/{cluster.server.address}/{SERVER_PORT}"
    wait_for(
        "the server listens", lambda: cluster.head.run("bash", "-c", probe, check=False).returncode == 0, 60
    )


def _check_out(machine: Machine, cluster_file: str) -> None:
    """Put the project's files where `git clone` would."""
    target = machine.home / "distbench"
    (target / "cluster.yaml").write_text(cluster_file)
    for place in yaml.safe_load((ROOT / "cluster.yaml").read_text())["file_mounts"].values():
        source = ROOT / place
        if place.startswith("~"):
            continue
        if source.is_dir():
            shutil.copytree(source, target / place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / place)
