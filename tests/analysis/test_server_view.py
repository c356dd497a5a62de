"""A level's server figures: per engine first, deltas between settled readings, and None with a reason for what is not there."""

from pathlib import Path

import pytest

from distbench.analysis.server_view import ServerView, server_view
from distbench.telemetry.detect import Continuity
from distbench.telemetry.exposition import parse_exposition
from distbench.telemetry.rows import server_table
from distbench.telemetry.vocabulary import is_recorded

CAPTURES = Path(__file__).parents[1] / "data" / "metrics"
WINDOW = (10, 90)
SETTLED = (0, 100)


def view_of(*scrapes: tuple[int, str], target: str = "t", **options: str) -> ServerView:
    """Return the view of one target's scrapes, (time_ns, text) each."""
    return view_of_targets([(time_ns, target, text) for time_ns, text in scrapes], **options)


def view_of_targets(scrapes: list[tuple[int, str, str]], **options: str) -> ServerView:
    """Return the view of scrapes (time_ns, target, text)."""
    rows = server_table(
        (time_ns, target, parse_exposition(text, keep=is_recorded).samples)
        for time_ns, target, text in scrapes
    )
    return server_view(rows, window_ns=WINDOW, settled_ns=SETTLED, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm:gpu_cache_usage_perc 0.4", 0.4),
        ("vllm:kv_cache_usage_perc 0.4", 0.4),
        ("vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.4", 0.4),
        ("vllm:num_requests_running 1", None),
    ],
    ids=["old", "new", "both", "none"],
)
def test_renamed_gauge(text: str, expected: float | None) -> None:
    """C74: 0.4 under either name and once under both; without any None and "not exported", never 0."""
    view = view_of((20, text), (30, text))
    assert view.kv_usage_mean == expected
    assert view.missing.get("kv_usage") == (None if expected else "not exported")


def test_hit_ratio_is_of_the_level() -> None:
    """C75: 200 hits of 1000 queries in the level are 0.20, not the 0.25 since the start; _created is no value."""
    created = (
        '# TYPE vllm:prefix_cache_hits_created gauge\nvllm:prefix_cache_hits_created{engine="0"} 1.7e9\n'
    )
    before = (
        'vllm:prefix_cache_queries_total{engine="0"} 1000\nvllm:prefix_cache_hits_total{engine="0"} 300\n'
    )
    after = 'vllm:prefix_cache_queries_total{engine="0"} 2000\nvllm:prefix_cache_hits_total{engine="0"} 500\n'
    view = view_of((0, created + before), (100, created + after))
    assert view.prefix_hit_ratio == 0.2
    assert view.continuity is Continuity.STEADY


def test_sizes_of_steps_are_of_the_window() -> None:
    """Of two engines' 10 + 10 steps inside the window 8 + 3 took 16 tokens or fewer, and 5 more up to 32."""

    def scrape(small: tuple[int, int], middle: tuple[int, int], steps: tuple[int, int]) -> str:
        line = 'vllm:iteration_tokens_total_bucket{{engine="{}",le="{}"}} {}\n'
        return "".join(
            line.format(engine, bound, counts[engine])
            for engine in (0, 1)
            for bound, counts in (("16.0", small), ("32.0", middle), ("+Inf", steps))
        )

    view = view_of(
        (0, scrape((0, 0), (0, 0), (0, 0))),
        (20, scrape((2, 2), (2, 2), (5, 5))),
        (80, scrape((10, 5), (12, 8), (15, 15))),
        (95, scrape((90, 90), (95, 95), (99, 99))),
    )
    assert view.step_buckets == ((16.0, 0.55), (32.0, 0.8), (float("inf"), 1.0))


def test_engines_are_added_and_seen() -> None:
    """C76: running 3 + 5, waiting 0 + 2, KV mean 0.4 and max 0.6; each engine stays visible."""
    text = (
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 5\n'
        'vllm:num_requests_waiting{engine="0"} 0\nvllm:num_requests_waiting{engine="1"} 2\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.6\n'
    )
    view = view_of((20, text), (30, text))
    assert (view.running_mean, view.running_max) == (8.0, 8.0)
    assert (view.waiting_mean, view.waiting_ratio) == (2.0, 1.0)
    assert view.kv_usage_mean == pytest.approx(0.4)
    assert view.kv_usage_max == 0.6
    assert [(e.engine, e.running_mean, e.waiting_ratio) for e in view.engines] == [
        ("0", 3.0, 0.0),
        ("1", 5.0, 1.0),
    ]


def test_replicated_ranks_are_not_added() -> None:
    """C76: two tensor-parallel ranks tell of the same requests; two data-parallel ranks do not."""
    ranks = "".join(
        f'sglang:num_running_reqs{{tp_rank="{r}",dp_rank="{d}"}} 4\n' for r in (0, 1) for d in (0, 1)
    )
    assert view_of((20, ranks), (30, ranks)).running_mean == 8.0


def test_targets_are_added_after_engines() -> None:
    """Two replicas: gauges at their own moments, counters summed; the busiest share is 30 / 20 of the fair one."""
    scrapes = [
        (
            time_ns + shift,
            name,
            f"vllm:num_requests_running {running}\nvllm:generation_tokens_total {tokens}\n",
        )
        for shift, name, running, per_ns in ((0, "a", 4, 3), (1, "b", 2, 1))
        for time_ns, tokens in ((0, 0), (20, 2 * per_ns), (98, 10 * per_ns))
    ]
    view = view_of_targets(scrapes)
    assert (view.running_mean, view.generation_tokens) == (6.0, 40.0)
    assert view.imbalance == 1.5


