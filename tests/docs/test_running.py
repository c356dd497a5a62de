"""
The commands of the README and of the tutorial, comparison and doctor pages, run as they stand against embedded servers.

Only addresses and names are filled in, and options that make a load small are put behind those of the page. The other pages'
commands are run where their story is tested: cluster.md in tests/hosts and tests/store, packing.md and ninety-nine-percent.md in
tests/experiment.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from tests.docs.test_commands import ROOT, command_lines

pytestmark = pytest.mark.slow

# Put behind the page's own options, where the last word counts: one level of two connections.
SMALL = [
    *("--connections", "2", "--repeats", "0", "--requests", "32", "--warmup", "2", "--ray-address", "none"),
    *("--system-tokens", "16", "--user-tokens", "16", "--output-tokens", "8"),
]
DISTBENCH = Path(sys.executable).with_name("distbench")
LIMIT_S = 100.0


@pytest.fixture(scope="module")
def urls() -> Iterator[list[str]]:
    """Give the base URLs of two servers of 16 sequences each."""
    settings = SimSettings(max_num_seqs=16)
    with EmbeddedServer(settings) as one, EmbeddedServer(settings) as other:
        yield [one.url.removesuffix("/v1"), other.url.removesuffix("/v1")]


def lines_of(page: str) -> list[list[str]]:
    """Return the commands of a page, without the lines of syntax."""
    path = ROOT / page
    return [words for words in command_lines(path) if not any(word.startswith("[") for word in words)]


def run(words: list[str], folder: Path, expected: int = 0) -> str:
    """Run a command line where the user would, and return what it shows."""
    done = subprocess.run(
        [DISTBENCH, *words],
        cwd=folder,
        env={**os.environ, "MY_KEY": "sk-docs", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    shown = done.stdout + done.stderr
    assert done.returncode == expected, (words, shown)
    assert "Traceback" not in shown
    return shown


def small(words: list[str]) -> list[str]:
    """Make a load small; other commands stay as they are."""
    if words[0] != "capacity":
        return words
    return [*words, *SMALL]


@pytest.mark.timeout(300)
def test_the_tutorial_can_be_followed(urls: list[str], tmp_path: Path) -> None:
    """Its commands in order, in one folder: each succeeds, and the files that it names are there at the end."""
    for words in lines_of("docs/tutorial.md"):
        if words[0] != "sim":
            run(small([word.replace("http://127.0.0.1:8000", urls[0]) for word in words]), tmp_path)
    assert (tmp_path / "ceiling.html").stat().st_size > 100_000
    assert (tmp_path / "ceiling-requests.parquet").exists()
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"ceiling", "with-slo", "proven"}


def test_the_tutorials_server_starts(tmp_path: Path) -> None:
    """The embedded server of its first command listens where it is said to."""
    (words,) = [words for words in lines_of("docs/tutorial.md") if words[0] == "sim"]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    words = [port if word == "8000" else word for word in words]
    with subprocess.Popen([DISTBENCH, *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        told = server.stdout.readline()
        server.terminate()
    assert f"127.0.0.1:{port}" in told


@pytest.mark.timeout(300)
def test_the_readmes_commands_can_be_followed(urls: list[str], tmp_path: Path) -> None:
    """From the first capacity to the export; RUN is what the first one left, OTHER the same once more."""
    names = {"http://HOST:8000": urls[0], "http://A:8000": urls[0], "http://B:8000": urls[1]}
    ran = []
    for words in lines_of("README.md"):
        filled = small([names.get(word, word) for word in words])
        if filled[0] == "capacity":
            filled += ["--output", "RUN" if not (tmp_path / "RUN").exists() else "second"]
        elif not (tmp_path / "OTHER").exists():
            shutil.copytree(tmp_path / "RUN", tmp_path / "OTHER")
        run(filled, tmp_path)
        ran.append(filled[0])
    assert {"capacity", "report", "compare", "export"} <= set(ran)
    assert (tmp_path / "requests.parquet").exists()
    assert (tmp_path / "report.html").exists()


@pytest.mark.timeout(300)
def test_the_pages_of_comparing_can_be_followed(urls: list[str], tmp_path: Path) -> None:
    """A baseline, then what the page does with it; whether the gate passes is the machine's matter (0 or 3)."""
    run(["capacity", urls[0], *SMALL, "--output", "baseline"], tmp_path)
    for words in lines_of("docs/compare.md"):
        if words[0] == "capacity":
            run([word.replace("http://server:8000", urls[0]) for word in words], tmp_path)
        elif "BASELINE" not in words:
            loose = [word.replace("-5%", "-99%").replace("+10%", "+10000%") for word in words]
            run(loose, tmp_path)
    assert (tmp_path / "candidate/run.json").exists()
    assert (tmp_path / "compare.html").exists()


@pytest.mark.timeout(300)
def test_the_pages_of_the_doctor_can_be_followed(urls: list[str], tmp_path: Path) -> None:
    """Each form but those that need a Ray (tests/experiment/test_doctor_cluster.py) gives its lines."""
    ran = 0
    for words in lines_of("docs/doctor.md"):
        if "--ray" in words or "--ray-address" in words:
            continue
        shown = run([word.replace("http://HOST:8000", urls[0]) for word in words], tmp_path)
        assert "ok" in shown
        ran += 1
    assert ran >= 3
