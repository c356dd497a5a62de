"""The C reference server tells the truth: the measurements that rest on it are no better than it is."""

import http.client
import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import cmock

pytestmark = pytest.mark.bench

Start = Callable[..., cmock.MockServer]


def post(server: cmock.MockServer, path: str, request_id: str, **body: object) -> bytes:
    """Send one request on a connection of its own and return the answer's body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body), {"X-Request-Id": request_id})
        response = connection.getresponse()
        assert response.status == 200
        return response.read()
    finally:
        connection.close()


def num_running(server: cmock.MockServer) -> int:
    """Return how many requests the server says are in its batch."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    finally:
        connection.close()
    return int(re.findall(r"^vllm:num_requests_running\{.*\} (\d+)$", page, re.MULTILINE)[0])


def test_truth_log_brackets_what_the_client_saw(mock_server: Start) -> None:
    """Every request is found by its id, with as many token times as tokens, all between sending and the answer's end."""
    server = mock_server(ttft_ms=5, itl_ms=2)

    before_ns = time.monotonic_ns()
    post(server, "/v1/chat/completions", "7", max_tokens=4, stream=True)
    post(server, "/v1/completions", "8", max_tokens=3)
    after_ns = time.monotonic_ns()
    server.stop()
    truth = server.truth()

    assert sorted(truth) == [7, 8]
    assert [(len(truth[i].token_ns), truth[i].chat, truth[i].stream, truth[i].aborted) for i in (7, 8)] == [
        (4, True, True, False),
        (3, False, False, False),
    ]
    for request in truth.values():
        assert request.admit_ns is not None
        stamps = [
            before_ns,
            request.read_ns,
            request.admit_ns,
            *request.token_ns.tolist(),
            request.end_ns,
            after_ns,
        ]
        assert stamps == sorted(stamps)
    assert truth[7].token_ns[0] - truth[7].read_ns >= 5_000_000
    assert server.counters["tokens"] == 7


def test_stream_is_an_openai_stream(mock_server: Start) -> None:
    """A chat stream has a role event, one event a token, a usage event when asked for, and the end mark."""
    server = mock_server()

    answer = post(
        server, "/v1/chat/completions", "1", max_tokens=2, stream=True, stream_options={"include_usage": True}
    )
    lines = answer.decode().split("\n\n")
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:4]]

    assert lines[4:] == ["data: [DONE]", ""]
    assert [choice["delta"] for event in events for choice in event["choices"]] == [
        {"role": "assistant", "content": ""},
        {"content": " that"},
        {"content": " your"},
    ]
    assert [event["choices"][0]["finish_reason"] for event in events[:3]] == [None, None, "length"]
    assert events[3]["usage"]["completion_tokens"] == 2


def test_dropped_client_is_logged_as_aborted(mock_server: Start) -> None:
    """A client that goes away mid-stream leaves a record with the tokens that it was sent."""
    server = mock_server(itl_ms=2)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    body = json.dumps({"max_tokens": 100_000, "stream": True})
    connection.request("POST", "/v1/completions", body, {"X-Request-Id": "5"})
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    response.close()
    connection.close()

    deadline = time.monotonic() + 10
    while num_running(server):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    server.stop()

    request = server.truth()[5]
    assert request.aborted
    assert 1 <= len(request.token_ns) < 100_000


def test_floor_client_counts_what_the_server_sent(mock_server: Start, tmp_path: Path) -> None:
    """The floor client's requests, tokens and reads agree with the server's own counters."""
    server = mock_server(itl_ms=2)
    log = tmp_path / "client.bin"

    command = [
        str(cmock.build("climit")),
        "--port",
        str(server.port),
        "--connections",
        "4",
        "--requests",
        "12",
    ]
    ran = subprocess.run(
        [*command, "--tokens", "5", "--log", str(log)], capture_output=True, text=True, check=True
    )
    told = json.loads(ran.stdout)
    server.stop()

    assert (told["requests"], told["tokens"]) == (12, 60)
    assert (server.counters["done"], server.counters["tokens"]) == (12, 60)
    assert log.stat().st_size == 8 * 12 * (4 + 5)


def test_truth_log_without_its_end_is_refused(tmp_path: Path) -> None:
    """A log cut off in a record is an error, not a shorter log."""
    path = tmp_path / "cut.bin"
    path.write_bytes((0x5452555448303031).to_bytes(8, "little") + bytes(8 * 6))

    with pytest.raises(ValueError, match="no whole record"):
        cmock.read_truth_log(path)
