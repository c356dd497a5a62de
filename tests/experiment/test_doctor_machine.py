"""The doctor on machines: every line in a state in which it is well, and one in which it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from distbench.experiment.doctor.check import Check, Status
from distbench.experiment.doctor.machine import MachineReading, cpu_quota, cpu_shares, governors, read_machine
from distbench.experiment.doctor.machine_checks import machine_checks
from tests.experiment.doctor_readings import machine

NAMES = [
    "open files",
    "local ports",
    "somaxconn",
    "kernel stamps",
    "uvloop",
    "hot path",
    "cpus",
    "cpu governor",
    "steal time",
    "other work",
]


def lines(*machines: MachineReading, connections: int = 1024, targets: int = 1) -> dict[str, Check]:
    """Return the lines about machines by their names."""
    named = {each.hostname: each for each in machines}
    return {check.name: check for check in machine_checks(named, connections=connections, targets=targets)}


def test_a_good_machine_passes_every_line() -> None:
    """Ten lines, all ok, none with advice."""
    found = lines(machine())
    assert list(found) == NAMES
    assert {(check.status, check.advice) for check in found.values()} == {(Status.OK, None)}


@pytest.mark.parametrize(
    ("name", "reading", "status", "text", "advice"),
    [
        # 1024 connections + 128 files that a client needs for itself.
        ("open files", machine(open_files_limit=1024), "fail", "need 1152", "ulimit -Hn 1152"),
        ("local ports", machine(local_ports=1000), "fail", "1,000 for 1,024", "ip_local_port_range"),
        ("somaxconn", machine(listen_backlog=128), "warn", "128", "net.core.somaxconn=4096"),
        ("kernel stamps", machine(kernel_stamps=False), "warn", "does not stamp", "more clients"),
        ("uvloop", machine(uvloop=False), "warn", "cannot be imported", "pip install uvloop"),
        ("hot path", machine(compiled=False), "warn", "Python stands in", "gcc python3-dev"),
        (
            "cpus",
            machine(quota_cpus=1.5),
            "warn",
            "8 are visible, but the container may use 1.5",
            "CPU limit",
        ),
        ("cpus", machine(num_cpus=1), "warn", "1: the client shares it", "--ray-address"),
        ("cpu governor", machine(governors=("performance", "powersave")), "warn", "powersave", "performance"),
        ("steal time", machine(steal_ratio=0.085), "warn", "8.5%", "dedicated"),
        ("other work", machine(busy_ratio=0.75), "warn", "75% busy", "top"),
    ],
    ids=lambda value: value if isinstance(value, str) and value in NAMES else "",
)
def test_one_bad_reading_spoils_its_own_line_only(
    name: str, reading: MachineReading, status: str, text: str, advice: str
) -> None:
    """What is wrong is said with its number, and what to do about it; all other lines stay ok."""
    found = lines(reading)
    bad = found.pop(name)
    assert bad.status == status
    assert text in bad.text
    assert advice in str(bad.advice)
    assert {check.status for check in found.values()} == {Status.OK}


def test_what_a_machine_does_not_tell_is_no_reproach() -> None:
    """Readings that are missing, as on virtual machines, are ok and say that they are missing."""
    found = lines(machine(listen_backlog=None, governors=(), steal_ratio=None, busy_ratio=None))
    assert {check.status for check in found.values()} == {Status.OK}
    assert "does not tell" in found["steal time"].text


def test_the_load_is_shared_by_the_machines() -> None:
    """4,096 connections over four machines are 1,024 files each; over two targets 512 ports each to one of them."""
    four = [machine(hostname=f"h{n}", open_files_limit=1152, local_ports=512) for n in range(4)]
    found = lines(*four, connections=4096, targets=2)
    assert (found["open files"].status, found["local ports"].status) == (Status.OK, Status.OK)
    found = lines(*four[:3], connections=4096, targets=2)  # 1,366 each, 683 to one target
    assert (found["open files"].status, found["local ports"].status) == (Status.FAIL, Status.FAIL)


def test_of_several_machines_the_worst_is_named() -> None:
    """One line sums them up; the others that share the fault are named, and each machine's own reading is kept."""
    names = {f"h{n}": machine(hostname=f"h{n}", uvloop=n == 0) for n in range(3)}
    line = lines(*names.values())["uvloop"]
    assert line.status is Status.WARN
    assert line.text.startswith("h1: cannot be imported")
    assert line.text.endswith("(likewise h2)")
    assert {name: part.status.value for name, part in line.parts.items()} == {
        "h0": "ok",
        "h1": "warn",
        "h2": "warn",
    }


def test_shares_of_cpu_time_by_hand() -> None:
    """
    Of 1,000 ticks 100 were stolen, 600 idle or waiting for a disk, the rest (300) worked; guest time is part of user time.
    """
    before = [1000, 0, 500, 8000, 100, 0, 0, 50, 0, 0]
    after = [1200, 0, 560, 8550, 150, 20, 20, 150, 77, 0]
    assert cpu_shares(before, after) == (0.1, 0.3)


@pytest.mark.parametrize(
    ("before", "after"),
    [([], []), ([1, 2, 3], [1, 2, 4]), ([5] * 10, [5] * 10)],
    ids=["none", "old", "still"],
)
def test_shares_that_cannot_be_told(before: list[int], after: list[int]) -> None:
    """No file, a kernel without stolen time, no tick in between: not told, and not zero."""
    assert cpu_shares(before, after) == (None, None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000", "cpu/cpu.cfs_period_us": "100000"}, 4.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
    ids=["v2", "v2-none", "v1", "v1-none", "no-file"],
)
def test_the_quota_of_a_container_is_found(
    tmp_path: Path, files: dict[str, str], expected: float | None
) -> None:
    """Both versions of control groups are read; "max" and -1 are no quota."""
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert cpu_quota(tmp_path) == expected


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    """Files of /proc and /sys that change while they are watched: 200 ticks, 50 of them stolen, 50 idle."""
    stat = tmp_path / "proc/stat"
    for cpu, governor in enumerate(("powersave", "performance", "performance")):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{cpu}/cpufreq"
        folder.mkdir(parents=True)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    (tmp_path / "proc/sys/net/core").mkdir(parents=True)
    (tmp_path / "proc/sys/net/core/somaxconn").write_text("128\n")
    stat.write_text("cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        stat.write_text("cpu  100 0 0 50 0 0 0 50 0 0\n")

    found = read_machine(tmp_path, watch_s=0.7, sleep=sleep)
    assert waited == [0.7]
    assert (found.steal_ratio, found.busy_ratio) == (0.25, 0.5)
    assert (found.governors, found.listen_backlog) == (("performance", "powersave"), 128)
    assert governors(tmp_path / "nowhere") == ()
    assert found.open_files_limit > 0
    assert found.num_cpus >= 1
