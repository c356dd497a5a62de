"""
What a machine's reading means for the load it is to send (floor F4, pure).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from distbench.client.limits import files_problem, ports_problem
from distbench.experiment.doctor.check import Check, fail, ok, split_advice, sum_up, warn
from distbench.experiment.doctor.machine import MachineReading

# A client has at most so many connections in the making at a time (client/level.py).
_CONNECTING_AT_ONCE = 256
_SLOW_GOVERNORS = frozenset({"powersave", "conservative", "ondemand"})
_STEAL_WARN_RATIO = 0.02
_BUSY_WARN_RATIO = 0.5


def machine_checks(machines: Mapping[str, MachineReading], *, connections: int, targets: int) -> list[Check]:
    """
    Return the lines about all machines of the run.

    Args:
        machines: By name; at least one.
        connections: TOTAL of the run; each machine gets its even share.
        targets: Base URLs that they are spread over; 0 where none is known yet.
    """
    share = -(-connections // len(machines))
    per_target = -(-share // max(1, targets))
    judges: list[Callable[[MachineReading], Check]] = [
        lambda machine: check_files(machine, share),
        lambda machine: check_ports(machine, per_target),
        lambda machine: check_backlog(machine, share),
        check_stamps,
        check_uvloop,
        check_hot_path,
        check_cpus,
        check_governor,
        check_steal,
        check_busy,
    ]
    return [sum_up({name: judge(machine) for name, machine in machines.items()}) for judge in judges]


def check_files(machine: MachineReading, connections: int) -> Check:
    """Tell whether one client here may open as many files as its connections need."""
    limit = machine.open_files_limit
    problem = files_problem(connections, limit)
    if problem is not None:
        text, advice = split_advice(problem.removeprefix("open files: "), "raise the limit")
        return fail("open files", text, advice, limit=limit, connections=connections)
    return ok(
        "open files",
        f"{limit:,} allowed, enough for {connections:,} connections",
        limit=limit,
        connections=connections,
    )


def check_ports(machine: MachineReading, connections: int) -> Check:
    """Tell whether the kernel hands out enough local ports for the connections to one target."""
    ports = machine.local_ports
    if ports_problem(["one target"] * connections, ports) is not None:
        return fail(
            "local ports",
            f"{ports:,} for {connections:,} connections to one target",
            'widen them: sysctl -w net.ipv4.ip_local_port_range="1024 65535", or use more hosts',
            ports=ports,
            connections=connections,
        )
    return ok(
        "local ports",
        f"{ports:,}, enough for {connections:,} connections to one target",
        ports=ports,
        connections=connections,
    )


def check_backlog(machine: MachineReading, connections: int) -> Check:
    """Tell whether a server on this machine can take the connections that come at one time."""
    needed = min(connections, _CONNECTING_AT_ONCE)
    backlog = machine.listen_backlog
    if backlog is None:
        return ok("somaxconn", "this machine does not tell it; it matters only where a server listens")
    if backlog < needed:
        return warn(
            "somaxconn",
            f"{backlog:,}: a server on this machine lets no more wait, {needed:,} come at a time",
            f"where the server runs: sysctl -w net.core.somaxconn={max(4096, needed)}, and restart the server",
            somaxconn=backlog,
        )
    return ok("somaxconn", f"{backlog:,}; it matters only where a server listens", somaxconn=backlog)


def check_stamps(machine: MachineReading) -> Check:
    """Tell whether the kernel notes when bytes arrive."""
    return _there_or_not(
        "kernel stamps",
        "the kernel notes when bytes arrive",
        "the kernel does not stamp what arrives: times are taken when the client reads",
        "use more clients, so that each is nearly idle; or hosts with Linux and no user-space network (gVisor)",
        available=machine.kernel_stamps,
    )


def check_uvloop(machine: MachineReading) -> Check:
    """Tell whether the fast event loop is there."""
    return _there_or_not(
        "uvloop",
        "clients run on it",
        "cannot be imported: clients run on the slower loop of the standard library",
        "pip install uvloop, for the Python that runs distbench",
        available=machine.uvloop,
    )


def check_hot_path(machine: MachineReading) -> Check:
    """Tell whether the code that reads tokens is compiled."""
    return _there_or_not(
        "hot path",
        "compiled",
        "not compiled, Python stands in: a token costs the client about a third more",
        "apt-get install gcc python3-dev (or the like), then scripts/install; DISTBENCH_NO_EXTENSION must not be set",
        compiled=machine.compiled,
    )


def check_cpus(machine: MachineReading) -> Check:
    """Tell how many CPUs there are for clients, and whether a container's quota takes them back."""
    cpus, quota = machine.num_cpus, machine.quota_cpus
    values = {"num_cpus": cpus, "quota_cpus": quota}
    if quota is not None and quota < cpus:
        return warn(
            "cpus",
            f"{cpus} are visible, but the container may use {quota:g} of them: beyond that it is stopped for a while",
            "raise the CPU limit of the container, or start no more clients than whole CPUs of the limit",
            **values,
        )
    if cpus < 2:
        return warn(
            "cpus",
            "1: the client shares it with the driver and with Ray",
            "use a machine with more, or a cluster (--ray-address)",
            **values,
        )
    return ok("cpus", f"{cpus}, one client each; the driver and Ray take one of them", **values)


def check_governor(machine: MachineReading) -> Check:
    """Tell whether the CPUs slow down when they are little used, as those of a good client are."""
    slow = sorted(_SLOW_GOVERNORS.intersection(machine.governors))
    if slow:
        return warn(
            "cpu governor",
            f"{', '.join(slow)}: CPUs that are little used run slowly, which shows as lag of the client",
            "cpupower frequency-set -g performance",
            governors=list(machine.governors),
        )
    text = ", ".join(machine.governors) or "this machine sets no frequency (usual for virtual ones)"
    return ok("cpu governor", text, governors=list(machine.governors))


def check_steal(machine: MachineReading) -> Check:
    """Tell whether the hypervisor takes CPU time away."""
    steal = machine.steal_ratio
    if steal is None:
        return ok("steal time", "this machine does not tell it", steal_ratio=None)
    if steal > _STEAL_WARN_RATIO:
        return warn(
            "steal time",
            f"{steal:.1%} of the CPU time goes to other guests of the same hardware",
            "use a machine with CPUs of its own (dedicated, not burstable), or more clients",
            steal_ratio=steal,
        )
    return ok("steal time", f"{steal:.1%}", steal_ratio=steal)


def check_busy(machine: MachineReading) -> Check:
    """Tell whether something else already works here."""
    busy = machine.busy_ratio
    if busy is None:
        return ok("other work", "this machine does not tell how busy it is", busy_ratio=None)
    if busy > _BUSY_WARN_RATIO:
        return warn(
            "other work",
            f"the CPUs are {busy:.0%} busy before any load",
            "end what else runs here (top shows it), or send the load from another machine",
            busy_ratio=busy,
        )
    return ok("other work", f"the CPUs are {busy:.0%} busy", busy_ratio=busy)


def _there_or_not(name: str, good: str, bad: str, advice: str, **reading: bool) -> Check:
    """Return the line about something that a machine has or lacks, by its only reading."""
    return ok(name, good, **reading) if all(reading.values()) else warn(name, bad, advice, **reading)
