"""Places of a table: what we found over seeds, and the paper's number."""

import math
import re
from dataclasses import dataclass, replace

import numpy as np

from depositum.errors import ConfigError
from depositum.experiments.checks import moments
from depositum.experiments.results import Values

_PRINTED = re.compile(r"^(-?\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?$")


@dataclass(frozen=True)
class Printed:
    """A number of the paper: its mean, its standard deviation where it prints one, and its decimals."""

    mean: float
    std: float | None
    decimals: int

    @classmethod
    def read(cls, text: str, key: str) -> "Printed":
        """Read `"94.20±0.13"` or `"27.242"`."""
        found = _PRINTED.match(text.replace(" ", ""))
        if not found:
            raise ConfigError(key, f"{text!r} given; it must be a number, or mean±deviation as in '94.20±0.13'")
        mean, std = found[1], found[2]
        return cls(float(mean), float(std) if std else None, len(mean.partition(".")[2]))

    def __str__(self) -> str:
        d = self.decimals
        return f"{self.mean:.{d}f}" + (f" ± {self.std:.{d}f}" if self.std is not None else "")


@dataclass(frozen=True)
class Entry:
    """One place of a table: what we found over seeds `[S]`, or why there is nothing; and the paper's number.

    Of a cell of which some of its `tried` seeds diverged, `survivors` has the values of the others.
    """

    values: Values | None
    why: str = ""
    paper: Printed | None = None
    survivors: Values | None = None
    tried: int = 0

    @property
    def seeds(self) -> int:
        """How many were run."""
        return self.tried if self.values is None else len(self.values)

    @property
    def mean(self) -> float | None:
        return None if self.values is None else moments(self.values)[0]

    @property
    def deviations(self) -> float | None:
        """Ours less the paper's, in √(s₁² + s₂²); of one seed, or where the paper prints none, it counts as 0."""
        if self.values is None or self.paper is None:
            return None
        m, s = moments(self.values)
        combined = float(np.hypot(s, self.paper.std or 0.0))
        return (m - self.paper.mean) / combined if combined > 0 else None

    def ours(self) -> str:
        if self.values is None:
            left = self.survivors is not None and len(self.survivors) > 0
            return f"{self.why}, else {replace(self, values=self.survivors).ours()}" if left else self.why
        m, s = moments(self.values)
        if self.paper is None and s == 0 and m.is_integer() and abs(m) < 1e9:
            return f"{m:.0f}" + (" ± 0" if len(self.values) > 1 else "")  # a count, or nothing at all
        if self.paper is None and m and not 1e-3 <= abs(m) < 1e5:
            return f"{m:.2e}" + (f" ± {s:.1e}" if len(self.values) > 1 else "")
        # As many decimals as the paper prints, or else as two digits of the deviation need.
        fitting = 1 - math.floor(math.log10(s)) if s > 0 else 4
        decimals = self.paper.decimals if self.paper else min(max(fitting, 0), 6)
        return f"{m:.{decimals}f}" + (f" ± {s:.{decimals}f}" if len(self.values) > 1 else "")

    def apart(self) -> str:
        found = self.deviations
        return "" if found is None else f"{found:+.1f}σ"

    def gap_to(self, other: "Entry") -> "Entry":
        """By how many percent this lies above another, seed by seed; of the paper's numbers, by their means."""
        paper = None
        if self.paper is not None and other.paper is not None:
            paper = Printed(100 * (self.paper.mean / other.paper.mean - 1), None, 2)
        if self.values is None or other.values is None:
            return Entry(None, self.why or other.why, paper, tried=self.tried)
        both = min(len(self.values), len(other.values))  # fewer seeds are the first of more
        return Entry(100 * (self.values[:both] / other.values[:both] - 1), "", paper)
