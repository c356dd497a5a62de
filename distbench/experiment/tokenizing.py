"""
Where token counts come from before the load (floor F4): the server's own /tokenize, or a local tokenizer.

Both keep core/calibration.py's TokenCounter. Only the driver counts; clients get the calibrated vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson

from distbench.core.calibration import Calibration, TokenCounter, calibrate
from distbench.core.plan import Plan
from distbench.errors import PlanError, TargetError
from distbench.experiment.observer import Observer
from distbench.experiment.target import TargetClient, TargetFacts, secret_headers


class ServerTokenizer:
    """vLLM's POST /tokenize."""

    def __init__(self, client: TargetClient, model: str) -> None:
        self._client = client
        self._model = model
        self._url = f"{client.root()}/tokenize"

    def encode_text(self, text: str) -> Sequence[int]:
        """Return the ids of a completions prompt. Raises TargetError where the server gives none."""
        ids = self._ask({"prompt": text})
        if ids is None:
            raise TargetError(f"{self._url}: gives no token ids")
        return ids

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> Sequence[int] | None:
        """Return the ids of a chat; None where the server knows no template."""
        chat = [{"role": role, "content": content} for role, content in messages]
        return self._ask({"messages": chat, "add_generation_prompt": True})

    def _ask(self, what: Mapping[str, Any]) -> list[int] | None:
        response = self._client.post(self._url, orjson.dumps({"model": self._model, **what}))
        if response.status_code != httpx.codes.OK:
            return None
        try:
            tokens = response.json()["tokens"]
        except (ValueError, KeyError, TypeError):
            return None
        return tokens if isinstance(tokens, list) and all(isinstance(t, int) for t in tokens) else None


class LocalTokenizer:
    """
    A tokenizer.json of this machine, through the optional package ``tokenizers``. It has no chat template.

    Raises:
        PlanError: the package or the file is missing, or the file is no tokenizer.
    """

    def __init__(self, name: str) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise PlanError(
                ["--tokenizer needs the optional package: pip install 'distbench[tokenizer]'"]
            ) from None
        path = Path(name)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            raise PlanError(
                [f"--tokenizer {name}: no such file; give a tokenizer.json or the folder that holds it"]
            )
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises plain Exception for whatever is wrong with a file
            raise PlanError([f"--tokenizer {name}: is no tokenizer: {error}"]) from None

    def encode_text(self, text: str) -> Sequence[int]:
        """Return the ids of a text, special tokens included."""
        ids: list[int] = self._tokenizer.encode(text).ids
        return ids

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> Sequence[int] | None:
        """Return None: the chat template is the server's."""
        return None


def measure_tokens(
    plan: Plan, facts: TargetFacts, environ: Mapping[str, str], observer: Observer
) -> Calibration | None:
    """
    Calibrate the synthetic vocabulary where there is something to count with.

    Returns:
        None where lengths stay approximate; a note then says so.

    Raises:
        PlanError: the local tokenizer cannot be used.
    """
    if plan.prompts.dataset != "synthetic":
        return None
    if plan.prompts.tokenizer is not None:
        return _told(
            calibrate(LocalTokenizer(plan.prompts.tokenizer), source=plan.prompts.tokenizer), observer
        )
    if not facts.tokenizes:
        observer.note(
            "the server has no /tokenize: prompt lengths are approximate; the real ones are in the rows"
        )
        return None
    observer.stage("measuring prompt lengths with the server's /tokenize")
    client = TargetClient(plan.target, plan.target.urls[0], secret_headers(plan.target, environ))
    try:
        counter: TokenCounter = ServerTokenizer(client, facts.model)
        return _told(calibrate(counter, source="the server's /tokenize"), observer)
    except TargetError as error:
        observer.note(f"prompt lengths are approximate: {error}")
        return None
    finally:
        client.close()


def _told(calibration: Calibration, observer: Observer) -> Calibration:
    if not calibration.exact:
        observer.note(
            f"prompt lengths are approximate with {calibration.source}; the real ones are in the rows"
        )
    return calibration
