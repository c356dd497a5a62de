"""
A connection to Ray: one of our own on this machine, or a cluster (floor F4).

Our own listens on loopback only, keeps its files in a short folder under the system's temporary one, and leaves nothing behind: its
processes bear a mark, by which those that Ray did not end are found. A cluster is tried by TCP before ray.init, which would wait for
a minute where nobody answers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import psutil
import ray

from distbench.errors import FleetError
from distbench.fleet.placement import Node

_HEAD_ANSWERS_S = 5.0
_OBJECT_STORE_BYTES = 256 * 2**20
# Ray puts unix sockets in its folder, whose whole path the kernel limits to 107 bytes.
_MAX_TEMP_PATH = 40
_REMOVE_TRIES = 20
# In the environment of every process of our own Ray: its folder.
_MARK = "DISTBENCH_RAY_FOLDER"
_END_TRIES = 10
_END_WAIT_S = 1.0
_ENVIRONMENT = {
    # Pings of a client that died are not worth a message each: its loss is told once.
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}
_LOCAL_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Loopback only: a token would be written to the user's home and change how later clusters of that user start.
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}

# Tries of a second and more each, of a head that took our TCP connection already: by default 20, which is minutes.
_JOIN_ENVIRONMENT = {"RAY_gcs_server_port_wait_time_s": "3"}


class RayRuntime:
    """Ray for the time of one run."""

    def __init__(self, address: str | None = None) -> None:
        """
        Prepare; nothing runs before start().

        Args:
            address: None: a Ray of our own. Else "auto" or host:port of a cluster that this machine belongs to.
        """
        self._address = address
        self._folder: Path | None = None
        self._saved_environment: dict[str, str | None] = {}
        self._connected = False

    @property
    def is_local(self) -> bool:
        """True for a Ray of our own."""
        return self._address is None

    @property
    def folder(self) -> Path | None:
        """Ray's temporary folder of our own Ray; None for a cluster or before start()."""
        return self._folder

    def start(self) -> None:
        """
        Start or connect; a second call does nothing.

        Raises:
            FleetError: it does not start, nobody answers at the address, this machine is no node of the cluster, or the versions
                differ.
        """
        if self._connected:
            return
        if ray.is_initialized():
            raise FleetError("this process already uses Ray; a run needs a process of its own")
        self._set_environment(_ENVIRONMENT)
        if self._address is None:
            self._start_own()
        else:
            self._join(self._address)
        self._connected = True

    def nodes(self) -> list[Node]:
        """Return the live nodes with what is free on them now."""
        return list(_nodes())

    def close(self) -> None:
        """Disconnect, end our own Ray and remove its folder; a second call does nothing."""
        if self._connected:
            self._connected = False
            ray.shutdown()
        for name, value in self._saved_environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._saved_environment.clear()
        if self._folder is not None:
            _end_processes(self._folder)
            _remove(self._folder)
            self._folder = None

    def _set_environment(self, variables: Mapping[str, str]) -> None:
        for name, value in variables.items():
            self._saved_environment[name] = os.environ.get(name)
            os.environ[name] = value

    def _start_own(self) -> None:
        self._set_environment(_LOCAL_ENVIRONMENT)
        self._folder = _short_folder()
        try:
            with _loopback_only(), _marked(self._folder):
                ray.init(
                    address="local",
                    num_cpus=os.cpu_count(),
                    _node_ip_address="127.0.0.1",
                    _temp_dir=str(self._folder),
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    object_store_memory=_OBJECT_STORE_BYTES,
                )
        except Exception as error:  # Ray raises whatever went wrong below it
            self._connected = ray.is_initialized()
            self.close()
            raise FleetError(f"cannot start Ray on this machine: {_one_line(error)}") from error
        except BaseException:
            self._connected = ray.is_initialized()
            self.close()
            raise

    def _join(self, address: str) -> None:
        head = head_address(address)
        _check_answers(head)
        _check_membership(head)
        self._set_environment(_JOIN_ENVIRONMENT)
        # On a loopback-only cluster Ray would look for the head at the network card's address, where nobody answers.
        address_rule = _loopback_only() if _is_loopback(head) else contextlib.nullcontext()
        try:
            with address_rule:
                ray.init(address=head, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # Ray raises whatever went wrong below it
            raise FleetError(f"cannot join the Ray cluster at {head}: {_one_line(error)}") from error


def head_address(address: str) -> str:
    """
    Return host:port of a cluster's head; "auto" finds the cluster that this machine belongs to.

    Raises:
        FleetError: no cluster runs on this machine, or the address is of a kind that cannot carry a run.
    """
    if address.startswith("ray://"):
        raise FleetError(
            f"--ray-address {address}: rows cannot be streamed through the Ray client; run on a node of the cluster with "
            "--ray-address auto, or use ray job submit"
        )
    if address == "auto":
        found = os.environ.get("RAY_ADDRESS") or _running_here()
        if not found or found == "auto":
            raise FleetError(
                "--ray-address auto: no Ray cluster runs on this machine; start one with ray start, "
                "or leave the option out for a Ray of its own"
            )
        return found
    _, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        raise FleetError(f"--ray-address {address!r} must be auto or host:port of the cluster's head")
    return address


def _running_here() -> str | None:
    folder = Path(os.environ.get("RAY_TMPDIR") or "/tmp")
    try:
        return (folder / "ray" / "ray_current_cluster").read_text().strip() or None
    except OSError:
        return None


def _check_answers(head: str) -> None:
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_HEAD_ANSWERS_S).close()
    except OSError as error:
        raise FleetError(f"no Ray cluster answers at {head}: {error.strerror or error}") from None


