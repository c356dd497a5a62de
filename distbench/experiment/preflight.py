"""
The order of checks before time is spent (floor F4): is the target reachable, does it know the model, does it stream, is it idle.

Whatever is found wrong ends with one sentence and exit code 4; whatever is only worth knowing becomes a note of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping

import httpx
import orjson

from distbench.core.plan import TargetPlan
from distbench.core.urls import endpoint_url
from distbench.errors import TargetError
from distbench.experiment.redaction import Redaction
from distbench.experiment.target import TargetClient, TargetFacts, error_text, secret_headers
from distbench.telemetry.exposition import parse_exposition
from distbench.telemetry.target import MAX_METRICS_BYTES
from distbench.telemetry.vocabulary import CACHE_CONFIG

_PROBE_TEXT = "ping"
_REFUSED = (400, 404, 405, 422)
_METRICS_LIMIT_S = 5.0


def check_target(plan: TargetPlan, environ: Mapping[str, str], *, metrics: bool = True) -> TargetFacts:
    """
    Try every base URL: list its models, ask for one token.

    Args:
        plan: The target.
        environ: Holds the key.
        metrics: Whether /metrics may be asked, too, for the size of a cache block.

    Returns:
        What all targets have in common; notes of all of them.

    Raises:
        TargetError: a target cannot be used. PlanError: the key is not set, or the roots cannot be read.
    """
    headers = secret_headers(plan, environ)
    found: list[TargetFacts] = []
    for url in plan.urls:
        client = TargetClient(plan, url, headers)
        try:
            found.append(_check_one(plan, client, metrics=metrics))
        finally:
            client.close()
    return _join(plan, found)


def _check_one(plan: TargetPlan, client: TargetClient, *, metrics: bool) -> TargetFacts:
    model, max_model_len, notes = _find_model(plan, client)
    probe = _Probe(plan, client, model)
    probe.run()
    return TargetFacts(
        model=model,
        max_model_len=max_model_len,
        usage=probe.usage,
        ignore_eos=probe.ignore_eos,
        version=_version(client),
        tokenizes=_tokenizes(client, model),
        block_tokens=_block_tokens(client) if metrics else None,
        notes=(*notes, *probe.notes),
    )


def _join(plan: TargetPlan, found: list[TargetFacts]) -> TargetFacts:
    models = {facts.model for facts in found}
    if len(models) > 1:
        raise TargetError(
            f"the targets serve different models ({', '.join(sorted(models))}); name one with --model"
        )
    blocks = [facts.block_tokens for facts in found if facts.block_tokens is not None]
    lengths = [facts.max_model_len for facts in found if facts.max_model_len is not None]
    return dataclasses.replace(
        found[0],
        max_model_len=min(lengths) if lengths else None,
        usage=all(facts.usage for facts in found),
        ignore_eos=all(facts.ignore_eos for facts in found),
        tokenizes=all(facts.tokenizes for facts in found),
        block_tokens=min(blocks, default=None),
        notes=tuple(dict.fromkeys(note for facts in found for note in facts.notes)),
    )


def _find_model(plan: TargetPlan, client: TargetClient) -> tuple[str, int | None, list[str]]:
    """Return (model, its context or None, notes)."""
    url = f"{client.base_url}/models"
    response = client.get(url)
    _refuse_unusable(plan, url, response)
    if response.status_code != httpx.codes.OK:
        if plan.model is None:
            raise TargetError(
                f"{url}: answered {response.status_code} ({error_text(response)}); name the model with --model"
            )
        return plan.model, None, [f"{url} answered {response.status_code}: the model's context is not known"]
    listed = _listed_models(response)
    if plan.model is not None:
        if listed and plan.model not in listed:
            raise TargetError(
                f"{client.base_url}: no model {plan.model!r}; the server lists {', '.join(listed)}"
            )
        return plan.model, listed.get(plan.model), []
    if not listed:
        raise TargetError(f"{url}: lists no model; name it with --model")
    if len(listed) > 1:
        raise TargetError(
            f"{client.base_url}: serves {len(listed)} models ({', '.join(listed)}); choose with --model"
        )
    model, max_model_len = next(iter(listed.items()))
    return model, max_model_len, []


def _listed_models(response: httpx.Response) -> dict[str, int | None]:
    """Return model -> context in tokens (None: not told), in the server's order."""
    try:
        data = response.json()["data"]
        entries = [entry for entry in data if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
    except (ValueError, KeyError, TypeError):
        return {}
    return {e["id"]: e["max_model_len"] if isinstance(e.get("max_model_len"), int) else None for e in entries}


def _refuse_unusable(plan: TargetPlan, url: str, response: httpx.Response) -> None:
    status = response.status_code
    if status in (401, 403):
        how = (
            f"the key in {plan.api_key_env} is refused"
            if plan.api_key_env
            else "give a key with --api-key-env NAME"
        )
        raise TargetError(f"{url}: answered {status} ({error_text(response)}); {how}")
    if 300 <= status < 400:
        place = response.headers.get("location", "nowhere").split("?")[0]
        raise TargetError(
            f"{url}: redirects to {place}; give that address (redirects are not followed, the key stays here)"
        )
    if status >= 500:
        raise TargetError(f"{url}: answered {status} ({error_text(response)})")


class _Probe:
    """One request for one token, without the parts that the server refuses."""

    def __init__(self, plan: TargetPlan, client: TargetClient, model: str) -> None:
        self._plan = plan
        self._client = client
        self._model = model
        self.url = endpoint_url(client.base_url, plan.endpoint)
        self.usage = plan.usage and plan.stream
        self.ignore_eos = plan.ignore_eos
        self.notes: list[str] = []

    def run(self) -> None:
        """
        Ask, dropping refused fields one after the other.

        Raises:
            TargetError: the server refuses the plainest request as well, or does not stream.
        """
        response = self._ask()
        for field, note in (
            ("usage", "the server refuses stream_options.include_usage: token counts come from the chunks"),
            ("ignore_eos", "the server refuses ignore_eos: answers may end before the wanted length"),
        ):
            if response.status_code not in (400, 422) or not getattr(self, field):
                continue
            refused = error_text(response)
            setattr(self, field, False)
            again = self._ask()
            if again.status_code == httpx.codes.OK or error_text(again) != refused:
                self.notes.append(f"{note} ({refused})")
                response = again
            else:
                setattr(self, field, True)
        self._judge(response)

    def _ask(self) -> httpx.Response:
        body: dict[str, object] = {"model": self._model, "max_tokens": 1, "stream": self._plan.stream}
        if self._plan.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": _PROBE_TEXT}]
        else:
            body["prompt"] = _PROBE_TEXT
        if self.usage:
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        body.update(self._plan.extra_body)
        body["max_tokens"] = 1
        return self._client.post(self.url, orjson.dumps(body))

    def _judge(self, response: httpx.Response) -> None:
        _refuse_unusable(self._plan, self.url, response)
        if response.status_code in _REFUSED:
            raise TargetError(f"{self.url}: answered {response.status_code}: {error_text(response)}")
        if response.status_code != httpx.codes.OK:
            raise TargetError(f"{self.url}: answered {response.status_code} ({error_text(response)})")
        is_events = "text/event-stream" in response.headers.get("content-type", "")
        if self._plan.stream and not is_events:
            raise TargetError(
                f"{self.url}: does not stream (content type {response.headers.get('content-type')!r}); use --no-stream"
            )
        if b'"error"' in response.content[:2000] and b'"choices"' not in response.content:
            sent = response.request.headers.items()
            text = Redaction(sent).text(response.text.removeprefix("data:").strip())
            raise TargetError(f"{self.url}: failed inside its answer: {' '.join(text.split())[:300]}")
        encoding = response.headers.get("content-encoding")
        if self._plan.stream and encoding not in (None, "identity"):
            self.notes.append(
                f"the answer is compressed ({encoding}) though identity was asked: tokens come in lumps"
            )


def _version(client: TargetClient) -> str | None:
    """Return what the server says of itself; never a reason to fail."""
    with contextlib.suppress(TargetError, ValueError, KeyError, TypeError):
        response = client.get(f"{client.root()}/version", timeout_s=5.0)
        if response.status_code == httpx.codes.OK:
            return str(response.json()["version"])[:80]
    return None


def _tokenizes(client: TargetClient, model: str) -> bool:
    with contextlib.suppress(TargetError, ValueError):
        body = orjson.dumps({"model": model, "prompt": _PROBE_TEXT})
        response = client.post(f"{client.root()}/tokenize", body)
        return response.status_code == httpx.codes.OK and isinstance(response.json().get("count"), int)
    return False


def _block_tokens(client: TargetClient) -> int | None:
    """Return the size of the server's cache blocks, from its own /metrics; never a reason to fail."""
    with contextlib.suppress(TargetError, ValueError, KeyError):
        response = client.get(f"{client.root()}/metrics", timeout_s=_METRICS_LIMIT_S)
        if response.status_code == httpx.codes.OK and len(response.content) <= MAX_METRICS_BYTES:
            content_type = response.headers.get("content-type")
            found = parse_exposition(response.text, content_type, keep=CACHE_CONFIG.__eq__)
            sizes = [int(sample.labels["block_size"]) for sample in found.samples]
            return min((size for size in sizes if size > 0), default=None)
    return None
