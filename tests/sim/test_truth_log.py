"""The truth log tells what was done, to be joined with a client's records."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx

from tests.sim.servers import ServerFactory, chat, engine_sum, eventually, post


def read(path: Path, count: int) -> list[dict[str, Any]]:
    """Return the records once there are this many."""
    assert eventually(lambda: path.read_bytes().count(b"\n") >= count)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_record_of_a_stream(start_server: ServerFactory, tmp_path: Path) -> None:
    """Every stamp is there, in order, on the clock of this machine; one send time per token."""
    path = tmp_path / "truth.jsonl"
    url = start_server(truth_log=str(path)).url
    before = time.monotonic_ns()
    post(f"{url}/v1/chat/completions", json=chat(stream=True, max_tokens=5), headers={"X-Request-Id": "42"})
    after = time.monotonic_ns()
    (record,) = read(path, 1)
    assert (record["request_id"], record["answer_id"], record["number"]) == ("42", "chatcmpl-42", 1)
    assert (record["prompt_tokens"], record["completion_tokens"], record["cached_tokens"]) == (14, 5, 0)
    assert (record["finish_reason"], record["status"], record["aborted"], record["engine"]) == (
        "length",
        200,
        False,
        0,
    )
    assert record["peer"].startswith("127.0.0.1:")
    sent = record["token_sent_ns"]
    assert len(sent) == 5
    assert sent == sorted(sent)
    assert before <= record["arrival_ns"] <= record["headers_sent_ns"] <= record["admitted_ns"] <= sent[0]
    assert sent[-1] == record["end_sent_ns"] <= after


def test_records_of_failures(start_server: ServerFactory, tmp_path: Path) -> None:
    """A refused request has its status and reason; a struck one its fault; both are not successes."""
    path = tmp_path / "truth.jsonl"
    url = start_server(truth_log=str(path), faults=("stream_error:every=2,after=1",)).url
    post(f"{url}/v1/chat/completions", json=chat(model="other"))
    post(f"{url}/v1/chat/completions", json=chat(stream=True))
    refused, struck = read(path, 2)
    assert (refused["status"], refused["finish_reason"], refused["answer_id"]) == (404, None, None)
    assert "does not exist" in refused["error"]
    assert (struck["status"], struck["finish_reason"], struck["aborted"], struck["fault"]) == (
        200,
        "abort",
        True,
        "stream_error",
    )
    assert len(struck["token_sent_ns"]) == 1


def test_tokens_of_all_records_are_the_counter(start_server: ServerFactory, tmp_path: Path) -> None:
    """Finished, left and aborted requests together: the sum of completion_tokens is the engine's counter, exactly."""
    path = tmp_path / "truth.jsonl"
    url = start_server(truth_log=str(path)).url
    for output in (3, 1, 8):
        post(f"{url}/v1/chat/completions", json=chat(max_tokens=output))
    with (
        httpx.Client(verify=False, trust_env=False) as client,
        client.stream(
            "POST", f"{url}/v1/chat/completions", json=chat(stream=True, max_tokens=4000)
        ) as response,
    ):
        next(response.iter_lines())
    records = read(path, 4)
    assert records[3]["finish_reason"] == "abort"
    assert records[3]["error"] == "client disconnected"
    assert sum(record["completion_tokens"] for record in records) == engine_sum(
        url, "generation_tokens_total"
    )
