"""
How long a step of the simulated engine takes (floor F3, pure).

::

    compute  = weights_s + per_sequence_s * D + per_prefill_token_s * P + per_kv_token_s * K
    overload = overload_per_request_s * max(0, U - overload_after)            (nothing when overload_after is None)
    step_s   = (fixed_s + compute / TP + communication_s * (TP - 1) + overload) * noise

with, for one step: D sequences that decode one token, P tokens of prompts (or of answers recomputed after a preemption), K entries
of the KV cache read (the sum over the scheduled sequences of their length when the step ends), U unfinished requests of the engine
(running and waiting), and TP the tensor-parallel size.

Where the terms come from: a decode step on a GPU reads all weights once (``weights_s``, whatever the batch), does work per
sequence (``per_sequence_s``) and reads every sequence's keys and values (``per_kv_token_s``); a prompt token costs arithmetic
(``per_prefill_token_s``); launching, scheduling and sampling cost the same each step (``fixed_s``). Tensor parallelism divides what
the GPUs share and adds an exchange that grows with their number. The overload term stands for a front end that gets slower with
the number of open requests: with it, throughput *falls* beyond its peak. Data parallelism needs no term: it is several engines,
each with a clock of its own.

``noise`` is lognormal with mean 1: exp(sigma * z - sigma^2 / 2), z standard normal, drawn per step from a seeded generator.
The coefficients are to be chosen, or fitted to a server of one's own; there are no presets for named GPUs.
"""

from __future__ import annotations

import dataclasses
import math
import random

from distbench.sim.scheduler import Step
from distbench.units import NS_PER_S


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeSettings:
    """
    The coefficients of the formula; all in seconds unless said otherwise.

    Attributes:
        fixed_s: Cost of any step that tensor parallelism does not divide.
        weights_s: Cost of any step that it divides.
        per_sequence_s: Per decoding sequence.
        per_prefill_token_s: Per prompt token computed.
        per_kv_token_s: Per KV entry read.
        communication_s: Per GPU beyond the first.
        overload_after: Unfinished requests of an engine from which it gets slower; None: never.
        overload_per_request_s: Cost of each of them beyond that.
        noise_sigma: Spread of the noise, a pure number; 0: none.
    """

    fixed_s: float = 0.003
    weights_s: float = 0.013
    per_sequence_s: float = 0.0003
    per_prefill_token_s: float = 0.00002
    per_kv_token_s: float = 0.0000001
    communication_s: float = 0.0005
    overload_after: int | None = None
    overload_per_request_s: float = 0.0
    noise_sigma: float = 0.0

    def problems(self) -> list[str]:
        """Return what is wrong, one sentence each; empty: nothing."""
        found = [
            f"step_time.{field.name} must be a finite number >= 0, got {value!r}"
            for field in dataclasses.fields(self)
            if (value := getattr(self, field.name)) is not None
            and not (type(value) in (int, float) and 0 <= value < math.inf)
        ]
        if not found and self.fixed_s + self.weights_s + self.per_sequence_s <= 0:
            found.append(
                "step_time.fixed_s, weights_s and per_sequence_s are all 0: a step would take no time at all"
            )
        return found


class StepClock:
    """
    Turns steps into durations.

    Args:
        settings: The coefficients.
        tensor_parallel_size: TP of the formula; >= 1.
        seed: Seed of the noise; equal seeds give equal sequences.
    """

    def __init__(self, settings: StepTimeSettings, *, tensor_parallel_size: int, seed: int) -> None:
        self._settings = settings
        self._tp = tensor_parallel_size
        self._random = random.Random(seed)

    def duration_ns(self, step: Step, num_unfinished: int) -> int:
        """Return the length of a step; > 0. Draws noise, so call it once a step."""
        s = self._settings
        compute_s = (
            s.weights_s
            + s.per_sequence_s * step.num_decode_tokens
            + s.per_prefill_token_s * step.num_prefill_tokens
            + s.per_kv_token_s * step.num_kv_tokens
        )
        total_s = s.fixed_s + compute_s / self._tp + s.communication_s * (self._tp - 1)
        if s.overload_after is not None:
            total_s += s.overload_per_request_s * max(0, num_unfinished - s.overload_after)
        if s.noise_sigma:
            sigma = s.noise_sigma
            total_s *= math.exp(self._random.gauss(0.0, sigma) - sigma * sigma / 2)
        return max(1, round(total_s * NS_PER_S))
