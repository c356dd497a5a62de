"""
All parameters of the simulated server (floor F3, pure).

One frozen object; ``docs/simulator.md`` explains each. Names follow vLLM's options where one exists. Lengths are tokens.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, cast

from distbench.errors import PlanError
from distbench.sim.faults import Fault, parse_fault
from distbench.sim.step_time import StepTimeSettings

QUEUE_OVERFLOWS = ("reject", "in_stream")

# What kind of number each setting is, and the lowest it may be.
_LOWEST: dict[str, tuple[type, float]] = {
    "max_num_seqs": (int, 1),
    "max_num_batched_tokens": (int, 1),
    "max_model_len": (int, 2),
    "block_size": (int, 1),
    "num_blocks": (int, 2),
    "data_parallel_size": (int, 1),
    "tensor_parallel_size": (int, 1),
    "mean_output_tokens": (float, 1),
    "stream_interval": (int, 1),
    "vocab_size": (int, 1024),
    "keep_alive_timeout_s": (float, 0.01),
    "max_header_bytes": (int, 1024),
    "max_body_bytes": (int, 1024),
}
_KINDS: dict[type, str] = {int: "a whole number", float: "a number"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """
    Parameters of one simulated server.

    Attributes:
        model: Name it serves.
        max_num_seqs: Most sequences an engine runs together.
        max_num_batched_tokens: Most tokens an engine computes in a step (chunked prefill).
        max_model_len: Most tokens of prompt and answer together.
        block_size: Tokens in a KV block.
        num_blocks: KV blocks of each engine; one of them is a placeholder, as in vLLM.
        enable_prefix_caching: Whether prompts share blocks.
        max_num_queued_reqs: Most unfinished requests (running and waiting, all engines); more are turned away. None: no limit.
        queue_overflow: How they are turned away: "reject" (status 503) or "in_stream" (an error event inside a 200 stream; requests
            that do not stream get the 503 all the same). A real vLLM does either, depending on how close together they come.
        data_parallel_size: Number of engines, each with KV cache, queue and clock of its own.
        tensor_parallel_size: Divides the compute terms of the step time; see step_time.py.
        step_time: Coefficients of the step time.
        mean_output_tokens: Mean length of an answer that may end by itself (no ignore_eos); geometric.
        stream_interval: Tokens per streamed event after the first.
        api_key: Wanted as ``Authorization: Bearer`` under /v1; None: nobody is asked. Never written anywhere.
        enable_prompt_tokens_details: Whether usage tells cached tokens.
        enable_per_request_metrics: Whether the last answer part carries the server's own times.
        enable_request_id_headers: Whether X-Request-Id is echoed.
        force_include_usage: Streams carry usage in every event without being asked.
        vocab_size: Token ids are smaller than this.
        keep_alive_timeout_s: Idle connections are closed after it.
        max_header_bytes: Larger request heads get a 431.
        max_body_bytes: Larger bodies get a 413.
        faults: Fault specs, see faults.py; the first that strikes a request counts.
        seed: Seed of lengths, texts, noise and faults; any int.
        truth_log: File for one JSON line per request; None: none. Overwritten.
    """

    model: str = "sim-model"
    max_num_seqs: int = 24
    max_num_batched_tokens: int = 2048
    max_model_len: int = 4096
    block_size: int = 16
    num_blocks: int = 4096
    enable_prefix_caching: bool = True
    max_num_queued_reqs: int | None = None
    queue_overflow: str = "reject"
    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    step_time: StepTimeSettings = dataclasses.field(default_factory=StepTimeSettings)
    mean_output_tokens: float = 128.0
    stream_interval: int = 1
    api_key: str | None = dataclasses.field(default=None, repr=False)
    enable_prompt_tokens_details: bool = True
    enable_per_request_metrics: bool = False
    enable_request_id_headers: bool = False
    force_include_usage: bool = False
    vocab_size: int = 131_072
    keep_alive_timeout_s: float = 5.0
    max_header_bytes: int = 65_536
    max_body_bytes: int = 64 * 1024 * 1024
    faults: tuple[str, ...] = ()
    seed: int = 0
    truth_log: str | None = None

    def __post_init__(self) -> None:
        """
        Check everything.

        Raises:
            PlanError: With every problem found.
        """
        found = [*self._range_problems(), *self.step_time.problems(), *self._fault_problems()]
        if not found:
            found = self._joint_problems()
        if found:
            raise PlanError(found)

    def parsed_faults(self) -> tuple[Fault, ...]:
        """Return the faults, read."""
        return tuple(parse_fault(spec) for spec in self.faults)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values, the API key included (``from_dict`` gives the same settings back)."""
        plain = dataclasses.asdict(self)
        plain["faults"] = list(self.faults)
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> SimSettings:
        """
        Build settings from plain values; missing keys take their defaults.

        Raises:
            PlanError: A key is unknown or a value is wrong.
        """
        values = dict(plain)
        step_time = dict(values.pop("step_time", {}))
        unknown = [key for key in values if key not in {f.name for f in dataclasses.fields(cls)}]
        unknown += [
            f"step_time.{k}"
            for k in step_time
            if k not in {f.name for f in dataclasses.fields(StepTimeSettings)}
        ]
        if unknown:
            raise PlanError(f"unknown setting of the simulator: {name}" for name in unknown)
        values["faults"] = tuple(values.get("faults", ()))
        return cls(step_time=StepTimeSettings(**step_time), **values)

    def _range_problems(self) -> list[str]:
        found = [
            f"{name} must be {_KINDS[kind]} >= {low:g}, got {value!r}"
            for name, (kind, low) in _LOWEST.items()
            if not _is_number(value := getattr(self, name), kind) or value < low
        ]
        limit = self.max_num_queued_reqs
        if limit is not None and (not _is_number(limit, int) or limit < 0):
            found.append(f"max_num_queued_reqs must be a whole number >= 0 or absent, got {limit!r}")
        if self.queue_overflow not in QUEUE_OVERFLOWS:
            found.append(
                f"queue_overflow must be one of {', '.join(QUEUE_OVERFLOWS)}, got {self.queue_overflow!r}"
            )
        if not self.model:
            found.append("model must have a name")
        return found

    def _fault_problems(self) -> list[str]:
        found = []
        for spec in self.faults:
            try:
                parse_fault(spec)
            except ValueError as error:
                found.append(str(error))
        return found

    def _joint_problems(self) -> list[str]:
        found = []
        capacity = (self.num_blocks - 1) * self.block_size
        if capacity < self.max_model_len:
            found.append(
                f"(num_blocks - 1) x block_size = {capacity} KV tokens are fewer than max_model_len = {self.max_model_len}: "
                "a single long request would wait for ever; give more blocks or a shorter context"
            )
        return found


def _is_number(value: object, kind: type) -> bool:
    """Tell whether a value is a finite number of a kind; settings from JSON may be anything, and True is no number."""
    if kind is int:
        return type(value) is int
    return type(value) in (int, float) and math.isfinite(cast("float", value))
