"""The shipped cluster file is one that `ray up` takes, and keeps clear of the traps that Ray's defaults set."""

from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow  # the import of Ray's launcher takes a second or two
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def cluster() -> dict[str, Any]:
    """Return the file as `ray up` reads it, with Ray's defaults filled in."""
    from ray.autoscaler._private.util import prepare_config

    config: dict[str, Any] = prepare_config(
        yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    )
    return config


def test_ray_accepts_the_cluster_file(cluster: dict[str, Any]) -> None:
    """Ray's own validation, the one that `ray up` begins with, finds nothing wrong."""
    from ray.autoscaler._private.util import validate_config

    validate_config(cluster)


def test_all_machines_of_the_list_are_started(cluster: dict[str, Any]) -> None:
    """Every worker's address becomes a worker, and the autoscaler that starts one too few stays off."""
    wanted = sum(kind["min_workers"] for kind in cluster["available_node_types"].values())

    assert wanted == len(cluster["provider"]["worker_ips"])
    assert "RAY_enable_autoscaler_v2=0" in cluster["head_start_ray_commands"][-1]


def test_only_holders_of_the_token_may_join(cluster: dict[str, Any]) -> None:
    """The token goes to every machine, and Ray asks for it on each."""
    assert "~/.ray/auth_token" in cluster["file_mounts"]
    for commands in ("head_start_ray_commands", "worker_start_ray_commands"):
        started = next(line for line in cluster[commands] if "ray start" in line)
        assert "RAY_AUTH_MODE=token" in started


def test_setup_calls_a_script_that_exists(cluster: dict[str, Any]) -> None:
    """The machines install this checkout with a script of it."""
    assert cluster["setup_commands"][0] == "~/distbench/scripts/install"
    assert (ROOT / "scripts" / "install").is_file()


def test_what_goes_to_the_machines_exists_and_is_enough_for_the_script(cluster: dict[str, Any]) -> None:
    """Piece by piece: Ray reads all of a folder before it copies, environments and history included."""
    mounts = {
        to: ROOT / source for to, source in cluster["file_mounts"].items() if not source.startswith("~")
    }
    assert [str(path) for path in mounts.values() if not path.exists()] == []
    names = {path.name for path in mounts.values()}
    read_by_install = {"requirements.lock", "requirements-dev.lock", "pyproject.toml", "scripts", "distbench"}
    built_with = {"README.md", "LICENSE"}
    assert names == read_by_install | built_with


def test_client_hosts_bear_a_resource(cluster: dict[str, Any]) -> None:
    """The head stays with the driver where a run asks for it."""
    assert "--resources='{\"client_host\":1}'" in " ".join(cluster["worker_start_ray_commands"])
    assert "client_host" not in " ".join(cluster["head_start_ray_commands"])
