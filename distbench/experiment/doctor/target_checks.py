"""
The target as a run would find it (floor F4): usable, measured, told apart. The preflight and the scraper of a run do the asking.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import Mapping, Sequence

import httpx

from distbench.core.plan import TargetPlan
from distbench.errors import TargetError
from distbench.experiment.doctor.check import Check, fail, ok, split_advice, warn
from distbench.experiment.preflight import check_target
from distbench.experiment.target import TargetFacts
from distbench.telemetry.exposition import Sample
from distbench.telemetry.gpu import gpu_view
from distbench.telemetry.target import Scrape, ScrapeTarget, scrape
from distbench.telemetry.vocabulary import PROCESS_START, Quantity, resolve

_SCRAPES = 3
_SCRAPE_LIMIT_S = 5.0
_FAMILIES = {"vllm:": "vLLM", "sglang:": "SGLang", "tgi_": "TGI"}
# What verdicts lean on most, in words.
_WANTED = {
    Quantity.RUNNING: "running",
    Quantity.WAITING: "waiting",
    Quantity.KV_USAGE: "KV-cache use",
    Quantity.GENERATION_TOKENS: "output tokens",
}
_WITHOUT = "without them a verdict rests on the ladder of levels alone"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Usability:
    """What the preflight said of one target: facts, or the sentence with which it is refused."""

    facts: TargetFacts | None
    refusal: str | None


def try_target(plan: TargetPlan, url: str, environ: Mapping[str, str]) -> Usability:
    """
    Ask one target what a run would ask it before the load: its models, one token.

    Raises:
        PlanError: the key is not set, or the roots cannot be read.
    """
    try:
        return Usability(facts=check_target(dataclasses.replace(plan, urls=(url,)), environ), refusal=None)
    except TargetError as error:
        return Usability(facts=None, refusal=str(error))


def check_usable(found: Usability) -> Check:
    """Tell whether a run could use the target."""
    facts = found.facts
    if facts is None:
        text, advice = split_advice(found.refusal or "refused", "the server's log may say why")
        return fail("usable", text, advice)
    context = "context not told" if facts.max_model_len is None else f"context {facts.max_model_len:,} tokens"
    version = "" if facts.version is None else f", version {facts.version}"
    text = f"model {facts.model}, {context}{version}"
    values = {
        "model": facts.model,
        "max_model_len": facts.max_model_len,
        "version": facts.version,
        "usage": facts.usage,
        "ignore_eos": facts.ignore_eos,
        "tokenizes": facts.tokenizes,
    }
    if facts.notes:
        return warn("usable", f"{text}, but {'; '.join(facts.notes)}", "a run goes on without it", **values)
    return ok("usable", text, **values)


def check_prompt_lengths(facts: TargetFacts, tokenizer: str | None) -> Check:
    """Tell whether prompts will be exactly as long as asked."""
    if tokenizer is not None:
        return ok("prompt lengths", f"exact, by --tokenizer {tokenizer}")
    if facts.tokenizes:
        return ok("prompt lengths", "exact: the server has /tokenize")
    return warn(
        "prompt lengths",
        "approximate: the server has no /tokenize",
        "give the model's tokenizer.json with --tokenizer where lengths matter; the real ones are in the rows in any case",
    )


def check_same_model(found: Mapping[str, Usability]) -> Check | None:
    """Tell whether several targets serve the same model; None where that is no question."""
    models = {url: usable.facts.model for url, usable in found.items() if usable.facts is not None}
    if len(models) < 2:
        return None
    if len(set(models.values())) > 1:
        told = ", ".join(f"{url} {model}" for url, model in models.items())
        return fail("same model", f"the targets serve different ones ({told})", "name one with --model")
    return ok("same model", f"all {len(models)} targets serve {next(iter(models.values()))}")


def scrape_some(targets: Sequence[ScrapeTarget], plan: TargetPlan) -> dict[str, list[Scrape]]:
    """Read each endpoint of metrics a few times, each time over a new connection, as a run does."""
    return asyncio.run(_scrape_some(targets, plan)) if targets else {}


async def _scrape_some(targets: Sequence[ScrapeTarget], plan: TargetPlan) -> dict[str, list[Scrape]]:
    verify: ssl.SSLContext | bool = not plan.insecure
    if plan.ca_file is not None:
        verify = ssl.create_default_context(cafile=plan.ca_file)
    async with httpx.AsyncClient(
        verify=verify, trust_env=plan.trust_env, timeout=_SCRAPE_LIMIT_S, follow_redirects=False
    ) as client:
        return {target.name: [await scrape(client, target) for _ in range(_SCRAPES)] for target in targets}


def check_metrics(scrapes: Sequence[Scrape]) -> Check:
    """Tell whether a server's metrics can be read, whose they are and whether they are of one server."""
    problem = next((each.problem for each in scrapes if each.problem is not None), None)
    if problem is not None:
        return warn(
            "server metrics",
            problem,
            f"say where they are with --metrics-url, or leave them out with --no-metrics; {_WITHOUT}",
        )
    samples = [each.exposition.samples for each in scrapes if each.exposition is not None]
    names = {sample.name for sample in samples[0]}
    family = _family(names)
    if family is None:
        return warn(
            "server metrics",
            "their names are of no server that is known (vLLM, SGLang, TGI)",
            f"does --metrics-url point to the model server? {_WITHOUT}",
            family=None,
        )
    found = resolve(names)
    missing = [word for quantity, word in _WANTED.items() if quantity not in found]
    values = {"family": family, "quantities": sorted(found), "missing": missing}
    servers = len({start for each in samples if (start := _start_time(each)) is not None})
    if servers > 1:
        return warn(
            "server metrics",
            f"{family}'s names, but {servers} servers answer in turn: a balancer stands in front of them",
            "give each server's own /metrics with --metrics-url; counters of a mixture tell nothing",
            **values,
        )
    if missing:
        return warn(
            "server metrics",
            f"{family}'s names, without {', '.join(missing)}",
            "newer versions of the server tell more; what is not told stays empty, and verdicts lean on less",
            **values,
        )
    return ok("server metrics", f"{family}'s names: {', '.join(_WANTED.values())} are told", **values)


