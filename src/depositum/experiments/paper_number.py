"""Numbers as the paper prints them."""

import re
from dataclasses import dataclass

from depositum.errors import ConfigError

_FORM = re.compile(r"^(-?\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?$")


@dataclass(frozen=True)
class PaperNumber:
    """A number of the paper: its mean, its standard deviation if printed, and its decimals."""

    mean: float
    std: float | None
    decimals: int

    @classmethod
    def parse(cls, text: str, key: str) -> "PaperNumber":
        """Parse `"94.20±0.13"` or `"27.242"`."""
        found = _FORM.match(text.replace(" ", ""))
        if not found:
            raise ConfigError(key, f"{text!r} given; it must be a number, or mean±deviation as in '94.20±0.13'")
        mean, std = found[1], found[2]
        return cls(float(mean), float(std) if std else None, len(mean.partition(".")[2]))

    def __str__(self) -> str:
        d = self.decimals
        return f"{self.mean:.{d}f}" + (f" ± {self.std:.{d}f}" if self.std is not None else "")
