"""Opens the file of a data set (floor F4); what it means is core/'s."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from distbench.core.plan import PromptPlan
from distbench.errors import PlanError


def check_dataset(prompts: PromptPlan) -> None:
    """
    Make sure that the file can be read, before anything else is done.

    Raises:
        PlanError: it cannot; the text says why.
    """
    with open_dataset(prompts):
        pass


@contextmanager
def open_dataset(prompts: PromptPlan) -> Iterator[BinaryIO | None]:
    """
    Open the data set's file for reading; None with synthetic prompts.

    Raises:
        PlanError: there is none, or it cannot be read.
    """
    if prompts.dataset_path is None:
        yield None
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(prompts.dataset_path).open("rb"))
        except OSError as error:
            raise PlanError(f"dataset-path {prompts.dataset_path}: {error.strerror or error}") from None
        yield file
