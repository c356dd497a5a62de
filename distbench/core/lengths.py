"""Token lengths as a plan gives them: fixed, or drawn from a distribution (floor F1)."""

from __future__ import annotations

import dataclasses
import math
from statistics import NormalDist

MAX_TOKENS = 16_777_216
"""No length is longer: far above any context, low enough that a slip of the pen cannot fill the memory."""

_FORMS = "N, uniform:LOW:HIGH, normal:MEAN:SD or lognormal:MEDIAN:SIGMA"
_KINDS = ("fixed", "uniform", "normal", "lognormal")
_STANDARD_NORMAL = NormalDist()


@dataclasses.dataclass(frozen=True, slots=True)
class LengthSpec:
    """
    A number of tokens, fixed or drawn.

    Attributes:
        kind: fixed | uniform | normal | lognormal.
        a: The number; the lower bound; the mean; the median. Tokens.
        b: Unused (0); the upper bound, inclusive; the standard deviation, tokens; sigma of the logarithm.
    """

    kind: str
    a: float
    b: float = 0.0

    @classmethod
    def parse(cls, text: str | int) -> LengthSpec:
        """
        Read ``128``, ``uniform:64:256``, ``normal:128:32`` or ``lognormal:128:0.5``.

        Raises:
            ValueError: no such form, or numbers that make no sense; the message names the forms.
        """
        parts = str(text).strip().split(":")
        try:
            if len(parts) == 1:
                spec = cls("fixed", float(int(parts[0])))
            else:
                kind, a, b = parts
                spec = cls(kind, float(a), float(b))
        except ValueError:
            raise ValueError(f"{text!r} is not a number of tokens; write {_FORMS}") from None
        spec._check(str(text))
        return spec

    def _check(self, text: str) -> None:
        numbers = (self.a, self.b)
        if self.kind not in _KINDS or not all(math.isfinite(n) and n >= 0 for n in numbers):
            raise ValueError(f"{text!r} is not a number of tokens; write {_FORMS}")
        if self.kind == "uniform" and self.b < self.a:
            raise ValueError(f"{text!r}: the upper bound is below the lower one")
        if self.kind == "uniform" and not all(n.is_integer() for n in numbers):
            raise ValueError(f"{text!r}: the bounds must be whole numbers of tokens")
        if max(self.a, self.b) > MAX_TOKENS:
            raise ValueError(f"{text!r}: no length may be above {MAX_TOKENS} tokens")

    @property
    def mean(self) -> float:
        """Expected tokens (of the distribution before rounding and the bounds)."""
        if self.kind == "uniform":
            return (self.a + self.b) / 2
        if self.kind == "lognormal":
            return self.a * math.exp(self.b**2 / 2)
        return self.a

    @property
    def is_fixed(self) -> bool:
        """True where every draw gives the same number."""
        return self.kind == "fixed" or (self.a == self.b if self.kind == "uniform" else self.b == 0)

    def at(self, fraction: float, minimum: int = 1) -> int:
        """
        Return the length that a fraction of all lengths stay below: a uniform fraction gives a draw of the distribution.

        Args:
            fraction: Strictly between 0 and 1.
            minimum: Shorter lengths are raised to it; those above MAX_TOKENS are lowered to that.
        """
        if self.is_fixed:
            value = self.a
        elif self.kind == "uniform":
            value = min(self.b, self.a + math.floor(fraction * (self.b - self.a + 1)))
        else:
            deviate = _STANDARD_NORMAL.inv_cdf(fraction) * self.b
            # An exponent that would overflow is far past the cap anyway.
            value = self.a + deviate if self.kind == "normal" else self.a * math.exp(min(deviate, 50.0))
        return max(minimum, min(MAX_TOKENS, round(value)))

    def __str__(self) -> str:
        """Return the form that parse() reads, without loss."""
        if self.kind == "fixed":
            return str(int(self.a))
        return f"{self.kind}:{_number(self.a)}:{_number(self.b)}"


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
