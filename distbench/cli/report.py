"""distbench report (floor F5)."""

from __future__ import annotations

import click

from distbench.cli.files import output_file, output_options


@click.command("report")
@click.argument("run", metavar="RUN")
@click.option(
    "--html", metavar="FILE", help="Write the report as one self-contained HTML file; '-' is stdout."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    help="What is printed. Default: text, or nothing with --html.",
)
@output_options
def report(run: str, html: str | None, form: str | None, output: str | None, force: bool) -> None:
    """Show what a run found: the verdict in words, every level, the findings and what to do next."""
    from distbench.report.forms import report_text
    from distbench.store.reader import open_run

    data = open_run(run)
    if html is not None:
        from distbench.report.html import report_html

        with output_file(html, force=force) as file:
            file.write(report_html(data).encode())
    if form is not None or html is None:
        with output_file(output, force=force) as file:
            file.write(report_text(data, form or "text", to_file=output is not None))
