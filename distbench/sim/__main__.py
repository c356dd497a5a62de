"""
``python -m distbench.sim``: the simulated server as a process of its own (floor F3).

Settings come as one JSON object, on the command line or, with ``--settings -``, as the first line of standard input (so that a key
is not seen in the process list); standard input is then watched, and its end ends the server: a parent that dies takes it along.
When it listens, one JSON line with ``url`` and ``port`` goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

from distbench.errors import PlanError
from distbench.sim.serve import serve
from distbench.sim.server import SimServer
from distbench.sim.settings import SimSettings


def main(argv: list[str] | None = None) -> int:
    """Run the server; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m distbench.sim", description="An embedded server that schedules like vLLM."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port; 0 takes any free one (default 8000)")
    parser.add_argument(
        "--settings", default="{}", help="JSON object of settings; - reads it from the first line of stdin"
    )
    args = parser.parse_args(argv)
    watched = sys.stdin.fileno() if args.settings == "-" else None
    text = _read_line(watched) if watched is not None else args.settings
    try:
        serve(
            SimSettings.from_dict(json.loads(text)),
            args.host,
            args.port,
            on_ready=_announce,
            stop_when_readable_fd=watched,
        )
    except (PlanError, json.JSONDecodeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _read_line(fd: int) -> str:
    """Read one line without a buffer, which would swallow what the watcher is to see."""
    data = bytearray()
    while not data.endswith(b"\n"):
        part = os.read(fd, 1)
        if not part:
            break
        data += part
    return data.decode()


def _announce(server: SimServer) -> None:
    sys.stdout.write(json.dumps({"url": server.url, "port": server.port}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
