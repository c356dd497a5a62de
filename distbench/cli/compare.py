"""distbench compare (floor F5)."""

from __future__ import annotations

import click

from distbench.cli.files import output_file, output_options


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option(
    "--fail-on",
    multiple=True,
    metavar="METRIC[@CONNECTIONS]:BOUND",
    help="Exit 3 where a figure is significantly worse than the bound, such as throughput:-5% or ttft_p99:+10%; repeatable.",
)
@click.option("--html", metavar="FILE", help="Write the comparison as one self-contained HTML file.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown", "json"]),
    help="What is printed. Default: text, or nothing with --html.",
)
@output_options
def compare(
    runs: tuple[str, ...],
    fail_on: tuple[str, ...],
    html: str | None,
    form: str | None,
    output: str | None,
    force: bool,
) -> int:
    """Compare runs with the first one: what was asked, each figure with its interval, and whether chance explains it."""
    from distbench.analysis.compare_metrics import parse_gates
    from distbench.report.forms import comparison_text

    if len(runs) < 2:
        raise click.UsageError("give at least two runs, the baseline first")
    gates = parse_gates(fail_on)

    from distbench.report.compare import compare_runs

    compared = compare_runs(runs, gates)
    if html is not None:
        from distbench.report.compare_html import comparison_html

        with output_file(html, force=force) as file:
            file.write(comparison_html(compared).encode())
    if form is not None or html is None:
        with output_file(output, force=force) as file:
            file.write(comparison_text(compared, form or "text", to_file=output is not None))
    return compared.exit_code
