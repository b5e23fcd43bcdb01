"""W·z for the rows of all trials, in the form that suits the graph: a few terms per row, sparse, or dense.

All forms compute in the dtype of the state, never in TF32 or bf16, whatever the precision of the model's passes: a row
of weights that sums to 0.9998 drifts silently. Neighbours are added in the order of their ids.
"""

import importlib.util
import warnings
from functools import cache, cached_property

import torch
from torch import Tensor

from depositum.operators import operator
from depositum.problem.precision import exact

#: When compiled, rows with at most this many weights are mixed elementwise, fused with the surrounding operations.
MAX_INLINE_TERMS = 9
#: W is stored densely from this share of non-zero weights on, or up to this many clients.
DENSE_SHARE, DENSE_CLIENTS = 0.25, 64


class SparsityPattern:
    """The positions of W's non-zero entries, including the diagonal, in compressed sparse row (CSR) format.

    Parameters
    ----------
    starts, columns
        `[n + 1]` and `[entries]`, int64: client i has the entries starts[i] … starts[i+1], in ascending order.
    """

    def __init__(self, starts: Tensor, columns: Tensor, trials: int) -> None:
        self.starts, self.columns, self.trials = starts, columns, trials
        self.n, self.counts = len(starts) - 1, starts.diff()
        self.rows = torch.arange(self.n, device=starts.device).repeat_interleave(self.counts)
        self.width = int(self.counts.max())
        self.dense = self.n <= DENSE_CLIENTS or len(columns) >= DENSE_SHARE * self.n**2
        self.int32 = starts.to(torch.int32), columns.to(torch.int32)
        if not self.dense and starts.device.type == "cpu":
            _suppress_beta_warning()

    @cached_property
    def positions(self) -> Tensor:
        """For each client, the positions of its entries, `[n, width]`; −1 beyond a client's last."""
        column = torch.arange(self.width, device=self.starts.device)
        return torch.where(column < self.counts[:, None], self.starts[:-1, None] + column, -1)

    @cached_property
    def terms(self) -> list[Tensor]:
        """For each column of `positions`, the rows `[S·n]` of all trials it refers to; a padding refers to itself."""
        itself = torch.arange(self.n, device=self.starts.device)[:, None]
        clients = torch.where(self.positions < 0, itself, self.columns[self.positions])
        offsets = torch.arange(self.trials, device=self.starts.device).repeat_interleave(self.n) * self.n
        return list((clients.repeat(self.trials, 1) + offsets[:, None]).T.contiguous())

    def padded(self, entries: Tensor) -> Tensor:
        """Entries arranged by client, `[n, width]`, padded with 0."""
        return torch.where(self.positions < 0, 0, entries[self.positions])

    def matrix(self, entries: Tensor) -> Tensor:
        """Entries as a dense matrix `[n, n]`."""
        out = torch.zeros(self.n, self.n, dtype=entries.dtype, device=entries.device)
        return out.index_put((self.rows, self.columns), entries)


class MixingWeights:
    """A matrix given by a sparsity pattern and its entries, and its product with rows."""

    def __init__(self, pattern: SparsityPattern, entries: Tensor) -> None:
        self.pattern, self.entries = pattern, entries

    @cached_property
    def matrix(self) -> Tensor:
        """The dense matrix, `[n, n]`."""
        return self.pattern.matrix(self.entries)

    @cached_property
    def padded(self) -> Tensor:
        """The entries arranged by client, `[n, width]`."""
        return self.pattern.padded(self.entries)

    def prepare(self) -> None:
        """Compute the cached tensors that a product needs: computed while tracing, they would not be real tensors."""
        if self.pattern.width <= MAX_INLINE_TERMS:
            _ = self.padded, self.pattern.terms
        if self.pattern.dense:
            _ = self.matrix

    def __call__(self, z: Tensor, inline: bool = False) -> Tensor:
        """Σ_j w_ij z_j for rows `[S·n, d]`; `inline` lets a compiler fuse it with the surrounding operations."""
        pattern = self.pattern
        if inline and pattern.width <= MAX_INLINE_TERMS:
            columns = self.padded.repeat(pattern.trials, 1).unsqueeze(-1).unbind(1)
            out = columns[0] * z[pattern.terms[0]]
            for weight, rows in zip(columns[1:], pattern.terms[1:], strict=True):
                out = out + weight * z[rows]
            return out
        product: Tensor
        product = _dense(self.matrix, z) if pattern.dense else _sparse(*pattern.int32, self.entries, z)
        return product


@cache
def _suppress_beta_warning() -> None:
    """Trigger, and discard, torch's one-time warning that sparse CSR tensors are in beta."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), (1, 1))


@operator("mix_dense")
def _dense(W: Tensor, z: Tensor) -> Tensor:
    with exact():
        return (W @ z.view(-1, len(W), z.shape[1])).view_as(z)


@operator("mix_sparse")
def _sparse(starts: Tensor, columns: Tensor, entries: Tensor, z: Tensor) -> Tensor:
    n = len(starts) - 1
    if z.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from depositum.kernels.sparse_mixing import mix_sparse

        return mix_sparse(starts, columns, entries, z.contiguous(), n)
    W = torch.sparse_csr_tensor(starts, columns, entries, (n, n), check_invariants=False)
    return torch.cat([W @ block for block in z.view(-1, n, z.shape[1])])


@_dense.register_fake
def _(W: Tensor, z: Tensor) -> Tensor:
    return torch.empty_like(z)


@_sparse.register_fake
def _(starts: Tensor, columns: Tensor, entries: Tensor, z: Tensor) -> Tensor:
    return torch.empty_like(z)