def test_balancer_is_noticed_and_gives_no_figures() -> None:
    """C78: 1000, 40, 1100, 80 are several servers: no rates, and the remedy is named."""
    scrapes = [
        (t, f"vllm:generation_tokens_total {v}") for t, v in ((0, 1000), (20, 40), (40, 1100), (100, 80))
    ]
    view = view_of(*scrapes)
    assert view.continuity is Continuity.MIXED
    assert view.generation_tokens is None
    assert view.missing["generation_tokens"] == "mixed targets"
    assert "--metrics-url" in view.notes[0]


def test_restart_costs_the_deltas() -> None:
    """A counter that starts again gives no delta, and says why."""
    view = view_of(
        *[(t, f"vllm:generation_tokens_total {v}") for t, v in ((0, 1000), (20, 0), (40, 10), (100, 30))]
    )
    assert view.continuity is Continuity.RESET
    assert (view.generation_tokens, view.missing["generation_tokens"]) == (None, "counter reset")


def test_mean_is_of_the_level_not_of_the_lifetime() -> None:
    """C80: 400 s over 100 requests are 4.0, not 0.82."""
    name = "vllm:e2e_request_latency_seconds"
    view = view_of((0, f"{name}_sum 500\n{name}_count 1000\n"), (100, f"{name}_sum 900\n{name}_count 1100\n"))
    assert view.e2e_mean_s == 4.0


def test_mean_prefers_the_window() -> None:
    """Where the window saw requests end, ramp-up is left out: (30 - 20) / (6 - 4), not 30 / 6."""
    name = "vllm:request_queue_time_seconds"
    view = view_of(
        (0, f"{name}_sum 0\n{name}_count 0\n"),
        (10, f"{name}_sum 20\n{name}_count 4\n"),
        (90, f"{name}_sum 30\n{name}_count 6\n"),
        (100, f"{name}_sum 30\n{name}_count 6\n"),
    )
    assert view.queue_time_mean_s == 5.0


def test_no_observation_is_none_with_a_reason() -> None:
    """C82: equal scrapes and NaN give None and "no observations", never 0 or NaN."""
    text = "vllm:time_to_first_token_seconds_sum 5\nvllm:time_to_first_token_seconds_count 2\n"
    text += (
        "vllm:prefix_cache_queries_total 7\nvllm:prefix_cache_hits_total 7\nvllm:num_requests_running NaN\n"
    )
    view = view_of((0, text), (50, text), (100, text))
    assert (view.ttft_mean_s, view.missing["ttft"]) == (None, "no observations")
    assert (view.prefix_hit_ratio, view.missing["prefix_hit_ratio"]) == (None, "no observations")
    assert view.running_mean is None


def test_silent_target_makes_sums_unknown() -> None:
    """One replica without metrics: the other's figures are not passed off as the whole."""
    view = view_of((20, "vllm:num_requests_running 3"), targets=["t", "u"])  # type: ignore[arg-type]
    assert view.running_mean is None
    assert view.missing["running"] == "no metrics from u"


def test_only_the_model_under_load_counts() -> None:
    """Of two models behind one server only the asked one's requests are counted, and both are named."""
    text = 'vllm:num_requests_running{model_name="a"} 3\nvllm:num_requests_running{model_name="b"} 9\n'
    view = view_of((20, text), (30, text), model="a")
    assert view.running_mean == 3.0
    assert "only a is counted" in view.notes[0]


def test_plateau_needs_most_scrapes_at_the_top() -> None:
    """Running 16, 15, 16, 16, 9: four of five are at the top but for one request."""
    view = view_of(*[(20 + i, f"vllm:num_requests_running {v}") for i, v in enumerate((16, 15, 16, 16, 9))])
    assert view.running_plateau_ratio == 0.8
    assert view.running_max == 16.0


def test_gpu_columns() -> None:
    """DCGM figures beside the server's become the level's columns, as ratios."""
    gpu = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="x"} 99\nDCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="x"} 0.25\n'
    view = view_of((20, "vllm:num_requests_running 3\n" + gpu))
    columns = view.level_columns()
    assert columns["gpu_util_mean"] == pytest.approx(0.99)
    assert (columns["sm_active_mean"], columns["dram_active_mean"]) == (0.25, None)


def test_real_captures_give_the_levels_deltas() -> None:
    """From the real server's idle text to the one after the load: 42 preemptions, 6400 tokens, 32 requests, queue 3.9695 / 32."""
    names = ((0, "idle"), (50, "loaded"), (100, "after_preemptions"))
    view = view_of(*[(t, (CAPTURES / f"vllm_{name}.txt").read_text()) for t, name in names])
    assert (view.preemptions, view.generation_tokens, view.requests_finished) == (42.0, 6400.0, 32.0)
    assert (view.finished_prompt_tokens, view.prompt_tokens) == (2048.0, 2048.0)
    assert view.queue_time_mean_s == pytest.approx(3.9694948109997767 / 32)
    assert (view.running_max, view.waiting_max, view.rejections) == (9.0, 7.0, 0.0)
    assert view.cache_config["block_size"] == "32"
    assert view.continuity is Continuity.STEADY


def test_real_data_parallel_capture_has_two_engines() -> None:
    """Two engines of one server: 224 and 288 tokens make 512 and an imbalance of 9/8."""
    text = (CAPTURES / "vllm_data_parallel_2.txt").read_text()
    zero = "".join(f'vllm:generation_tokens_total{{engine="{e}",model_name="tiny"}} 0\n' for e in (0, 1))
    view = view_of((0, zero), (50, text), (100, text))
    assert view.generation_tokens == 512.0
    assert view.imbalance == pytest.approx(288 / 256)
