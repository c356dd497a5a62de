"""
The target as the driver sees it before the load (floor F4): secrets resolved, models listed, one token asked for.

Everything here goes over connections of its own, before the first level, and is in no row and no delta.
"""

from __future__ import annotations

import dataclasses
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from distbench import __version__
from distbench.client.messages import RequestSettings
from distbench.core.plan import TargetPlan
from distbench.core.urls import endpoint_url, server_root
from distbench.errors import PlanError, TargetError
from distbench.experiment.redaction import Redaction
from distbench.wire.base import Timeouts, WireTarget

_PROBE_LIMIT_S = 120.0


def secret_headers(plan: TargetPlan, environ: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """
    Return all headers of a request, the Authorization header included.

    Raises:
        PlanError: the named environment variable is not set or empty, or holds a line break.
    """
    if plan.api_key_env is None:
        return plan.headers
    key = environ.get(plan.api_key_env, "")
    if not key.strip():
        raise PlanError(
            [
                f"--api-key-env: the environment variable {plan.api_key_env} is not set; export it, or leave the option out"
            ]
        )
    if not key.strip().isascii() or not key.strip().isprintable():
        raise PlanError([f"--api-key-env: {plan.api_key_env} holds characters that no HTTP header may have"])
    return (*plan.headers, ("Authorization", f"Bearer {key.strip()}"))


def wire_targets(plan: TargetPlan, headers: tuple[tuple[str, str], ...]) -> tuple[WireTarget, ...]:
    """Return what a connection needs to know, one per URL, in order."""
    return tuple(
        WireTarget(
            url=endpoint_url(url, plan.endpoint),
            headers=headers,
            streaming=plan.stream,
            ca_file=plan.ca_file,
            insecure=plan.insecure,
            keepalive=plan.keepalive,
            trust_env=plan.trust_env,
            timeouts=Timeouts(
                connect_s=plan.timeout_connect_s,
                first_token_s=plan.timeout_first_token_s,
                idle_s=plan.timeout_idle_s,
                total_s=plan.timeout_total_s,
            ),
        )
        for url in plan.urls
    )


def request_settings(plan: TargetPlan, facts: TargetFacts) -> RequestSettings:
    """Return how bodies are made, after what the preflight found out."""
    return RequestSettings(
        model=facts.model,
        endpoint=plan.endpoint,
        stream=plan.stream,
        usage=facts.usage,
        ignore_eos=facts.ignore_eos,
        extra_body=dict(plan.extra_body),
        retries=plan.retries,
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """
    What the preflight found out.

    Attributes:
        model: Name to send.
        max_model_len: Context in tokens as /v1/models tells; None: not told.
        usage, ignore_eos: Whether the server takes them.
        version: The server's own word (server header, /version); None.
        tokenizes: The server has vLLM's /tokenize.
        block_tokens: Size of a block of its prefix cache, of the smallest where targets differ; None: not told.
        notes: Sentences that the user must see.
    """

    model: str
    max_model_len: int | None
    usage: bool
    ignore_eos: bool
    version: str | None
    tokenizes: bool
    notes: tuple[str, ...]
    block_tokens: int | None = None


class TargetClient:
    """Small synchronous HTTP client of the preflight, over httpx; one per base URL."""

    def __init__(self, plan: TargetPlan, base_url: str, headers: tuple[tuple[str, str], ...]) -> None:
        self.base_url = base_url
        self._plan = plan
        self._http = httpx.Client(
            headers=[("User-Agent", f"distbench/{__version__}"), ("Accept-Encoding", "identity"), *headers],
            verify=_verification(plan),
            trust_env=plan.trust_env,
            follow_redirects=False,
            timeout=httpx.Timeout(
                plan.timeout_first_token_s if plan.timeout_first_token_s else _PROBE_LIMIT_S,
                connect=plan.timeout_connect_s,
            ),
        )

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def get(self, url: str, timeout_s: float | None = None) -> httpx.Response:
        """
        GET an absolute URL.

        Raises:
            TargetError: no HTTP answer came; the text says why and what to try.
        """
        with _translated(url):
            if timeout_s is None:
                return self._http.get(url)
            return self._http.get(url, timeout=timeout_s)

    def post(self, url: str, body: bytes) -> httpx.Response:
        """
        POST JSON and read the whole answer.

        Raises:
            TargetError: as get().
        """
        with _translated(url):
            return self._http.post(url, content=body, headers={"Content-Type": "application/json"})

    def root(self) -> str:
        """Return the server's root, where /metrics, /version and /tokenize hang."""
        return server_root(self.base_url)


def _verification(plan: TargetPlan) -> ssl.SSLContext | bool:
    if plan.insecure:
        return False
    if plan.ca_file is None:
        return True
    if not Path(plan.ca_file).is_file():
        raise PlanError([f"--ca-file {plan.ca_file}: no such file"])
    try:
        return ssl.create_default_context(cafile=plan.ca_file)
    except (ssl.SSLError, OSError):
        raise PlanError([f"--ca-file {plan.ca_file}: holds no certificates in PEM form"]) from None


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn httpx's errors into one sentence each; httpx errors bear no headers, so no key can leak from them."""
    try:
        yield
    except httpx.TransportError as error:
        raise TargetError(f"{url}: {explain_transport_error(error, url)}") from None
    except httpx.InvalidURL as error:
        raise TargetError(f"{url}: {error}") from None


def explain_transport_error(error: httpx.TransportError, url: str) -> str:
    """Return why no HTTP answer came, and what to try, for a user who does not know httpx."""
    text = str(error)
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER" in text:
        return "the server does not speak TLS on this port; try http:// instead of https://"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        reason = text.split("certificate verify failed:")[-1].split("(_ssl")[0].strip()
        return f"TLS certificate not trusted: {reason}; give its root with --ca-file, or --insecure to go without"
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection within --timeout-connect; is the address right, does a firewall drop it?"
    if isinstance(error, httpx.ConnectError):
        return f"cannot connect ({text or 'no reason given'}); is the server running there?"
    if isinstance(error, httpx.TimeoutException):
        return "connected, but no answer in time; is the server still loading its model?"
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and url.startswith("http://"):
        return f"what answers there is not plain HTTP ({text or 'connection closed'}); try https:// instead of http://"
    return text or type(error).__name__


def error_text(response: httpx.Response) -> str:
    """Return the server's own words of a refused request, in one line of at most 300 characters, without the key it was sent."""
    try:
        value: Any = response.json()
    except ValueError:
        value = response.text
    while isinstance(value, dict):
        inner = value.get("error", value.get("message", value.get("detail")))
        if inner is None:
            break
        value = inner
    return " ".join(Redaction(response.request.headers.items()).text(str(value)).split())[:300]
