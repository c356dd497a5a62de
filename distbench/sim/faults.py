"""
Faults on demand: what real servers, proxies and networks do to a stream now and then (floor F3, pure).

A spec is ``kind:key=value,key=value``, for example ``reset:every=10,after=3``. Which requests are struck is a function of the
settings' seed and the request's number alone, so a run can be repeated.

===============  ==========================================================  ====================================
kind             what the client sees                                        keys (default)
===============  ==========================================================  ====================================
reset            a TCP reset (RST) in the middle of the answer               after (1) tokens
stall            silence in the middle of the answer, then all that was held after (1) tokens, seconds (5)
stream_error     an error event inside the 200 stream, then [DONE]           after (1) tokens
truncate         the connection closed cleanly before the end of the body    after (1) tokens
slow_headers     the response, headers included, comes later                 seconds (1)
buffering        tokens held back and sent in lumps, as a proxy does         tokens (16)
http_error       a JSON error instead of an answer                           code (500)
===============  ==========================================================  ====================================

Every kind takes ``every=N`` (the N-th, 2N-th ... request) or ``probability=P``; without either it strikes all.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Literal, get_args

FaultKind = Literal["reset", "stall", "stream_error", "truncate", "slow_headers", "buffering", "http_error"]
FAULT_KINDS: tuple[str, ...] = get_args(FaultKind)

_KEYS: dict[str, frozenset[str]] = {
    "reset": frozenset({"after"}),
    "stall": frozenset({"after", "seconds"}),
    "stream_error": frozenset({"after"}),
    "truncate": frozenset({"after"}),
    "slow_headers": frozenset({"seconds"}),
    "buffering": frozenset({"tokens"}),
    "http_error": frozenset({"code"}),
}
_DEFAULT_SECONDS = {"stall": 5.0, "slow_headers": 1.0}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """
    One kind of fault and whom it strikes.

    Attributes:
        kind: See the module's table.
        every: Strikes requests number every, 2 x every, ... (counted from 1); None: by probability.
        probability: Chance of each request, 0..1; None together with every None: all requests.
        after_tokens: Tokens sent before it strikes; 0 strikes in place of the first token.
        seconds: Length of a silence.
        lump_tokens: Tokens in a lump.
        code: HTTP status of http_error.
    """

    kind: str
    every: int | None = None
    probability: float | None = None
    after_tokens: int = 1
    seconds: float = 0.0
    lump_tokens: int = 16
    code: int = 500

    def strikes(self, number: int, seed: int) -> bool:
        """Tell whether it strikes the request with this number (the server's first is 1)."""
        if self.every is not None:
            return number % self.every == 0
        if self.probability is not None:
            return random.Random(f"{seed}/{self.kind}/{number}").random() < self.probability
        return True


def parse_fault(spec: str) -> Fault:
    """
    Read a fault spec.

    Raises:
        ValueError: The spec is wrong; the message says what and lists the accepted words.
    """
    kind, _, rest = spec.strip().partition(":")
    if kind not in FAULT_KINDS:
        raise ValueError(f"fault {spec!r}: unknown kind {kind!r}; one of {', '.join(FAULT_KINDS)}")
    values: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = (part.strip() for part in item.partition("="))
        allowed = _KEYS[kind] | {"every", "probability"}
        if not equals or key not in allowed:
            raise ValueError(
                f"fault {spec!r}: {item!r} is not key=value with a key of {', '.join(sorted(allowed))}"
            )
        values[key] = value
    if "every" in values and "probability" in values:
        raise ValueError(f"fault {spec!r}: give every or probability, not both")
    return Fault(
        kind=kind,
        every=_int(spec, values, "every", low=1) if "every" in values else None,
        probability=_float(spec, values, "probability", high=1.0) if "probability" in values else None,
        after_tokens=_int(spec, values, "after", low=0) if "after" in values else 1,
        seconds=_float(spec, values, "seconds") if "seconds" in values else _DEFAULT_SECONDS.get(kind, 0.0),
        lump_tokens=_int(spec, values, "tokens", low=1) if "tokens" in values else 16,
        code=_int(spec, values, "code", low=400, high=599) if "code" in values else 500,
    )


def choose_fault(faults: Sequence[Fault], number: int, seed: int) -> Fault | None:
    """Return the first fault that strikes this request; None: it is served as it should be."""
    for fault in faults:
        if fault.strikes(number, seed):
            return fault
    return None


def _int(spec: str, values: dict[str, str], key: str, *, low: int, high: int | None = None) -> int:
    try:
        number = int(values[key])
    except ValueError:
        raise ValueError(f"fault {spec!r}: {key} must be a whole number, got {values[key]!r}") from None
    if number < low or (high is not None and number > high):
        limit = f">= {low}" if high is None else f"in {low}..{high}"
        raise ValueError(f"fault {spec!r}: {key} must be {limit}, got {number}")
    return number


def _float(spec: str, values: dict[str, str], key: str, *, high: float | None = None) -> float:
    try:
        number = float(values[key])
    except ValueError:
        raise ValueError(f"fault {spec!r}: {key} must be a number, got {values[key]!r}") from None
    if not 0.0 <= number < float("inf") or (high is not None and number > high):
        limit = ">= 0" if high is None else f"in 0..{high:g}"
        raise ValueError(f"fault {spec!r}: {key} must be {limit}, got {number:g}")
    return number
