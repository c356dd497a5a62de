"""
The plan: everything that decides a run, as frozen values (floor F1).

Defaults live here and nowhere else. Each dataclass checks itself and raises one PlanError with every problem it has; the reader of
plan files and flags (core/plan_io.py) joins the problems of all of them. A plan is never changed after it was built. The API key
is not part of it, only the name of the environment variable that holds it.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from distbench.core.lengths import LengthSpec
from distbench.core.urls import display_url, normalize_base_url
from distbench.errors import PlanError

COMMANDS = ("run", "capacity", "shapes")
ENDPOINTS = ("chat", "completions")
PATTERNS = ("burst", "paced", "constant", "poisson", "gamma", "trace")
DATASETS = ("synthetic", "sharegpt", "jsonl", "trace")
HTTP_CLIENTS = ("fast", "httpx")
SLO_METRICS = ("ttft", "ttfo", "tpot", "icl", "e2e", "response")
NO_RAY = "none"
_DEFAULT_LENGTH = LengthSpec("fixed", 128)
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _has_user(url: str) -> bool:
    """Return whether something like a credential stands before the host of a URL or URI."""
    return "://" in url and "@" in url.split("://", 1)[1].split("/", 1)[0]


class _Checks:
    """Gathers problems, so that a dataclass can name them all at once."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def at_least(self, name: str, value: float | None, minimum: float, unit: str = "") -> None:
        if value is not None and not (math.isfinite(value) and value >= minimum):
            self.problems.append(f"{name} must be at least {minimum:g}{unit}, got {value:g}")

    def above(self, name: str, value: float | None, bound: float, unit: str = "") -> None:
        if value is not None and not (math.isfinite(value) and value > bound):
            self.problems.append(f"{name} must be more than {bound:g}{unit}, got {value:g}")

    def one_of(self, name: str, value: str, allowed: tuple[str, ...]) -> None:
        if value not in allowed:
            self.problems.append(f"{name} must be one of {', '.join(allowed)}, got {value!r}")

    def add(self, problem: str) -> None:
        self.problems.append(problem)

    def finish(self) -> None:
        if self.problems:
            raise PlanError(self.problems)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """
    What is asked, and how.

    Attributes:
        urls: Base URLs of the replicas, normalized; connections are spread over them evenly.
        model: Name to ask for; None: the only one that the server lists.
        endpoint: chat | completions.
        stream: Ask for server-sent events.
        usage: Ask for a usage event in streams (stream_options.include_usage).
        ignore_eos: Ask the server to go on to max_tokens; dropped when the server refuses it.
        extra_body: Merged into every request's JSON last.
        headers: Extra headers. Values of those that look secret are masked wherever the plan is written.
        api_key_env: Name of the environment variable with the key; None: no key is sent.
        ca_file: PEM file of trusted roots; None: the system's.
        insecure: TLS without verification.
        keepalive: False: a new connection for each request.
        trust_env: Obey the proxy variables of the environment.
        timeout_connect_s, timeout_first_token_s, timeout_idle_s, timeout_total_s: Limits of a request; None: no limit.
        retries: Resends of a request answered by 429 or 503.
    """

    urls: tuple[str, ...] = ()
    model: str | None = None
    endpoint: str = "chat"
    stream: bool = True
    usage: bool = True
    ignore_eos: bool = True
    extra_body: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    headers: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    api_key_env: str | None = None
    ca_file: str | None = None
    insecure: bool = False
    keepalive: bool = True
    trust_env: bool = False
    timeout_connect_s: float | None = 10.0
    timeout_first_token_s: float | None = 600.0
    timeout_idle_s: float | None = 120.0
    timeout_total_s: float | None = None
    retries: int = 0

    def __post_init__(self) -> None:
        checks = _Checks()
        normalized = []
        for url in self.urls:
            try:
                normalized.append(normalize_base_url(url))
            except ValueError as error:
                checks.add(f"url: {error}")
        if not self.urls:
            checks.add("no target: give at least one base URL, such as http://127.0.0.1:8000")
        if len(set(normalized)) != len(normalized):
            checks.add(
                "url: the same target is given twice; connections are spread evenly over distinct targets"
            )
        checks.one_of("endpoint", self.endpoint, ENDPOINTS)
        for name in ("connect", "first_token", "idle", "total"):
            checks.above(f"timeout-{name.replace('_', '-')}", getattr(self, f"timeout_{name}_s"), 0, " s")
        checks.at_least("retries", self.retries, 0)
        if self.api_key_env is not None and not _ENVIRONMENT_NAME.fullmatch(self.api_key_env):
            checks.add("api-key-env must be the name of an environment variable, never the key itself")
        if self.insecure and self.ca_file:
            checks.add("insecure and ca-file exclude each other: the first turns off what the second is for")
        checks.finish()
        object.__setattr__(self, "urls", tuple(normalized))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """
    How much, and when. Connections and requests are TOTALS over all clients.

    Attributes:
        connections: run, shapes: one number. capacity: the levels in order, or empty for the ladder. Open loop: the cap, or empty.
        start, max_connections, factor: The ladder of capacity: first level, last level at most, growth per level.
        repeats: capacity: repeats of the levels around the best; None: 3. shapes: repeats of every level; None: none.
        clients: Load-generating processes; None: from the cluster's CPUs and the load.
        requests: Measured requests per level; None: at least 400 and 8 per connection, unless a duration is given.
        duration_s: Seconds per level; with requests, the first to end; None: no limit.
        warmup: Warm-up requests per level on top of requests; None: one per connection.
        max_failures: End early after so many failed requests of a level; None: never.
        pattern: burst (closed loop), or paced | constant | poisson | gamma | trace (open loop).
        rate_rps: Requests per second of constant, poisson and gamma.
        burstiness: Shape of gamma; 1 is Poisson.
        batch_size, batch_interval_s: Requests of a paced batch, and the time between their starts.
        verify_client: capacity: repeat the peak with twice the clients.
    """

    connections: tuple[int, ...] = ()
    start: int = 1
    max_connections: int = 1024
    factor: float = 2.0
    repeats: int | None = None
    clients: int | None = None
    requests: int | None = None
    duration_s: float | None = None
    warmup: int | None = None
    max_failures: int | None = None
    pattern: str = "burst"
    rate_rps: float | None = None
    burstiness: float = 1.0
    batch_size: int | None = None
    batch_interval_s: float | None = None
    verify_client: bool = False

    def __post_init__(self) -> None:
        checks = _Checks()
        for value in self.connections:
            checks.at_least("connections", value, 1)
        checks.at_least("start", self.start, 1)
        checks.at_least("max", self.max_connections, 1)
        if self.max_connections < self.start:
            checks.add(f"max ({self.max_connections}) is below start ({self.start})")
        checks.above("factor", self.factor, 1)
        checks.at_least("repeats", self.repeats, 0)
        checks.at_least("clients", self.clients, 1)
        checks.at_least("requests", self.requests, 1)
        checks.above("duration", self.duration_s, 0, " s")
        checks.at_least("warmup", self.warmup, 0)
        checks.at_least("max-failures", self.max_failures, 1)
        checks.one_of("pattern", self.pattern, PATTERNS)
        self._check_pattern(checks)
        checks.finish()

    def _check_pattern(self, checks: _Checks) -> None:
        checks.above("rate", self.rate_rps, 0, " requests/s")
        checks.above("burstiness", self.burstiness, 0)
        if self.burstiness != 1 and self.pattern != "gamma":
            checks.add(f"burstiness has no meaning with pattern {self.pattern}; choose gamma")
        checks.at_least("batch-size", self.batch_size, 1)
        checks.above("batch-interval", self.batch_interval_s, 0, " s")
        needs_rate = self.pattern in ("constant", "poisson", "gamma")
        if needs_rate and self.rate_rps is None:
            checks.add(f"pattern {self.pattern} needs a rate (requests per second over all clients)")
        if not needs_rate and self.rate_rps is not None:
            checks.add(f"rate has no meaning with pattern {self.pattern}; choose constant, poisson or gamma")
        paced = self.pattern == "paced"
        if paced and (self.batch_size is None or self.batch_interval_s is None):
            checks.add("pattern paced needs batch-size and batch-interval")
        if not paced and (self.batch_size is not None or self.batch_interval_s is not None):
            checks.add(
                f"batch-size and batch-interval have no meaning with pattern {self.pattern}; choose paced"
            )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PromptPlan:
    """
    What is said. Lengths are tokens.

    Attributes:
        dataset: synthetic | sharegpt | jsonl | trace.
        dataset_path: File of the dataset; None with synthetic.
        system_tokens, user_tokens: Length of the system message and of each user message.
        output_tokens: Tokens asked for per user message.
        users_per_request: User messages packed into a request; one number, or for shapes the list to compare.
        prefix_groups: Number of distinct system messages in a level; requests take them in turn.
        think_time_s: Pause between an answer and the next turn of its conversation.
        trace_speed: Times of a trace are divided by it: 2 replays twice as fast.
        tokenizer: Name or folder of a local tokenizer for exact lengths; None: the server's /tokenize, else approximate.
        seed: Any int; equal seeds give equal prompts on every machine.
    """

    dataset: str = "synthetic"
    dataset_path: str | None = None
    system_tokens: LengthSpec = _DEFAULT_LENGTH
    user_tokens: LengthSpec = _DEFAULT_LENGTH
    output_tokens: LengthSpec = _DEFAULT_LENGTH
    users_per_request: tuple[int, ...] = (1,)
    prefix_groups: int = 1
    think_time_s: float = 0.0
    trace_speed: float = 1.0
    tokenizer: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        checks = _Checks()
        checks.one_of("dataset", self.dataset, DATASETS)
        if self.dataset == "synthetic" and self.dataset_path is not None:
            checks.add(
                "dataset-path has no meaning with dataset synthetic; name the dataset (sharegpt, jsonl, trace)"
            )
        if self.dataset in DATASETS[1:] and self.dataset_path is None:
            checks.add(f"dataset {self.dataset} needs a dataset-path")
        if self.user_tokens.mean < 1:
            checks.add("user-tokens must be at least 1")
        if self.output_tokens.mean < 1:
            checks.add("output-tokens must be at least 1")
        if not self.users_per_request:
            checks.add("users-per-request needs at least one number")
        for value in self.users_per_request:
            checks.at_least("users-per-request", value, 1)
        checks.at_least("prefix-groups", self.prefix_groups, 1)
        checks.at_least("think-time", self.think_time_s, 0, " s")
        checks.above("trace-speed", self.trace_speed, 0)
        if self.think_time_s != 0 and self.dataset not in ("sharegpt", "jsonl"):
            checks.add(f"think-time has no meaning with dataset {self.dataset}; choose sharegpt or jsonl")
        if self.trace_speed != 1 and self.dataset != "trace":
            checks.add(f"trace-speed has no meaning with dataset {self.dataset}; choose trace")
        if self.dataset == "trace" and any(value != 1 for value in self.users_per_request):
            checks.add(
                "users-per-request must be 1 with dataset trace: its requests are recorded as they are"
            )
        checks.finish()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """
    A bound on a latency; a request meets it at or below the limit. None never meets it.

    Attributes:
        metric: ttft | ttfo | tpot | icl | e2e | response.
        limit_s: Seconds, > 0.
    """

    metric: str
    limit_s: float

    def __post_init__(self) -> None:
        checks = _Checks()
        checks.one_of("slo", self.metric, SLO_METRICS)
        checks.above(f"slo {self.metric}", self.limit_s, 0, " s")
        checks.finish()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JudgePlan:
    """
    What the run is judged by.

    Attributes:
        slos: Bounds; a request is good when it meets all of them.
        metrics: Scrape the servers' /metrics.
        metrics_urls: Where; empty: each target's own root.
        gpu_metrics_urls: DCGM-exporter endpoints; empty: none.
    """

    slos: tuple[Slo, ...] = ()
    metrics: bool = True
    metrics_urls: tuple[str, ...] = ()
    gpu_metrics_urls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks = _Checks()
        names = [slo.metric for slo in self.slos]
        for name in sorted({n for n in names if names.count(n) > 1}):
            checks.add(f"slo {name} is given more than once")
        for url in (*self.metrics_urls, *self.gpu_metrics_urls):
            if not url.startswith(("http://", "https://")):
                checks.add(f"metrics-url {display_url(url)!r} must be a whole URL with http:// or https://")
            elif _has_user(url):
                checks.add(f"metrics-url {display_url(url)!r} must not hold a user or password")
        if not self.metrics and self.metrics_urls:
            checks.add("no-metrics and metrics-url exclude each other")
        checks.finish()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WherePlan:
    """
    Where it runs and where the results go.

    Attributes:
        output: The run directory or URI, absent or empty; None: runs/<utc>-<hex>.
        ray_address: Address of a Ray cluster, "auto" on one of its nodes; None: a Ray of our own on this machine; "none": no Ray, the
            clients are threads of this process.
        http_client: fast | httpx.
        allow_fewer: Go on with fewer clients than asked where the cluster has fewer places.
        client_resource: Custom Ray resource that marks client hosts; None: any node without GPUs.
        client_label: key=value label of client hosts; None: any.
        clients_per_node: At most so many clients on a node; None: as its CPUs allow.
    """

    output: str | None = None
    ray_address: str | None = None
    http_client: str = "fast"
    allow_fewer: bool = False
    client_resource: str | None = None
    client_label: str | None = None
    clients_per_node: int | None = None

    def __post_init__(self) -> None:
        checks = _Checks()
        checks.one_of("http-client", self.http_client, HTTP_CLIENTS)
        checks.at_least("clients-per-node", self.clients_per_node, 1)
        if self.output is not None and _has_user(self.output):
            checks.add("output must not hold a user or password: it is written into the results")
        if self.client_label is not None and "=" not in self.client_label:
            checks.add(f"client-label must be key=value, got {self.client_label!r}")
        if self.client_resource is not None and self.client_label is not None:
            checks.add("client-resource and client-label exclude each other: give one of them")
        checks.finish()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole run: which command, and its five groups of settings."""

    command: str
    target: TargetPlan
    load: LoadPlan
    prompts: PromptPlan = dataclasses.field(default_factory=PromptPlan)
    judging: JudgePlan = dataclasses.field(default_factory=JudgePlan)
    where: WherePlan = dataclasses.field(default_factory=WherePlan)

    def __post_init__(self) -> None:
        checks = _Checks()
        checks.one_of("command", self.command, COMMANDS)
        if self.command != "capacity" and len(self.load.connections) > 1:
            checks.add(f"{self.command} takes one number of connections; capacity takes a list")
        if self.command != "shapes" and len(self.prompts.users_per_request) > 1:
            checks.add(f"{self.command} takes one number of users-per-request; shapes takes a list")
        if self.command == "shapes" and self.prompts.dataset == "trace":
            checks.add("shapes packs user messages; the requests of dataset trace are recorded as they are")
        if self.load.pattern == "trace" and self.prompts.dataset != "trace":
            checks.add("pattern trace needs dataset trace: its timestamps are the schedule")
        if self.command != "run" and self.load.pattern != "burst":
            checks.add(
                f"{self.command} finds what the server can carry: only pattern burst keeps its queue full"
            )
        if not self.target.stream and any(
            slo.metric in ("ttft", "ttfo", "tpot", "icl") for slo in self.judging.slos
        ):
            checks.add("no-stream measures no ttft, ttfo, tpot or icl: such an SLO could never be met")
        checks.finish()
