"""
The same token-id prompts on a real vLLM (CPU, tiny model) and on the simulator with the same limits: do they schedule alike?

    .venv/bin/python scripts/bench/sim_fidelity.py [--only NAME ...] [--json FILE]

Starts real servers through scripts/real-vllm (install it first: scripts/real-vllm install), one per set of limits, sends every load with
distbench's own client, and prints what both servers counted: prefix-hit tokens, preemptions, prompt and output tokens, and the plateau of
running requests. Ends with 1 where they do not agree:

- prefix-hit tokens: equal where requests come one after the other, within 5 % elsewhere
- preemptions: some on both or on neither; their number within 30 % (or 5, where there are few)
- plateau of running: within 5 % (or one request)
- prompt and output tokens: equal

Everything runs on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

from distbench.analysis.facts import LevelFacts, level_facts
from distbench.core.calibration import Calibration
from distbench.core.plan import Plan
from distbench.core.plan_io import build_plan
from distbench.core.workload import build_workload
from distbench.experiment.fleets import fleet_for
from distbench.experiment.loop import Experiment
from distbench.experiment.observer import SilentObserver
from distbench.experiment.planners import make_planner, planned_levels
from distbench.experiment.preflight import check_target
from distbench.experiment.session import Session
from distbench.experiment.signals import StopFlag
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings
from distbench.store.reader import open_run
from distbench.store.rundir import RunDir

REAL_VLLM = Path(__file__).resolve().parents[1] / "real-vllm"
MODEL = "tiny"
VOCABULARY = 8192
MAX_MODEL_LEN = 1024
BLOCK_TOKENS = 32
BATCHED_TOKENS = 2048
# Five times as often as a run scrapes: a peak of running between two scrapes is not seen.
POLL_S = 0.1
# About what a step of the tiny model takes on two cores; no count depends on it but by which requests meet.
STEPS = StepTimeSettings(
    fixed_s=0.008, weights_s=0.0, per_sequence_s=0.00025, per_prefill_token_s=0.00002, per_kv_token_s=0.0
)

HITS_RATIO = 0.05
PREEMPTIONS_RATIO, PREEMPTIONS_FEW = 0.30, 5
PLATEAU_RATIO = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server that both kinds share: KV blocks, and sequences together."""

    blocks: int
    sequences: int

    def flags(self) -> list[str]:
        """Return them as vLLM's flags."""
        return [
            *("--num-gpu-blocks-override", str(self.blocks)),
            *("--max-num-seqs", str(self.sequences)),
            *("--max-num-batched-tokens", str(BATCHED_TOKENS)),
        ]

    def settings(self) -> SimSettings:
        """Return them as the simulator's settings."""
        return SimSettings(
            model=MODEL,
            num_blocks=self.blocks,
            max_num_seqs=self.sequences,
            max_num_batched_tokens=BATCHED_TOKENS,
            max_model_len=MAX_MODEL_LEN,
            block_size=BLOCK_TOKENS,
            vocab_size=VOCABULARY,
            step_time=STEPS,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One configuration. Lengths are tokens; prompts of different loads share nothing."""

    name: str
    limits: Limits
    connections: int
    requests: int
    system: int = 0
    user: int = 64
    users: int = 1
    output: int = 40
    groups: int = 1


WIDE, TIGHT, NARROW = Limits(256, 64), Limits(64, 32), Limits(256, 8)
LOADS = (
    Load(name="sequential", limits=WIDE, connections=1, requests=40, system=93, user=70, output=4),
    Load(name="shared prefix", limits=WIDE, connections=32, requests=128, system=93, user=70),
    Load(name="long answers", limits=WIDE, connections=64, requests=96, user=64, output=250),
    Load(
        name="packed by 4", limits=WIDE, connections=32, requests=64, system=93, user=70, users=4, output=160
    ),
    Load(
        name="sequential, evicting",
        limits=TIGHT,
        connections=1,
        requests=40,
        system=200,
        user=300,
        output=4,
        groups=4,
    ),
    Load(name="small cache", limits=TIGHT, connections=24, requests=96, system=93, user=70),
    Load(name="few sequences", limits=NARROW, connections=32, requests=96, system=128, user=64, output=32),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a server counted over one load; plateau: median of running while the load was on."""

    hits: float
    preemptions: float
    prompt_tokens: float
    output_tokens: float
    plateau: float
    most_running: float


class Poller:
    """Reads running and waiting of a server, fast, beside the load."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/metrics"
        self._direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self.readings: list[tuple[float, float]] = []

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stop.wait(POLL_S):
            with contextlib.suppress(OSError), self._direct.open(self._url, timeout=2) as answer:
                text = answer.read().decode()
                self.readings.append((_gauge(text, "running"), _gauge(text, "waiting")))

    def plateau(self, connections: int) -> tuple[float, float]:
        """Return median and maximum of running while nine tenths of the connections were at the server."""
        busy = [running for running, waiting in self.readings if running + waiting >= 0.9 * connections]
        seen = busy or [running for running, _ in self.readings if running] or [0.0]
        return statistics.median(seen), max(seen)


def _gauge(text: str, word: str) -> float:
    return sum(
        float(value) for value in re.findall(rf"^vllm:num_requests_{word}\{{[^}}]*\}} (\S+)", text, re.M)
    )


def plan_of(load: Load, url: str, output: Path) -> Plan:
    """Return the plan of a load; its seed is its name's, so that no two share a prompt."""
    values = {
        "urls": [url],
        "endpoint": "completions",
        "no-stream": True,
        "connections": load.connections,
        "requests": load.requests,
        "warmup": 0,
        "clients": 1,
        "system-tokens": load.system,
        "user-tokens": load.user,
        "users-per-request": load.users,
        "output-tokens": load.output,
        "prefix-groups": load.groups,
        "seed": LOADS.index(load),
        "ray-address": "none",
        "output": str(output),
    }
    return build_plan("run", values, {})


def measure(load: Load, url: str, folder: Path) -> Counts:
    """Send a load to a server, and return what the server counted."""
    plan = plan_of(load, url, folder)
    observer, stop = SilentObserver(), StopFlag()
    run_dir = RunDir.create(plan.where.output)
    session = Session(
        plan=plan,
        run_dir=run_dir,
        facts=check_target(plan.target, {}),
        workload=build_workload(
            plan, calibration=Calibration.for_token_ids(VOCABULARY), max_model_len=MAX_MODEL_LEN
        ),
        fleet=fleet_for(plan, observer),
        environ={},
        observer=observer,
        stop=stop,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(stop.restore)
        stack.callback(session.close)
        session.open()
        with Poller(url) as poller:
            result = Experiment(session, make_planner(plan, planned_levels(plan)), observer).run()
    if result.status != "complete" or result.rows[0]["requests_ok"] != load.requests:
        raise RuntimeError(f"{load.name} at {url}: {result.status}, {result.errors}")
    run = open_run(folder)
    return _counts(level_facts(run, run.info.levels[0]), *poller.plateau(load.connections))


def _counts(facts: LevelFacts, plateau: float, most: float) -> Counts:
    view = facts.server
    if view is None:
        raise RuntimeError("the server gave no metrics")
    known = {
        "hits": view.prefix_hits,
        "preemptions": view.preemptions,
        "prompt_tokens": view.prompt_tokens,
        "output_tokens": view.generation_tokens,
    }
    lacking = [name for name, value in known.items() if value is None]
    if lacking:
        raise RuntimeError(f"the server does not export {', '.join(lacking)}")
    return Counts(**{n: float(v or 0.0) for n, v in known.items()}, plateau=plateau, most_running=most)


def disagreements(load: Load, real: Counts, sim: Counts) -> list[str]:
    """Return which figures of the two servers are further apart than is promised."""
    found = []
    tolerance = 0.0 if load.connections == 1 else HITS_RATIO * real.hits
    if abs(sim.hits - real.hits) > tolerance:
        found.append("hit tokens")
    if (real.preemptions > 0) != (sim.preemptions > 0):
        found.append("whether there are preemptions")
    elif abs(sim.preemptions - real.preemptions) > max(PREEMPTIONS_FEW, PREEMPTIONS_RATIO * real.preemptions):
        found.append("preemptions")
    if abs(sim.plateau - real.plateau) > max(1.0, PLATEAU_RATIO * real.plateau):
        found.append("running")
    if (sim.prompt_tokens, sim.output_tokens) != (real.prompt_tokens, real.output_tokens):
        found.append("token counters")
    return found


@contextlib.contextmanager
def real_server(limits: Limits) -> Iterator[str]:
    """Serve the tiny model with vLLM under some limits."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    command = [str(REAL_VLLM), "serve", "--background", "--port", port, "--", *limits.flags()]
    subprocess.run(command, check=True, stdout=sys.stderr)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        subprocess.run([str(REAL_VLLM), "stop", "--port", port], check=False, stdout=sys.stderr)


def compare(loads: Sequence[Load]) -> list[tuple[Load, Counts, Counts, list[str]]]:
    """Run every load on both kinds of server; loads of the same limits share a server."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for limits in dict.fromkeys(load.limits for load in loads):
            chosen = [load for load in loads if load.limits == limits]
            with real_server(limits) as url:
                real = [measure(load, url, Path(folder, f"real-{load.name}")) for load in chosen]
            with EmbeddedServer(limits.settings()) as server:
                sim = [measure(load, server.url, Path(folder, f"sim-{load.name}")) for load in chosen]
            for load, ours, theirs in zip(chosen, sim, real, strict=True):
                results.append((load, theirs, ours, disagreements(load, theirs, ours)))
    return results


def table(results: Sequence[tuple[Load, Counts, Counts, list[str]]]) -> str:
    """Return the results as a Markdown table; each pair is real / simulated."""
    lines = [
        "| load | blocks, sequences | connections, requests | shared + own prompt, answer | hit tokens | preemptions | running, median (most) | "
        "tokens in, out | agree |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for load, real, sim, apart in results:
        prompt = (
            f"{load.system} + {load.users} x {load.user}"
            if load.users > 1
            else f"{load.system} + {load.user}"
        )
        cells = [
            load.name,
            f"{load.limits.blocks}, {load.limits.sequences}",
            f"{load.connections}, {load.requests}",
            f"{prompt}, {load.output}",
            f"{real.hits:,.0f} / {sim.hits:,.0f}",
            f"{real.preemptions:.0f} / {sim.preemptions:.0f}",
            f"{real.plateau:g} ({real.most_running:g}) / {sim.plateau:g} ({sim.most_running:g})",
            f"{real.prompt_tokens:,.0f}, {real.output_tokens:,.0f}"
            + (
                ""
                if "token counters" not in apart
                else f" / {sim.prompt_tokens:,.0f}, {sim.output_tokens:,.0f}"
            ),
            "yes" if not apart else f"no: {', '.join(apart)}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    """Compare, print, and say by the exit code whether all agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=[load.name for load in LOADS], help="Only these loads.")
    parser.add_argument("--json", type=Path, help="Write the counts to this file too.")
    args = parser.parse_args()
    results = compare([load for load in LOADS if not args.only or load.name in args.only])
    print(table(results))
    agreeing = sum(not apart for *_, apart in results)
    print(f"\n{agreeing} of {len(results)} agree")
    if args.json is not None:
        entries = [
            {
                "load": dataclasses.asdict(load),
                "real": dataclasses.asdict(real),
                "sim": dataclasses.asdict(sim),
                "apart": apart,
            }
            for load, real, sim, apart in results
        ]
        args.json.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
    return 0 if agreeing == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
