"""The benchmarks run and say what they promise to say; their figures are not judged here."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.bench.tables import median, ratio, spread
from tests.support import cmock
from tests.support.needs import ROOT

_SCRIPTS = ROOT / "scripts" / "bench"


def quick(script: str, tmp_path: Path, *options: str) -> dict[str, Any]:
    """Run a script with --quick and return what it wrote with --json."""
    file = tmp_path / "result.json"
    command = [sys.executable, str(_SCRIPTS / f"{script}.py"), "--quick", "--json", str(file), *options]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    result: dict[str, Any] = json.loads(file.read_text())
    assert set(result["machine"]) == {"cpus", "python", "kernel", "load_1min"}
    return result


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_client_cost_measures_floor_connection_and_peer(tmp_path: Path) -> None:
    """Every contender has its cost and what the truth log says; the base is the floor; a peer is a command template."""
    floor = "climit --port {port} --connections {connections} --requests {requests} --tokens {tokens}"

    peer = floor.replace("climit", str(cmock.build("climit")))
    result = quick("client_cost", tmp_path, "--only", "floor,connection,other", "--peer", f"other={peer}")

    by_name = {each["name"]: each for each in result["results"]}
    assert list(by_name) == ["floor (C)", "connection", "other"]
    for name, each in by_name.items():
        assert (each["connections"], each["requests"], each["tokens"], each["fault"]) == (16, 32, 16, None)
        assert each["rss_mb"] > 0
        assert 0 < each["in_flight_ratio"] <= 1
        assert (each["stamp_p99_ms"] is None) == (name == "other")


@pytest.mark.bench
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_client_cost_shows_ray_apart_from_the_client(tmp_path: Path) -> None:
    """The shipped command's processor time is told by role: the client, the driver, Ray."""
    result = quick("client_cost", tmp_path, "--only", "floor,distbench run")

    shipped = result["results"][1]
    assert set(shipped["readings"][0]["cpu_s"]) == {"client", "driver", "ray"}
    assert shipped["client_rss_mb"] < shipped["rss_mb"]


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_client_cost_leaves_out_what_fails(tmp_path: Path) -> None:
    """A peer that fails is named with its fault; the others are measured."""
    result = quick("client_cost", tmp_path, "--only", "floor,broken", "--peer", "broken=false {url}")

    assert "ended with 1" in result["results"][1]["fault"]
    assert result["results"][1]["us_per_token"] is None
    assert result["results"][0]["fault"] is None


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_scale_ladder_holds_every_connection_without_errors(tmp_path: Path) -> None:
    """Each step of the ladder tells its errors, of which there are none, its memory and its stamps."""
    result = quick("scale", tmp_path, "ladder")

    assert [(step["connections"], step["errors"]) for step in result["ladder"]] == [(16, 0), (64, 0)]
    assert all(step["rss_mb"] > 0 and step["stamp_p99_ms"] is not None for step in result["ladder"])


@pytest.mark.bench
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_scale_clients_are_compared_held_and_free(tmp_path: Path) -> None:
    """Both comparisons name their clients and give each throughput against that of one client."""
    result = quick("scale", tmp_path, "clients")

    for part in ("held", "free"):
        assert [row["clients"] for row in result[part]] == [1, 2]
        assert result[part][0]["ratio"] == 1
        assert all(row["tokens_per_s"] > 0 for row in result[part])


@pytest.mark.bench
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_open_loop_tells_the_rate_that_arrived(tmp_path: Path) -> None:
    """400 slots at 200 requests/s: asked is the schedule's own rate, every request arrived and was answered."""
    (row,) = quick("open_loop", tmp_path)["results"]

    assert row["asked_per_s"] == pytest.approx(200.0, rel=1e-6)
    assert row["arrived_per_s"] > 0
    assert row["not_ok"] == 0
    assert row["lag_p50_ms"] <= row["lag_p99_ms"] <= row["lag_max_ms"]


@pytest.mark.bench
@pytest.mark.slow
def test_store_throughput_tells_rates_and_sizes(tmp_path: Path) -> None:
    """For answers of each length: rates per second and per processor second, bytes, and times of a cluster's output."""
    result = quick("store_throughput", tmp_path)

    assert [row["tokens"] for row in result["results"]] == [16, 128, 1_024]
    for row in result["results"]:
        assert row["chunk_times_per_s"] == pytest.approx(row["tokens"] * row["rows_per_s"])
        assert row["x_cluster"] == pytest.approx(row["chunk_times_per_cpu_s"] / 800_000)
        assert row["bytes_per_request"] > 0


@pytest.mark.bench
@pytest.mark.slow
def test_analysis_time_reports_on_what_it_wrote(tmp_path: Path) -> None:
    """The report of a made run ends well and is measured."""
    result = quick("analysis_time", tmp_path)

    (row,) = result["results"]
    assert (row["requests"], row["chunk_times"]) == (10_000, 160_000)
    assert min(row["wall_s"], row["cpu_s"], row["rss_gb"]) > 0


@pytest.mark.bench
@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cluster_model_loses_nothing_and_predicts(tmp_path: Path) -> None:
    """All rows that the synthetic clients pushed were recorded; the model has no negative share and speaks of larger clusters."""
    result = quick("cluster_model", tmp_path)

    rows = {(row["clients"], row["tokens_per_s"]): row["rows"] for row in result["measured"]}
    # Two seconds: a table of 78 rows a second at 10,000 tokens/s, of 390 at 50,000, of each client.
    assert rows == {
        (1, 0): 0,
        (1, 10_000): 156,
        (1, 50_000): 780,
        (2, 0): 0,
        (2, 20_000): 312,
        (2, 100_000): 1_560,
    }
    assert all(row["lost"] == 0 for row in result["measured"])
    assert min(result["model"]) >= 0
    assert [row["clients"] for row in result["predicted"]] == [16, 100, 1_000]


def test_medians_leave_out_what_was_not_measured() -> None:
    """None is no zero: it enters neither median nor spread, and nothing has a ratio to it."""
    assert median([3.0, None, 1.0, 2.0]) == 2.0
    assert median([None]) is None
    assert spread([9.0, 10.0, 12.0]) == pytest.approx(0.3)
    assert spread([1.0, None]) is None
    assert ratio(3.0, 2.0) == 1.5
    assert (ratio(None, 2.0), ratio(1.0, None), ratio(1.0, 0.0)) == (None, None, None)
