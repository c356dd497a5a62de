"""distbench sim: the embedded server on its own (floor F5)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import click

from distbench.errors import PlanError
from distbench.sim.serve import serve
from distbench.sim.settings import SimSettings
from distbench.sim.step_time import StepTimeSettings

# Option, field, help. Defaults are those of the dataclasses.
_SETTINGS: tuple[tuple[str, str, type, str], ...] = (
    ("--model", "model", str, "Name that it serves."),
    ("--max-num-seqs", "max_num_seqs", int, "Sequences that an engine runs together."),
    ("--max-num-batched-tokens", "max_num_batched_tokens", int, "Tokens that an engine computes in a step."),
    ("--max-model-len", "max_model_len", int, "Context in tokens."),
    ("--block-size", "block_size", int, "Tokens in a KV block."),
    ("--num-blocks", "num_blocks", int, "KV blocks of each engine."),
    (
        "--max-num-queued-reqs",
        "max_num_queued_reqs",
        int,
        "Unfinished requests beyond which it refuses; none by default.",
    ),
    (
        "--queue-overflow",
        "queue_overflow",
        str,
        "How it refuses: reject (503) or in_stream (an error event in a 200).",
    ),
    ("--data-parallel-size", "data_parallel_size", int, "Engines, each with its own KV cache and queue."),
    ("--tensor-parallel-size", "tensor_parallel_size", int, "Divides the compute terms of the step time."),
    (
        "--mean-output-tokens",
        "mean_output_tokens",
        float,
        "Mean length of answers that may end by themselves.",
    ),
    ("--stream-interval", "stream_interval", int, "Tokens per streamed event after the first."),
    ("--seed", "seed", int, "Seed of lengths, texts, noise and faults."),
    ("--truth-log", "truth_log", str, "File for one JSON line per request with the server's own times."),
)
_STEP_TIME: tuple[tuple[str, str, type, str], ...] = (
    ("--step-fixed", "fixed_s", float, "Seconds of any step that tensor parallelism does not divide."),
    ("--step-weights", "weights_s", float, "Seconds of any step that it divides."),
    ("--step-per-sequence", "per_sequence_s", float, "Seconds per decoding sequence."),
    ("--step-per-prefill-token", "per_prefill_token_s", float, "Seconds per prompt token computed."),
    ("--step-per-kv-token", "per_kv_token_s", float, "Seconds per KV entry read."),
    ("--step-communication", "communication_s", float, "Seconds per GPU beyond the first."),
    (
        "--overload-after",
        "overload_after",
        int,
        "Unfinished requests from which the engine gets slower; never by default.",
    ),
    ("--overload-per-request", "overload_per_request_s", float, "Seconds per request beyond that."),
    ("--step-noise", "noise_sigma", float, "Spread of the step time, a pure number."),
)


def _settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for rows, owner in ((_STEP_TIME, StepTimeSettings), (_SETTINGS, SimSettings)):
        defaults = {f.name: f.default for f in dataclasses.fields(owner)}
        for flag, field, kind, text in reversed(rows):
            default = defaults[field]
            shown = "" if default is None else f" [default: {default}]"
            function = click.option(flag, field, type=kind, default=None, help=text + shown)(function)
    return function


@click.command("sim")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 is any free one."
)
@click.option(
    "--api-key-env", metavar="NAME", help="Environment variable with the key that clients must send."
)
@click.option("--no-prefix-caching", is_flag=True, help="Never share KV blocks between prompts.")
@click.option("--per-request-metrics", is_flag=True, help="Tell the server's own times of each request.")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="SPEC",
    help="Fault such as reset:every=10,after=3; repeatable.",
)
@_settings_options
def sim(
    host: str,
    port: int,
    api_key_env: str | None,
    no_prefix_caching: bool,
    per_request_metrics: bool,
    faults: tuple[str, ...],
    **given: Any,
) -> None:
    """Serve a model that does not exist: vLLM's API, metrics and scheduling over a step clock. Ctrl-C ends it."""
    step_fields = {field for _, field, _, _ in _STEP_TIME}
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = SimSettings(
        step_time=StepTimeSettings(**{k: v for k, v in chosen.items() if k in step_fields}),
        enable_prefix_caching=not no_prefix_caching,
        enable_per_request_metrics=per_request_metrics,
        faults=faults,
        api_key=_api_key(api_key_env),
        **{k: v for k, v in chosen.items() if k not in step_fields},
    )
    try:
        serve(
            settings,
            host,
            port,
            on_ready=lambda server: click.echo(f"serving {settings.model} at {server.url}"),
        )
    except OSError as error:
        raise PlanError([f"cannot serve at {host}:{port}: {error.strerror or error}"]) from None


def _api_key(name: str | None) -> str | None:
    if name is None:
        return None
    if not os.environ.get(name):
        raise PlanError([f"--api-key-env: the environment variable {name} is not set"])
    return os.environ[name]
