"""The pages of docs/ that name flags and columns: each exists, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from distbench.analysis.compare_metrics import METRICS, parse_gates
from distbench.core.plan_io import OPTIONS
from distbench.store.schema import LEVELS, REQUESTS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("faq.md", "coming-from.md", "compare.md", "python-api.md", "plan-reference.md")
# Options of the commands that are no plan keys.
_OWN = {"plan", "html", "format", "fail-on", "output", "force", "level", "table", "resume", "no-ignore-eos"}


def test_our_column_of_each_table_names_real_flags() -> None:
    """In the tables of coming-from.md, every flag on our side is one of ours."""
    known = {option.key for option in OPTIONS} | _OWN
    rows = [
        line.split(" | ")
        for line in (DOCS / "coming-from.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    ours = [row[1] for row in rows if len(row) == 2 and not row[0].startswith("| `--extra-body")]

    named = {flag for cell in ours for flag in re.findall(r"--([a-z][a-z-]+)", cell)}
    assert len(ours) > 40
    assert named - known == set()


@pytest.mark.parametrize("page", ["faq.md", "compare.md"])
def test_flags_of_a_page_exist(page: str) -> None:
    """Every flag that a page of ours names is an option."""
    known = {option.key for option in OPTIONS} | _OWN
    named = set(re.findall(r"`?--([a-z][a-z-]+[a-z])(?!\*)\b", (DOCS / page).read_text()))

    assert named - known - {"timeout"} == set()


def test_columns_of_the_faq_exist() -> None:
    """Words in code that end like a column of levels are one."""
    words = set(
        re.findall(r"`([a-z0-9_]+(?:_mean|_ratio|_p99_s|_mean_s|_ns|_kind))`", (DOCS / "faq.md").read_text())
    )

    assert words
    assert words - set(LEVELS.names) - set(REQUESTS.names) == set()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_pages(page: str) -> None:
    """Every relative link names a page that is there."""
    links = re.findall(r"\]\(([^)#]+\.md)\)", (DOCS / page).read_text())

    assert [link for link in links if not (DOCS / link).exists()] == []


def test_gates_of_the_page_are_gates() -> None:
    """Each example of a bound in compare.md is read, and each metric that it names exists."""
    text = (DOCS / "compare.md").read_text()
    examples = re.findall(r"--fail-on ([a-z_0-9@]+:[+-]\S+)", text)

    assert len(parse_gates(examples)) == 2
    assert {"throughput", "goodput", "ttft_p50", "ttft_p90", "ttft_p99"} <= set(METRICS)
