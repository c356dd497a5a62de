"""Token lengths as a plan gives them: fixed, or drawn from a distribution (floor F1)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

_FORMS = "N, uniform:LOW:HIGH, normal:MEAN:SD or lognormal:MEDIAN:SIGMA"


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
        bounds_ok = math.isfinite(self.a) and math.isfinite(self.b) and self.a >= 0 and self.b >= 0
        if self.kind not in ("fixed", "uniform", "normal", "lognormal") or not bounds_ok:
            raise ValueError(f"{text!r} is not a number of tokens; write {_FORMS}")
        if self.kind == "uniform" and self.b < self.a:
            raise ValueError(f"{text!r}: the upper bound is below the lower one")

    @property
    def mean(self) -> float:
        """Expected tokens (of the distribution before rounding and the floor at the minimum)."""
        if self.kind == "uniform":
            return (self.a + self.b) / 2
        if self.kind == "lognormal":
            return self.a * math.exp(self.b**2 / 2)
        return self.a

    @property
    def is_fixed(self) -> bool:
        """True where every draw gives the same number."""
        return self.kind == "fixed" or (self.b == 0.0 and self.kind != "uniform") or self.a == self.b

    def draw(self, rng: np.random.Generator, minimum: int = 1) -> int:
        """Return one number of tokens, rounded, not below minimum; lengths are not capped above."""
        if self.kind == "uniform":
            value = float(rng.integers(int(self.a), int(self.b) + 1))
        elif self.kind == "normal":
            value = rng.normal(self.a, self.b)
        elif self.kind == "lognormal":
            value = rng.lognormal(math.log(self.a), self.b) if self.a > 0 else 0.0
        else:
            value = self.a
        return max(minimum, round(value))

    def __str__(self) -> str:
        """Return the form that parse() reads."""
        if self.kind == "fixed":
            return str(int(self.a))
        return f"{self.kind}:{self.a:g}:{self.b:g}"
