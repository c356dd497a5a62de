"""The lock files are complete, agree with one another and with pyproject.toml, and name no place to download from."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ["requirements.lock", "requirements-dev.lock", "scripts/real-vllm.lock"]


def pins(lock: str) -> dict[str, str]:
    """Return the version of every package in a lock, by normalized name."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    return {
        canonicalize_name(name): version
        for name, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", text, re.MULTILINE)
    }


def test_locks_satisfy_the_project() -> None:
    """Every dependency of pyproject.toml is pinned at a version that it allows; if not, run scripts/lock."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = settings["project"]["optional-dependencies"]
    runtime = [*settings["project"]["dependencies"], *settings["build-system"]["requires"]]
    wanted = {
        "requirements.lock": runtime,
        "requirements-dev.lock": [*runtime, *extras["dev"], *extras["tokenizer"]],
    }

    unmet = [
        (lock, text)
        for lock, requirements in wanted.items()
        for text, requirement in ((text, Requirement(text)) for text in requirements)
        if not requirement.specifier.contains(pins(lock).get(canonicalize_name(requirement.name), "0"))
    ]

    assert unmet == []


def test_development_lock_holds_the_runtime_lock() -> None:
    """What is tested is what is shipped: the development lock has every runtime package at the same version."""
    assert pins("requirements.lock").items() <= pins("requirements-dev.lock").items()


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash_and_no_address(lock: str) -> None:
    """A lock holds only exact versions with hashes: no option, no address, no path."""
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line and not line.lstrip().startswith("#")]
    # A pin that ends its line with a backslash goes on with its hashes.
    strangers = [
        line
        for line in entries
        if not re.fullmatch(r"\S+==[^\s:/]+( ; [^:]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line)
    ]

    assert strangers == []
