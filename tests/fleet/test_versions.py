"""A fleet of several versions is refused, and the table shows which host to mend."""

import dataclasses

from distbench.client.hostinfo import host_info
from distbench.client.messages import HostInfo
from distbench.fleet.versions import versions_problem


def host(client: int, name: str, **changes: str) -> HostInfo:
    """Return a client of distbench 1.0.0 on Python 3.11.7."""
    info = host_info(client, trust_env=False, uvloop=True, node_id=name, address=f"10.0.0.{client}")
    known = {
        "distbench": "1.0.0",
        "python": "3.11.7",
        "ray": "2.60.0",
        "open_files_limit": 4096,
        "num_cpus": 8,
    }
    return dataclasses.replace(info, hostname=name, **{**known, **changes})  # type: ignore[arg-type]


def problem(*hosts: HostInfo) -> str | None:
    """Return what a driver of distbench 1.0.0 on Python 3.11.7 says."""
    return versions_problem(hosts, distbench="1.0.0", python="3.11.7")


def test_one_version_everywhere_is_fine() -> None:
    """Two hosts as the driver."""
    assert problem(host(0, "a"), host(1, "b")) is None


def test_another_version_is_shown_in_a_table_with_one_line_a_host() -> None:
    """Host b has two clients and one line; columns are as wide as their widest cell."""
    told = problem(host(0, "a"), host(1, "b", distbench="0.9"), host(2, "b", distbench="0.9"))
    assert told is not None
    assert "the driver has distbench 1.0.0, Python 3.11.7" in told
    assert told.splitlines()[1:] == [
        "  host  address   distbench  Python  Ray     CPUs  open files",
        "  a     10.0.0.0  1.0.0      3.11.7  2.60.0  8     4096",
        "  b     10.0.0.1  0.9        3.11.7  2.60.0  8     4096",
    ]


def test_another_python_is_refused_too() -> None:
    """To the patch level, as Ray does."""
    assert problem(host(0, "a", python="3.11.8")) is not None
