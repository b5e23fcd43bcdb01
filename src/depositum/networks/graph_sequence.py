"""Another graph in every phase: those of a list, in turn or drawn at random."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from depositum.errors import NetworkError, check_choice
from depositum.networks.mixing_matrices import Matrix, Sparse, stored_entries
from depositum.networks.time_varying import check_seed
from depositum.randomness import hash_words, purpose_code, randint

_ORDER = purpose_code("order of graphs")

Order = Literal["periodic", "random"]


@dataclass(frozen=True, eq=False)
class GraphSequence:
    """The weights of each graph of a list, and which of them a phase has.

    No graph has to be connected by itself, but all of them are together.
    """

    weights: tuple[Sparse, ...]
    """W of each graph, or R on directed networks: float64 `[n, n]`, the diagonal stored."""
    push_weights: tuple[Sparse, ...] = ()
    """C of each graph on directed networks."""
    order: Order = "periodic"
    """Whether the graphs come in turn, or each phase has one drawn at random, all with the same probability."""
    seed: int = 0
    """Seed of random order."""

    def __post_init__(self) -> None:
        if not self.weights:
            raise NetworkError("graphs", "none given; a sequence needs 1 or more")
        check_choice("order", self.order, ("periodic", "random"))
        check_seed(self.seed)

    def __len__(self) -> int:
        return len(self.weights)

    def index(self, phase: Tensor) -> Tensor:
        """Which graph a phase has: int64, of the shape of `phase`."""
        if self.order == "periodic":
            return phase % len(self)
        return randint(hash_words(self.seed, _ORDER, phase), len(self))

    def at(self, phase: int) -> int:
        """The same for one phase, as a number."""
        return int(self.index(torch.tensor(phase)))

    def entries(self, pattern: Sparse, push: bool = False) -> Matrix:
        """The weights of every graph at the stored entries of a matrix `[n, n]`: `[graphs, entries]`."""
        rows, columns, _ = stored_entries(pattern)
        matrices = self.push_weights if push else self.weights
        return np.stack([np.asarray(matrix[rows, columns], dtype=np.float64).ravel() for matrix in matrices])

    def degrees(self) -> NDArray[np.int64]:
        """How many clients each client sends to in each graph, `[graphs, n]`."""
        matrices = self.push_weights or self.weights
        return np.stack([np.bincount(m.indices, minlength=m.shape[0]).astype(np.int64) - 1 for m in matrices])


def mean_of(matrices: tuple[Sparse, ...]) -> Sparse:
    """The mean of matrices, in which every entry that one of them has is stored."""
    rows, columns, values = (np.concatenate(part) for part in zip(*map(stored_entries, matrices), strict=True))
    n = matrices[0].shape[0]
    total: Sparse = sparse.csr_array((values / len(matrices), (rows, columns)), shape=(n, n))
    total.sum_duplicates()
    return total
