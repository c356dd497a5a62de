"""Runs made by calculation, shared by the tests of what reads them; nobody may change one."""

from pathlib import Path

import pytest

from tests.support.synthetic_run import write_run

# A script element that ends early, an attribute that ends early, and a character that JSON may hold and JavaScript once could not.
HOSTILE = "</script><script>document.title='owned'</script>\"><img src=x onerror=\"document.title='owned'\"> & \u2028 |`*"


@pytest.fixture(scope="session")
def capacity_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a search for capacity past its peak at 64 connections, server and GPUs read."""
    return write_run(
        tmp_path_factory.mktemp("runs") / "capacity", connections=(1, 8, 64, 128), requests=160, repeats=2
    )


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of one level without any server metrics."""
    path = tmp_path_factory.mktemp("runs") / "plain"
    return write_run(
        path, command="run", connections=(8,), requests=120, repeats=0, server=False, chunks=False
    )


@pytest.fixture(scope="session")
def failed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run in which every request failed, with words of the server that try to break out of the page."""
    path = tmp_path_factory.mktemp("runs") / "failed"
    return write_run(
        path,
        command="run",
        connections=(8,),
        requests=40,
        repeats=0,
        fail=1.0,
        error_text=HOSTILE,
        status="incomplete",
    )


@pytest.fixture(scope="session")
def shapes_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a comparison of packings."""
    path = tmp_path_factory.mktemp("runs") / "shapes"
    return write_run(
        path,
        command="shapes",
        connections=(96,),
        users=(1, 2, 4),
        requests=200,
        repeats=0,
        plan={"connections": [96]},
    )
