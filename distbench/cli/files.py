"""Where a command's result goes (floor F5): stdout, or a file that is not overwritten unasked."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import click

from distbench.errors import StoreError

STDOUT = "-"


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command --output and --force."""
    force = click.option("--force", is_flag=True, help="Overwrite a file that exists.")
    output = click.option("--output", metavar="FILE", help="Write to a file instead of stdout.")
    return output(force(function))


@contextlib.contextmanager
def output_file(path: str | None, *, force: bool) -> Iterator[BinaryIO]:
    """
    Give a file to write a result to; it appears under its name when the block ends well, and not at all when it does not.

    Args:
        path: File; None or "-": stdout.
        force: Whether a file that exists may be replaced.

    Raises:
        StoreError: the file exists, or cannot be written.
    """
    if path is None or path == STDOUT:
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    leftovers = [temporary]
    try:
        if not force:
            target.open("xb").close()  # the name is ours from here on
            leftovers.append(target)
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, target)
        leftovers.clear()
    except FileExistsError:
        raise StoreError(f"{path} exists; --force overwrites it") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        for leftover in leftovers:
            with contextlib.suppress(OSError):
                leftover.unlink()
