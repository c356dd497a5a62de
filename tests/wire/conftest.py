"""Both hot paths and both connections, for the tests that must hold on any."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.hot_paths import use_hot_path
from tests.wire.support import Kind


@pytest.fixture(scope="module", params=["compiled", "python"])
def each_hot_path(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run the tests of a module with each of the two; `pytestmark = pytest.mark.usefixtures("each_hot_path")` asks for it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_hot_path(request.param, monkeypatch)
        yield


@pytest.fixture(params=["fast", "python", "httpx"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Kind:
    """Return the kind of connection to test: the fast one, also without compiled code, and the one over httpx."""
    if request.param == "httpx":
        return "httpx"
    use_hot_path("compiled" if request.param == "fast" else "python", monkeypatch)
    return "fast"
