"""What the server answers when it does not answer: in the words of a vLLM 0.32."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from distbench.sim.step_time import StepTimeSettings
from tests.sim.servers import ServerFactory, chat, events, eventually, get, post, samples

BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
SLOW = StepTimeSettings(fixed_s=0.2, weights_s=0.0)


def test_bad_json_is_told_with_its_position(start_server: ServerFactory) -> None:
    """The whole body, character by character."""
    response = post(f"{start_server().url}/v1/chat/completions", content=b'{"model": "tiny", ')
    assert response.status_code == 400
    assert response.text == (
        """{"error":{"message":"1 validation error:\\n  {'type': 'json_invalid', 'loc': 'body.18', 'msg': 'JSON decode error', """
        """'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting property name enclosed in double quotes'}}","""
        """"type":"Bad Request","param":"body.18","code":400}}"""
    )


def test_unknown_model_is_a_404(start_server: ServerFactory) -> None:
    """The served name is told."""
    response = post(
        f"{start_server().url}/v1/chat/completions", json=chat(model="no-such-model", stream=True)
    )
    assert response.status_code == 404
    assert response.text == (
        '{"error":{"message":"The model `no-such-model` does not exist. Valid aliases: tiny.","type":"NotFoundError",'
        '"param":"model","code":404}}'
    )


def test_max_tokens_over_the_context_is_a_400(start_server: ServerFactory) -> None:
    """Only more than the whole context is refused; less is clamped."""
    response = post(f"{start_server().url}/v1/chat/completions", json=chat(max_tokens=100_000))
    assert response.status_code == 400
    assert response.text == (
        '{"error":{"message":"max_tokens=100000 cannot be greater than max_model_len=4096. Please request fewer output tokens. '
        '(parameter=max_tokens, value=100000)","type":"BadRequestError","param":"max_tokens","code":400}}'
    )


def test_prompt_over_the_context_is_a_400(start_server: ServerFactory) -> None:
    """5,000 tokens in a context of 4,096: the real tokenizer stops at 4,097, and so does the text."""
    response = post(f"{start_server().url}/v1/completions", json={"prompt": [5] * 5000})
    assert response.status_code == 400
    assert response.text == (
        '{"error":{"message":"This model\'s maximum context length is 4096 tokens. However, your prompt contains at least 4097 '
        "input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
        '(parameter=input_tokens, value=4097)","type":"BadRequestError","param":"input_tokens","code":400}}'
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"messages": []}),
        ("chat/completions", {}),
        ("chat/completions", {"messages": [{"content": "no role"}]}),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        ("chat/completions", chat(n=2)),
        ("chat/completions", chat(max_tokens=0)),
        ("chat/completions", chat(max_tokens="many")),
        ("chat/completions", chat(stream="yes")),
        ("chat/completions", chat(min_tokens=4)),
        ("chat/completions", chat(stream_options={"include_usage": True})),
        ("completions", {}),
        ("completions", {"prompt": ""}),
        ("completions", {"prompt": ["a", "b"]}),
        ("completions", {"prompt": [1, "a"]}),
        ("completions", {"prompt": [131_072]}),
        ("completions", {"prompt": [5] * 4096}),
        ("completions", [1, 2]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_requests_are_400s_with_a_reason(start_server: ServerFactory, path: str, body: Any) -> None:
    """Each has the error object with its four keys, and the server goes on."""
    response = post(f"{start_server().url}/v1/{path}", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"]
    assert error["code"] == 400


def test_key_is_asked_for_under_v1_only(start_server: ServerFactory) -> None:
    """401 with a string, whatever the key that is wrong; metrics and health are open."""
    url = start_server(api_key="sekret").url
    for headers in ({}, {"Authorization": "Bearer nope"}, {"Authorization": "Basic sekret"}):
        response = post(f"{url}/v1/chat/completions", json=chat(), headers=headers)
        assert (response.status_code, response.text) == (401, '{"error":"Unauthorized"}')
    assert (
        post(
            f"{url}/v1/chat/completions", json=chat(), headers={"Authorization": "Bearer sekret"}
        ).status_code
        == 200
    )
    assert [get(f"{url}{path}").status_code for path in ("/health", "/metrics", "/v1/models")] == [
        200,
        200,
        401,
    ]


def test_unknown_route_and_method(start_server: ServerFactory) -> None:
    """As the web framework words them."""
    url = start_server().url
    assert (get(f"{url}/v2").status_code, get(f"{url}/v2").text) == (404, '{"detail":"Not Found"}')
    response = get(f"{url}/v1/chat/completions")
    assert (response.status_code, response.text) == (405, '{"detail":"Method Not Allowed"}')


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_full_queue_is_a_503(start_server: ServerFactory, stream: bool) -> None:
    """With a limit of 0 unfinished requests nobody gets in; the rejection is counted."""
    server = start_server(max_num_queued_reqs=0)
    response = post(f"{server.url}/v1/chat/completions", json=chat(stream=stream))
    assert response.status_code == 503
    assert (
        response.text
        == f'{{"error":{{"message":"{BUSY}","type":"Service Unavailable","param":null,"code":503}}}}'
    )
    assert (
        samples(server.url)['vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}']
        == 1
    )


def test_full_queue_may_show_inside_the_stream(start_server: ServerFactory) -> None:
    """Status 200, an error event with spaces in its JSON, [DONE]; it counts as 2xx, and as a rejection."""
    server = start_server(max_num_queued_reqs=0, queue_overflow="in_stream")
    response = post(f"{server.url}/v1/chat/completions", json=chat(stream=True))
    assert response.status_code == 200
    assert response.text == (
        f'data: {{"error": {{"message": "{BUSY}", "type": "Service Unavailable", "param": null, "code": 503}}}}\n\ndata: [DONE]\n\n'
    )
    told = samples(server.url)
    assert told['vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}'] == 1
    assert told['http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"}'] == 1


def test_limit_counts_running_and_waiting(start_server: ServerFactory) -> None:
    """A limit of 2: of three slow requests sent together exactly one is turned away."""
    server = start_server(max_num_queued_reqs=2, max_num_seqs=1, step_time=SLOW)
    statuses: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: statuses.append(
                post(f"{server.url}/v1/completions", json={"prompt": "a", "max_tokens": 1}).status_code
            )
        )
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(statuses) == [200, 200, 503]


def test_shutdown_ends_streams_with_an_error_event(start_server: ServerFactory) -> None:
    """A server that is ended while it streams says so inside the stream, as a vLLM does on SIGTERM."""
    server = start_server(step_time=SLOW)
    texts: list[str] = []
    thread = threading.Thread(
        target=lambda: texts.append(
            post(f"{server.url}/v1/chat/completions", json=chat(stream=True, max_tokens=500)).text
        )
    )
    thread.start()
    assert eventually(lambda: server.engines[0].metrics.generation_tokens > 0)
    server.loop.call_soon_threadsafe(lambda: server.loop.create_task(server.close()))
    thread.join(5)
    assert events(texts[0])[-2:] == [
        {
            "error": {
                "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                "type": "InternalServerError",
                "param": None,
                "code": 500,
            }
        },
        "[DONE]",
    ]


def _send_and_read(port: int, data: bytes) -> bytes:
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        try:
            connection.sendall(data)
            while part := connection.recv(65_536):
                received += part
        except ConnectionError:
            pass
    return received


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello tls\r\n\r\n", b"400"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 3000, b"431"),
        (b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + b"a" * 3000, b"413"),
    ],
    ids=["not http", "head too large", "body too large"],
)
def test_unreadable_input_is_refused_and_closed(
    start_server: ServerFactory, data: bytes, status: bytes
) -> None:
    """One status, then the end of the connection."""
    server = start_server(max_header_bytes=2048, max_body_bytes=2048)
    assert _send_and_read(server.port, data).startswith(b"HTTP/1.1 " + status)


def test_idle_connection_is_closed_after_the_timeout(start_server: ServerFactory) -> None:
    """After a response the server waits this long for the next request; the client reads the end."""
    server = start_server(keep_alive_timeout_s=0.1)
    received = _send_and_read(server.port, b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
    assert received.endswith(b'{"version":"0.32.0+sim"}')


def test_client_that_asks_first_is_told_to_go_on(start_server: ServerFactory) -> None:
    """Expect: 100-continue gets its interim response before the final one."""
    server = start_server()
    body = b'{"prompt":"a"}'
    head = b"POST /tokenize HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    received = _send_and_read(server.port, head % len(body) + body)
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")
