"""The bytes of answers, over real sockets: shaped as a vLLM 0.32 writes them."""

from __future__ import annotations

import re
import socket
import time

import httpx
import pytest

from distbench.sim.step_time import StepTimeSettings
from tests.sim.servers import ServerFactory, chat, events, get, post

HEAD = '"created":0,"model":"tiny","choices":['
CHAT = 'data: {"id":"chatcmpl-7","object":"chat.completion.chunk",' + HEAD
COMPLETION = 'data: {"id":"cmpl-7","object":"text_completion",' + HEAD


def raw_exchange(port: int, data: bytes, *, until: bytes) -> bytes:
    """Send bytes and read until a mark has come."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(data)
        while until not in received:
            part = connection.recv(65_536)
            if not part:
                break
            received += part
    return received


def fixed(text: str) -> str:
    """Replace what differs from run to run: the time, and the words of the answer."""
    text = re.sub(r'"created":\d+', '"created":0', text)
    return re.sub(r'"(content|text)":" \w+"', r'"\1":" w"', text)


def test_chat_stream_has_the_bytes_of_a_real_one(start_server: ServerFactory) -> None:
    """Role event with the first token, one event a token, the reason in the last, usage with no choices, [DONE]."""
    server = start_server()
    body = chat(stream=True, stream_options={"include_usage": True}, max_tokens=2)
    response = post(f"{server.url}/v1/chat/completions", json=body, headers={"X-Request-Id": "7"})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["transfer-encoding"] == "chunked"
    assert fixed(response.text) == (
        CHAT + '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
        '"prompt_token_ids":null,"prompt_text":null}\n\n'
        + CHAT
        + '{"index":0,"delta":{"content":" w"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        + CHAT
        + '{"index":0,"delta":{"content":" w"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}]}\n\n'
        + CHAT
        + '],"usage":{"prompt_tokens":14,"total_tokens":16,"completion_tokens":2,'
        '"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}},"system_fingerprint":"distbench-sim"}\n\n'
        "data: [DONE]\n\n"
    )


def test_completion_stream_has_the_bytes_of_a_real_one(start_server: ServerFactory) -> None:
    """No role event; without usage the last token's event carries the fingerprint."""
    server = start_server()
    body = {
        "model": "tiny",
        "prompt": "def sort(items):",
        "max_tokens": 2,
        "stream": True,
        "ignore_eos": True,
    }
    response = post(f"{server.url}/v1/completions", json=body, headers={"X-Request-Id": "7"})
    choice = '{"index":0,"text":" w","logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
    assert fixed(response.text) == (
        COMPLETION
        + choice % "null"
        + "}\n\n"
        + COMPLETION
        + choice % '"length"'
        + ',"system_fingerprint":"distbench-sim"}\n\n'
        + "data: [DONE]\n\n"
    )


def test_one_event_is_one_http_chunk(start_server: ServerFactory) -> None:
    """On the wire each event is a chunk of its own, and the last chunk has no length."""
    server = start_server()
    body = b'{"model":"tiny","prompt":"a b c","max_tokens":2,"ignore_eos":true,"stream":true}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    received = raw_exchange(server.port, head % len(body) + body, until=b"0\r\n\r\n")
    payload = received.partition(b"\r\n\r\n")[2]
    sizes = []
    while payload:
        size, _, payload = payload.partition(b"\r\n")
        sizes.append(int(size, 16))
        chunk, payload = payload[: sizes[-1]], payload[sizes[-1] + 2 :]
        assert not chunk or (chunk.startswith(b"data: ") and chunk.endswith(b"\n\n"))
    assert sizes[-2:] == [len(b"data: [DONE]\n\n"), 0]
    assert len(sizes) == 4


def test_headers_come_before_the_first_token(start_server: ServerFactory) -> None:
    """The head is sent when the request is taken; the first token follows a 300 ms step later."""
    slow = StepTimeSettings(fixed_s=0.3, weights_s=0.0)
    server = start_server(step_time=slow)
    started = time.monotonic()
    with httpx.stream(
        "POST", f"{server.url}/v1/chat/completions", json=chat(stream=True, max_tokens=1)
    ) as response:
        head_s = time.monotonic() - started
        response.read()
        total_s = time.monotonic() - started
    assert total_s >= 0.3
    assert total_s - head_s > 0.15