def _is_loopback(head: str) -> bool:
    host = head.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def _check_membership(head: str) -> None:
    """Refuse at once where no node of the cluster is on this machine; ray.init would take more than a minute to say so."""
    try:
        from ray import _raylet

        raylet: Any = _raylet

        infos = raylet.GcsClient(address=head).get_all_node_info(timeout=_HEAD_ANSWERS_S).values()
        alive = [info.node_manager_address for info in infos if info.state == 0]
    except Exception:  # a private interface: where it differs, ray.init has the last word
        return
    own = {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}
    if alive and own.isdisjoint(alive):
        raise FleetError(
            f"this machine is no node of the Ray cluster at {head} (its nodes: {', '.join(sorted(set(alive)))}); run on one of "
            f"them with --ray-address auto, or use ray job submit"
        )


def _nodes() -> Iterator[Node]:
    free = _free_resources()
    own_id = ray.get_runtime_context().get_node_id()
    for info in cast(Any, ray).nodes():
        if not info["Alive"]:
            continue
        node_id = info["NodeID"]
        resources = dict(info["Resources"])
        yield Node(
            node_id=node_id,
            address=info["NodeManagerAddress"],
            hostname=info["NodeManagerHostname"],
            cpus=int(free.get(node_id, resources).get("CPU", 0)),
            total_cpus=int(resources.get("CPU", 0)),
            gpus=float(resources.get("GPU", 0)),
            resources=resources,
            labels=dict(info.get("Labels") or {}),
            is_driver=node_id == own_id,
        )


def _free_resources() -> dict[str, dict[str, float]]:
    try:
        from ray._private import state

        return dict(cast(Any, state).available_resources_per_node())
    except (ImportError, AttributeError):  # a private interface: all resources then count as free
        return {}


@contextlib.contextmanager
def _loopback_only() -> Iterator[None]:
    """
    Make Ray take 127.0.0.1 for this machine's address, so that all its processes listen on loopback.

    It would otherwise replace a given loopback address by that of a network card. The environment variable of the same meaning
    counts only before the first import of Ray.
    """
    from ray._private import ray_constants

    constants: Any = ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _short_folder() -> Path:
    parent = tempfile.gettempdir()
    if len(parent) > _MAX_TEMP_PATH:
        parent = "/tmp"
    return Path(tempfile.mkdtemp(prefix="distbench-", dir=parent))


@contextlib.contextmanager
def _marked(folder: Path) -> Iterator[None]:
    """Mark what is started meanwhile, and all that it starts later."""
    os.environ[_MARK] = str(folder)
    try:
        yield
    finally:
        del os.environ[_MARK]


def _end_processes(folder: Path) -> None:
    """
    Kill what still lives of our own Ray after its end.

    Stopped while it starts, Ray ends its raylet and its head, but an agent that was just coming up looks for them for a minute
    and more. By then it is nobody's child, hence the mark.
    """
    for _ in range(_END_TRIES):
        left = [process for process in psutil.process_iter() if _is_marked(process, folder)]
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=_END_WAIT_S)


def _is_marked(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(_MARK) == str(folder)
    except (psutil.Error, OSError):  # it has ended, or is another user's
        return False


def _remove(folder: Path) -> None:
    """Remove Ray's folder; its agents may write a last line while they end."""
    for _ in range(_REMOVE_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:600] or type(error).__name__
