"""The HTML report as a file: complete, self-contained, escaped, and its figures those of levels.parquet."""

from __future__ import annotations

import html.parser
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from distbench.report.columns import LEVEL_COLUMNS
from distbench.report.html import report_html
from distbench.report.page import script_json
from distbench.store.reader import open_run
from tests.report.conftest import HOSTILE


class _Page(html.parser.HTMLParser):
    """Reads a page: JSON islands, cells of the level table, ids, outside references."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.json: dict[str, Any] = {}
        self.cells: list[tuple[dict[str, str | None], str]] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.references: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self._island: str | None = None
        self._cell: dict[str, str | None] | None = None
        self._skipping = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self._skipping = tag in ("script", "style")
        identity = values.get("id")
        self.ids += [identity] if identity else []
        for name in ("src", "href"):
            value = values.get(name)
            if value is not None:
                (self.targets if value.startswith("#") else self.references).append(value)
        if tag == "script" and values.get("type") == "application/json":
            self._island = identity
        if tag == "td" and "data-column" in values:
            self._cell = values

    def handle_data(self, data: str) -> None:
        if self._island is not None:
            self.json[self._island] = json.loads(data)
            self._island = None
        elif self._cell is not None:
            self.cells.append((self._cell, data))
            self._cell = None
        elif not self._skipping:
            self.words.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._skipping = False


@pytest.fixture(scope="module")
def page_text(capacity_run: Path) -> str:
    """Return the report of the capacity run."""
    return report_html(open_run(capacity_run))


@pytest.fixture(scope="module")
def page(page_text: str) -> _Page:
    """Return it, read."""
    return _Page(page_text)


def test_level_data_equals_levels_parquet(page: _Page, capacity_run: Path) -> None:
    """The rows in the page are those of levels.parquet, every column and digit."""
    expected = pq.read_table(capacity_run / "levels.parquet").to_pylist()

    assert page.json["levels-data"] == expected


def test_every_cell_of_the_level_table_equals_levels_parquet(page: _Page, capacity_run: Path) -> None:
    """Each cell carries the exact value of its column, and shows it rounded; null is "-"."""
    rows = pq.read_table(capacity_run / "levels.parquet").to_pylist()
    per_row = len(page.cells) // len(rows)
    shows = {column.name: column for column in LEVEL_COLUMNS}

    assert len(page.cells) == per_row * len(rows) > 0
    for at, (attributes, text) in enumerate(page.cells):
        row, name = rows[at // per_row], attributes["data-column"]
        assert name is not None
        if row[name] is None:
            assert (attributes.get("data-value"), text) == (None, "-")
        else:
            assert json.loads(attributes["data-value"] or "") == row[name]
            assert text == shows[name].text(row)


def test_curve_equals_levels_parquet(page: _Page, capacity_run: Path) -> None:
    """The curve's points are the first visits by connections, unrounded; the peak is that of findings.json."""
    rows = pq.read_table(capacity_run / "levels.parquet").to_pylist()
    findings = json.loads((capacity_run / "findings.json").read_text())
    series = {trace["name"]: trace for trace in page.json["chart-capacity"]["data"]}

    firsts = [row for row in rows if row["repeat"] == 0]
    assert series["first visit"]["x"] == [row["connections"] for row in firsts]
    assert series["first visit"]["y"] == [row["output_token_rate"] for row in firsts]
    assert series["peak"]["x"] == [findings["peak"]["connections"]]
    assert series["peak"]["y"] == [findings["peak"]["output_token_rate"]]
    assert series["knee"]["y"] == [findings["knee"]["output_token_rate"]]


def test_region_past_the_ceiling_is_shaded_to_the_last_level(page: _Page) -> None:
    """The shade begins at the peak and ends at the last level, on the axis of connections."""
    shapes = page.json["chart-capacity"]["layout"]["shapes"]

    peak = page.json["findings-data"]["peak"]["connections"]
    assert [(shape["x0"], shape["x1"]) for shape in shapes] == [(peak, 128)]


def test_headline_says_verdict_figure_and_limit(page: _Page) -> None:
    """The words at the top name the throughput, the connections and that the server was full."""
    said = " ".join(page.words)

    rate = page.json["findings-data"]["peak"]["output_token_rate"]
    assert f"The server carries {rate:,.0f} output tokens/s" in said
    assert "It was full" in said
    assert "sequences" in said


def test_page_loads_nothing_from_outside(page: _Page, page_text: str) -> None:
    """No element refers to another file or host, and the page forbids it to itself."""
    assert page.references == ["data:,"]
    assert "default-src 'none'" in page_text


