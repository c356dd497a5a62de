"""Tests of distbench.experiment.preflight and target: what is said of a target before any load."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import pytest

from distbench.core.plan import TargetPlan
from distbench.errors import PlanError, TargetError
from distbench.experiment.preflight import check_target
from distbench.experiment.target import request_settings, secret_headers
from tests.support.stub_server import ONE_MODEL, STREAM, Answer, Reply, Seen, stub_server

CHAT = "POST /v1/chat/completions"
MODELS = "GET /v1/models"


def plan(url: str, **fields: Any) -> TargetPlan:
    """Return a target plan for one URL with short limits."""
    return TargetPlan(urls=(url,), timeout_connect_s=2.0, timeout_first_token_s=2.0, **fields)


def refusal(routes: Mapping[str, Answer], **fields: Any) -> str:
    """Return the text with which a target is refused."""
    with stub_server(routes) as (url, _), pytest.raises(TargetError) as caught:
        check_target(plan(url, **fields), {})
    return str(caught.value)


def test_a_usable_target_gives_its_model_and_context() -> None:
    """The only listed model is taken, with its context; one token was asked for, streamed, with usage and ignore_eos."""
    with stub_server({MODELS: ONE_MODEL, CHAT: STREAM}) as (url, seen):
        facts = check_target(plan(url), {})
    assert (facts.model, facts.max_model_len, facts.usage, facts.ignore_eos) == ("m", 4096, True, True)
    asked = [s.body for s in seen if s.path.endswith("completions")]
    assert asked == [
        {
            "model": "m",
            "max_tokens": 1,
            "stream": True,
            "messages": [{"role": "user", "content": "ping"}],
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        }
    ]


@pytest.mark.parametrize("field", ["stream_options", "ignore_eos"])
def test_a_refused_field_is_dropped_and_said(field: str) -> None:
    """A strict server that answers 400 to one field is asked once more without it; the note has its own words (C25)."""

    def strict(asked: Seen) -> Reply:
        return Reply(400, {"error": {"message": f"unknown field {field}"}}) if field in asked.body else STREAM

    with stub_server({MODELS: ONE_MODEL, CHAT: strict}) as (url, _):
        target = plan(url)
        facts = check_target(target, {})
    settings = request_settings(target, facts)
    assert {"stream_options": settings.usage, "ignore_eos": settings.ignore_eos} == {
        "stream_options": field != "stream_options",
        "ignore_eos": field != "ignore_eos",
    }
    assert [f"unknown field {field}" in note for note in facts.notes] == [True]


def test_two_refused_fields_are_both_dropped() -> None:
    """A server that knows neither field is usable all the same."""

    def strict(asked: Seen) -> Reply:
        for field in ("stream_options", "ignore_eos"):
            if field in asked.body:
                return Reply(422, {"detail": [{"msg": f"extra field {field}"}]})
        return STREAM

    with stub_server({MODELS: ONE_MODEL, CHAT: strict}) as (url, _):
        facts = check_target(plan(url), {})
    assert (facts.usage, facts.ignore_eos) == (False, False)


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (
            Reply(body={"data": [{"id": "lora-a", "parent": "base"}, {"id": "base"}]}),
            ["lora-a, base", "--model"],
        ),
        (Reply(body={"data": []}), ["lists no model", "--model"]),
        (Reply(404, {"detail": "Not Found"}), ["404", "Not Found", "--model"]),
        (Reply(401, {"error": "Unauthorized"}), ["401", "Unauthorized", "--api-key-env"]),
        (
            Reply(307, headers={"Location": "https://elsewhere/v1?key=1"}),
            ["redirects to https://elsewhere/v1;"],
        ),
        (Reply(503, b"<html>loading</html>"), ["503", "loading"]),
    ],
    ids=["two-models", "none", "404", "401", "redirect", "503"],
)
def test_a_model_list_that_does_not_decide_is_explained(listed: Reply, words: list[str]) -> None:
    """Each way in which /v1/models can fail has a plain message with what to do (C56)."""
    text = refusal({MODELS: listed, CHAT: STREAM})
    assert [word for word in words if word not in text] == []


def test_a_named_model_must_be_listed() -> None:
    """A typo in --model is told with the names that exist."""
    assert "no model 'x'; the server lists m" in refusal({MODELS: ONE_MODEL, CHAT: STREAM}, model="x")


def test_a_named_model_needs_no_list() -> None:
    """Servers without /v1/models are usable when the model is named."""
    with stub_server({CHAT: STREAM}) as (url, _):
        assert check_target(plan(url, model="x"), {}).model == "x"


def test_a_server_that_does_not_stream_is_refused() -> None:
    """JSON where events were asked is no stream; --no-stream is the way out."""
    answer = Reply(body={"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": 1}})
    assert "--no-stream" in refusal({MODELS: ONE_MODEL, CHAT: answer})


def test_an_error_inside_the_probe_stream_is_a_refusal() -> None:
    """A 200 that bears an error event is no usable target (C36)."""
    stream = Reply(
        body=b'data: {"error": {"message": "engine dead", "code": 500}}\n\ndata: [DONE]\n\n',
        headers={"Content-Type": "text/event-stream"},
    )
    assert "engine dead" in refusal({MODELS: ONE_MODEL, CHAT: stream})


def test_a_closed_port_is_told_in_a_sentence() -> None:
    """Nothing listens: say so, name the address."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(TargetError, match=r"cannot connect .*is the server running"):
            check_target(plan(url), {})


