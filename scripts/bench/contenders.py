"""
The programs that are held against one another: how each is started for a load, and where its stamps are read afterwards.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.bench.processes import RoleOf, everything_is
from scripts.bench.truth import Ints, stamps_of_log, stamps_of_rows
from tests.support import cmock

_HERE = Path(__file__).resolve().parent
# Of a prompt as short as the floor client's, so that building it costs every client about the same.
_PROMPT_TOKENS = 16

RAY, DRIVER, CLIENT = "ray", "driver", "client"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """
    What to send: a fixed number of connections, each busy until the requests are used up.

    Attributes:
        connections, requests: Totals.
        tokens: Output tokens of each request.
    """

    connections: int
    requests: int
    tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """
    A client program.

    Attributes:
        name: As in the tables.
        command: Program and arguments for a load, the server's port, and an empty folder to work in.
        stamps: Arrival times by request id after a run, from the folder and the program's output; None where it tells none.
        role_of: Names its processes.
    """

    name: str
    command: Callable[[Load, int, Path], list[str]]
    stamps: Callable[[Path, str], Mapping[int, Ints]] | None = None
    role_of: RoleOf = dataclasses.field(default=everything_is(CLIENT))


def floor() -> Contender:
    """Return the C client, below which nothing goes."""
    program = cmock.build("climit")

    def command(load: Load, port: int, folder: Path) -> list[str]:
        return [str(program), *_options(load), "--port", str(port), "--log", str(folder / "log.bin")]

    return Contender(name="floor (C)", command=command, stamps=_logged)


def connection(*, compiled: bool = True) -> Contender:
    """Return our client in one process, without a fleet; on request without compiled code (wire/hot_path.py)."""

    def command(load: Load, port: int, folder: Path) -> list[str]:
        program = [sys.executable, str(_HERE / "lone_client.py"), *_options(load)]
        if not compiled:
            program = ["env", "DISTBENCH_NO_EXTENSION=1", *program]
        return [*program, "--url", _url(port), "--rows", str(folder / "rows")]

    def stamps(folder: Path, output: str) -> Mapping[int, Ints]:
        return stamps_of_rows(folder / "rows", json.loads(output)["epoch_ns"])

    name = "connection" if compiled else "Python alone"
    return Contender(name=name, command=command, stamps=stamps)


def shipped() -> Contender:
    """Return `distbench run` with one client under Ray, as a user starts it."""

    def command(load: Load, port: int, folder: Path) -> list[str]:
        options = {
            "clients": 1,
            "connections": load.connections,
            "requests": load.requests,
            "warmup": 0,
            "output-tokens": load.tokens,
            "system-tokens": 0,
            "user-tokens": _PROMPT_TOKENS,
            "output": folder / "run",
        }
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        program = Path(sys.executable).with_name("distbench")
        return [str(program), "run", _url(port), "--json", "--quiet", *flags]

    def stamps(folder: Path, output: str) -> Mapping[int, Ints]:
        info = json.loads((folder / "run" / "run.json").read_text())
        return stamps_of_rows(folder / "run" / "requests", info["epoch_monotonic_ns"])

    return Contender(name="distbench run", command=command, stamps=stamps, role_of=_role_under_ray)


def baseline(library: str) -> Contender | None:
    """Return a plain client on "aiohttp" or "httpx", without any tool around it; None where it is not installed."""
    if importlib.util.find_spec(library) is None:
        return None

    def command(load: Load, port: int, folder: Path) -> list[str]:
        program = [sys.executable, str(_HERE / "baseline_client.py"), library, *_options(load)]
        return [*program, "--url", _url(port), "--log", str(folder / "log.bin")]

    return Contender(name=f"bare {library}", command=command, stamps=_logged)


def peer(name: str, template: str) -> Contender:
    """
    Return another tool.

    Args:
        name: As in the tables.
        template: Its command with {url}, {port}, {connections}, {requests}, {tokens} and {folder} in it.

    Raises:
        KeyError: another word in braces.
    """

    def command(load: Load, port: int, folder: Path) -> list[str]:
        values = {**dataclasses.asdict(load), "url": _url(port), "port": port, "folder": folder}
        return [word.format_map(values) for word in shlex.split(template)]

    return Contender(name=name, command=command)


def _options(load: Load) -> list[str]:
    return [word for name, value in dataclasses.asdict(load).items() for word in (f"--{name}", str(value))]


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def _logged(folder: Path, output: str) -> Mapping[int, Ints]:
    return stamps_of_log(folder / "log.bin")


def _role_under_ray(command: str) -> str:
    if "LoadClientActor" in command:
        return CLIENT
    return DRIVER if "distbench run" in command else RAY
