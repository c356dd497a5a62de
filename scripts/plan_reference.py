#!/usr/bin/env python3
"""
Writes docs/plan-reference.md from the code: every plan key, its flag, default, commands and meaning.

  scripts/plan_reference.py           writes the page
  scripts/plan_reference.py --check   exits 1 where the page is not what the code says
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from distbench.cli.options import HELP as HELP  # noqa: E402 - the project's root comes first
from distbench.core.plan import JudgePlan, LoadPlan, PromptPlan, TargetPlan, WherePlan  # noqa: E402
from distbench.core.plan_io import OPTIONS, Option  # noqa: E402

PAGE = ROOT / "docs" / "plan-reference.md"
_GROUPS: dict[str, tuple[type[Any], str]] = {
    "target": (TargetPlan, "What is asked, and how"),
    "load": (LoadPlan, "How much, and when"),
    "prompts": (PromptPlan, "What is said"),
    "judging": (JudgePlan, "What the run is judged by"),
    "where": (WherePlan, "Where it runs, and where the results go"),
}
_HEAD = """# Plan reference

Made from the code by `scripts/plan_reference.py`; a test holds it up to date.

`run`, `capacity` and `shapes` take each setting as a flag, as a key of a plan file (`--plan FILE.toml`), or both: a flag wins over the
file, the file over the default. Hyphens and underscores are the same in a key. A key that begins with `no-` may also be given in its
positive form (`stream = false`). Connections, requests, warm-up and rates are totals over all clients. Times are seconds, or texts such
as `"500ms"`, `"2m"`. Every run directory holds its effective plan: `--plan RUN/plan.toml` repeats the run.

```toml
command = "capacity"
urls = ["http://127.0.0.1:8000"]
max = 256
output-tokens = "normal:128:32"
slo = { ttft = "500ms", tpot = "50ms" }
```

Beside these, a plan file names its `command` (run, capacity or shapes), and a flag of the command line its `urls` as arguments.
"""


def default_text(option: Option, group: type[Any]) -> str:
    """Return the default of a setting as a plan file would write it; "-" where there is none."""
    field = next(f for f in dataclasses.fields(group) if f.name == option.field)
    default = field.default if field.default is not dataclasses.MISSING else None
    if isinstance(default, bool):
        return str(default != option.negated).lower()
    if default is None:
        return "off" if option.field.startswith("timeout_") else "-"
    if isinstance(default, tuple):
        return f"[{', '.join(map(str, default))}]" if default else "-"
    if isinstance(default, float):
        return f"{default:g}"
    return f'"{default}"' if isinstance(default, str) else str(default)


def page() -> str:
    """Return the whole page."""
    lines = [_HEAD]
    for name, (group, title) in _GROUPS.items():
        lines += [
            f"## {title}",
            "",
            "| key and flag | value | default | commands | meaning |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(option, group) for option in OPTIONS if option.group == name]
        lines.append("")
    return "\n".join(lines)


def _row(option: Option, group: type[Any]) -> str:
    if option.key == "urls":
        metavar, text, flag = (
            "URL...",
            "Base URLs of the replicas; connections are spread over them evenly.",
            "`urls`",
        )
    else:
        metavar, text = HELP[option.key]
        flag = f"`--{option.key}`"
    commands = "all" if len(option.commands) == 3 else ", ".join(option.commands)
    cells = (flag, metavar or "true/false", default_text(option, group), commands, text)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> int:
    """Write or check the page."""
    if "--check" in sys.argv[1:]:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current == page():
            return 0
        print(
            f"{PAGE.relative_to(ROOT)} is not what the code says: run scripts/plan_reference.py",
            file=sys.stderr,
        )
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