def test_continuous_usage_counts_up(start_server: ServerFactory) -> None:
    """Usage in every event: 0 with the role, then one more each token."""
    server = start_server()
    body = chat(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    parts = events(post(f"{server.url}/v1/chat/completions", json=body).text)
    assert [part["usage"]["completion_tokens"] for part in parts[:-1]] == [0, 1, 2, 3, 3]
    assert parts[1]["usage"] == {
        "prompt_tokens": 14,
        "total_tokens": 15,
        "completion_tokens": 1,
        "completion_tokens_details": None,
    }


def test_stream_interval_groups_tokens_after_the_first(start_server: ServerFactory) -> None:
    """Interval 4, 14 tokens: events of 1, 4, 4, 4, 1 tokens, as a real server sends them."""
    server = start_server(stream_interval=4)
    body = chat(stream=True, max_tokens=14)
    parts = events(post(f"{server.url}/v1/chat/completions", json=body).text)[1:-1]
    assert [len(part["choices"][0]["delta"]["content"].split()) for part in parts] == [1, 4, 4, 4, 1]


def test_whole_chat_answer_has_all_fields(start_server: ServerFactory) -> None:
    """The keys of a real answer, in its order; the text has a word a token."""
    server = start_server()
    answer = post(f"{server.url}/v1/chat/completions", json=chat(), headers={"X-Request-Id": "7"}).json()
    assert list(answer) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
        *(
            "prompt_logprobs",
            "prompt_token_ids",
            "prompt_text",
            "kv_transfer_params",
            "ec_transfer_params",
            "metrics",
        ),
    ]
    assert (answer["id"], answer["object"]) == ("chatcmpl-7", "chat.completion")
    assert len(answer["choices"][0]["message"]["content"].split()) == 3
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 17


def test_whole_completion_answer_has_all_fields(start_server: ServerFactory) -> None:
    """The keys of a real answer, in its order; 16 tokens unless asked otherwise."""
    server = start_server()
    body = {"prompt": [1, 2, 3], "ignore_eos": True}
    answer = post(f"{server.url}/v1/completions", json=body).json()
    assert list(answer) == [
        *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
        *("kv_transfer_params", "ec_transfer_params", "metrics"),
    ]
    assert list(answer["choices"][0]) == [
        *("index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs"),
        *("prompt_token_ids", "routed_experts"),
    ]
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["usage"]["prompt_tokens"] == 3


def test_per_request_metrics_are_told_when_switched_on(start_server: ServerFactory) -> None:
    """5 tokens at 1 ms steps: TTFT and the 4 gaps add up; off, the key is absent."""
    body = chat(stream=True, stream_options={"include_usage": True}, max_tokens=5)
    told = events(
        post(f"{start_server(enable_per_request_metrics=True).url}/v1/chat/completions", json=body).text
    )
    metrics = told[-2]["metrics"]
    assert metrics["mean_itl_ms"] == pytest.approx(metrics["generation_time_ms"] / 4)
    assert set(metrics) == {
        *(
            "time_to_first_token_ms",
            "generation_time_ms",
            "queue_time_ms",
            "mean_itl_ms",
            "tokens_per_second",
        ),
    }
    silent = events(post(f"{start_server().url}/v1/chat/completions", json=body).text)
    assert "metrics" not in silent[-2]


def test_request_id_is_echoed_only_when_switched_on(start_server: ServerFactory) -> None:
    """X-Request-Id always makes the answer's id; the header comes back by setting only."""
    for switched_on in (False, True):
        server = start_server(enable_request_id_headers=switched_on)
        response = post(f"{server.url}/v1/chat/completions", json=chat(), headers={"X-Request-Id": "abc"})
        assert response.json()["id"] == "chatcmpl-abc"
        assert response.headers.get("x-request-id") == ("abc" if switched_on else None)


def test_second_identical_prompt_tells_its_cached_tokens(start_server: ServerFactory) -> None:
    """100 token ids, blocks of 16: (100 - 1) // 16 = 6 blocks = 96 tokens hit the second time."""
    server = start_server()
    body = {"prompt": list(range(500, 600)), "max_tokens": 1, "ignore_eos": True}
    cached = [
        post(f"{server.url}/v1/completions", json=body).json()["usage"]["prompt_tokens_details"][
            "cached_tokens"
        ]
        for _ in range(2)
    ]
    assert cached == [0, 96]


