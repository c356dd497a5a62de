"""
How much one client carries on this machine, and how many of them a load needs (floor F4).

The real load client reads streams of the embedded server, which runs in a process of its own; what it costs in CPU time per token is
measured, not how fast this server happens to be. The answer is an estimate: real streams have larger events and more network.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time

from distbench.client.messages import Finished, Health, RequestSettings, Rows
from distbench.core.lengths import LengthSpec
from distbench.core.levels import LevelSpec
from distbench.core.plan import PromptPlan
from distbench.core.synthetic import SyntheticWorkload
from distbench.errors import DistbenchError, FleetError
from distbench.experiment.doctor.check import Check, ok, warn
from distbench.fleet.base import FleetSetup
from distbench.fleet.local import LocalFleet
from distbench.fleet.placement import CONNECTIONS_PER_CLIENT
from distbench.sim.embedded import EmbeddedServer
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings
from distbench.wire.base import Timeouts, WireTarget

DURATION_S = 5.0
# Busier clients read late: lag and bundling then bend the times.
_USABLE_RATIO = 0.5
_CONNECTIONS = 64
_STEP_S = 0.01
_OUTPUT_TOKENS = 48
_SPARE_S = 20.0
_MODEL = "self-test"
_SHORT = LengthSpec("fixed", 8)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """
    What one client did.

    Attributes:
        tokens: Output tokens that it read.
        cpu_s: CPU seconds of its process meanwhile.
        wall_s: Length of the test.
        failed: Requests that failed; the figures mean nothing then.
    """

    tokens: int
    cpu_s: float
    wall_s: float
    failed: int

    @property
    def tokens_per_core_s(self) -> float | None:
        """Tokens per second that one CPU would carry, all of it; None where nothing was measured."""
        return self.tokens / self.cpu_s if self.tokens and self.cpu_s > 0 else None


def run_self_test(duration_s: float = DURATION_S) -> SelfTest:
    """
    Let one client of this process read streams of the embedded server for a while.

    Raises:
        DistbenchError: the server or the client does not come up, or the level does not end.
    """
    steps = StepTimeSettings(
        fixed_s=_STEP_S, weights_s=0.0, per_sequence_s=0.0, per_prefill_token_s=0.0, per_kv_token_s=0.0
    )
    settings = SimSettings(model=_MODEL, max_num_seqs=_CONNECTIONS, step_time=steps)
    with EmbeddedServer(settings) as server, contextlib.closing(LocalFleet(1)) as fleet:
        fleet.start()
        fleet.setup(_setup(server.url))
        spec = LevelSpec(
            level=0, connections=_CONNECTIONS, requests=None, warmup=_CONNECTIONS, duration_s=duration_s
        )
        return _drive(fleet, spec, duration_s)


def _setup(url: str) -> FleetSetup:
    target = WireTarget(url=f"{url}/v1/chat/completions", timeouts=Timeouts(first_token_s=_SPARE_S))
    return FleetSetup(
        targets=(target,),
        target_names=(url,),
        request=RequestSettings(
            model=_MODEL, endpoint="chat", stream=True, usage=True, ignore_eos=True, extra_body={}
        ),
        workload=SyntheticWorkload(
            PromptPlan(
                system_tokens=_SHORT, user_tokens=_SHORT, output_tokens=LengthSpec("fixed", _OUTPUT_TOKENS)
            )
        ),
        http_client="fast",
        epoch_monotonic_ns=time.monotonic_ns(),
    )


def _drive(fleet: LocalFleet, spec: LevelSpec, duration_s: float) -> SelfTest:
    run = fleet.start_level(spec)
    limit_s = time.monotonic() + duration_s + _SPARE_S
    tokens = failed = 0
    cpu_s = wall_s = 0.0
    while not run.finished():
        if time.monotonic() > limit_s:
            run.stop()
            raise FleetError("the self-test does not end; is this machine overloaded?")
        for event in run.events(0.2):
            if isinstance(event, Health):
                for row in event.table.to_pylist():
                    tokens += row["output_tokens"]
                    cpu_s += row["process_cpu_ratio"] * row["interval_s"]
                    wall_s += row["interval_s"]
            elif isinstance(event, Rows):
                failed += event.table.column("outcome").to_pylist().count("failed")
            elif isinstance(event, Finished) and event.reason not in ("complete", "deadline"):
                raise FleetError(f"the self-test ended early: {event.reason}")
    return SelfTest(tokens=tokens, cpu_s=cpu_s, wall_s=wall_s, failed=failed)


def clients_needed(tokens_per_core_s: float, expect_tokens_per_s: float) -> int:
    """
    Estimate the clients that read so many tokens, each half busy at most.

    Args:
        tokens_per_core_s: Of the self-test.
        expect_tokens_per_s: Output tokens per second of all connections together.
    """
    return max(1, math.ceil(expect_tokens_per_s / (_USABLE_RATIO * tokens_per_core_s)))


def check_strength(test: SelfTest | DistbenchError) -> Check:
    """Tell how many tokens per second one CPU reads here."""
    if isinstance(test, DistbenchError):
        return warn(
            "one client", f"could not be measured: {test}", "distbench sim shows whether the server starts"
        )
    rate = test.tokens_per_core_s
    if rate is None or test.failed:
        return warn(
            "one client",
            f"could not be measured: {test.tokens} tokens came, {test.failed} requests failed",
            "end what else runs on this machine and ask again",
        )
    return ok(
        "one client",
        f"reads about {_round(rate):,} tokens/s per CPU (estimate: {test.tokens:,} tokens took {test.cpu_s:.2f} s of CPU)",
        tokens_per_core_s=rate,
        tokens=test.tokens,
        cpu_s=test.cpu_s,
        wall_s=test.wall_s,
    )


def check_clients(
    tokens_per_core_s: float | None, *, connections: int, expect_tokens_per_s: float | None, places: int
) -> Check:
    """
    Tell how many clients the wanted load needs, and whether there is room for them.

    Args:
        tokens_per_core_s: Of the self-test; None: not measured.
        connections: TOTAL.
        expect_tokens_per_s: Output tokens per second of all connections together; None: not known.
        places: Clients that fit on the cluster, or on this machine.
    """
    started = max(1, min(places, math.ceil(connections / CONNECTIONS_PER_CLIENT)))
    values = {"by_default": started, "places": places, "connections": connections}
    begin = f"a run starts {started} for {connections:,} connections"
    if tokens_per_core_s is None:
        return ok("clients", f"{begin}; how much they carry was not measured", **values)
    carried = _round(started * _USABLE_RATIO * tokens_per_core_s)
    values["carried_tokens_per_s"] = carried
    if expect_tokens_per_s is None:
        text = f"{begin}, good for about {carried:,} tokens/s in all (estimate); --expect-tokens-per-s has it judged"
        return ok("clients", text, **values)
    needed = clients_needed(tokens_per_core_s, expect_tokens_per_s)
    values["needed"] = needed
    text = f"{needed} needed for {expect_tokens_per_s:,.0f} tokens/s (estimate)"
    if needed > places:
        return warn(
            "clients",
            f"{text}, room for {places}",
            "add hosts (--ray-address, docs/cluster.md); a run tells in any case whether the client was the limit",
            **values,
        )
    if needed > started:
        return warn(
            "clients",
            f"{text}, but {begin}",
            f"give --clients {needed}; there is room for {places}",
            **values,
        )
    return ok("clients", f"{text}; {begin}", **values)


def _round(value: float) -> int:
    """Return a number to two significant digits: it is an estimate."""
    digits = max(0, math.floor(math.log10(value)) - 1) if value >= 1 else 0
    return int(round(value, -digits))
