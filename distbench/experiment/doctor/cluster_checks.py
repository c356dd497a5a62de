"""
What the look at a cluster's nodes means (floor F4, pure).
"""

from __future__ import annotations

from collections.abc import Mapping

from distbench.experiment.doctor.check import Check, fail, ok, split_advice, warn
from distbench.experiment.doctor.cluster import ClockReading, ClusterReading
from distbench.units import NS_PER_S, ns_to_s, s_to_ms

_CLOCK_ERROR_WARN_NS = 1_000_000
_WALL_WARN_NS = NS_PER_S
_MOST_NAMED = 4


def cluster_checks(reading: ClusterReading) -> list[Check]:
    """Return the lines about a cluster that could be reached."""
    lines = [check_nodes(reading), check_versions(reading)]
    if reading.problem is not None:
        if not _differing(reading):
            lines.append(check_clients_start(reading.problem))
        return lines
    return [*lines, check_clocks(reading.clocks), check_wall_clocks(reading.clocks)]


def check_unreachable(error: str) -> Check:
    """Tell that there is no cluster to look at."""
    text, advice = split_advice(
        error, "is the cluster up? ray status on its head shows it; without a cluster leave --ray-address out"
    )
    return fail("ray", text, advice)


def check_not_tried(version: str | None) -> Check:
    """
    Tell whether Ray is installed, where it was not to be started.

    Args:
        version: None: not installed.
    """
    if version is None:
        return fail(
            "ray", "is not installed", "pip install ray, or go without it: --ray-address none", version=None
        )
    return ok("ray", f"{version} is installed; --ray starts it here, --ray-address looks at a cluster")


def check_nodes(reading: ClusterReading) -> Check:
    """Tell how many nodes there are and how many clients fit on them."""
    silent = [name for name, told in reading.versions.items() if isinstance(told, str)]
    values = {"nodes": list(reading.nodes), "places": reading.places}
    if silent:
        return fail(
            "ray",
            f"{len(silent)} of {len(reading.nodes)} nodes do not answer: {_named(silent)} ({reading.versions[silent[0]]})",
            "ray status on the head shows them; take them out, or start Ray on them again",
            **values,
        )
    text = f"{_counted(len(reading.nodes), 'node')}, room for {_counted(reading.places, 'client')}"
    return ok("ray", text, **values)


def check_versions(reading: ClusterReading) -> Check:
    """Tell whether all nodes run what this process runs."""
    own = reading.own_versions
    differing = _differing(reading)
    values = {"own": dict(own), "differing": differing}
    if differing:
        parts = [f"{name} has {what}" for name, what in list(differing.items())[:_MOST_NAMED]]
        more = f" (and {len(differing) - _MOST_NAMED} more)" if len(differing) > _MOST_NAMED else ""
        wanted = ", ".join(f"{package} {version}" for package, version in own.items())
        return fail(
            "versions",
            f"{'; '.join(parts)}{more}; here are {wanted}",
            "install the same versions on all nodes (setup_commands of cluster.yaml), then ray stop and ray start there",
            **values,
        )
    text = ", ".join(f"{package} {version}" for package, version in own.items())
    return ok("versions", f"{text}, everywhere the same", **values)


def _differing(reading: ClusterReading) -> dict[str, str]:
    """Return what is different on the nodes that answered, by node."""
    differing = {}
    for name, told in reading.versions.items():
        if isinstance(told, str):
            continue
        parts = [
            f"no {package}" if told.get(package) is None else f"{package} {told[package]}"
            for package, version in reading.own_versions.items()
            if told.get(package) != version
        ]
        if parts:
            differing[name] = " and ".join(parts)
    return differing


def check_clients_start(problem: str) -> Check:
    """Tell why no client could be started on the nodes."""
    text, advice = split_advice(problem, "ray status on the head shows what the cluster is doing")
    return fail("clients start", text, advice)


def check_clocks(clocks: Mapping[str, ClockReading]) -> Check:
    """Tell how well the nodes' clocks can be told in the driver's, which is what times across clients rest on."""
    name, worst = max(clocks.items(), key=lambda item: item[1].offset.error_ns)
    error_ms = s_to_ms(ns_to_s(worst.offset.error_ns))
    values = {"error_s": {node: ns_to_s(clock.offset.error_ns) for node, clock in clocks.items()}}
    if worst.offset.error_ns > _CLOCK_ERROR_WARN_NS:
        return warn(
            "clock offsets",
            f"known to {error_ms:.2f} ms only, on {name}: starts and levels line up no better than that",
            "a slow or busy network between the nodes does this; latencies are not concerned, each is of one clock",
            **values,
        )
    if error_ms == 0:
        return ok("clock offsets", "all clients read one clock", **values)
    return ok("clock offsets", f"known to {error_ms:.2f} ms or better on {len(clocks)} nodes", **values)


def check_wall_clocks(clocks: Mapping[str, ClockReading]) -> Check:
    """Tell whether the nodes agree on the time of day."""
    ahead = {name: clock.wall_ahead_ns for name, clock in clocks.items() if clock.wall_ahead_ns is not None}
    values = {"ahead_s": {name: ns_to_s(ns) for name, ns in ahead.items()}}
    if not ahead:
        return ok("wall clocks", "not compared: no node told its own", **values)
    name, farthest = max(ahead.items(), key=lambda item: abs(item[1]))
    seconds = abs(ns_to_s(farthest))
    if abs(farthest) > _WALL_WARN_NS:
        side = "ahead" if farthest > 0 else "behind"
        return warn(
            "wall clocks",
            f"{name} is {seconds:,.1f} s {side}: its logs will not line up with the run",
            "keep the clocks by NTP (chronyc tracking shows their state); results are not concerned",
            **values,
        )
    return ok("wall clocks", f"within {s_to_ms(seconds):,.1f} ms of this machine's", **values)


def _counted(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _named(names: list[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
