"""distbench export (floor F5)."""

from __future__ import annotations

import sys

import click

from distbench.cli.files import STDOUT, output_file, output_options
from distbench.errors import StoreError

# As in report/export.py, which would load Arrow; a test holds them together.
FORMATS = ("parquet", "csv", "jsonl", "vllm-json")
TABLES = ("requests", "levels", "clients", "server")


@click.command("export")
@click.argument("run", metavar="RUN")
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="Format of the file.")
@click.option(
    "--table", type=click.Choice(TABLES), default="requests", help="What is exported. [default: requests]"
)
@click.option(
    "--level", type=int, metavar="N", help="Only this level. Default: all; vllm-json: the peak's first visit."
)
@output_options
def export(run: str, form: str, table: str, level: int | None, output: str | None, force: bool) -> None:
    """Write a run as one file: all requests as Parquet, CSV or JSON lines, or one level as vllm bench serve writes it."""
    from distbench.report.export import BINARY_FORMATS
    from distbench.report.export import export as write
    from distbench.store.reader import open_run

    if form in BINARY_FORMATS and output in (None, STDOUT) and sys.stdout.isatty():
        raise StoreError(f"{form} is not for a terminal; give --output FILE")
    data = open_run(run)
    with output_file(output, force=force) as file:
        write(data, form, file, table=table, level=level)
