"""What a check gives, and what all checks share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from depositum.experiments.results import Values
from depositum.registry import Registry


@dataclass(frozen=True)
class Finding:
    """Whether a check holds, and the numbers that say so."""

    holds: bool
    numbers: str


#: Factories of `(results, …) -> Finding`.
CHECKS = Registry[Finding]("check", supplied=1)
At = str | dict[str, Any]


def moments(values: Values) -> tuple[float, float]:
    """Mean and sample standard deviation (0 of one value)."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def short(value: float) -> str:
    """A number in four digits."""
    return f"{value:.4g}"


def joined(said: Sequence[str], most: int = 6) -> str:
    """What was found, in one line, and how many more there are."""
    return " | ".join(said[:most]) + (f" | … {len(said) - most} more" if len(said) > most else "")
