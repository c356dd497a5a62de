"""Whole levels against the simulated engine in virtual time: what clients and /metrics would show, without sockets or waiting."""

import numpy as np
import pytest

from distbench.analysis.case import LevelCase
from distbench.analysis.level_row import empty_level_row
from distbench.analysis.server_view import server_view
from distbench.analysis.stability import judge_stability
from distbench.sim import virtual
from distbench.sim.engine import EngineCore
from distbench.sim.exposition import Exposition, ServerCounters
from distbench.sim.scheduler import SimRequest
from distbench.sim.settings import SimSettings
from distbench.sim.virtual import Arrival, Simulation
from distbench.telemetry.exposition import parse_exposition
from distbench.telemetry.rows import server_table
from distbench.telemetry.vocabulary import is_recorded
from tests.analysis.judging import PROVEN

S = 1_000_000_000
MOST_SCRAPES = 24


class Watched(EngineCore):
    """An engine that is scraped while it runs, in its own time: every so many steps, fewer as the run grows long."""

    def watch(self, settings: SimSettings) -> None:
        """Take scrapes from now on."""
        self.scrapes: list[tuple[int, bytes]] = []
        self._writer = Exposition(settings, [self.metrics], ServerCounters())
        self._steps = 0
        self._every = 1

    def scrape(self, now_ns: int) -> None:
        """Keep what /metrics would say."""
        self.scrapes.append((now_ns, self._writer.render()))

    def finish_step(self, now_ns: int) -> list[SimRequest]:
        """End a step and scrape if it is time."""
        produced = super().finish_step(now_ns)
        if self._steps % self._every == 0:
            self.scrape(now_ns)
            if len(self.scrapes) == MOST_SCRAPES:
                del self.scrapes[1::2]
                self._every *= 2
        self._steps += 1
        return produced


def measure(
    settings: SimSettings,
    connections: int,
    *,
    prompt: int,
    output: int,
    requests: int,
    level: int,
    repeat: int = 0,
) -> LevelCase:
    """
    Run one closed-loop level with fixed lengths and distinct prompts.

    Returns:
        The level as a real run would give it, its client proven innocent.
    """
    source = np.random.default_rng([level, connections])
    prompts = source.integers(1000, 100_000, size=(requests, prompt))
    load = [Arrival(prompt=tuple(row.tolist()), output_tokens=output) for row in prompts]
    engines: list[Watched] = []

    def build(config: SimSettings, index: int = 0) -> Watched:
        engines.append(Watched(config, index))
        engines[-1].watch(config)
        return engines[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual, "EngineCore", build)
        done = virtual.simulate(settings, load, connections=connections)
    engines[0].scrape(done.end_ns)
    return _case(settings, done, engines[0], connections, output, level, repeat)


def _case(
    settings: SimSettings,
    done: Simulation,
    engine: Watched,
    connections: int,
    output: int,
    level: int,
    repeat: int,
) -> LevelCase:
    ends = sorted(request.token_ns[-1] for request in done.served)
    window = (ends[min(connections, len(ends) - 1)], max(request.arrival_ns for request in done.served))
    tokens = np.array([made for request in done.served for made in request.token_ns])
    counts, _ = np.histogram(tokens, bins=np.linspace(window[0], window[1], 13))
    seconds = (window[1] - window[0]) / S
    inside = [r for r in done.served if window[0] <= r.arrival_ns <= window[1]]
    ttft = float(np.median([r.token_ns[0] - r.arrival_ns for r in inside])) / S
    e2e = float(np.median([r.token_ns[-1] - r.arrival_ns for r in inside])) / S
    rows = server_table(
        (time_ns, "sim", parse_exposition(text.decode(), keep=is_recorded).samples)
        for time_ns, text in engine.scrapes
    )
    rate = float(counts.sum()) / seconds
    return LevelCase(
        row=empty_level_row(
            level=level,
            repeat=repeat,
            connections=connections,
            output_token_rate=rate,
            request_rate=rate / output,
            requests_ok=len(done.served),
            valid=True,
            ttft_n=len(inside),
            ttft_p50_s=ttft,
            e2e_p50_s=e2e,
            tpot_p50_s=(e2e - ttft) / (output - 1),
            completion_tokens_mean=float(output),
            in_flight_mean=float(connections),
        ),
        server=server_view(rows, window_ns=window, settled_ns=(0, done.end_ns), model=settings.model),
        client=PROVEN,
        stability=judge_stability(counts * 12 / seconds),
    )
