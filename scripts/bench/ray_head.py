"""A Ray of as many CPUs as asked on loopback, for benchmarks with more clients than this machine has cores."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

_OBJECT_STORE_BYTES = 256 * 2**20
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    # Programs started beside it take this machine's address from here: loopback, as the head's.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # A loaded machine is no reason to give up.
    "RAY_raylet_start_wait_time_s": "120",
}


@contextlib.contextmanager
def ray_head(num_cpus: int) -> Iterator[str]:
    """
    Run it; give its address. It leaves nothing behind.

    Args:
        num_cpus: What it says it has, whatever the machine has.
    """
    # In a function: most benchmarks do without Ray, which takes seconds to import.
    from ray.cluster_utils import Cluster

    from distbench.fleet.ray_runtime import _loopback_only

    # Ray puts sockets below this folder, whose paths may not be long.
    folder = tempfile.mkdtemp(prefix="db-ray-", dir="/tmp")
    saved = {name: os.environ.get(name) for name in (*_SETTINGS, "RAY_TMPDIR")}
    os.environ.update(_SETTINGS, RAY_TMPDIR=folder)
    cluster: Any = None
    stack = contextlib.ExitStack()
    try:
        stack.enter_context(_loopback_only())
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": num_cpus,
                "node_ip_address": "127.0.0.1",
                "object_store_memory": _OBJECT_STORE_BYTES,
                "include_dashboard": False,
            },
        )
        yield cluster.address
    finally:
        if cluster is not None:
            cluster.shutdown()
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        stack.close()
        shutil.rmtree(folder, ignore_errors=True)
