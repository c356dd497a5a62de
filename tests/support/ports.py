"""Port numbers for servers that cannot pick their own; prefer port 0 where the server tells which one it took."""

import socket


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing listens on now; another process may still take it first."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
