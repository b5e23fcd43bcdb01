"""Which clients take part in a phase; the others rest.

A phase is an exchange with the local steps that belong to it: T0 iterations, a round of a method with a server. Whoever
rests in it computes nothing, sends nothing, and keeps all its variables. Who that is follows from the number of the
phase alone, so that a simulator and processes agree without a message about it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from depositum.errors import NetworkError, is_integer, is_number, listing, nearest, renamed_keys, short_repr
from depositum.networks.time_varying import check_seed
from depositum.randomness import hash_words, purpose_code

_COHORT = purpose_code("cohort")


@dataclass(frozen=True)
class Participation:
    """In every phase the same number of clients takes part, drawn at random: those of smallest hashes.

    >>> Participation(cohort=3).members(torch.tensor(0), 10).tolist()
    [0, 1, 6]
    """

    share: float | None = None
    """The share of the clients that take part, in (0, 1], rounded to a whole number of at least 1."""
    cohort: int | None = None
    """How many take part, in place of `share`."""
    phases: int = 1
    """Consecutive phases with the same cohort: how long a client rests at a time."""
    seed: int = 0
    """Seed of the random choice."""

    def __post_init__(self) -> None:
        share, cohort = self.share, self.cohort
        if (share is None) == (cohort is None):
            given = "neither is" if share is None else "both are"
            raise NetworkError("participation", f"{given} given of share and cohort; one of them is needed")
        if share is not None and (isinstance(share, bool) or not (is_number(share) and 0 < share <= 1)):
            whole = is_number(share) and share > 1 and float(share).is_integer()  # a file's 50 is read as 50.0
            hint = f"; for a number of clients: {{ cohort = {share:.0f} }}" if whole else ""
            raise NetworkError("participation.share", f"{short_repr(share)} given; it must be in (0, 1]{hint}")
        for key, value in (("cohort", cohort), ("phases", self.phases)):
            whole = is_integer(value) and not isinstance(value, bool)
            if value is not None and not (whole and 1 <= value < 1 << 63):
                problem = f"{short_repr(value)} given; it must be a whole number ≥ 1 of at most 64 bits"
                raise NetworkError(f"participation.{key}", problem)
        check_seed(self.seed, "participation.seed")

    def size(self, n: int) -> int:
        """How many of n clients take part in a phase."""
        if self.cohort is None:
            assert self.share is not None
            return max(1, round(self.share * n))
        if self.cohort > n:
            raise NetworkError("participation.cohort", f"{self.cohort} given, but there are {n} clients")
        return self.cohort

    def members(self, phase: Tensor, n: int) -> Tensor:
        """The clients `[size(n)]` that take part in a phase (an int64 tensor of any device), in ascending order.

        No value is read back to the host, so that a CUDA graph can capture this once and replay it in every phase.
        """
        clients = torch.arange(n, device=phase.device)
        words = hash_words(self.seed, _COHORT, phase // self.phases, clients)
        return words.sort().indices[: self.size(n)].sort().values

    def present(self, phase: Tensor, clients: Tensor, n: int) -> Tensor:
        """Whether clients take part in a phase: bool, of the shape of `clients`."""
        there = torch.zeros(n, dtype=torch.bool, device=phase.device)
        return there.index_fill(0, self.members(phase, n), True)[clients]


def as_participation(given: Participation | Mapping[str, Any] | float | None) -> Participation | None:
    """What the user gave: a share, a table of the fields of `Participation`, or None for all clients in every phase.

    >>> as_participation(0.5)
    Participation(share=0.5, cohort=None, phases=1, seed=0)
    """
    if given is None or isinstance(given, Participation):
        return given
    if not isinstance(given, Mapping):
        with renamed_keys(lambda _: "participation"):
            return Participation(share=given)
    known = [field.name for field in fields(Participation)]
    for key in given:
        if key not in known:
            problem = f"unknown key; it can be {listing(known)}{nearest(str(key), known)}"
            raise NetworkError(f"participation.{key}", problem)
    return Participation(**given)
