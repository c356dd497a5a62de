"""
The whole examination, one line after the other (floor F4): machine, cluster, target, load. It sends a few requests, never load.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata

from distbench.core.plan import Plan
from distbench.errors import DistbenchError, FleetError
from distbench.experiment.doctor import cluster_checks, self_test, target_checks
from distbench.experiment.doctor.check import Check, Group, Status, ok, sum_up
from distbench.experiment.doctor.cluster import ClusterReading, read_cluster
from distbench.experiment.doctor.connecting import (
    ConnectSample,
    check_connects,
    check_dns,
    resolve,
    try_connecting,
)
from distbench.experiment.doctor.machine import MachineReading, read_machine
from distbench.experiment.doctor.machine_checks import machine_checks
from distbench.experiment.doctor.streaming import ask_for_stream, check_proxy, check_stream
from distbench.experiment.target import TargetClient, request_settings, secret_headers, wire_targets
from distbench.telemetry.target import scrape_targets
from distbench.wire.base import WireTarget

Tell = Callable[[str], None]
Line = tuple[Group, Check]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """
    What is asked of the doctor.

    Attributes:
        plan: Target, judging and where as a run would have them; its load says nothing but the connections.
        has_target: False: the plan's URLs are a stand-in, and nothing is asked of them.
        expect_tokens_per_s: Output tokens per second that the target is thought to give; None: not known.
        try_ray: Start a Ray of our own where no cluster is named.
        self_test_s: Length of the self-test; 0: none.
    """

    plan: Plan
    has_target: bool
    expect_tokens_per_s: float | None = None
    try_ray: bool = False
    self_test_s: float = self_test.DURATION_S

    @property
    def connections(self) -> int:
        """The most connections that are thought of."""
        load = self.plan.load
        return max(load.connections, default=load.max_connections)

    @property
    def asks_ray(self) -> bool:
        """Whether Ray is started or joined."""
        return self.try_ray or self.plan.where.ray_address is not None

    @property
    def urls(self) -> tuple[str, ...]:
        """The targets to ask."""
        return self.plan.target.urls if self.has_target else ()


def examine(
    order: Examination,
    environ: Mapping[str, str],
    tell: Tell,
    *,
    read: Callable[[], MachineReading] = read_machine,
) -> Iterator[Line]:
    """
    Look at everything, and yield each line as soon as it is known.

    Args:
        order: What is asked.
        environ: Where the API key is.
        tell: Hears what is done.
        read: Reads this machine.

    Raises:
        PlanError: the key is not set, or the roots cannot be read; before anything else is looked at.
    """
    headers = secret_headers(order.plan.target, environ) if order.has_target else ()
    wires = _wires(order, headers)
    tell("reading this machine")
    own = read()
    cluster = _cluster(order, wires, tell) if order.asks_ray else None
    machines = {own.hostname: own}
    if isinstance(cluster, ClusterReading) and cluster.machines:
        machines = join_machines(own, cluster.machines)
    for check in machine_checks(machines, connections=order.connections, targets=len(order.urls)):
        yield Group.MACHINE, check
    for check in _cluster_lines(cluster):
        yield Group.CLUSTER, check
    connects = cluster.connects if isinstance(cluster, ClusterReading) else ()
    for check in _target_lines(order, environ, wires, headers, connects, tell):
        yield Group.TARGET, check
    places = cluster.places if isinstance(cluster, ClusterReading) else max(1, own.num_cpus - 1)
    for check in _load_lines(order, places, tell):
        yield Group.LOAD, check


def _wires(order: Examination, headers: tuple[tuple[str, str], ...]) -> dict[str, WireTarget]:
    """Return what connections need to know, by URL; what is wrong with the options themselves is found here."""
    if not order.has_target:
        return {}
    target = order.plan.target
    if target.ca_file is not None:
        TargetClient(target, order.urls[0], headers).close()
    return dict(zip(order.urls, wire_targets(target, headers), strict=True))


def join_machines(own: MachineReading, nodes: Mapping[str, MachineReading]) -> dict[str, MachineReading]:
    """
    Return all machines by name, this one among them once.

    Args:
        own: This machine, read before Ray had anything to do on it.
        nodes: Of the nodes, by name.
    """

    def is_own(machine: MachineReading) -> bool:
        return (machine.hostname, machine.clock_identity) == (own.hostname, own.clock_identity)

    # Limits are those of the node's processes, which others may have started; what the CPUs did is better known from before.
    joined = {
        name: dataclasses.replace(machine, steal_ratio=own.steal_ratio, busy_ratio=own.busy_ratio)
        if is_own(machine)
        else machine
        for name, machine in nodes.items()
    }
    return joined if any(is_own(machine) for machine in joined.values()) else {own.hostname: own, **joined}


def _cluster(order: Examination, wires: Mapping[str, WireTarget], tell: Tell) -> ClusterReading | FleetError:
    try:
        return read_cluster(order.plan, wires, tell)
    except FleetError as error:
        return error


def _cluster_lines(cluster: ClusterReading | FleetError | None) -> list[Check]:
    if cluster is None:
        try:
            return [cluster_checks.check_not_tried(metadata.version("ray"))]
        except metadata.PackageNotFoundError:
            return [cluster_checks.check_not_tried(None)]
    if isinstance(cluster, FleetError):
        return [cluster_checks.check_unreachable(str(cluster))]
    return cluster_checks.cluster_checks(cluster)


def _target_lines(
    order: Examination,
    environ: Mapping[str, str],
    wires: Mapping[str, WireTarget],
    headers: tuple[tuple[str, str], ...],
    from_nodes: tuple[ConnectSample, ...],
    tell: Tell,
) -> Iterator[Check]:
    plan = order.plan
    if wires:
        tell("connecting to the target")
        dns = {url: check_dns(resolve(url, trust_env=plan.target.trust_env)) for url in wires}
        yield sum_up(dns)
        named = [url for url, check in dns.items() if check.status is not Status.FAIL]
        samples = {url: try_connecting(wires[url], url) for url in named}
        if samples:
            yield sum_up(
                {
                    url: check_connects([sample, *(s for s in from_nodes if s.target == url)])
                    for url, sample in samples.items()
                }
            )
        reached = {url: wires[url] for url, sample in samples.items() if sample.error is None}
        if reached:
            yield from _usable_lines(order, environ, reached, tell)
        # Of a server that cannot be reached it need not be said that its metrics cannot either.
        wires = reached
    yield from _metrics_lines(order, tuple(wires), headers, tell)


def _usable_lines(
    order: Examination, environ: Mapping[str, str], wires: Mapping[str, WireTarget], tell: Tell
) -> Iterator[Check]:
    plan = order.plan
    tell("asking the target for its models and one token")
    found = {url: target_checks.try_target(plan.target, url, environ) for url in wires}
    yield sum_up({url: target_checks.check_usable(usable) for url, usable in found.items()})
    same = target_checks.check_same_model(found)
    if same is not None:
        yield same
    facts = {url: usable.facts for url, usable in found.items() if usable.facts is not None}
    if not facts:
        return
    tokenizer = plan.prompts.tokenizer
    yield sum_up({url: target_checks.check_prompt_lengths(each, tokenizer) for url, each in facts.items()})
    if not plan.target.stream:
        yield ok("stream", "not asked for (--no-stream): E2E latency and rates are measured only")
        return
    tell("asking for a short stream")
    streams = {
        url: ask_for_stream(wires[url], request_settings(plan.target, each)) for url, each in facts.items()
    }
    yield sum_up({url: check_stream(reading) for url, reading in streams.items()})
    yield sum_up({url: check_proxy(reading.headers) for url, reading in streams.items()})


def _metrics_lines(
    order: Examination, urls: tuple[str, ...], headers: tuple[tuple[str, str], ...], tell: Tell
) -> Iterator[Check]:
    plan = order.plan
    judging = plan.judging
    endpoints = scrape_targets(
        urls if judging.metrics else (),
        metrics_urls=judging.metrics_urls,
        gpu_metrics_urls=judging.gpu_metrics_urls,
        auth_headers={name: value for name, value in headers if name.lower() == "authorization"},
    )
    if endpoints:
        tell("reading metrics")
    scrapes = target_checks.scrape_some(endpoints, plan.target)
    servers = {e.name: target_checks.check_metrics(scrapes[e.name]) for e in endpoints if not e.is_gpu}
    gpus = {e.name: target_checks.check_gpus(scrapes[e.name]) for e in endpoints if e.is_gpu}
    for checks in (servers, gpus):
        if checks:
            yield sum_up(checks)


def _load_lines(order: Examination, places: int, tell: Tell) -> Iterator[Check]:
    rate: float | None = None
    if order.self_test_s > 0:
        tell(f"measuring one client against the embedded server for {order.self_test_s:g} s")
        test: self_test.SelfTest | DistbenchError
        try:
            test = self_test.run_self_test(order.self_test_s)
            rate = None if test.failed else test.tokens_per_core_s
        except DistbenchError as error:
            test = error
        yield self_test.check_strength(test)
    yield self_test.check_clients(
        rate,
        connections=order.connections,
        expect_tokens_per_s=order.expect_tokens_per_s,
        places=places,
    )