def test_ids_are_unique_and_anchors_lead_somewhere(page: _Page) -> None:
    """Every anchor, the skip link first, leads to an element of the page; no id is there twice."""
    assert len(page.ids) == len(set(page.ids))
    assert page.targets[0] == "#top"
    assert {target[1:] for target in page.targets} <= set(page.ids)


def test_timeline_strips_are_there_for_what_was_read(page: _Page) -> None:
    """With server and GPUs the timeline has rates, queue, cache, preemptions and GPU; each within 600 steps."""
    traces = {trace["name"]: trace for trace in page.json["chart-timeline"]["data"]}

    wanted = {
        "requests/s",
        "output tokens/s",
        "running",
        "waiting",
        "KV use",
        "prefix hits",
        "preemptions/s",
        "GPU busy",
        "SM active",
        "memory active",
        "power of a GPU",
    }
    assert set(traces) == wanted
    assert all(len(trace["x"]) == len(trace["y"]) <= 601 for trace in traces.values())


def test_server_words_cannot_break_out(failed_run: Path) -> None:
    """An error text with </script>, quotes and tags is shown as text, in HTML and in JSON."""
    text = report_html(open_run(failed_run))
    page = _Page(text)

    assert "img" not in page.tags
    assert (
        text.count("document.title=")
        == text.count("&lt;script&gt;document.title=") * 2
        + text.count("\\u003cscript\\u003edocument.title=") * 2
    )
    assert any(HOSTILE in words for words in page.words)
    assert HOSTILE in page.json["findings-data"]["findings"][0]["text"]


def test_failures_only_has_no_charts_of_figures(failed_run: Path) -> None:
    """Where nothing was answered, the page says so and draws no curve."""
    page = _Page(report_html(open_run(failed_run)))

    assert "No request was answered: there is nothing to measure." in page.words
    assert not {"chart-capacity", "chart-latency-throughput"} & set(page.json)
    assert "http_5xx" in page.words


def test_without_server_metrics_nothing_is_invented(plain_run: Path) -> None:
    """Without scrapes there are no server strips, and the table has no server columns."""
    page = _Page(report_html(open_run(plain_run)))

    assert {t["name"] for t in page.json["chart-timeline"]["data"]} == {"requests/s", "output tokens/s"}
    assert "running_mean" not in {attributes["data-column"] for attributes, _ in page.cells}


def test_shapes_are_compared_by_user_messages(shapes_run: Path) -> None:
    """The packing chart shows user messages/s of each packing, from levels.parquet."""
    page = _Page(report_html(open_run(shapes_run)))
    rows = pq.read_table(shapes_run / "levels.parquet").to_pylist()
    bars = {trace["name"]: trace for trace in page.json["chart-shapes"]["data"]}

    assert bars["user messages/s"]["x"] == ["1 x 96", "2 x 96", "4 x 96"]
    assert bars["user messages/s"]["y"] == [row["user_message_rate"] for row in rows]


def test_reconcile_table_shows_both_sides(page_text: str, capacity_run: Path) -> None:
    """Each level tells what the clients counted; a server that was not settled stands as "-"."""
    counted = re.findall(r"<td>([\d,]+) / (\S+)</td>", page_text)

    rows = pq.read_table(capacity_run / "levels.parquet").to_pylist()
    assert [int(count.replace(",", "")) for count, _ in counted[::3]] == [row["requests_ok"] for row in rows]


def test_script_json_escapes_what_html_knows() -> None:
    """JSON in a script element holds no <, >, & and no line separator; NaN becomes null."""
    text = str(script_json({"a": "</script>&\u2028", "b": float("nan")}))

    assert not set("<>&\u2028") & set(text)
    assert json.loads(text)["a"] == "</script>&\u2028"
    assert json.loads(text)["b"] is None


def test_findings_that_are_no_warnings_are_folded(capacity_run: Path, tmp_path: Path) -> None:
    """Three findings stand first, and every warning and error with them; the rest is behind a fold, so that the curve is in sight."""
    path = shutil.copytree(capacity_run, tmp_path / "r")
    findings = json.loads((path / "findings.json").read_text())
    severities = ["good", "info", "info", "info", "warning", "good", "error"]
    findings["findings"] = [
        {"kind": "k", "severity": severity, "text": f"finding {n}.", "evidence": {}}
        for n, severity in enumerate(severities)
    ]
    (path / "findings.json").write_text(json.dumps(findings))
    before, _, after = report_html(open_run(path)).partition('<details id="more-findings">')
    folded = after.partition("</details>")[0]
    assert [n for n in range(7) if f"<p>finding {n}.</p>" in before] == [0, 1, 2, 4, 6]
    assert [n for n in range(7) if f"<p>finding {n}.</p>" in folded] == [3, 5]
    assert "2 more, none of them a warning" in folded
