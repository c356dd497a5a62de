"""
Names to addresses, and connections to the targets (floor F4): what is tried, and what the times mean.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from distbench.experiment.doctor.check import Check, fail, ok, split_advice, warn
from distbench.units import ns_to_s, s_to_ms
from distbench.wire.base import WireTarget
from distbench.wire.connect import environment_proxy
from distbench.wire.factory import open_connection
from distbench.wire.faults import WireFault

DRIVER = "this machine"
_DNS_WARN_S = 0.2
_CONNECT_WARN_S = 0.1
_TRIES = 3

Resolver = Callable[[str, int], Sequence[Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """
    What came of asking for a target's addresses.

    Attributes:
        host: Name, or an address.
        duration_s: How long it took; None where there was nothing to resolve.
        addresses: Distinct ones; none where it failed.
        error: One sentence; None.
        proxy: The environment's proxy that resolves it instead, "host:port"; None.
    """

    host: str
    duration_s: float | None
    addresses: tuple[str, ...] = ()
    error: str | None = None
    proxy: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConnectSample:
    """
    One try of a target from a node: TCP and TLS, no request.

    Attributes:
        node: Its name.
        target: Base URL.
        connect_s: None where it failed.
        error: One sentence; None where it worked.
    """

    node: str
    target: str
    connect_s: float | None
    error: str | None


def resolve(url: str, *, trust_env: bool = False, resolver: Resolver = socket.getaddrinfo) -> Resolution:
    """Ask for the addresses of a target's host, once, as its first connection would."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        return Resolution(host=host, duration_s=None, addresses=(str(ipaddress.ip_address(host)),))
    except ValueError:
        pass
    proxy = _proxy_of(parts.scheme, f"{host}:{port}") if trust_env else None
    if proxy is not None:
        return Resolution(host=host, duration_s=None, proxy=proxy)
    began_ns = time.monotonic_ns()
    try:
        found = resolver(host, port)
    except OSError as error:
        return Resolution(host=host, duration_s=None, error=error.strerror or str(error))
    duration_s = ns_to_s(time.monotonic_ns() - began_ns)
    return Resolution(
        host=host, duration_s=duration_s, addresses=tuple(dict.fromkeys(entry[4][0] for entry in found))
    )


def _proxy_of(scheme: str, authority: str) -> str | None:
    try:
        proxy = environment_proxy(scheme, authority)
    except WireFault:
        return None
    return None if proxy is None else f"{proxy.host}:{proxy.port}"


def check_dns(found: Resolution) -> Check:
    """Tell whether, and how fast, the target's name is resolved."""
    host = found.host
    if found.error is not None:
        return fail(
            "dns",
            f"{host} cannot be resolved: {found.error.lower()}",
            "is the name right, and known on this machine? getent hosts shows it; an address does as well",
            host=host,
        )
    if found.proxy is not None:
        return ok("dns", f"{host} is resolved by the proxy {found.proxy}", host=host)
    if found.duration_s is None:
        return ok("dns", f"{host} is an address", host=host)
    values = {"host": host, "duration_s": found.duration_s, "addresses": list(found.addresses)}
    many = f" to {len(found.addresses)} addresses" if len(found.addresses) > 1 else ""
    text = f"{host} resolved{many} in {s_to_ms(found.duration_s):.1f} ms"
    if found.duration_s > _DNS_WARN_S:
        return warn(
            "dns", text, "each client asks once at its start; /etc/hosts or an address is faster", **values
        )
    return ok("dns", text, **values)


def try_connecting(target: WireTarget, name: str) -> ConnectSample:
    """Connect a few times, one after the other, from this process; the median counts."""
    return asyncio.run(_try_connecting(target, name))


async def _try_connecting(target: WireTarget, name: str) -> ConnectSample:
    times_s = []
    for _ in range(_TRIES):
        connection = open_connection("fast", target)
        began_ns = time.monotonic_ns()
        failure = await connection.connect()
        times_s.append(ns_to_s(time.monotonic_ns() - began_ns))
        await connection.close()
        if failure is not None:
            error = failure.error_text or "cannot connect"
            return ConnectSample(node=DRIVER, target=name, connect_s=None, error=error)
    return ConnectSample(node=DRIVER, target=name, connect_s=statistics.median(times_s), error=None)


def check_connects(samples: Sequence[ConnectSample]) -> Check:
    """
    Tell whether one target can be connected to from every node, and how far away it is.

    Args:
        samples: Of one target, at least one.
    """
    times = {sample.node: sample.connect_s for sample in samples}
    failed = [sample for sample in samples if sample.error is not None]
    if failed:
        first = failed[0]
        where = "" if first.node == DRIVER else f"from {first.node}: "
        more = f" (and from {len(failed) - 1} more)" if len(failed) > 1 else ""
        text, advice = split_advice(f"{where}{first.error}{more}", _connect_advice(failed, samples))
        return fail("connect", text, advice, connect_s=times)
    slowest = max(samples, key=lambda sample: sample.connect_s or 0.0)
    time_s = slowest.connect_s or 0.0
    where = "" if len(samples) == 1 else f", slowest of {len(samples)} places ({slowest.node})"
    text = f"{s_to_ms(time_s):.1f} ms{where}"
    if time_s > _CONNECT_WARN_S:
        return warn(
            "connect",
            text,
            "latencies will hold this way; put the clients near the server where only the server is meant",
            connect_s=times,
        )
    return ok("connect", text, connect_s=times)


def _connect_advice(failed: Sequence[ConnectSample], samples: Sequence[ConnectSample]) -> str:
    if any(sample.node == DRIVER for sample in failed):
        return "is the server running there, is the port right, does a firewall drop it?"
    return f"{len(samples) - len(failed)} of {len(samples)} places can: is the address one that the clients' hosts know?"
