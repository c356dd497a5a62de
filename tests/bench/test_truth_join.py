"""The join of a client's stamps with the truth log, by hand."""

from pathlib import Path

import numpy as np
import pytest

from scripts.bench.truth import came_alone, log_record, server_view, stamp_errors, stamps_of_log
from tests.support.cmock import TrueRequest


def true_request(request_id: int, read_ns: int, token_ns: list[int], end_ns: int) -> TrueRequest:
    """Return what the server saw of a request."""
    return TrueRequest(
        request_id=request_id,
        read_ns=read_ns,
        admit_ns=read_ns,
        end_ns=end_ns,
        aborted=False,
        chat=True,
        stream=True,
        body_bytes=100,
        token_ns=np.array(token_ns, np.int64),
    )


def test_bundled_tokens_are_told_from_those_that_came_alone() -> None:
    """A token whose neighbour bears the same stamp shared its read."""
    assert came_alone(np.array([1, 2, 2, 3, 4, 4, 4])).tolist() == [
        True,
        False,
        False,
        True,
        False,
        False,
        False,
    ]


def test_stamp_errors_count_unbundled_tokens_only() -> None:
    """Errors are arrival minus sending, of tokens that came alone; an answer with another number of tokens is left out."""
    truth = {1: true_request(1, 0, [1_000_000, 2_000_000, 3_000_000], 0), 2: true_request(2, 0, [5, 6], 0)}
    stamped = {1: np.array([1_500_000, 9_000_000, 9_000_000]), 2: np.array([5])}

    errors = stamp_errors(truth, stamped)

    assert errors is not None
    assert (errors.p50_ms, errors.p99_ms, errors.num_tokens) == (0.5, 0.5, 3)
    assert errors.bundled_ratio == pytest.approx(2 / 3)


def test_server_view_is_the_mean_over_the_window() -> None:
    """The window opens with as many ends as connections and closes with the last arrival; in flight is its time average."""
    requests = [
        true_request(1, 0, [5], 10),
        true_request(2, 0, [5], 20),
        true_request(3, 10, [15, 25], 30),
        true_request(4, 20, [35], 40),
        true_request(5, 30, [45], 50),
    ]

    view = server_view(requests, connections=2)

    # 20..30 between the second end and the last arrival: requests 3 and 4 throughout; one token (at 25).
    assert view is not None
    assert (view.window_s, view.in_flight) == (10e-9, 2.0)
    assert view.tokens_per_s == pytest.approx(1e8)


def test_client_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Records of different lengths follow one another; one without tokens is there."""
    path = tmp_path / "log.bin"
    path.write_bytes(log_record(7, 100, [110, 120]) + log_record(8, 130, []) + log_record(9, 140, [150]))

    stamps = stamps_of_log(path)

    assert {key: value.tolist() for key, value in stamps.items()} == {7: [110, 120], 8: [], 9: [150]}
