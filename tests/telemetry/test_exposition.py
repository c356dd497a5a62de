"""Prometheus text is read as it is, in both formats, and broken input costs no more than its own lines."""

from pathlib import Path

import pytest

from distbench.telemetry.exposition import parse_exposition
from distbench.telemetry.vocabulary import is_recorded

CAPTURES = Path(__file__).parents[1] / "data" / "metrics"


def values_of(text: str, content_type: str | None = "text/plain; version=0.0.4") -> dict[str, float | None]:
    """Return value by name; labels are left aside."""
    return {s.name: s.value for s in parse_exposition(text, content_type).samples}


def test_nan_and_infinity_are_no_observation() -> None:
    """C82: NaN and infinities become None, which is not zero."""
    assert values_of("x NaN\ny +Inf\nz 0\n") == {"x": None, "y": None, "z": 0.0}


@pytest.mark.parametrize(
    "content_type",
    ["text/plain; version=0.0.4", "application/openmetrics-text; version=1.0.0; charset=utf-8", None],
)
def test_exemplar_is_ignored_whatever_the_format(content_type: str | None) -> None:
    """C84: a bucket with an exemplar has its own value, and the end mark is no line."""
    parsed = parse_exposition('h_bucket{le="0.5"} 3 # {trace_id="a"} 0.31 1.7e9\n# EOF\n', content_type)
    assert [(s.name, dict(s.labels), s.value) for s in parsed.samples] == [("h_bucket", {"le": "0.5"}, 3.0)]
    assert parsed.bad_lines == 0


def test_openmetrics_parser_is_chosen_by_content_type() -> None:
    """C84: a complete OpenMetrics body goes through its own parser, names and values unchanged."""
    body = (
        "# HELP vllm:generation_tokens Tokens.\n# TYPE vllm:generation_tokens counter\n"
        'vllm:generation_tokens_total{engine="0"} 12 # {trace_id="a b"} 1.0\n# EOF\n'
    )
    parsed = parse_exposition(body, "application/openmetrics-text; version=1.0.0")
    assert parsed.openmetrics
    assert [(s.name, s.value) for s in parsed.samples] == [("vllm:generation_tokens_total", 12.0)]


@pytest.mark.parametrize("bad", ["vllm:num_requests_runn", "a{b= 3", 'a{b="c"} x', "{} 1", "a 1_0"], ids=repr)
@pytest.mark.parametrize("content_type", ["text/plain", "application/openmetrics-text"])
def test_bad_line_is_counted_and_skipped(bad: str, content_type: str) -> None:
    """C84: one unreadable line is counted; all others keep their values."""
    parsed = parse_exposition(f"x 1\n{bad}\n# TYPE y gauge\ny 2\n", content_type)
    assert {s.name: s.value for s in parsed.samples} == {"x": 1.0, "y": 2.0}
    assert parsed.bad_lines == 1


def test_counter_names_stay_the_servers_own() -> None:
    """A counter without the usual suffix is not renamed, one with it neither."""
    body = "# TYPE tgi_request_success counter\ntgi_request_success 4\n# TYPE a_total counter\na_total 5\n"
    assert values_of(body) == {"tgi_request_success": 4.0, "a_total": 5.0}


def test_real_capture_is_read_whole() -> None:
    """The real server's text has 425 samples and no bad line; of them the analysis' values come out as they stand there."""
    text = (CAPTURES / "vllm_loaded.txt").read_text()
    assert len(parse_exposition(text).samples) == 425
    parsed = parse_exposition(text, keep=is_recorded)
    assert parsed.bad_lines == 0
    by_name = {s.name: s.value for s in parsed.samples}
    assert by_name["vllm:num_requests_running"] == 9.0
    assert by_name["vllm:kv_cache_usage_perc"] == 0.9841269841269842
    assert by_name["vllm:request_queue_time_seconds_count"] == 12.0
    assert {name for name in by_name if name.endswith("_bucket")} == {"vllm:iteration_tokens_total_bucket"}
    assert parsed.helps["vllm:prefix_cache_hits_total"].endswith("number of cached tokens.")
