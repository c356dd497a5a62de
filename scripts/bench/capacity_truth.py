#!/usr/bin/env python3
"""
Does `distbench capacity` find a capacity that is known by calculation?

Each configuration is a real server on loopback (the embedded one, or the C mock server) whose capacity follows from its settings by
the arithmetic written beside it. The whole command runs against it, and must find the peak within 3 %, the knee within one step of
the ladder, name the limit, and say "not saturated" where the ladder ends below the peak. It knows of the server what a user's would
show: its answers and /metrics.

    scripts/bench/capacity_truth.py [--quick] [--keep FOLDER] [NAME...]

Prints one line per configuration and exits with 1 where one was not found. Takes about 2 minutes each; --quick runs three.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from distbench.core.plan_io import build_plan  # noqa: E402
from distbench.experiment.commands import run_plan  # noqa: E402
from distbench.sim.embedded import EmbeddedServer  # noqa: E402
from distbench.sim.settings import SimSettings  # noqa: E402
from distbench.sim.step_time import StepTimeSettings  # noqa: E402
from tests.support.cmock import MockServer, build  # noqa: E402

PEAK_TOLERANCE = 0.03


def steps(fixed_s: float, **more: float) -> StepTimeSettings:
    """Return a step time with nothing in it but what is given."""
    free: dict[str, Any] = {
        "weights_s": 0.0,
        "per_sequence_s": 0.0,
        "per_prefill_token_s": 0.0,
        "per_kv_token_s": 0.0,
    }
    return StepTimeSettings(fixed_s=fixed_s, **{**free, **more})


def sim(step_time: StepTimeSettings, **settings: Any) -> SimSettings:
    """Return a simulated server with room for everything but what is given."""
    room: dict[str, Any] = {"max_num_batched_tokens": 16_384, "max_model_len": 2_048, "num_blocks": 65_536}
    return SimSettings(step_time=step_time, **{**room, **settings})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mock:
    """The C mock server: so many requests at once, a token of each every itl_ms."""

    max_running: int
    itl_ms: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Truth:
    """
    A server and what must be found.

    Attributes:
        server: Its settings.
        peak: Output tokens/s; None: not reached, or not known.
        why: The arithmetic.
        at: Connections from which the peak is reached, for the knee; None: a curve without a corner.
        limits: Limits that are right.
        levels: Connections to try.
        prompt, output: Tokens.
        verdict: Of the run.
        declines: Whether a decline behind the peak is right; None: either.
        seconds: Of each level: several times a request's.
    """

    server: SimSettings | Mock
    peak: float | None
    why: str
    at: int | None
    limits: tuple[str, ...]
    levels: str
    prompt: int = 16
    output: int = 48
    verdict: str = "saturated"
    declines: bool | None = False
    seconds: int = 12


TRUTHS: dict[str, Truth] = {
    "seqs-8": Truth(
        server=sim(steps(0.02), max_num_seqs=8),
        peak=400,
        why="8 sequences x 50 steps/s",
        at=8,
        limits=("sequences",),
        levels="1,2,4,8,16,32",
    ),
    "seqs-8-noise": Truth(
        server=sim(steps(0.02, noise_sigma=0.1), max_num_seqs=8),
        peak=400,
        why="8 sequences x 50 steps/s, each step 10 % off",
        at=8,
        limits=("sequences",),
        levels="2,4,8,16,32",
    ),
    "seqs-64": Truth(
        server=sim(steps(0.025), max_num_seqs=64),
        peak=2560,
        why="64 sequences x 40 steps/s",
        at=64,
        limits=("sequences",),
        levels="16,32,64,128,256",
    ),
    "seqs-256": Truth(
        server=sim(steps(0.05), max_num_seqs=256),
        peak=5120,
        why="256 sequences x 20 steps/s",
        at=256,
        limits=("sequences",),
        levels="64,128,256,512",
    ),
    "seqs-1000": Truth(
        server=sim(steps(0.2), max_num_seqs=1000),
        peak=5000,
        why="1,000 sequences x 5 steps/s",
        at=1000,
        limits=("sequences",),
        levels="500,1000,2000",
        output=24,
        seconds=40,
    ),
    "replicas-2x8": Truth(
        server=sim(steps(0.02), max_num_seqs=8, data_parallel_size=2),
        peak=800,
        why="2 engines x 8 sequences x 50 steps/s",
        at=16,
        limits=("sequences",),
        levels="4,8,16,32,64",
    ),
    "tensor-parallel-4": Truth(
        server=sim(
            steps(0.002, weights_s=0.064, communication_s=0.0006666666666666666),
            max_num_seqs=16,
            tensor_parallel_size=4,
        ),
        peak=800,
        why="16 sequences / (2 ms + 64 ms / 4 + 3 x 2/3 ms)",
        at=16,
        limits=("sequences",),
        levels="4,8,16,32,64",
    ),
    "decode-grows": Truth(
        server=sim(steps(0.002, per_sequence_s=0.004), max_num_seqs=512),
        peak=None,
        why="n / (2 ms + 4 ms n): 248 tokens/s at 64, never more than 250",
        at=None,
        limits=("decode",),
        levels="2,8,32,64",
        output=24,
        seconds=30,
    ),
    "batched-tokens-512": Truth(
        server=sim(steps(0.02), max_num_seqs=256, max_num_batched_tokens=512, enable_prefix_caching=False),
        peak=50 * 512 / (250 + 3) * 4,
        why="512 tokens a step, 253 of them a request (250 of prompt, 3 decodes), 4 tokens of answer, 50 steps/s",
        at=None,
        limits=("batched_tokens",),
        levels="4,16,64,128",
        prompt=250,
        output=4,
    ),
    "prefill-cost": Truth(
        server=sim(steps(0.0005, per_prefill_token_s=0.0004), max_num_seqs=256, enable_prefix_caching=False),
        peak=None,
        why="100 prompt tokens x 0.4 ms a request and little else: 200 tokens/s at 8 of answer",
        at=None,
        limits=("prefill", "batched_tokens"),
        levels="2,8,32,64",
        prompt=100,
        output=8,
        # All answers of a wave end at once, and the server's one thread reads the next wave's requests while its engine stands.
        declines=None,
    ),
    "decline-64": Truth(
        server=sim(
            dataclasses.replace(steps(0.025), overload_after=64, overload_per_request_s=0.0005),
            max_num_seqs=64,
        ),
        peak=2560,
        why="64 sequences x 40 steps/s; each request beyond 64 costs a step 0.5 ms",
        at=64,
        limits=("sequences", "none_found", "decode"),
        levels="16,32,64,128,256",
        declines=True,
    ),
    "kv-cache-8": Truth(
        server=sim(
            steps(0.02), max_num_seqs=64, num_blocks=100, max_model_len=512, enable_prefix_caching=False
        ),
        peak=None,
        why="99 blocks of 16 tokens; a request of 64 + 128 needs 12 of them: eight fit",
        at=None,
        limits=("kv_memory",),
        levels="4,8,16,32",
        prompt=64,
        output=128,
        declines=None,
        seconds=45,
    ),
    "not-saturated": Truth(
        server=sim(steps(0.02), max_num_seqs=256),
        peak=None,
        why="the ladder ends at 32 of 256 sequences",
        at=None,
        limits=("none_found",),
        levels="4,8,16,32",
        verdict="not_saturated",
    ),
    "mock-32": Truth(
        server=Mock(max_running=32, itl_ms=20),
        peak=1600,
        why="C mock: 32 requests x 50 tokens/s",
        at=32,
        limits=("sequences",),
        levels="8,16,32,64,128",
    ),
    "mock-not-saturated": Truth(
        server=Mock(max_running=512, itl_ms=20),
        peak=None,
        why="C mock: the ladder ends at 64 of 512 requests",
        at=None,
        limits=("none_found",),
        levels="8,16,32,64",
        verdict="not_saturated",
    ),
}
QUICK = ("seqs-8", "not-saturated", "mock-32")


@contextlib.contextmanager
def serving(server: SimSettings | Mock, folder: Path) -> Iterator[str]:
    """Run a server on loopback; yields its base URL."""
    if isinstance(server, SimSettings):
        with EmbeddedServer(server) as embedded:
            yield embedded.url
        return
    mock = MockServer(build("mockserver"), folder, itl_ms=server.itl_ms, max_running=server.max_running)
    mock.start()
    try:
        yield mock.url
    finally:
        mock.stop()


def find(truth: Truth, folder: Path) -> dict[str, Any]:
    """Run the whole command and return findings.json."""
    with serving(truth.server, folder) as url:
        flags = {
            "urls": [url],
            "connections": truth.levels,
            "repeats": 2,
            "system-tokens": 0,
            "user-tokens": truth.prompt,
            "output-tokens": truth.output,
            "duration": f"{truth.seconds}s",
            "ray-address": "none",
            "output": str(folder / "run"),
        }
        return dict(run_plan(build_plan("capacity", {}, flags)).findings)


def problems(truth: Truth, found: dict[str, Any]) -> list[str]:
    """Return what was not found as it is."""
    wrong = []
    peak, knee = found["peak"], found["knee"]
    if found["verdict"] != truth.verdict:
        wrong.append(f"verdict {found['verdict']}, not {truth.verdict}")
    if found["limit"] not in truth.limits:
        wrong.append(f"limit {found['limit']}, not {' or '.join(truth.limits)}")
    if peak is None or knee is None:
        return [*wrong, "no peak: " + "; ".join(each["text"] for each in found["findings"][:2])]
    if truth.peak is not None and abs(peak["output_token_rate"] / truth.peak - 1) > PEAK_TOLERANCE:
        wrong.append(f"peak {peak['output_token_rate']:.0f}, not {truth.peak:.0f}")
    if truth.at is not None:
        levels = [int(text) for text in truth.levels.split(",")]
        distance = abs(levels.index(knee["connections"]) - levels.index(truth.at))
        if distance > 1:
            wrong.append(f"knee at {knee['connections']}, not {truth.at}")
    if truth.declines is not None and truth.declines != (found["decline"] is not None):
        wrong.append(
            "no decline was seen" if truth.declines else f"a decline that is none: {found['decline']}"
        )
    return wrong


def main() -> int:
    """Print the table; 1 where a configuration was not found as it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *TRUTHS], metavar="NAME", help=", ".join(TRUTHS))
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the run directories there")
    options = parser.parse_args()
    names = options.names or (QUICK if options.quick else TRUTHS)
    print(
        f"{'configuration':<20} {'true':>6} {'found':>7} {'off':>6} {'knee':>5} {'verdict':<14} {'limit':<15} seconds"
    )
    failed = 0
    for name in names:
        truth = TRUTHS[name]
        began_s = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="distbench-truth-") as folder:
            found = find(truth, Path(folder))
            if options.keep is not None:
                shutil.copytree(Path(folder) / "run", options.keep / name)
        wrong = problems(truth, found)
        failed += bool(wrong)
        rate = found["peak"]["output_token_rate"] if found["peak"] else float("nan")
        true = "-" if truth.peak is None else f"{truth.peak:.0f}"
        off = "-" if truth.peak is None else f"{rate / truth.peak - 1:+.1%}"
        knee = found["knee"]["connections"] if found["knee"] else "-"
        print(
            f"{name:<20} {true:>6} {rate:>7.0f} {off:>6} {knee:>5} {found['verdict']:<14} {found['limit']:<15} "
            f"{time.monotonic() - began_s:.0f}  {'; '.join(wrong) or 'right'}  ({truth.why})",
            flush=True,
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
