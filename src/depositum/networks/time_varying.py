"""Time-varying networks: which links exist in a communication phase.

W^t is symmetric and doubly stochastic in every phase. The links of a phase are a function of its number alone, so that
a simulator and processes that never communicate about them agree. `present` and `peer` use integer arithmetic on int64
tensors of any device: the results are bit-identical everywhere, no value is read back to the host and no control flow
depends on a tensor's value, so that a CUDA graph can capture them once and replay them in every phase.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from depositum.errors import NetworkError, is_integer, is_number, short_repr
from depositum.randomness import hash_words, purpose_code, randint

_LINKS = purpose_code("links")
_LOST = purpose_code("lost messages")

#: The messages of so many phases are kept until they arrive.
MOST_PHASES_LATE = 100


def check_seed(seed: int, key: str = "seed") -> None:
    """Refuse a seed that cannot be hashed."""
    if isinstance(seed, bool) or not is_integer(seed) or not -(1 << 63) <= seed < 1 << 63:
        raise NetworkError(key, f"{short_repr(seed)} given; it must be a whole number of at most 64 bits")


@dataclass(frozen=True)
class DroppedLinks:
    """Each link is absent in a phase with probability `p`, independently of other links and phases.

    The weight of an absent link is returned to its two ends (w_ii += w_ij, w_jj += w_ij), so that the expected W of a
    phase is (1 - p) W + p I.
    """

    p: float
    """Probability in [0, 1)."""
    seed: int = 0
    """Seed of the random choice of links."""

    def __post_init__(self) -> None:
        number = isinstance(self.p, int | float) and not isinstance(self.p, bool)
        if not (number and 0 <= self.p < 1):
            raise NetworkError("p", f"{short_repr(self.p)} given; the probability of a dropped link is in [0, 1)")
        check_seed(self.seed)

    def present(self, phase: Tensor, i: Tensor, j: Tensor) -> Tensor:
        """Whether the links between clients i and j exist in a phase: bool, of the broadcast shape of the arguments.

        All arguments are int64. The result is the same for (i, j) and (j, i), and meaningless for i = j.
        """
        words = hash_words(self.seed, _LINKS, torch.minimum(i, j), torch.maximum(i, j), phase)
        # Integers are compared, as a division might round differently on another device.
        return (words & 0xFFFFFFFF) >= round(self.p * 2**32)


@dataclass(frozen=True)
class LostMessages:
    """Each message is lost, in one direction of a link, with probability `p`, and otherwise arrives late.

    Independently of other directions, links and phases; it arrives in the phase in which it was sent or in one of the
    `late` phases after it, each with the same probability. All variables that one client sends another in a phase
    share their fate.
    """

    p: float = 0.0
    """Probability of a loss, in [0, 1)."""
    late: int = 0
    """D, the most phases that a message is on its way."""
    seed: int = 0
    """Seed of the random choices."""

    def __post_init__(self) -> None:
        if isinstance(self.p, bool) or not (is_number(self.p) and 0 <= self.p < 1):
            raise NetworkError("lost", f"{short_repr(self.p)} given; the probability of a lost message is in [0, 1)")
        if isinstance(self.late, bool) or not is_integer(self.late) or not 0 <= self.late <= MOST_PHASES_LATE:
            allowed = f"it must be a whole number of phases from 0 to {MOST_PHASES_LATE}"
            raise NetworkError("late", f"{short_repr(self.late)} given; {allowed}")
        check_seed(self.seed)

    def arrived(self, phase: Tensor, sender: Tensor, receiver: Tensor, age: int) -> Tensor:
        """Whether the message sent `age` ≤ `late` phases before this one has arrived: bool, of the broadcast shape."""
        sent = phase - age
        words = hash_words(self.seed, _LOST, sender, receiver, sent)
        # Integers are compared, as a division might round differently on another device.
        delivered = (words & 0xFFFFFFFF) >= round(self.p * 2**32)
        return delivered & (randint(words, self.late + 1) <= age) & (sent >= 0)

    def __str__(self) -> str:
        lost = f"each message lost with probability {self.p:g}" if self.p else ""
        late = f"up to {self.late} phases late" if self.late else ""
        return " or ".join(filter(None, (lost, late))) or "every message arrives"


@dataclass(frozen=True)
class OnePeerExponential:
    """In phase k, clients i and i XOR 2^(k mod log2 n) average their values: weights 1/2 and 1/2.

    Each client sends one row per phase, and log2 n consecutive phases compute the exact average over all clients.
    """

    n: int
    """Number of clients, a power of two."""

    def __post_init__(self) -> None:
        if self.n < 1 or self.n & (self.n - 1):
            below = 1 << max(self.n.bit_length() - 1, 0)
            raise NetworkError(
                "n",
                f"'one-peer-exponential' of {self.n} clients given; it needs a power of two, such as {below} or "
                f"{2 * below}; 'exponential' takes any number",
            )

    @property
    def phases(self) -> int:
        """log2 n, the period of the schedule; 0 for one client."""
        return self.n.bit_length() - 1

    def peer(self, phase: Tensor, i: Tensor) -> Tensor:
        """The partner of client i in a phase: int64, of the broadcast shape of the arguments; i itself if n = 1."""
        digit = torch.ones_like(phase) << (phase % max(self.phases, 1))
        return i ^ (digit & (self.n - 1))

    def matrix(self, phase: int) -> NDArray[np.float64]:
        """The dense W `[n, n]` of one phase."""
        clients = torch.arange(self.n)
        W = np.zeros((self.n, self.n))
        np.fill_diagonal(W, 0.5)
        W[clients.numpy(), self.peer(torch.tensor(phase), clients).numpy()] += 0.5
        return W
