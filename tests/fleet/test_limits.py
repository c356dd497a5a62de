"""Files and ports are checked before time is spent."""

import dataclasses

from distbench.client.hostinfo import host_info
from distbench.client.messages import HostInfo
from distbench.fleet.limits import limit_problems


def host(client: int, machine: str, *, files: int = 100_000, ports: int = 28_232) -> HostInfo:
    """Return a client on a machine."""
    info = host_info(client, trust_env=False, uvloop=True, node_id=machine)
    return dataclasses.replace(info, hostname=machine, open_files_limit=files, local_ports=ports)


def test_too_few_files_are_told_for_each_client_with_both_numbers() -> None:
    """200 connections over two clients, 64 files each."""
    problems = limit_problems([host(0, "a", files=64), host(1, "b")], 200, ["http://s:1/v1"])
    assert len(problems) == 1
    assert "client 0 on a: open files: 100 connections need 228, this client may have 64" in problems[0]


def test_ports_are_counted_per_machine_and_target() -> None:
    """Two clients of one machine share its ports; two targets double them."""
    hosts = [host(0, "a", ports=1000), host(1, "a", ports=1000)]
    assert limit_problems(hosts, 1500, ["http://s:1/v1", "http://t:1/v1"]) == []
    problems = limit_problems(hosts, 1500, ["http://s:1/v1"])
    assert len(problems) == 1
    assert "a: local ports: 1500 connections to s:1 need as many, this machine has 1000" in problems[0]


def test_enough_is_no_problem() -> None:
    """Nothing to say."""
    assert limit_problems([host(0, "a")], 10_000, ["http://s:1/v1"]) == []