def test_https_to_a_plain_port_is_told() -> None:
    """TLS against a plain HTTP server: say to try http://."""
    with stub_server({MODELS: ONE_MODEL}) as (url, _), pytest.raises(TargetError, match="try http://"):
        check_target(plan(url.replace("http://", "https://")), {})


def test_the_key_comes_from_the_environment_and_never_into_a_text() -> None:
    """The key is sent on the model list and the probe; a refusal names the variable, not the key (C57)."""
    with stub_server({MODELS: ONE_MODEL, CHAT: STREAM}) as (url, seen):
        check_target(plan(url, api_key_env="K"), {"K": "sk-secret"})
    assert {s.headers.get("authorization") for s in seen} == {"Bearer sk-secret"}
    refusing = stub_server({MODELS: Reply(401, {"error": "Unauthorized"})})
    with refusing as (url, _), pytest.raises(TargetError) as caught:
        check_target(plan(url, api_key_env="K"), {"K": "sk-secret"})
    assert "the key in K is refused" in str(caught.value)
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize("environ", [{}, {"K": " "}, {"K": "a\nb"}], ids=["unset", "blank", "line-break"])
def test_an_unusable_key_is_a_problem_of_the_plan(environ: dict[str, str]) -> None:
    """A missing key ends before anything is asked, and its text is never shown."""
    with pytest.raises(PlanError, match="--api-key-env"):
        secret_headers(plan("http://127.0.0.1:1", api_key_env="K"), environ)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (b'vllm:cache_config_info{block_size="128",engine="0"} 1.0\n', 128),
        (
            b'vllm:cache_config_info{block_size="32",engine="0"} 1\nvllm:cache_config_info{block_size="16",engine="1"} 1\n',
            16,
        ),
        (b'vllm:cache_config_info{block_size="None"} 1.0\n', None),
        (b"vllm:num_requests_running 0\n", None),
        (b"\xff\x00 no metrics", None),
    ],
    ids=["vLLM", "two engines", "no number", "not told", "garbage"],
)
def test_block_size_is_the_servers_own(metrics: bytes, expected: int | None) -> None:
    """Expected prefix hits are told in the server's own blocks; metrics that do not tell them are no failure."""
    routes = {MODELS: ONE_MODEL, CHAT: STREAM, "GET /metrics": Reply(body=metrics)}
    with stub_server(routes) as (url, _):
        assert check_target(plan(url), {}).block_tokens == expected


def test_metrics_are_not_asked_where_the_plan_forbids_it() -> None:
    """With --no-metrics nothing is asked of /metrics, not even before the load."""
    routes = {MODELS: ONE_MODEL, CHAT: STREAM, "GET /metrics": Reply(body=b"")}
    with stub_server(routes) as (url, seen):
        assert check_target(plan(url), {}, metrics=False).block_tokens is None
        assert [asked.path for asked in seen if "metrics" in asked.path] == []
        check_target(plan(url), {})
        assert [asked.path for asked in seen if "metrics" in asked.path] == ["/metrics"]


def test_without_metrics_the_block_size_is_not_known() -> None:
    """A 404 at /metrics is no failure."""
    with stub_server({MODELS: ONE_MODEL, CHAT: STREAM}) as (url, _):
        assert check_target(plan(url), {}).block_tokens is None
