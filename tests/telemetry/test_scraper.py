"""The scraper keeps its schedule beside the load, settles, and never fails anything."""

import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from distbench.store.schema import SERVER
from distbench.telemetry.exposition import parse_exposition
from distbench.telemetry.scraper import Scraper
from distbench.telemetry.settle import SettleTracker, counter_state
from distbench.telemetry.target import ScrapeTarget, scrape_targets

Answer = tuple[int, str]
IDLE = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"


@contextmanager
def metrics_server(
    answer: Callable[[int, BaseHTTPRequestHandler], Answer], context: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Serve answer(number of the request, request) on 127.0.0.1 and yield the root URL."""
    count = iter(range(10**9))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, text = answer(next(count), self)
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def wait_for_rows(scraper: Scraper, rows: int) -> None:
    """Wait until the scraper has so many targets' first readings, at most 5 s."""
    deadline = time.monotonic() + 5
    while len(scraper.latest()) < rows and time.monotonic() < deadline:
        time.sleep(0.005)


def test_rows_carry_time_target_and_labels() -> None:
    """Rows come in the run directory's schema, relative to the epoch, with the target's name as the user gave it."""
    body = 'vllm:num_requests_running{engine="1"} 3\nvllm:kv_cache_usage_perc NaN\npython_info 1\n'
    with metrics_server(lambda n, r: (200, body)) as root:
        epoch_ns = time.monotonic_ns()
        targets = scrape_targets((f"{root}/v1",))
        with Scraper(targets, epoch_ns=epoch_ns, interval_s=0.02) as scraper:
            wait_for_rows(scraper, 1)
        table = scraper.drain()
    assert table.schema == SERVER
    first, second = table.slice(0, 2).to_pylist()
    assert 0 < first["time_ns"] < 5_000_000_000
    assert first | {"time_ns": 0} == {
        "time_ns": 0,
        "target": f"{root}/v1",
        "name": "vllm:num_requests_running",
        "labels": [("engine", "1")],
        "value": 3.0,
    }
    assert second["value"] is None
    assert set(table["name"].to_pylist()) == {"vllm:num_requests_running", "vllm:kv_cache_usage_perc"}


def test_failures_are_notes_and_others_go_on() -> None:
    """A target that refuses, and one that answers something else, are notes; the working one is scraped all the same."""
    with metrics_server(lambda n, r: (200, IDLE)) as good, metrics_server(lambda n, r: (404, "no")) as bad:
        targets = (
            ScrapeTarget(name="good", url=f"{good}/metrics"),
            ScrapeTarget(name="bad", url=f"{bad}/metrics"),
            ScrapeTarget(name="gone", url="http://127.0.0.1:9/metrics"),
        )
        with Scraper(targets, epoch_ns=0, interval_s=0.02) as scraper:
            wait_for_rows(scraper, 1)
            deadline = time.monotonic() + 5
            while len({note.target for note in scraper.notes()}) < 2 and time.monotonic() < deadline:
                time.sleep(0.005)
        notes = {note.target: note.text for note in scraper.notes()}
    assert set(scraper.latest()) == {"good"}
    assert notes["bad"] == "bad: /metrics answered HTTP 404"
    assert notes["gone"].startswith("gone: cannot fetch metrics: ")


def test_key_is_sent_only_after_401_and_only_to_own_host() -> None:
    """The API key goes to the target's own host when it asks for it, and never to another host's metrics URL."""
    seen: list[str | None] = []

    def guarded(number: int, request: BaseHTTPRequestHandler) -> Answer:
        key = request.headers["Authorization"]
        seen.append(key)
        return (200, IDLE) if key == "Bearer k" else (401, "")

    with metrics_server(guarded) as root:
        targets = scrape_targets((f"{root}/v1",), auth_headers={"Authorization": "Bearer k"})
        with Scraper(targets, epoch_ns=0, interval_s=5) as scraper:
            wait_for_rows(scraper, 1)
        assert seen == [None, "Bearer k"]
    other = scrape_targets(
        ("http://a:1/v1",), metrics_urls=("http://b:1/metrics",), auth_headers={"Authorization": "Bearer k"}
    )
    assert other[0].headers == {}
    assert "Bearer" not in repr(targets)


def test_settle_waits_for_two_equal_readings() -> None:
    """Settling ends with the first reading that repeats the one before it, idle, and its rows are kept."""

    def counting(number: int, request: BaseHTTPRequestHandler) -> Answer:
        return 200, f"{IDLE}vllm:generation_tokens_total {min(number, 2)}\n"

    with metrics_server(counting) as root:
        targets = scrape_targets((root,))
        with Scraper(targets, epoch_ns=time.monotonic_ns(), interval_s=60) as scraper:
            settled = scraper.settle(timeout_s=5)
        rows = scraper.drain().to_pylist()
    values = [row["value"] for row in rows if row["name"] == "vllm:generation_tokens_total"]
    assert settled.steady
    assert sorted(values) == [0.0, 1.0, 2.0, 2.0]
    assert max(row["time_ns"] for row in rows) <= settled.time_ns


def test_settle_names_the_busy_target() -> None:
    """Counters that never stand still end settling at its limit, with the target named."""
    with (
        metrics_server(lambda n, r: (200, f"{IDLE}vllm:generation_tokens_total {n}\n")) as root,
        Scraper(scrape_targets((root,)), epoch_ns=time.monotonic_ns(), interval_s=60) as scraper,
    ):
        settled = scraper.settle(timeout_s=0.3)
    assert (settled.steady, settled.busy, settled.silent) == (False, (root,), ())


def test_settle_without_targets_returns_at_once() -> None:
    """Without metrics there is nothing to wait for, and nothing is claimed."""
    scraper = Scraper((), epoch_ns=0)
    scraper.start()
    assert scraper.settle().steady is False
    assert scraper.drain().num_rows == 0
    scraper.stop()


@pytest.mark.parametrize(
    ("running", "readings", "steady"), [(0, 2, True), (1, 2, False), (1, 5, False), (1, 6, True)]
)
def test_stale_gauge_does_not_block_settling(running: int, readings: int, steady: bool) -> None:
    """Equal counters with something running settle only after six readings, because a gauge may be stale."""
    tracker = SettleTracker()
    text = f"vllm:num_requests_running {running}\nvllm:generation_tokens_total 7\n"
    for time_ns in range(readings):
        tracker.add(counter_state(time_ns, parse_exposition(text).samples))
    assert tracker.is_steady is steady


def test_tls_is_verified_against_the_given_roots(tmp_path: Path) -> None:
    """With --ca-file the server's certificate is accepted; without it the scrape fails as a note."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    roots = tmp_path / "roots.pem"
    authority.cert_pem.write_to_path(roots)
    with metrics_server(lambda n, r: (200, IDLE), context) as root:
        with Scraper(scrape_targets((root,)), epoch_ns=0, interval_s=9, ca_file=str(roots)) as scraper:
            wait_for_rows(scraper, 1)
        assert set(scraper.latest()) == {root}
        with Scraper(scrape_targets((root,)), epoch_ns=0, interval_s=9) as scraper:
            deadline = time.monotonic() + 5
            while not scraper.notes() and time.monotonic() < deadline:
                time.sleep(0.005)
        assert "cannot fetch metrics" in scraper.notes()[0].text
