"""W·z for the rows of all trials, in the form that suits the graph: a few terms per row, sparse, or dense.

All in the state's own dtype, never in TF32 or bf16, whatever the model's passes run in: a row of weights that sums to
0.9998 drifts silently. Neighbours are added in the order of their ids.
"""

import importlib.util
import warnings
from functools import cache, cached_property

import torch
from torch import Tensor

from depositum.problem.precision import exact

#: Rows with at most this many weights are mixed by elementwise arithmetic when compiled, fused with what surrounds it.
FEW = 9
#: From this share of non-zero weights on, or up to this many clients, W is as well stored in full.
DENSE_SHARE, DENSE_CLIENTS = 0.25, 64


class Pattern:
    """Where W has entries: its compressed rows, the diagonal among them.

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
        self.full = self.n <= DENSE_CLIENTS or len(columns) >= DENSE_SHARE * self.n**2
        self.narrow = starts.to(torch.int32), columns.to(torch.int32)
        if not self.full and starts.device.type == "cpu":
            _say_beta()

    @cached_property
    def places(self) -> Tensor:
        """The entry of each place `[n, width]` of a table that has one line per client; −1 beyond a client's last."""
        place = torch.arange(self.width, device=self.starts.device)
        return torch.where(place < self.counts[:, None], self.starts[:-1, None] + place, -1)

    @cached_property
    def terms(self) -> list[Tensor]:
        """The rows `[S·n]` that each place refers to, in all trials; oneself where there is no entry."""
        own = torch.arange(self.n, device=self.starts.device)[:, None]
        clients = torch.where(self.places < 0, own, self.columns[self.places])
        offsets = torch.arange(self.trials, device=self.starts.device).repeat_interleave(self.n) * self.n
        return list((clients.repeat(self.trials, 1) + offsets[:, None]).T.contiguous())

    def padded(self, entries: Tensor) -> Tensor:
        """Entries in their places `[n, width]`, 0 elsewhere."""
        return torch.where(self.places < 0, 0, entries[self.places])

    def matrix(self, entries: Tensor) -> Tensor:
        """Entries as a full matrix `[n, n]`."""
        out = torch.zeros(self.n, self.n, dtype=entries.dtype, device=entries.device)
        return out.index_put((self.rows, self.columns), entries)


class Weights:
    """A matrix of a pattern: its entries, and the product with rows."""

    def __init__(self, pattern: Pattern, entries: Tensor) -> None:
        self.pattern, self.entries = pattern, entries

    @cached_property
    def matrix(self) -> Tensor:
        """The matrix in full, `[n, n]`."""
        return self.pattern.matrix(self.entries)

    @cached_property
    def padded(self) -> Tensor:
        """The entries in their places, `[n, width]`."""
        return self.pattern.padded(self.entries)

    def prepare(self) -> None:
        """Make what a product will need: what is made while a compiler traces is the compiler's, and no tensor."""
        if self.pattern.width <= FEW:
            _ = self.padded, self.pattern.terms
        if self.pattern.full:
            _ = self.matrix

    def __call__(self, z: Tensor, inline: bool = False) -> Tensor:
        """Σ_j w_ij z_j for rows `[S·n, d]`; `inline` where a compiler is to fuse it with what surrounds it."""
        pattern = self.pattern
        if inline and pattern.width <= FEW:
            columns = self.padded.repeat(pattern.trials, 1).unsqueeze(-1).unbind(1)
            out = columns[0] * z[pattern.terms[0]]
            for weight, rows in zip(columns[1:], pattern.terms[1:], strict=True):
                out = out + weight * z[rows]
            return out
        product: Tensor
        product = _dense(self.matrix, z) if pattern.full else _sparse(*pattern.narrow, self.entries, z)
        return product


@cache
def _say_beta() -> None:
    """Have torch say, once and to nobody, that its sparse tensors are new."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([], dtype=torch.int64), torch.tensor([]), (1, 1))


@torch.library.custom_op("depositum::mix_dense", mutates_args=())
def _dense(W: Tensor, z: Tensor) -> Tensor:
    with exact():
        return (W @ z.view(-1, len(W), z.shape[1])).view_as(z)


@torch.library.custom_op("depositum::mix_sparse", mutates_args=())
def _sparse(starts: Tensor, columns: Tensor, entries: Tensor, z: Tensor) -> Tensor:
    n = len(starts) - 1
    if z.device.type == "cuda" and importlib.util.find_spec("triton") is not None:
        from depositum.kernels.mixing import mix

        return mix(starts, columns, entries, z.contiguous(), n)
    W = torch.sparse_csr_tensor(starts, columns, entries, (n, n), check_invariants=False)
    return torch.cat([W @ block for block in z.view(-1, n, z.shape[1])])


@_dense.register_fake
def _(W: Tensor, z: Tensor) -> Tensor:
    return torch.empty_like(z)


@_sparse.register_fake
def _(starts: Tensor, columns: Tensor, entries: Tensor, z: Tensor) -> Tensor:
    return torch.empty_like(z)
