"""The grammar of --fail-on."""

from __future__ import annotations

import pytest

from distbench.analysis.compare_metrics import METRICS, parse_gates
from distbench.errors import PlanError
from distbench.store.schema import LEVELS


def test_gate_reads_share_time_and_place() -> None:
    """A bound is a share of the baseline or a time, everywhere or at one number of connections."""
    rate, latency, place = parse_gates(["throughput:-5%", "ttft_p99:+10%", "tpot_p50@64:+2ms"])

    assert (rate.metric.column, rate.ratio, rate.seconds, rate.connections) == (
        "output_token_rate",
        0.05,
        None,
        None,
    )
    assert (latency.metric.column, latency.ratio) == ("ttft_p99_s", 0.1)
    assert (place.metric.column, place.seconds, place.connections) == ("tpot_p50_s", 0.002, 64)


def test_several_gates_fit_into_one_text() -> None:
    """Spaces and commas separate gates, so that one shell word may hold them."""
    gates = parse_gates(["throughput:-5% ttft_p99:+10%,e2e_p50:+1s"])

    assert [gate.text for gate in gates] == ["throughput:-5%", "ttft_p99:+10%", "e2e_p50:+1s"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("throughput", "is not a bound"),
        ("throughput:5%", "is not a bound"),
        ("throughput:-5", "is not a bound"),
        ("throughput:-nan%", "is not a bound"),
        ("throughput:+5%", "less is worse"),
        ("ttft_p99:-5%", "more is worse"),
        ("throughput:-5ms", "its bound is a percentage"),
        ("ttfT_p99:+5%", "is not a bound"),
        ("ttft_p98:+5%", "did you mean ttft_p9"),
        ("colour:+5%", "known are throughput"),
    ],
)
def test_wrong_gate_is_refused(text: str, reason: str) -> None:
    """What is no bound in the direction of worse is refused with its reason."""
    with pytest.raises(PlanError, match=reason):
        parse_gates([text])


def test_all_wrong_gates_are_told_at_once() -> None:
    """Two wrong gates are two problems."""
    with pytest.raises(PlanError) as caught:
        parse_gates(["a:+1%", "throughput:-5%", "b"])

    assert len(caught.value.problems) == 2


def test_every_metric_is_a_column() -> None:
    """Each metric stands for a column of levels.parquet."""
    assert {metric.column for metric in METRICS.values()} <= set(LEVELS.names)
