"""One /metrics endpoint: where it is, and one scrape of it (floor F2)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx

from distbench.core.urls import display_url, server_root
from distbench.telemetry.exposition import ACCEPT, Exposition, parse_exposition
from distbench.telemetry.vocabulary import is_recorded

MAX_METRICS_BYTES = 64 * 1024 * 1024
"""A longer answer of /metrics is none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTarget:
    """
    A server to be scraped.

    Attributes:
        name: As it stands in the rows: the target's base URL, or the metrics URL where that was given.
        url: What is fetched.
        headers: Sent only after the server answered 401 without them (the API key). A secret; never shown.
        is_gpu: Whether it is a DCGM exporter, which has no traffic to settle.
    """

    name: str
    url: str
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False)
    is_gpu: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """
    What came of one fetch.

    Attributes:
        time_ns: Middle of the fetch on CLOCK_MONOTONIC.
        exposition: None where it failed.
        problem: One sentence; None where it worked.
    """

    time_ns: int
    exposition: Exposition | None
    problem: str | None


def scrape_targets(
    target_urls: tuple[str, ...],
    *,
    metrics_urls: tuple[str, ...] = (),
    gpu_metrics_urls: tuple[str, ...] = (),
    auth_headers: Mapping[str, str] | None = None,
) -> tuple[ScrapeTarget, ...]:
    """
    Say what is scraped in a run.

    Args:
        target_urls: Base URLs of the replicas, as in TargetPlan.urls; each one's own /metrics on its root is scraped unless metrics_urls says otherwise.
        metrics_urls: Whole URLs to scrape instead.
        gpu_metrics_urls: DCGM exporters.
        auth_headers: Headers with the API key. They go to the targets' own hosts only, and only after a 401.

    Raises:
        ValueError: a target URL is none.
    """
    roots = [server_root(url) for url in target_urls]
    own = {_origin(root) for root in roots}
    secret = dict(auth_headers or {})

    def secret_for(url: str) -> Mapping[str, str]:
        return secret if _origin(url) in own else {}

    if metrics_urls:
        pairs = [(display_url(url), url) for url in metrics_urls]
    else:
        pairs = [(given, f"{root}/metrics") for given, root in zip(target_urls, roots, strict=True)]
    servers = [ScrapeTarget(name=name, url=url, headers=secret_for(url)) for name, url in pairs]
    gpus = [ScrapeTarget(name=display_url(url), url=url, is_gpu=True) for url in gpu_metrics_urls]
    return (*servers, *gpus)


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or (443 if scheme == "https" else 80)


async def scrape(client: httpx.AsyncClient, target: ScrapeTarget) -> Scrape:
    """
    Fetch and read a target's metrics once.

    Each fetch is a connection of its own ("Connection: close"): a balancer in front then deals every scrape anew and is noticed,
    instead of pinning all of them to one server. Failures are returned, never raised; a redirect is one.
    """
    before_ns = time.monotonic_ns()
    problem: str | None = None
    exposition = None
    try:
        response = await _get(client, target.url, {})
        if response.status_code == 401 and target.headers:
            before_ns = time.monotonic_ns()
            response = await _get(client, target.url, target.headers)
    except httpx.TimeoutException:
        problem = f"{target.name}: no answer from /metrics in time"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        problem = f"{target.name}: cannot fetch metrics: {_reason(error)}"
    after_ns = time.monotonic_ns()
    if problem is None:
        exposition, problem = _read(target, response)
    return Scrape(time_ns=(before_ns + after_ns) // 2, exposition=exposition, problem=problem)


async def _get(client: httpx.AsyncClient, url: str, headers: Mapping[str, str]) -> httpx.Response:
    return await client.get(url, headers={"Accept": ACCEPT, "Connection": "close", **headers})


def _reason(error: Exception) -> str:
    return str(error)[:200] or type(error).__name__


def _read(target: ScrapeTarget, response: httpx.Response) -> tuple[Exposition | None, str | None]:
    if response.status_code != 200:
        return None, f"{target.name}: /metrics answered HTTP {response.status_code}"
    if len(response.content) > MAX_METRICS_BYTES:
        return None, f"{target.name}: /metrics is larger than {MAX_METRICS_BYTES} bytes"
    exposition = parse_exposition(response.text, response.headers.get("content-type"), keep=is_recorded)
    if not exposition.samples:
        return None, f"{target.name}: /metrics holds no known metric (vLLM, SGLang, TGI, DCGM)"
    return exposition, None
