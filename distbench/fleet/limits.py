"""Whether the clients' machines can hold a level's connections, told before time is spent (floor F4, pure)."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from distbench.client.limits import files_problem, ports_problem
from distbench.client.messages import HostInfo
from distbench.core.shards import client_share


def limit_problems(hosts: Sequence[HostInfo], connections: int, target_names: Sequence[str]) -> list[str]:
    """
    Return what stands against a number of connections, one sentence for each client or machine; empty where nothing does.

    Args:
        hosts: Of all clients, by index.
        connections: TOTAL of the largest level.
        target_names: Base URLs of the run.
    """
    problems = []
    by_machine: dict[str, list[str]] = {}
    for host in hosts:
        share = client_share(
            client=host.client,
            num_clients=len(hosts),
            num_targets=len(target_names),
            connections=connections,
            requests=0,
            warmup=0,
        )
        problem = files_problem(len(share.connections), host.open_files_limit)
        if problem is not None:
            problems.append(f"client {host.client} on {host.hostname}: {problem}")
        addresses = [urlsplit(target_names[target]).netloc for target in share.targets]
        by_machine.setdefault(host.node_id or host.hostname, []).extend(addresses)
    for machine, addresses in by_machine.items():
        first = next(host for host in hosts if (host.node_id or host.hostname) == machine)
        problem = ports_problem(addresses, first.local_ports)
        if problem is not None:
            problems.append(f"{first.hostname}: {problem}")
    return problems
