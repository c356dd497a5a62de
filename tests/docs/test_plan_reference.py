"""The plan reference is what the code says."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from distbench.core.plan_io import OPTIONS, build_plan

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "plan-reference.md"


def test_plan_reference_is_current() -> None:
    """Writing the page anew changes nothing."""
    ran = subprocess.run(
        [sys.executable, ROOT / "scripts" / "plan_reference.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ran.returncode, ran.stderr) == (0, "")


def test_plan_reference_names_every_key() -> None:
    """Each setting has its row."""
    text = PAGE.read_text(encoding="utf-8")

    assert [o.key for o in OPTIONS if f"| `--{o.key}` |" not in text and f"| `{o.key}` |" not in text] == []


def test_example_of_the_plan_reference_is_a_plan() -> None:
    """The plan file at the top of the page is read without a problem."""
    example = PAGE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]

    plan = build_plan("capacity", tomllib.loads(example), {})

    assert (plan.load.max_connections, plan.judging.slos[1].limit_s) == (256, 0.05)