def test_answer_sent_back_as_history_hits_its_own_blocks(start_server: ServerFactory) -> None:
    """
    Turn 1: 34 content + 6 template = 40 prompt tokens, 40 answer tokens; 79 of them were computed: 4 blocks of 16 full. Turn 2
    starts with the same 80 tokens, so 64 are cached.
    """
    server = start_server()
    messages = [{"role": "user", "content": " ".join(f"word{n}" for n in range(34))}]
    first = post(f"{server.url}/v1/chat/completions", json=chat(messages=messages, max_tokens=40)).json()
    assert first["usage"]["prompt_tokens"] == 40
    messages += [first["choices"][0]["message"], {"role": "user", "content": "go on"}]
    messages[1] = {"role": "assistant", "content": messages[1]["content"]}
    second = post(f"{server.url}/v1/chat/completions", json=chat(messages=messages)).json()
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


def test_answer_without_ignore_eos_ends_by_itself(start_server: ServerFactory) -> None:
    """The length is drawn per request, at least min_tokens; its last token has no text and the reason is stop."""
    server = start_server(mean_output_tokens=8.0)
    lengths = set()
    for seed in range(12):
        body = chat(ignore_eos=False, max_tokens=500, min_tokens=4, seed=seed)
        answer = post(f"{server.url}/v1/chat/completions", json=body).json()
        made = answer["usage"]["completion_tokens"]
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert len(answer["choices"][0]["message"]["content"].split()) == made - 1
        assert made >= 4
        lengths.add(made)
    assert len(lengths) > 1


def test_same_seed_gives_the_same_answer(start_server: ServerFactory) -> None:
    """Two servers, the same settings and request: the same words."""
    answers = {
        post(f"{start_server().url}/v1/chat/completions", json=chat(seed=3)).json()["choices"][0]["message"][
            "content"
        ]
        for _ in range(2)
    }
    assert len(answers) == 1


def test_over_long_answer_is_clamped_silently(start_server: ServerFactory) -> None:
    """Prompt 40, context 64, 60 tokens asked: 24 come, reason length, no error."""
    server = start_server(max_model_len=64, num_blocks=16)
    body = {"prompt": list(range(40)), "max_tokens": 60, "ignore_eos": True}
    answer = post(f"{server.url}/v1/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 24
    assert answer["choices"][0]["finish_reason"] == "length"


def test_chat_without_max_tokens_goes_to_the_context(start_server: ServerFactory) -> None:
    """14 prompt tokens in a context of 64: 50 tokens."""
    server = start_server(max_model_len=64, num_blocks=16)
    body = chat()
    del body["max_tokens"]
    answer = post(f"{server.url}/v1/chat/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 50


def test_get_routes(start_server: ServerFactory) -> None:
    """Models with the context length, health, ping, version."""
    server = start_server()
    model = get(f"{server.url}/v1/models").json()["data"][0]
    assert (model["id"], model["max_model_len"], model["owned_by"]) == ("tiny", 4096, "vllm")
    assert [get(f"{server.url}/{path}").status_code for path in ("health", "ping")] == [200, 200]
    assert get(f"{server.url}/version").json() == {"version": "0.32.0+sim"}


def test_tokenize_agrees_with_usage(start_server: ServerFactory) -> None:
    """The count of a chat's /tokenize is its prompt_tokens; its ids, sent as a prompt, hit the chat's blocks."""
    server = start_server()
    messages = [{"role": "user", "content": "The quick, brown fox " * 9}]
    told = post(f"{server.url}/tokenize", json={"model": "tiny", "messages": messages}).json()
    answer = post(f"{server.url}/v1/chat/completions", json=chat(messages=messages)).json()
    assert told["count"] == len(told["tokens"]) == answer["usage"]["prompt_tokens"] == 9 * 5 + 6
    usage = post(f"{server.url}/v1/completions", json={"prompt": told["tokens"], "max_tokens": 1}).json()[
        "usage"
    ]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 48


def test_pipelined_requests_are_answered_in_order(start_server: ServerFactory) -> None:
    """Two requests in one segment on one connection: two responses, the first one first."""
    server = start_server()
    received = raw_exchange(
        server.port,
        b"GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /nope HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        until=b'Not Found"}',
    )
    assert received.index(b"0.32.0+sim") < received.index(b'{"detail":"Not Found"}')


def test_http_1_0_gets_a_body_that_ends_with_the_connection(start_server: ServerFactory) -> None:
    """No chunks for a client that does not know them."""
    server = start_server()
    body = b'{"prompt":"a","max_tokens":1,"stream":true}'
    head = b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body)
    received = raw_exchange(server.port, head + body, until=b"never")
    assert b"transfer-encoding" not in received
    assert received.endswith(b"data: [DONE]\n\n")