def _family(names: set[str]) -> str | None:
    return next((word for start, word in _FAMILIES.items() if any(n.startswith(start) for n in names)), None)


def _start_time(samples: Sequence[Sample]) -> float | None:
    return next((sample.value for sample in samples if sample.name == PROCESS_START), None)


def check_gpus(scrapes: Sequence[Scrape]) -> Check:
    """Tell whether a GPU exporter can be read and tells what is worth knowing."""
    last = scrapes[-1]
    if last.exposition is None:
        return warn(
            "gpu metrics",
            last.problem or "cannot be read",
            "is it the address of a DCGM exporter (port 9400), with /metrics at its end?",
        )
    readings = [
        (sample.labels.get("UUID") or sample.labels.get("gpu", ""), sample.name, sample.value)
        for sample in last.exposition.samples
    ]
    view = gpu_view(readings)
    if view is None:
        return warn(
            "gpu metrics",
            "no GPU figure is among them",
            "is it the address of a DCGM exporter (port 9400), with /metrics at its end?",
        )
    count = f"{view.gpus} GPU" + ("s" if view.gpus != 1 else "")
    if view.sm_active_mean is None:
        return warn(
            "gpu metrics",
            f"{count}, without SM activity: utilisation alone says only that some kernel ran",
            "let the exporter tell DCGM_FI_PROF_SM_ACTIVE and DCGM_FI_PROF_DRAM_ACTIVE (its file of counters)",
            gpus=view.gpus,
        )
    return ok("gpu metrics", f"{count}, with SM activity", gpus=view.gpus)
