"""A real nginx between distbench and its servers: a proxy that buffers, and a balancer that mixes the servers' metrics."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from distbench.core.plan_io import build_plan
from distbench.experiment.commands import run_plan
from distbench.experiment.result import RunResult
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from tests.support.ports import free_port

pytestmark = [pytest.mark.nginx, pytest.mark.slow]

_CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  upstream servers {{ {servers} }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://servers; proxy_http_version {version}; proxy_buffering {buffering}; {more} }}
  }}
}}
"""


@contextmanager
def nginx(folder: Path, urls: Sequence[str], *, buffering: bool) -> Iterator[str]:
    """
    Run nginx in front of servers, dealing requests out in turn; yields its URL.

    A buffering nginx is the one that people have by mistake: HTTP/1.0 to the server, whole answers in its buffers.
    """
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(
        _CONFIG.format(
            folder=folder,
            port=port,
            servers=" ".join(f"server {url.removeprefix('http://')};" for url in urls),
            version="1.0" if buffering else "1.1",
            buffering="on" if buffering else "off",
            more="proxy_buffers 16 64k;" if buffering else 'proxy_set_header Connection "";',
        )
    )
    binary = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/usr/local/sbin")
    assert binary is not None
    process = subprocess.Popen([binary, "-c", str(config), "-p", str(folder)], stderr=subprocess.DEVNULL)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        assert process.poll() is None, "nginx ended"
        try:
            if httpx.get(url, timeout=1).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.05)
    raise AssertionError("nginx does not answer")


def measure(urls: Sequence[str], output: Path, **flags: Any) -> RunResult:
    """Measure one level of 12 connections, long enough to be judged."""
    settings = {
        "urls": list(urls),
        "connections": "12",
        "requests": 150,
        "system-tokens": 16,
        "user-tokens": 16,
        "output-tokens": 24,
        "ray-address": "none",
        "output": str(output),
        **{name.replace("_", "-"): value for name, value in flags.items()},
    }
    return run_plan(build_plan("run", {}, settings))


def kinds(result: RunResult) -> set[str]:
    """Return the kinds of a run's findings."""
    return {finding["kind"] for finding in result.findings["findings"]}


def test_a_buffering_proxy_is_named(tmp_path: Path) -> None:
    """All tokens of an answer come at once though the server made them one by one: the limit named is the network."""
    with (
        EmbeddedServer(SimSettings(max_num_seqs=8)) as server,
        nginx(tmp_path, [server.url], buffering=True) as url,
    ):
        result = measure([url], tmp_path / "r")
    row = result.rows[0]
    assert row["requests_ok"] == 150
    assert row["bundled_ratio"] > 0.5
    assert (row["limit"], result.findings["limit"]) == ("network", "network")


def test_metrics_behind_a_balancer_are_noticed_and_each_servers_own_are_right(tmp_path: Path) -> None:
    """
    Two servers in turn behind one URL: their counters see-saw, so nothing is made of them, and the remedy is told.

    With each server's own --metrics-url the same load reconciles exactly.
    """
    with (
        EmbeddedServer(SimSettings(max_num_seqs=8)) as a,
        EmbeddedServer(SimSettings(max_num_seqs=8)) as b,
        nginx(tmp_path, [a.url, b.url], buffering=False) as url,
    ):
        mixed = measure([url], tmp_path / "mixed")
        own = [f"{a.url}/metrics", f"{b.url}/metrics"]
        right = measure([url], tmp_path / "right", metrics_url=own)
    assert "mixed_targets" in kinds(mixed)
    assert (mixed.rows[0]["running_mean"], mixed.rows[0]["reconciled"]) == (None, None)
    assert "mixed_targets" not in kinds(right)
    assert right.rows[0]["reconciled"] is True
    assert right.rows[0]["running_mean"] == pytest.approx(12, abs=3)
