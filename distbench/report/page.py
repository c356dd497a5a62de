"""From templates to one HTML file that opens offline (floor F4); what stands in it is made by html.py and compare_html.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import jinja2
import markupsafe
from plotly.offline import get_plotlyjs

from distbench import __version__
from distbench.report.cells import milliseconds, number, percent
from distbench.report.theme import DARK
from distbench.store.jsonio import clean

_TEMPLATES = "templates"


def script_json(value: Any) -> markupsafe.Markup:
    """
    Return value as JSON that can stand in a script element.

    Whatever a server put into a text cannot end the element or open another: the characters that HTML knows are written as JSON
    escapes. Numbers that are not finite become null.
    """
    text = json.dumps(clean(value), allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return markupsafe.Markup(text)


def count(value: int | None) -> str:
    """Return a whole number with thousands separated, None as "-"."""
    return "-" if value is None else f"{value:,}"


def render_page(template: str, context: Mapping[str, Any]) -> str:
    """
    Return a whole page.

    Args:
        template: Name of the template in this package.
        context: What the template shows; every text is escaped by it.
    """
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters.update(
        script_json=script_json, ms=milliseconds, number=number, percent=percent, count=count
    )
    return environment.get_template(template).render(
        css=_read("page.css"),
        page_js=_read("page.js"),
        plotly_js=get_plotlyjs(),
        dark=DARK,
        version=__version__,
        **context,
    )


def _read(name: str) -> str:
    return resources.files(__package__).joinpath(_TEMPLATES, name).read_text(encoding="utf-8")
