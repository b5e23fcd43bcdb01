"""The oracle: the problem seen from the rows, and an algorithm's only door to data.

Rows are ordered by trial, then by client: row s·n + i is client i of trial s. Everything an algorithm asks (a
mini-batch, gradients, a prox) is answered for all rows at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import Literal

import torch
from torch import Tensor

from depositum.problem.gradients import Buffers
from depositum.problem.rows import BatchSize, Rows
from depositum.randomness import hash_words, randint, standard_normal

#: How many passes of a measure's samples fit the memory at once, in training.
TRAINING_SHARE = 4


@dataclass
class Batch:
    """One mini-batch per row: sample indices `[rows, B]`, or None for every sample a row has."""

    indices: Tensor | None
    noise: Tensor | None = None
    evaluated: bool = False


class Oracle(Rows):
    """Gradients, mini-batches and prox for the rows of a problem; it is made as `Rows` are."""

    # What an algorithm may ask

    def sample(self, size: BatchSize | None = None) -> Batch:
        """Draw one mini-batch per row, with replacement (Assumption 3); `size` overrides the run's batch size.

        What is drawn depends on (seed, client, iteration, draw) alone, never on the order of calls elsewhere.
        """
        size = self.batch_size if size is None else size
        words = self._words("sample", self.draws)
        self.draws += 1
        if size == "full":
            return Batch(None)
        columns = torch.arange(size, device=self.device)
        positions = randint(hash_words(words[:, None], columns), self.sizes[:, None])
        indices = self.table[self.offsets[:, None] + positions]
        return Batch(indices, noise=words if self.model.random else None)

    def grad(self, x: Tensor, batch: Batch) -> Tensor:
        """Mini-batch gradients g_i = (1/B) Σ_b ∇F_i(x_i, ξ_ib), `[rows, d]`.

        The same batch may be evaluated at several points; the model's buffers are updated by its first evaluation.
        """
        if batch.indices is None:
            return self.full_grad(x)
        size = batch.indices.shape[1]
        terms = self._terms(self.targets[batch.indices]).sum(1) if self.model.loss.terms else size
        weights = (self.scales / terms)[:, None].expand(-1, size)
        # Rows whose activations do not fit the memory together are evaluated in groups, as few and as equal as can be.
        most = max(1, int(TRAINING_SHARE * self.samples_per_pass) // size)
        together = ceil(self.rows / ceil(self.rows / most))
        parts = [
            self.model.gradients(
                x[rows],
                self.inputs[batch.indices[rows]],
                self.targets[batch.indices[rows]],
                weights[rows],
                {k: b[rows] for k, b in self.buffers.items()},
                train=True,
                noise=None if batch.noise is None else batch.noise[rows],
            )
            for rows in (slice(top, top + together) for top in range(0, self.rows, together))
        ]
        g = torch.cat([part[0] for part in parts]) if len(parts) > 1 else parts[0][0]
        buffers = {
            k: torch.cat([part[1][k] for part in parts]) if len(parts) > 1 else parts[0][1][k] for k in self.buffers
        }
        if not batch.evaluated:
            for name, buffer in buffers.items():
                self.buffers[name].copy_(buffer)
            batch.evaluated = True
        self.evaluations += size
        return g

    def full_grad(self, x: Tensor) -> Tensor:
        """Full local gradients ∇f_i(x_i) in evaluation mode, `[rows, d]`, in chunks that fit memory."""
        out = torch.zeros_like(x)
        for rows, indices, weights in self._passes:
            everyone = len(rows) == self.rows
            part, _ = self.model.gradients(
                x if everyone else x[rows],
                self.inputs[indices],
                self.targets[indices],
                weights,
                self.buffers if everyone else {k: b[rows] for k, b in self.buffers.items()},
                train=False,
            )
            out.index_add_(0, rows, part)
        self.evaluations += len(self.table) / self.rows
        return out

    def prox(self, z: Tensor, step: float | Tensor) -> Tensor:
        """Prox of step·β·h at every row: the paper's prox_h^{1/(αβ)} for step = α.

        That step·β·ρ < 1 is the algorithm's to promise, and checked on the host before any work.
        """
        beta, h = self.beta, self.problem.regularizer
        if not isinstance(beta, Tensor):
            return h.prox(z, step * beta) if beta else z
        proxed = h.prox(z, step * beta)
        # Without h a row is left as it is, whatever h would make of it: a constraint, say, takes no account of β.
        return proxed if all(self.problem.betas) else torch.where(beta > 0, proxed, z)

    def normal(self, like: Tensor) -> Tensor:
        """Independent standard normal rows of the shape of `like`, new at every call and iteration."""
        words = self._words("normal", self.draws)
        self.draws += 1
        columns = torch.arange(like.shape[1], device=self.device)
        return standard_normal(hash_words(words[:, None], columns)).to(like.dtype)

    # What measures may ask besides

    def global_grad(self, x: Tensor) -> Tensor:
        """∇f(x_i), the gradient of the global f at every row's own point, `[rows, d]`: n times the full data.

        Where the clients of every trial agree to the bit, as after a mean, it is worked out once for all of them.
        """
        n = len(self.held)
        each = 1 if self._agree(x) else n
        points, trial = _first(x, n, each), torch.arange(self.trials, device=self.device).repeat_interleave(each)
        buffers = {k: _first(b, n, each) for k, b in self.buffers.items()}
        rows_per_pass = max(1, min(len(points), self.samples_per_pass // 256))
        out = torch.zeros_like(points)
        for top in range(0, len(points), rows_per_pass):
            rows = slice(top, top + rows_per_pass)
            mine = {k: b[rows] for k, b in buffers.items()}
            chunk = max(1, self.samples_per_pass // len(points[rows]))
            for first in range(0, len(self.targets), chunk):
                span = slice(first, first + chunk)
                weights = self.global_weights[trial[rows], span]
                part, _ = self.model.gradients(
                    points[rows], self.inputs[span], self.targets[span], weights, mine, train=False, shared=True
                )
                out[rows] += part
        return out.repeat_interleave(n // each, 0)

    def _agree(self, x: Tensor) -> bool:
        """Whether all clients of a trial have the same model and buffers, in every trial."""
        n = len(self.held)
        return all(bool((z == _first(z, n, 1).repeat_interleave(n, 0)).all()) for z in (x, *self.buffers.values()))

    def evaluate(
        self, x: Tensor, buffers: Buffers, split: Literal["train", "test"], share: tuple[int, int] = (0, 1)
    ) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of models `[S·k, d]` (k per trial) on the training or test data, each `[S·k]` in float64.

        The training loss is f itself, weighted as the problem says; the accuracy beside it is over all of `train`.
        Accuracy is NaN where the loss knows none.
        A `share` of (p, m) takes every m-th test sample from the p-th on, and gives what these add to the whole's.
        """
        loss, accuracy, _ = self._evaluate(x, buffers, split, share)
        return loss, accuracy

    def evaluate_test(self, x: Tensor, buffers: Buffers, share: tuple[int, int] = (0, 1)) -> dict[str, Tensor]:
        """`test_loss` and `test_accuracy`, and of samples with categories `test_loss:NAME` of each, all `[S·k]`."""
        loss, accuracy, kinds = self._evaluate(x, buffers, "test", share)
        each = {f"test_loss:{name}": kinds[:, k] for k, name in enumerate(self.categories)}
        return {"test_loss": loss, "test_accuracy": accuracy, **each}

    def _evaluate(
        self, x: Tensor, buffers: Buffers, split: Literal["train", "test"], share: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss and accuracy `[S·k]`, and the test loss of each category `[S·k, categories]`."""
        inputs, targets = (self.inputs, self.targets) if split == "train" else self._test()
        loss, right = (torch.zeros(len(x), dtype=torch.float64, device=self.device) for _ in range(2))
        names = self.categories if split == "test" else ()
        kinds = torch.zeros(len(x), len(names), dtype=torch.float64, device=self.device)
        per_trial = len(x) // self.trials
        for rows, places in self._evaluated(split, per_trial, share):
            points, mine = x[rows], {k: b[rows] for k, b in buffers.items()}
            terms = self.whole_terms[split][rows.start // per_trial]
            for some in _chunks(places, len(targets), max(1, 2 * self.samples_per_pass // len(points))):
                values, correct = self.model.evaluate(points, inputs[some], targets[some], mine)
                if split == "train":
                    weights = self.global_weights[:, some].repeat_interleave(per_trial, 0)
                    loss[rows] += (values * weights).sum(1, dtype=torch.float64)
                else:
                    loss[rows] += values.sum(1, dtype=torch.float64) / terms
                if names:
                    # By a product: sums along indices are not in the same order every time on a GPU.
                    kinds[rows] += values.to(torch.float64) @ self.category[some]
                right[rows] += float("nan") if correct is None else correct.sum(1)
            right[rows] /= terms
        if names:
            kinds /= self.category_terms.repeat_interleave(per_trial, 0)
        return loss, right, kinds

    def _evaluated(
        self, split: Literal["train", "test"], per_trial: int, share: tuple[int, int]
    ) -> Iterator[tuple[slice, Tensor | None]]:
        """Which models are evaluated together, and on which samples; None is all."""
        first, step = share
        if split == "test" and self.tested is not None:
            for trial, places in enumerate(self.tested):
                yield slice(trial * per_trial, (trial + 1) * per_trial), places[first::step]
        else:
            some = torch.arange(first, len(self._test()[1]), step, device=self.device) if step > 1 else None
            yield slice(0, self.trials * per_trial), some

    def average_buffers(self) -> Buffers:
        """Each trial's buffers averaged over its clients, `[S, ...]`, for evaluating the averaged model."""
        return {name: mean_buffer(buffer, self.trials) for name, buffer in self.buffers.items()}

    @cached_property
    def global_weights(self) -> Tensor:
        """The weight `[S, N]` of each training sample in its trial's f = (1/n) Σ f_i."""
        weights = torch.zeros(self.trials, len(self.targets), dtype=self.dtype, device=self.device)
        ends = [*(self.offsets.tolist()), len(self.table)]
        for row, (first, last) in enumerate(pairwise(ends)):
            share = self.scales[row] / self.terms[row] / self.problem.n
            weights[row // len(self.held)].index_add_(0, self.table[first:last], share.expand(last - first))
        return weights

    @cached_property
    def _passes(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The passes of a full gradient: rows `[r]` that have samples left, their indices and weights `[r, chunk]`.

        Where a row's samples end inside a pass, the rest has weight 0.
        """
        sizes: list[int] = self.sizes.tolist()
        chunk = max(1, self.samples_per_pass // self.rows)
        passes = []
        for first in range(0, max(sizes), chunk):
            rows = torch.tensor([row for row, size in enumerate(sizes) if size > first], device=self.device)
            last = min(first + chunk, max(sizes))
            columns = torch.arange(first, last, device=self.device).expand(len(rows), -1)
            inside = columns < self.sizes[rows, None]
            indices = self.table[self.offsets[rows, None] + torch.where(inside, columns, 0)]
            passes.append((rows, indices, torch.where(inside, (self.scales / self.terms)[rows, None], 0.0)))
        return passes


def _first(z: Tensor, n: int, count: int) -> Tensor:
    """Of every n rows the first `count`: `[S·n, ...]` to `[S·count, ...]`."""
    return z.view(-1, n, *z.shape[1:])[:, :count].flatten(0, 1)


def _chunks(places: Tensor | None, total: int, size: int) -> Iterator[Tensor | slice]:
    """Places, or all of so many samples, at most `size` at a time."""
    if places is None:
        yield from (slice(first, first + size) for first in range(0, total, size))
    elif len(places):
        yield from torch.split(places, size)


def mean_buffer(buffer: Tensor, trials: int) -> Tensor:
    """A buffer `[S·n, ...]` averaged over each trial's clients, `[S, ...]`; one of whole numbers is rounded."""
    mean = buffer.view(trials, -1, *buffer.shape[1:]).to(torch.float64).mean(1)
    return (mean if buffer.is_floating_point() else mean.round()).to(buffer.dtype)
