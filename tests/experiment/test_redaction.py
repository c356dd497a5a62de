"""A server that repeats the key it was given does not get it into a file or onto the screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from distbench.errors import TargetError
from distbench.experiment.observer import LevelProgress, SilentObserver
from distbench.experiment.redaction import Redaction
from distbench.store.reader import open_run
from tests.support.small_run import small_run
from tests.support.stub_server import ONE_MODEL, STREAM, Reply, Seen, stub_server

KEY = "sk-secret"
HEADERS = (("Authorization", f"Bearer {KEY}"), ("X-Team", "research"), ("Api-Key", "ab"))


def test_secrets_are_masked_and_ordinary_headers_are_not() -> None:
    """With and without the scheme; a value of two letters is no secret that could be found again."""
    redaction = Redaction(HEADERS)
    assert redaction.text(f"no such key {KEY}, team research, ab") == "no such key ***, team research, ab"
    assert redaction.text(f"header was 'Bearer {KEY}'") == "header was '***'"
    assert KEY not in repr(redaction)


def test_a_key_in_a_refusal_is_not_shown(tmp_path: Path) -> None:
    """The preflight's message keeps the server's words around it."""
    refusal = Reply(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    with stub_server({"GET /v1/models": refusal}) as (url, _), pytest.raises(TargetError) as caught:
        small_run(url, tmp_path / "r", api_key_env="K")
    assert "Incorrect API key provided: ***" in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_key_in_the_errors_of_a_level_is_in_no_file_and_not_shown(tmp_path: Path) -> None:
    """The probe passes, every request of the level fails with the key in its text."""
    probes = iter([STREAM])

    def answer(_: Seen) -> Reply:
        return next(probes, Reply(500, {"error": {"message": f"quota of {KEY} exceeded"}}))

    told: list[str | None] = []

    class Watch(SilentObserver):
        def progress(self, state: LevelProgress) -> None:
            told.append(state.last_error)

    with stub_server({"GET /v1/models": ONE_MODEL, "POST /v1/chat/completions": answer}) as (url, _):
        result = small_run(
            url, tmp_path / "r", None, Watch(), no_metrics=True, connections="2", requests=8, api_key_env="K"
        )
    texts = open_run(tmp_path / "r").requests(columns=["error_text"]).column(0).to_pylist()
    assert set(texts) == {"HTTP 500: quota of *** exceeded"}
    assert result.errors["http_5xx"][1] == "HTTP 500: quota of *** exceeded"
    assert KEY not in str([*told, result])
    written = b"".join(path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file())
    assert KEY.encode() not in written
