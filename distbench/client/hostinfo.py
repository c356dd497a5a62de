"""Where a client lives and what its machine can do (floor F3)."""

from __future__ import annotations

import os
import platform
import re
import socket
import time
import urllib.request
from collections.abc import Mapping

from distbench import __version__
from distbench.client.limits import local_ports, raise_open_files
from distbench.client.messages import HostInfo
from distbench.clock import clock_identity
from distbench.wire import hot_path, stamps

_STAMP_WAIT_S = 1.0
_STAMP_TRIES = 20
_STAMP_PAUSE_S = 0.005
_CREDENTIALS = re.compile(r"(?<=//)[^/@]*@|^[^/@]*@")


def host_info(
    client: int, *, trust_env: bool, uvloop: bool, node_id: str = "", address: str = "", ray: str = ""
) -> HostInfo:
    """
    Describe this process and its machine; raises the limit of open files on the way.

    Args:
        client: Index of the client.
        trust_env: Whether proxy variables are obeyed; only then they are told.
        uvloop: Whether the load's loop is uvloop.
        node_id: Ray's id of the node; "" without Ray.
        address: IP of the node; "": loopback.
        ray: Version; "" without Ray.
    """
    return HostInfo(
        client=client,
        hostname=socket.gethostname(),
        node_id=node_id,
        address=address or "127.0.0.1",
        pid=os.getpid(),
        clock_identity=clock_identity(),
        python=platform.python_version(),
        distbench=__version__,
        ray=ray,
        num_cpus=len(os.sched_getaffinity(0)),
        open_files_limit=raise_open_files(),
        local_ports=local_ports(),
        proxies=proxies_in_effect() if trust_env else {},
        uvloop=uvloop,
        kernel_stamps=kernel_stamps_work(),
        compiled=hot_path.in_use.is_compiled,
    )


def proxies_in_effect() -> Mapping[str, str]:
    """Return the proxies that the environment names, by scheme, without user and password."""
    return {name: _CREDENTIALS.sub("", url) for name, url in sorted(urllib.request.getproxies().items())}


def kernel_stamps_work() -> bool:
    """Tell, by bytes sent over loopback, whether the kernel stamps what a TCP socket receives."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=_STAMP_WAIT_S) as reading,
            server.accept()[0] as sending,
        ):
            if not stamps.enable(reading):
                return False
            for _ in range(_STAMP_TRIES):
                sending.send(b"x")
                if reading.recvmsg(1, stamps.ANCILLARY_BYTES)[1]:
                    return True
                # The kernel begins to stamp a moment after the first socket asks for it.
                time.sleep(_STAMP_PAUSE_S)
            return False
    except OSError:
        return False
