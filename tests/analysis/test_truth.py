"""The search, its verdicts and its limits against engines whose capacity is known by calculation, in virtual time."""

import dataclasses

import pytest

from distbench.analysis.case import LevelCase
from distbench.analysis.findings import Judgement, judge
from distbench.analysis.ladder import LadderSettings, Measure, next_step
from distbench.analysis.remarks import remarks
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings
from tests.analysis.virtual_server import measure

FREE = StepTimeSettings(
    fixed_s=0.02, weights_s=0.0, per_sequence_s=0.0, per_prefill_token_s=0.0, per_kv_token_s=0.0
)
BASE = SimSettings(
    step_time=FREE, max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=1024, num_blocks=4096
)


@dataclasses.dataclass(frozen=True)
class Truth:
    """A server, a load, and what must be found; peak in tokens/s."""

    settings: SimSettings
    peak: float | None
    knee: int | None
    limit: str
    prompt: int = 16
    output: int = 32
    largest: int = 64
    verdict: str = "saturated"


def server(noise: float = 0.0, times: dict[str, float] | None = None, **changes: int) -> SimSettings:
    """Return a server with some settings changed; step times in seconds."""
    step_time = dataclasses.replace(FREE, noise_sigma=noise, **(times or {}))  # type: ignore[arg-type]
    return dataclasses.replace(BASE, step_time=step_time, **changes)  # type: ignore[arg-type]


# Steps of 20 ms make 50 a second, one token a sequence each.
CASES = {
    "8 sequences": Truth(server(max_num_seqs=8), 8 * 50, 8, "sequences"),
    "8 sequences, noise": Truth(server(0.1, max_num_seqs=8), 8 * 50, 8, "sequences"),
    "12 sequences, between two rungs": Truth(server(max_num_seqs=12), 12 * 50, 12, "sequences"),
    # 1 ms and 10 ms a decoding sequence: 100 tokens/s at the most; the first of 16 tokens comes with the prompt, which costs nothing.
    "steps that grow with the batch": Truth(
        server(times={"fixed_s": 0.001, "per_sequence_s": 0.01}), 100 * 16 / 15, None, "decode", output=16
    ),
    # 250 tokens of prompt, 4 of answer, 512 a step: 2 requests a step, of which the decodes take their tokens first.
    "512 tokens a step": Truth(
        server(max_num_batched_tokens=512), 4 * 50 * 512 / 253, None, "batched_tokens", prompt=250, output=4
    ),
    # A prompt token costs 1 ms and nothing else does: 100 of them a request, 8 tokens of answer.
    "prompts that cost": Truth(
        server(times={"fixed_s": 0.0001, "per_prefill_token_s": 0.001}),
        8 / 0.1,
        None,
        "prefill",
        prompt=100,
        output=8,
    ),
    "the ladder ends below the peak": Truth(
        server(max_num_seqs=256), None, None, "none_found", largest=16, verdict="not_saturated"
    ),
    # 99 blocks of 16 tokens hold 1,584 tokens; a request of 64 + 128 needs 192: eight fit, sixteen do not.
    "KV cache of eight requests": Truth(
        server(num_blocks=100), None, None, "kv_memory", prompt=64, output=128, largest=32
    ),
}


def search(truth: Truth) -> Judgement:
    """Run the whole search in virtual time."""
    settings = LadderSettings(max_connections=truth.largest, repeats=2)
    cases: list[LevelCase] = []
    while isinstance(step := next_step([case.reading for case in cases], settings), Measure):
        cases.append(
            measure(
                truth.settings,
                step.connections,
                prompt=truth.prompt,
                output=truth.output,
                requests=8 * step.connections + 24,
                level=len(cases),
                repeat=step.repeat,
            )
        )
    return judge(cases, stop=step)


@pytest.mark.slow
@pytest.mark.parametrize("truth", CASES.values(), ids=CASES)
def test_capacity_known_by_calculation_is_found(truth: Truth) -> None:
    """Peak within 3 %, knee within one rung, the limit by its name, and "not saturated" where the ladder ends too early."""
    found = search(truth)
    assert (str(found.verdict), str(found.limit)) == (truth.verdict, truth.limit)
    assert found.ceiling is not None
    if truth.peak is not None:
        assert found.ceiling.peak.output_token_rate == pytest.approx(truth.peak, rel=0.03)
    if truth.knee is not None:
        assert truth.knee / 2 <= found.ceiling.knee.connections <= truth.knee * 2
    assert remarks(found)[0].kind == "ceiling"
