"""
Machines on one network, made of Linux namespaces: for tests that need hosts which can be cut off, and a real ssh between them.

Each machine has a network, processes, mounts, a name and, where asked, a monotonic clock of its own; /root, /tmp, /run and /dev/shm
are private, everything else is this machine's. A machine lives as long as its first process, and that one dies with the tests; its
network goes with it. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.needs import ROOT, find_command

NETWORK = "10.77.0"
CHECKOUT = "/root/distbench"
_PORT = 22
# The first process of a machine: makes its places private, tells that it is ready, then buries the dead.
_INIT = """
set -e
hostname "$1"
mount -t tmpfs tmpfs /run
mkdir -p /run/sshd /run/lock
mount -t tmpfs -o size=2g tmpfs /dev/shm
if [ -n "$3" ]; then mkdir -p "$2/base"; mount --bind "$3" "$2/base"; fi
mount --bind "$4" "$2/root/.site-packages"
mount --rbind "$2" /mnt
mount --rbind /mnt/root /root
mount --rbind /mnt/tmp /tmp
if [ -n "$3" ]; then mkdir -p "$3"; mount --bind /mnt/base "$3"; fi
ip link set lo up
cd /
echo ready
while :; do sleep 1000 & wait $!; done
"""


class Machine:
    """One machine; made by a Network."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.folder = folder
        self._parent: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._has_clock = False
        self._running: list[subprocess.Popen[Any]] = []

    @property
    def home(self) -> Path:
        """Its /root, as seen from outside."""
        return self.folder / "root"

    @property
    def pid(self) -> int:
        """Its first process, as seen from outside."""
        return self._pid

    def boot(self, monotonic_ahead_s: int = 0) -> None:
        """
        Start its first process.

        Args:
            monotonic_ahead_s: How far its monotonic clock is ahead of this machine's.
        """
        for name in ("root/.ssh", "root/.site-packages", "tmp"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "root").chmod(0o700)
        (self.folder / "tmp").chmod(0o1777)
        clock = ["--time", "--monotonic", str(monotonic_ahead_s)] if monotonic_ahead_s else []
        self._has_clock = bool(clock)
        isolate = ["--net", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child=SIGKILL"]
        # Only what hides behind the private folders must be brought along.
        base = sys.base_prefix if _is_hidden(sys.base_prefix) else ""
        packages = next(path for path in site.getsitepackages() if Path(path).is_dir())
        with (self.folder / "boot.log").open("wb") as log:
            self._parent = subprocess.Popen(
                # If the tests die in any way, so does the machine.
                ["setpriv", "--pdeathsig", "KILL", "unshare", *clock, *isolate, "--propagation", "private",
                 "bash", "-c", _INIT, "init", self.name, str(self.folder), base, packages],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )  # fmt: skip
        assert self._parent.stdout is not None
        if self._parent.stdout.readline() != b"ready\n":
            raise RuntimeError(
                f"the machine {self.name} did not start: {(self.folder / 'boot.log').read_text()}"
            )
        children = Path(f"/proc/{self._parent.pid}/task/{self._parent.pid}/children").read_text()
        self._pid = int(children.split()[0])

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on this machine."""
        spaces = ["-n", "-m", "-p", "-u", *(["-T"] if self._has_clock else [])]
        return ["nsenter", "-t", str(self._pid), *spaces, "--wd=/root", *arguments]

    def run(
        self, *arguments: str, limit_s: float = 60.0, check: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        done = subprocess.run(
            self.command(arguments),
            env=_environment(env),
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if check and done.returncode != 0:
            raise RuntimeError(
                f"{self.name}: {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def spawn(
        self, *arguments: str, env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command; it ends with the machine."""
        process: subprocess.Popen[Any] = subprocess.Popen(
            self.command(arguments), env=_environment(env), **options
        )
        self._running.append(process)
        return process

    def processes(self) -> list[tuple[int, str]]:
        """Return its processes as (pid on this machine, command line), the first and the sleeping ones left out."""
        space = Path(f"/proc/{self._pid}/ns/pid").readlink()
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit() or int(folder.name) == self._pid:
                continue
            with contextlib.suppress(OSError):
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if (folder / "ns/pid").readlink() == space and line and not line.startswith("sleep "):
                    found.append((int(folder.name), line))
        return found

    def find(self, word: str) -> list[int]:
        """Return the pids, on this machine, of its processes whose command line holds a word."""
        return [pid for pid, line in self.processes() if word in line]

    def set_link(self, state: str) -> None:
        """Cut it off the network ("down"), or connect it again ("up")."""
        self.run("ip", "link", "set", "eth0", state)

    def start_sshd(self, authorized_key: str) -> None:
        """Let the holder of a key log in as root."""
        (self.home / ".ssh/authorized_keys").write_text(authorized_key)
        self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/.ssh/host_key")
        daemon = find_command("sshd")
        assert daemon is not None
        options = {
            "HostKey": "/root/.ssh/host_key",
            "ListenAddress": f"{self.address}:{_PORT}",
            "PermitRootLogin": "yes",
            "AuthorizedKeysFile": "/root/.ssh/authorized_keys",
            "PasswordAuthentication": "no",
            "UsePAM": "no",
            "StrictModes": "no",
            "PidFile": "none",
        }
        text = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        self.run(daemon, "-f", "/dev/null", "-E", "/tmp/sshd.log", *text)

    def halt(self) -> None:
        """End it and everything on it."""
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        if self._parent is not None:
            self._parent.wait(10)
            assert self._parent.stdout is not None
            self._parent.stdout.close()
        for process in self._running:
            process.wait(10)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()


class Network:
    """Machines on one switch, as a context; all of them end with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="db-hosts-", dir="/tmp"))
        self.machines: list[Machine] = []
        self._switch: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start the switch."""
        script = "ip link add br0 type bridge && ip link set br0 up && echo ready && exec sleep 100000"
        self._switch = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != b"ready\n":
            self.close()
            raise RuntimeError("the switch did not start")
        return self

    def __exit__(self, *_: object) -> None:
        """End all."""
        self.close()

    def add(self, name: str, *, monotonic_ahead_s: int = 0) -> Machine:
        """Start a machine and plug it in."""
        assert self._switch is not None
        number = len(self.machines) + 1
        machine = Machine(name, number, self.folder / name)
        self.machines.append(machine)
        machine.boot(monotonic_ahead_s)
        port = f"p{number}"
        switch = ["nsenter", "-t", str(self._switch.pid), "-n"]
        # Both ends are made inside, so that this machine's own network is never touched.
        _do(*switch, "ip", "link", "add", port, "type", "veth",
            "peer", "name", "eth0", "netns", str(machine.pid))  # fmt: skip
        _do(*switch, "ip", "link", "set", port, "master", "br0", "up")
        machine.run("ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")
        machine.run("ip", "route", "add", "default", "via", f"{NETWORK}.254")
        return machine

    def close(self) -> None:
        """End all machines, the switch, and remove their folders; a second call does nothing."""
        for machine in self.machines:
            machine.halt()
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait(10)
            assert self._switch.stdout is not None
            self._switch.stdout.close()
            self._switch = None
        shutil.rmtree(self.folder, ignore_errors=True)


def install_environment(machine: Machine) -> None:
    """
    Give a machine what `scripts/install` would take minutes to fetch: an environment at ~/distbench/.venv with this one's packages.

    The project itself is not in it; it is imported from ~/distbench, whatever is put there.
    """
    checkout = machine.home / "distbench"
    checkout.mkdir(exist_ok=True)
    python = str(Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"))
    machine.run(python, "-m", "venv", "--without-pip", f"{CHECKOUT}/.venv")
    environment = checkout / ".venv"
    packages = next((environment / "lib").glob("python3*")) / "site-packages"
    (packages / "here.pth").write_text(f"{CHECKOUT}\n/root/.site-packages\n")
    source = Path(sys.prefix, "bin")
    for name in ("ray", "distbench"):
        text = (source / name).read_text().splitlines()
        text[0] = f"#!{CHECKOUT}/.venv/bin/python"
        (environment / "bin" / name).write_text("\n".join(text) + "\n")
        (environment / "bin" / name).chmod(0o755)
    (environment / ".stamp").write_text(_stamp(python))
    # The machine's own Python; that of the environment comes before it.
    (machine.home / ".profile").write_text(f'export PATH="{sys.base_prefix}/bin:$PATH"\n')


def wait_for(what: str, check: Any, limit_s: float, interval_s: float = 0.3) -> Any:
    """Return check()'s first true value; fail with the words in what after the limit."""
    end_s = time.monotonic() + limit_s
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < end_s, f"not within {limit_s:g} s: {what}"
        time.sleep(interval_s)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """Give a network without machines."""
    with Network() as made:
        yield made


def _stamp(python: str) -> str:
    script = (
        '. "$0"; files=("$ROOT/requirements.lock" "${BUILT_FROM[@]}"); ROOT="$2"; '
        'fingerprint "$1" "${files[@]}"'
    )
    return subprocess.run(
        ["bash", "-c", script, str(ROOT / "scripts/lib.sh"), python, CHECKOUT],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", "USER": "root", "SHELL": "/bin/bash",
            "RAY_USAGE_STATS_ENABLED": "0", **(more or {})}  # fmt: skip


def _is_hidden(path: str) -> bool:
    return any(Path(path).is_relative_to(private) for private in ("/root", "/tmp", "/run"))


def _do(*arguments: str) -> None:
    subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=20)
