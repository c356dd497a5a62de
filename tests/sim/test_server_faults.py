"""Each fault, as the client sees it on the wire."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from distbench.sim.faults import choose_fault, parse_fault
from tests.sim.servers import ServerFactory, chat, engine_sum, events, eventually, post


def arrivals(url: str, body: dict[str, Any]) -> list[float]:
    """Return when each event line came, s after the request was sent."""
    started = time.monotonic()
    with (
        httpx.Client(verify=False, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        return [time.monotonic() - started for line in response.iter_lines() if line]


def stream_body(output: int) -> dict[str, Any]:
    """Build a streamed completion."""
    return {"prompt": "a b c", "max_tokens": output, "ignore_eos": True, "stream": True}


def test_reset_breaks_the_stream_after_its_tokens(start_server: ServerFactory) -> None:
    """Two tokens arrive, then the connection is reset; the engine stops working on the request."""
    url = start_server(faults=("reset:after=2",)).url
    received: list[str] = []
    with (
        httpx.Client(verify=False, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/completions", json=stream_body(4000)) as response,
        pytest.raises(httpx.ReadError),
    ):
        received += [line for line in response.iter_lines() if line]
    assert eventually(lambda: engine_sum(url, "num_requests_running") == 0)
    assert engine_sum(url, "generation_tokens_total") < 10


def test_truncate_closes_in_the_middle_of_the_body(start_server: ServerFactory) -> None:
    """The connection ends cleanly without the last chunk."""
    url = start_server(faults=("truncate:after=2",)).url
    with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
        post(f"{url}/v1/completions", json=stream_body(9))
    with pytest.raises(httpx.RemoteProtocolError):
        post(f"{url}/v1/completions", json=stream_body(9) | {"stream": False})


def test_stream_error_is_an_event_inside_a_200(start_server: ServerFactory) -> None:
    """Three tokens, the error, [DONE]; the connection can be used again."""
    url = start_server(faults=("stream_error:after=3",)).url
    with httpx.Client(verify=False, trust_env=False) as client:
        for _ in range(2):
            response = client.post(f"{url}/v1/completions", json=stream_body(9))
            parts = events(response.text)
            assert response.status_code == 200
            assert len(parts) == 5
            assert parts[3]["error"]["code"] == 500
            assert parts[4] == "[DONE]"


def test_stall_is_a_silence_with_nothing_lost(start_server: ServerFactory) -> None:
    """8 tokens at 1 ms with a silence of 0.3 s after the third: the fourth and all others come after it."""
    times = arrivals(start_server(faults=("stall:after=3,seconds=0.3",)).url, stream_body(8))
    assert len(times) == 9
    assert times[2] < 0.25
    assert times[3] >= 0.3


def test_slow_headers_delay_everything(start_server: ServerFactory) -> None:
    """The head comes 0.2 s later, the whole answer with it; the same without streaming."""
    url = start_server(faults=("slow_headers:seconds=0.2",)).url
    for stream in (True, False):
        started = time.monotonic()
        response = post(f"{url}/v1/completions", json=stream_body(3) | {"stream": stream})
        assert response.status_code == 200
        assert time.monotonic() - started >= 0.2


def test_buffering_sends_lumps(start_server: ServerFactory) -> None:
    """10 tokens in lumps of 4: events of 4, 4 and 2 tokens."""
    text = post(
        f"{start_server(faults=('buffering:tokens=4',)).url}/v1/completions", json=stream_body(10)
    ).text
    assert [len(part["choices"][0]["text"].split()) for part in events(text)[:-1]] == [4, 4, 2]


def test_http_error_answers_with_its_code(start_server: ServerFactory) -> None:
    """429 instead of an answer, with an error object."""
    response = post(f"{start_server(faults=('http_error:code=429',)).url}/v1/chat/completions", json=chat())
    assert (response.status_code, response.json()["error"]["code"]) == (429, 429)


def test_every_third_request_is_struck(start_server: ServerFactory) -> None:
    """every=3 strikes requests 3 and 6 of 7."""
    url = start_server(faults=("http_error:every=3,code=500",)).url
    statuses = [post(f"{url}/v1/chat/completions", json=chat(max_tokens=1)).status_code for _ in range(7)]
    assert statuses == [200, 200, 500, 200, 200, 500, 200]


def test_probability_is_a_function_of_seed_and_number() -> None:
    """The same seed strikes the same requests, about the given share of them."""
    faults = [parse_fault("reset:probability=0.2")]
    struck = [number for number in range(1, 2001) if choose_fault(faults, number, 7)]
    assert struck == [number for number in range(1, 2001) if choose_fault(faults, number, 7)]
    assert 320 < len(struck) < 480


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "explode",
        "reset:after",
        "reset:seconds=1",
        "reset:after=x",
        "reset:every=0",
        "reset:every=2,probability=0.5",
    ],
)
def test_wrong_specs_say_what_is_wrong(spec: str) -> None:
    """The spec itself is in the message."""
    with pytest.raises(ValueError, match="fault "):
        parse_fault(spec)
