"""Markdown and JSON reports, headlines, and the level table's columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from distbench.report.columns import LEVEL_COLUMNS, shown_columns
from distbench.report.compare import compare_runs, comparison_json, comparison_markdown
from distbench.report.forms import report_json, report_text
from distbench.report.markdown import escape, report_markdown
from distbench.report.words import headline
from distbench.store.reader import open_run
from distbench.store.schema import LEVELS


def _strict(text: str | bytes) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(word)

    return json.loads(text, parse_constant=refuse)


def test_json_report_equals_the_files(capacity_run: Path) -> None:
    """The JSON report holds levels.parquet and findings.json as they are, and no NaN."""
    made = _strict(report_json(open_run(capacity_run)))

    assert made["levels"] == pq.read_table(capacity_run / "levels.parquet").to_pylist()
    assert made["findings"] == json.loads((capacity_run / "findings.json").read_text())
    assert made["info"]["status"] == "complete"


def test_json_report_of_failures_names_the_error(failed_run: Path) -> None:
    """All failed: null latencies, the kind and text of the error, the number of requests."""
    made = _strict(report_json(open_run(failed_run)))

    assert made["levels"][0]["ttft_p99_s"] is None
    assert made["errors"]["http_5xx"]["requests"] == 40
    assert "owned" in made["errors"]["http_5xx"]["text"]


def test_markdown_rows_have_as_many_cells_as_headings(capacity_run: Path) -> None:
    """The pipe table is regular: each level has a cell for each heading."""
    lines = [line for line in report_markdown(open_run(capacity_run)).splitlines() if line.startswith("|")]

    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + pq.read_table(capacity_run / "levels.parquet").num_rows


def test_markdown_takes_nothing_from_the_server_as_markup(failed_run: Path) -> None:
    """Pipes, backticks and tags of an error text are escaped, and it stays on one line."""
    text = report_markdown(open_run(failed_run))

    assert "<img" not in text.replace("\\<img", "")
    assert escape("a|b`c<d>\ne") == "a\\|b\\`c\\<d\\> e"


def test_text_report_shows_levels_and_findings(capacity_run: Path) -> None:
    """The text names each number of connections and the findings; a file gets no escape codes."""
    text = report_text(open_run(capacity_run), "text", to_file=True).decode()

    assert "connections" in text
    assert "sequence slots" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("findings", "sentence", "tone"),
    [
        ({"verdict": "saturated"}, "It was full", "good"),
        (
            {"verdict": "not_saturated", "lower_bound": True},
            "This is a lower bound, not its capacity.",
            "warn",
        ),
        ({"verdict": "client_limited"}, "The client was the limit", "bad"),
        ({"verdict": "unstable"}, "drifted", "warn"),
        ({"verdict": "unknown"}, "could not be told", "plain"),
    ],
)
def test_headline_says_what_the_number_means(findings: dict[str, Any], sentence: str, tone: str) -> None:
    """Each verdict has its own sentence; only a full server is said to carry the figure."""
    peak = {"connections": 64, "request_rate": 10.0, "output_token_rate": 1000.0, "interval": [990.0, 1010.0]}

    said = headline([{"requests_ok": 1}], {**findings, "peak": peak})

    assert sentence in said.sentence
    assert said.tone == tone


def test_headline_without_levels_says_so() -> None:
    """A run without a finished level has no figure in its headline."""
    assert headline([], {}).verdict == "no levels"


def test_level_columns_are_columns_of_the_file() -> None:
    """Every column of the table is one of levels.parquet."""
    assert {column.name for column in LEVEL_COLUMNS} <= set(LEVELS.names)


def test_columns_that_say_nothing_are_left_out(plain_run: Path) -> None:
    """Without server metrics, failures and repeats their columns are not shown."""
    names = {column.name for column in shown_columns(open_run(plain_run).levels().to_pylist())}

    assert not {"running_mean", "gpu_util_mean", "requests_failed", "repeat"} & names
    assert {"connections", "output_token_rate", "ttft_p99_s"} <= names


def test_few_samples_mark_a_p99() -> None:
    """A p99 of 99 samples is marked, one of 100 is not."""
    column = next(column for column in LEVEL_COLUMNS if column.name == "ttft_p99_s")

    texts = [column.text({"ttft_p99_s": 0.2, "ttft_n": n}) for n in (99, 100)]

    assert texts == ["200*", "200"]


def test_comparison_forms_agree(capacity_run: Path, plain_run: Path) -> None:
    """JSON without NaN and Markdown name the same points; a run against itself has changed nothing."""
    compared = compare_runs([str(capacity_run), str(capacity_run)])
    made = _strict(json.dumps(comparison_json(compared), allow_nan=False))
    markdown = comparison_markdown(compared)

    point = made["comparisons"][0]["points"][0]
    assert point["changes"]["throughput"]["ratio"] == 0.0
    assert point["label"].replace("(", "\\(").replace("\\(", "(") in markdown
    assert "Same workload, same plan, same server version." in markdown
