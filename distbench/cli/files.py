"""Where a command's result goes (floor F5): stdout, or a file that is not overwritten unasked."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from distbench.errors import StoreError

STDOUT = "-"


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command --output and --force."""
    force = click.option("--force", is_flag=True, help="Overwrite a file that exists.")
    output = click.option("--output", metavar="FILE", help="Write to a file instead of stdout.")
    return output(force(function))


def write_output(path: str | None, data: bytes, *, force: bool) -> None:
    """
    Write a result whole or not at all.

    Args:
        path: File; None or "-": stdout.
        data: The result.
        force: Whether a file that exists may be replaced.

    Raises:
        StoreError: the file exists, or cannot be written.
    """
    if path is None or path == STDOUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    claimed = False
    try:
        if not force:
            target.open("xb").close()
            claimed = True
        temporary.write_bytes(data)
        os.replace(temporary, target)
    except FileExistsError:
        raise StoreError(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        for leftover in (temporary, target) if claimed else (temporary,):
            with contextlib.suppress(OSError):
                leftover.unlink()
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None
