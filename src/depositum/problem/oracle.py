"""The oracle: the problem as functions of rows, and an algorithm's only access to data.

Rows are ordered by trial, then by client: row s·n + i is client i of trial s. Every request of an algorithm (a
mini-batch, gradients, a prox) is answered for all rows at once.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import ceil
from typing import Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from depositum.data import Samples
from depositum.errors import ConfigError, check_choice, short_repr
from depositum.problem.compatibility import attribute_errors, describe
from depositum.problem.model_copy import copy_to_device
from depositum.problem.precision import Precision
from depositum.problem.problem import Problem
from depositum.problem.row_model import Backend, Buffers, GradientArguments, RowModel
from depositum.problem.streaming import Streamed, samples_on_device
from depositum.randomness import hash_words, permuted, purpose_code, randint, standard_normal

BatchSize = int | Literal["full"]
Sampling = Literal["replacement", "epochs"]
#: Samples that fit in memory at once in training, as a multiple of those of an evaluation (`samples_per_pass`).
TRAINING_SHARE = 4
#: Largest number of samples per row on which backends are measured for full gradients.
MAX_MEASURED_SAMPLES = 256


@dataclass
class Batch:
    """One mini-batch per row: sample indices `[rows, B]`, or None for all samples of each row."""

    indices: Tensor | None
    noise: Tensor | None = None
    evaluated: bool = False


class Oracle:
    """Gradients, mini-batches and prox for the rows of a problem.

    Parameters
    ----------
    problem
        The problem, with the trials whose rows are held here.
    batch_size
        B, or `"full"` for full local gradients.
    clients
        The clients held here (default: all), in increasing order; a distributed process holds a subset.
    sampling
        How mini-batches are drawn: `"replacement"`, independently of one another (Assumption 3), or `"epochs"`, so that
        a client draws each of its samples once before any of them again, in a new order each time.
    """

    def __init__(
        self,
        problem: Problem,
        batch_size: BatchSize = "full",
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        precision: Precision = "float32",
        backend: Backend | Literal["auto"] = "auto",
        clients: Sequence[int] | None = None,
        sampling: Sampling = "replacement",
    ) -> None:
        check_choice("sampling", sampling, get_args(Sampling))
        self.sampling = sampling
        self.problem = problem
        self.batch_size = batch_size
        self.device, self.dtype, self.precision = torch.device(device), dtype, precision
        self.clients = list(range(problem.n)) if clients is None else list(clients)
        self.trials = len(problem.trials)
        self._is_part = False
        self.rows = self.trials * len(self.clients)
        self._check_batch_size()
        model = copy_to_device(problem.model, self.device, dtype, precision)
        self.model = RowModel(model, problem.loss, precision)
        self.inputs, self.targets = self._on_device(problem.train)
        self.test = self._on_device(problem.test) if problem.test is not None else None
        #: Names of the test samples' categories, if they have any.
        self.categories: tuple[str, ...] = ()
        self._set_test_indices()
        self._set_row_tables()
        #: β: one number for all rows, or one per row if trials differ, float64 `[rows, 1]`.
        self.beta: float | Tensor = self._scalar_or_column(problem.betas)
        self.buffers: Buffers = {
            name: buffer.expand(self.rows, *buffer.shape).clone() for name, buffer in model.named_buffers()
        }
        self._check_model(backend)
        self.samples_per_pass = self._samples_that_fit()
        self.begin(torch.zeros((), dtype=torch.int64, device=self.device))

    # The interface of algorithms

    @property
    def weights(self) -> Tensor:
        """What the gradient of each row is multiplied by: n N_i/N, or 1 if clients have equal weights, `[rows, 1]`."""
        return self.scales[:, None]

    def begin(self, t: Tensor) -> None:
        """Set the iteration t (an int64 tensor on the device) and reset the counts of draws and evaluations."""
        self.t = t
        self.draws = 0
        self.evaluations = 0.0

    def of_rows(self, rows: Tensor) -> "Oracle":
        """The oracle of some of the rows (int64, on the device) for algorithms, at the same iteration.

        It has copies of their buffers, and can be made while an iteration is traced: no row is read back to the host.
        """
        part = copy(self)
        part.rows = len(rows)
        part.sizes, part.offsets, part.scales, part.terms, part.seed_words, part.client_words = (
            table[rows]
            for table in (self.sizes, self.offsets, self.scales, self.terms, self.seed_words, self.client_words)
        )
        part.buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        if isinstance(self.beta, Tensor):
            part.beta = self.beta[rows]
        part._is_part = True
        part.__dict__.pop("_passes", None)
        return part

    def start(self) -> Tensor:
        """The common initial models x_0, `[rows, d]`."""
        starts = torch.stack([trial.start for trial in self.problem.trials]).to(self.device, self.dtype)
        return starts.repeat_interleave(len(self.clients), dim=0)

    def sample(self, size: BatchSize | None = None) -> Batch:
        """Draw one mini-batch per row; `size` overrides the run's batch size.

        The draw depends only on (seed, client, iteration, draw), never on the order of calls elsewhere.
        """
        size = self.batch_size if size is None else size
        draw = self.draws
        words = self._words("sample", draw)
        self.draws += 1
        if size == "full":
            return Batch(None)
        columns = torch.arange(size, device=self.device)
        if self.sampling == "epochs":
            positions = self._in_epochs(draw, (self.t - 1) * size + columns)
        else:
            positions = randint(hash_words(words[:, None], columns), self.sizes[:, None])
        indices = self.table[self.offsets[:, None] + positions]
        return Batch(indices, noise=words if self.model.is_random else None)

    def grad(self, x: Tensor, batch: Batch) -> Tensor:
        """Mini-batch gradients g_i = (1/B) Σ_b ∇F_i(x_i, ξ_ib), `[rows, d]`.

        A batch may be evaluated at several points; only its first evaluation updates the model's buffers.
        """
        if batch.indices is None:
            return self.full_grad(x)
        size = batch.indices.shape[1]
        terms = self._terms(self.targets[batch.indices]).sum(1) if self.model.loss.terms else size
        weights = (self.scales / terms)[:, None].expand(-1, size)
        # If the activations of all rows do not fit in memory, rows are evaluated in as few and as equal groups as fit.
        most = max(1, int(TRAINING_SHARE * self.samples_per_pass) // size)
        group = ceil(self.rows / ceil(self.rows / most))
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
            for rows in (slice(first, first + group) for first in range(0, self.rows, group))
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
        """Full local gradients ∇f_i(x_i) in evaluation mode, `[rows, d]`, in chunks that fit in memory."""
        out = torch.zeros_like(x)
        for rows, indices, weights in self._passes:
            all_rows = len(rows) == self.rows
            part, _ = self.model.gradients(
                x if all_rows else x[rows],
                self.inputs[indices],
                self.targets[indices],
                weights,
                self.buffers if all_rows else {k: b[rows] for k, b in self.buffers.items()},
                train=False,
            )
            out.index_add_(0, rows, part)
        self.evaluations += self._mean_size
        return out

    def prox(self, z: Tensor, step: float | Tensor) -> Tensor:
        """Prox of step·β·h at every row: the paper's prox_h^{1/(αβ)} for step = α.

        The algorithm is responsible for step·β·ρ < 1, which is checked on the host before any work.
        """
        beta, h = self.beta, self.problem.regularizer
        if not isinstance(beta, Tensor):
            return h.prox(z, step * beta) if beta else z
        proxed = h.prox(z, step * beta)
        # Rows with β = 0 are left unchanged, whatever h is: the prox of a constraint, say, does not depend on β.
        return proxed if all(self.problem.betas) else torch.where(beta > 0, proxed, z)

    def normal(self, like: Tensor) -> Tensor:
        """Independent standard normal rows of the shape of `like`, new at every call and iteration."""
        words = self._words("normal", self.draws)
        self.draws += 1
        columns = torch.arange(like.shape[1], device=self.device)
        return standard_normal(hash_words(words[:, None], columns)).to(like.dtype)

    # The interface of measures

    def global_grad(self, x: Tensor) -> Tensor:
        """∇f(x_i), the gradient of the global f at the point of every row, `[rows, d]`: n passes over the data.

        If the clients of every trial agree to the bit, as they do after a mean, it is computed once per trial.
        """
        n = len(self.clients)
        each = 1 if self._clients_agree(x) else n
        points, trial = _first_rows(x, n, each), torch.arange(self.trials, device=self.device).repeat_interleave(each)
        buffers = {k: _first_rows(b, n, each) for k, b in self.buffers.items()}
        rows_per_pass = max(1, min(len(points), self.samples_per_pass // 256))
        out = torch.zeros_like(points)
        for top in range(0, len(points), rows_per_pass):
            rows = slice(top, top + rows_per_pass)
            row_buffers = {k: b[rows] for k, b in buffers.items()}
            chunk = max(1, self.samples_per_pass // len(points[rows]))
            for first in range(0, len(self.targets), chunk):
                span = slice(first, first + chunk)
                weights = self.global_weights[trial[rows], span]
                part, _ = self.model.gradients(
                    points[rows], self.inputs[span], self.targets[span], weights, row_buffers, train=False, shared=True
                )
                out[rows] += part
        return out.repeat_interleave(n // each, 0)

    def evaluate(
        self, x: Tensor, buffers: Buffers, split: Literal["train", "test"], share: tuple[int, int] = (0, 1)
    ) -> tuple[Tensor, Tensor]:
        """Loss and accuracy of models `[S·k, d]` (k per trial) on the training or test data, each `[S·k]` in float64.

        The training loss is f, with the weighting of the problem; the training accuracy is that over all of `train`.
        Accuracy is NaN if the loss does not define it. A `share` of (p, m) uses every m-th test sample, starting with
        the p-th, and returns their contribution to the result over all test samples.
        """
        loss, accuracy, _ = self._evaluate(x, buffers, split, share)
        return loss, accuracy

    def evaluate_test(self, x: Tensor, buffers: Buffers, share: tuple[int, int] = (0, 1)) -> dict[str, Tensor]:
        """`test_loss`, `test_accuracy`, and for samples with categories `test_loss:NAME` of each, all `[S·k]`."""
        loss, accuracy, by_category = self._evaluate(x, buffers, "test", share)
        each = {f"test_loss:{name}": by_category[:, k] for k, name in enumerate(self.categories)}
        return {"test_loss": loss, "test_accuracy": accuracy, **each}

    def evaluate_rows(self, x: Tensor, buffers: Buffers, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Mean loss and accuracy of some rows' models on the rows' own samples, each `[len(rows)]` in float64.

        Whatever the weighting, all samples of a client count the same. Accuracy is NaN if the loss does not define it.
        """
        loss, correct = (torch.zeros(len(rows), dtype=torch.float64, device=self.device) for _ in range(2))
        for k, row in enumerate(rows):
            model, own = x[row : row + 1], {k: b[row : row + 1] for k, b in buffers.items()}
            for chunk in torch.split(self.samples_of(row), self._samples_per_evaluation):
                values, answers = self.model.evaluate(model, self.inputs[chunk], self.targets[chunk], own)
                loss[k] += values.sum(dtype=torch.float64)
                correct[k] += float("nan") if answers is None else answers.sum()
        terms = self.terms[list(rows)]
        return loss / terms, correct / terms

    def outputs(
        self, x: Tensor, buffers: Buffers, split: Literal["train", "test"], indices: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Outputs of one model `[d]` on these training or test samples, and their targets, `[N, ...]` on the host."""
        inputs, targets = (self.inputs, self.targets) if split == "train" else self._test_data()
        chunks = torch.split(indices, self._samples_per_evaluation)
        parts = [self.model.outputs(x, inputs[chunk], buffers).cpu() for chunk in chunks]
        return torch.cat(parts), targets[indices].cpu()

    def samples_of(self, row: int) -> Tensor:
        """The indices of a row's training samples, `[N_i]`."""
        first = int(self.offsets[row])
        return self.table[first : first + int(self.sizes[row])]

    def test_samples_of(self, trial: int) -> Tensor:
        """The indices of the test samples that a trial is evaluated on, `[N]`."""
        if self.test_indices is not None:
            return self.test_indices[trial]
        return torch.arange(len(self._test_data()[1]), device=self.device)

    @property
    def _samples_per_evaluation(self) -> int:
        """Samples of which one model is evaluated at once."""
        return 2 * self.samples_per_pass

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
            weights[row // len(self.clients)].index_add_(0, self.table[first:last], share.expand(last - first))
        return weights

    def _words(self, purpose: str, draw: int) -> Tensor:
        """A hash per row of (seed, purpose, client, iteration, draw), int64 `[rows]`."""
        return hash_words(self.seed_words, purpose_code(purpose), self.client_words, self.t, draw)

    def _in_epochs(self, draw: int, count: Tensor) -> Tensor:
        """The positions `[rows, B]` of samples `[B]`, counted from the first iteration's, in the order of the epochs.

        The batches of the start come from an epoch before the first. If a step draws several, each has its own epochs.
        """
        sizes = self.sizes[:, None]
        epoch = torch.div(count, sizes, rounding_mode="floor")
        words = hash_words(self.seed_words, purpose_code("epochs"), self.client_words, draw)
        return permuted(hash_words(words[:, None], epoch), count % sizes, sizes)

    def _terms(self, targets: Tensor) -> Tensor:
        """The number of terms of each sample's loss, `[N]` (or `[rows, B]`) for targets `[N, ...]`."""
        count = self.model.loss.terms
        return count(targets) if count else torch.ones(len(targets), dtype=torch.int64, device=self.device)

    @cached_property
    def _passes(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The passes of a full gradient: rows `[r]` that have samples left, their indices and weights `[r, chunk]`.

        Indices beyond a row's last sample have weight 0.
        """
        # The sizes of some of the rows are not known on the host: all rows are in as many passes as the largest needs.
        sizes: list[int] = [self._largest_size] * self.rows if self._is_part else self.sizes.tolist()
        chunk = max(1, self.samples_per_pass // self.rows)
        passes = []
        for first in range(0, max(sizes), chunk):
            chosen = [row for row, size in enumerate(sizes) if size > first]
            all_rows = len(chosen) == self.rows
            rows = torch.arange(self.rows, device=self.device) if all_rows else torch.tensor(chosen, device=self.device)
            last = min(first + chunk, max(sizes))
            columns = torch.arange(first, last, device=self.device).expand(len(rows), -1)
            inside = columns < self.sizes[rows, None]
            indices = self.table[self.offsets[rows, None] + torch.where(inside, columns, 0)]
            passes.append((rows, indices, torch.where(inside, (self.scales / self.terms)[rows, None], 0.0)))
        return passes

    def _clients_agree(self, x: Tensor) -> bool:
        """Whether all clients of a trial have the same model and buffers, in every trial."""
        n = len(self.clients)
        return all(bool((z == _first_rows(z, n, 1).repeat_interleave(n, 0)).all()) for z in (x, *self.buffers.values()))

    def _evaluate(
        self, x: Tensor, buffers: Buffers, split: Literal["train", "test"], share: tuple[int, int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Loss and accuracy `[S·k]`, and the test loss of each category `[S·k, categories]`."""
        inputs, targets = (self.inputs, self.targets) if split == "train" else self._test_data()
        loss, correct = (torch.zeros(len(x), dtype=torch.float64, device=self.device) for _ in range(2))
        names = self.categories if split == "test" else ()
        by_category = torch.zeros(len(x), len(names), dtype=torch.float64, device=self.device)
        per_trial = len(x) // self.trials
        for rows, indices in self._evaluation_groups(split, per_trial, share):
            points, row_buffers = x[rows], {k: b[rows] for k, b in buffers.items()}
            terms = self.total_terms[split][rows.start // per_trial]
            for chunk in _chunks(indices, len(targets), max(1, 2 * self.samples_per_pass // len(points))):
                values, answers = self.model.evaluate(points, inputs[chunk], targets[chunk], row_buffers)
                if split == "train":
                    weights = self.global_weights[:, chunk].repeat_interleave(per_trial, 0)
                    loss[rows] += (values * weights).sum(1, dtype=torch.float64)
                else:
                    loss[rows] += values.sum(1, dtype=torch.float64) / terms
                if names:
                    # As a product: on a GPU, sums along indices do not always have the same order.
                    by_category[rows] += values.to(torch.float64) @ self.category_one_hot[chunk]
                correct[rows] += float("nan") if answers is None else answers.sum(1)
            correct[rows] /= terms
        if names:
            by_category /= self.category_terms.repeat_interleave(per_trial, 0)
        return loss, correct, by_category

    def _evaluation_groups(
        self, split: Literal["train", "test"], per_trial: int, share: tuple[int, int]
    ) -> Iterator[tuple[slice, Tensor | None]]:
        """The models that are evaluated at once, and the indices of their samples; None means all."""
        first, step = share
        if split == "test" and self.test_indices is not None:
            for trial, indices in enumerate(self.test_indices):
                yield slice(trial * per_trial, (trial + 1) * per_trial), indices[first::step]
        else:
            every = torch.arange(first, len(self._test_data()[1]), step, device=self.device) if step > 1 else None
            yield slice(0, self.trials * per_trial), every

    def _test_data(self) -> tuple[Tensor | Streamed, Tensor]:
        assert self.test is not None, "there is no test data"
        return self.test

    # Construction

    def _check_batch_size(self) -> None:
        size = self.batch_size
        if size == "full":
            if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.problem.model.modules()):
                raise ConfigError(
                    "batch_size", "'full' given, but the model has batch norm, whose statistics need mini-batches"
                )
        elif not isinstance(size, int | np.integer) or size < 1:
            raise ConfigError("batch_size", f"{short_repr(size)} given; it must be a whole number ≥ 1, or 'full'")

    def _on_device(self, samples: Samples) -> tuple[Tensor | Streamed, Tensor]:
        largest, name = torch.finfo(self.dtype).max, str(self.dtype).removeprefix("torch.")
        for values in (samples.inputs, samples.targets):
            if values.dtype == torch.float64 and values.numel() and float(values.abs().max()) > largest:
                problem = f"{name!r} given, but the data have values above {largest:.3g}"
                raise ConfigError("dtype", f"{problem}; scale them, or use 'float64'")
        targets = samples_on_device(samples.targets, self.device, self.dtype, may_stream=False)
        return samples_on_device(samples.inputs, self.device, self.dtype), cast(Tensor, targets)

    def _set_test_indices(self) -> None:
        #: The indices of each trial's test samples; None if every trial is evaluated on all.
        self.test_indices: list[Tensor] | None = None
        given = [trial.test_indices for trial in self.problem.trials]
        if self.test is not None and any(indices is not None for indices in given):
            every = np.arange(len(self.test[1]))
            self.test_indices = [torch.as_tensor(every if i is None else i, device=self.device) for i in given]

    def _set_row_tables(self) -> None:
        """Make one table of the sample indices of all rows, with each row's offset and size in it."""
        parts = [torch.as_tensor(trial.parts[i]) for trial in self.problem.trials for i in self.clients]
        sizes = torch.tensor([len(part) for part in parts])
        totals = torch.tensor([sum(map(len, trial.parts)) for trial in self.problem.trials])
        totals = totals.repeat_interleave(len(self.clients))
        by_samples = torch.tensor([w == "samples" for w in self.problem.weightings])
        by_samples = by_samples.repeat_interleave(len(self.clients))
        scales = torch.where(by_samples, self.problem.n * sizes / totals.to(torch.float64), 1.0)
        self.table = torch.cat(parts).to(self.device, torch.int64)
        self.sizes = sizes.to(self.device)
        #: Samples of the largest client, and of a client on average.
        self._largest_size, self._mean_size = int(sizes.max()), len(self.table) / self.rows
        self.offsets = (sizes.cumsum(0) - sizes).to(self.device)
        self.scales = scales.to(self.device, self.dtype)
        #: Terms of each row's loss over all its samples: the number of samples, except for losses of tokens.
        self.terms = self.sizes
        if self.model.loss.terms:
            self._check_terms()
            counts = torch.split(self._terms(self.targets)[self.table], sizes.tolist())
            self.terms = torch.stack([count.sum() for count in counts])
        #: Terms of the loss over all training data, and over all test data of each trial.
        self.total_terms = {"train": [float(self._terms(self.targets).sum())] * self.trials}
        if self.test is not None:
            terms = self._terms(self.test[1])
            self.total_terms["test"] = [float(part.sum()) for part in self._by_trial(terms)]
            self._set_categories(terms)
        seeds = [trial.seed for trial in self.problem.trials for _ in self.clients]
        self.seed_words = torch.tensor(seeds, dtype=torch.int64, device=self.device)
        self.client_words = torch.tensor(self.clients * self.trials, dtype=torch.int64, device=self.device)

    def _check_terms(self) -> None:
        """Refuse a loss that is a sum of terms if targets are not made of them."""
        loss, targets = self.model.loss, self.targets
        with attribute_errors("loss", f"the terms of {loss.name!r} cannot be counted in targets {describe(targets)}"):
            counted = self._terms(targets).shape
        if counted != targets.shape[:1]:
            problem = f"{loss.name!r} given, but targets have shape {list(targets.shape)}"
            raise ConfigError("loss", f"{problem}; it needs several terms per sample, such as token ids [N, L]")

    def _by_trial(self, values: Tensor) -> list[Tensor]:
        """The values of each trial's test samples, given those of all test samples `[N, ...]`."""
        if self.test_indices is None:
            return [values] * self.trials
        return [values[indices] for indices in self.test_indices]

    def _set_categories(self, terms: Tensor) -> None:
        """Set each test sample's category, one-hot `[N, categories]`, and the loss terms of each, `[S, categories]`."""
        test = self.problem.test
        if test is None or test.category is None:
            return
        self.categories = test.categories
        self.category_one_hot = one_hot(test.category, len(test.categories)).to(self.device, torch.float64)
        counts = self._by_trial(terms[:, None] * self.category_one_hot)
        self.category_terms = torch.stack([count.sum(0) for count in counts])

    def _scalar_or_column(self, values: Sequence[float]) -> float | Tensor:
        """Values of trials as one number if all are equal, else as a column with one per row, float64 `[rows, 1]`."""
        if len(set(values)) == 1:
            return values[0]
        column = torch.tensor(values, dtype=torch.float64, device=self.device)
        return column.repeat_interleave(len(self.clients))[:, None]

    def _check_model(self, backend: Backend | Literal["auto"]) -> None:
        """Reject, before any work, a model or loss that cannot be used with the data; choose the backend."""
        x = self.start()[:1]
        for inputs, targets in [(self.inputs, self.targets), *([self.test] if self.test else [])]:
            self.model.check(x[0], inputs[:3], targets, self.buffers)
        indices = [0] * (2 if self.batch_size == "full" else min(2, self.batch_size))
        batch = self.inputs[indices], self.targets[indices]
        buffers = {k: b[:1] for k, b in self.buffers.items()}
        self.model.choose_backend(backend, x, batch, buffers, self.rows, self._gradient_arguments)

    def _gradient_arguments(self, count: int) -> GradientArguments:
        """Arguments of the gradients of the first rows, with the shapes that they have in a run."""
        size = min(MAX_MEASURED_SAMPLES, int(self.sizes.max())) if self.batch_size == "full" else self.batch_size
        columns = torch.arange(size, device=self.device) % self.sizes[:count, None]
        indices = self.table[self.offsets[:count, None] + columns]
        weights = torch.full(indices.shape, 1 / size, dtype=self.dtype, device=self.device)
        buffers = {k: b[:count] for k, b in self.buffers.items()}
        return self.start()[:count], self.inputs[indices], self.targets[indices], weights, buffers

    def _samples_that_fit(self) -> int:
        """Samples per pass whose activations, forward and backward, fit in a share of the memory.

        A share of the total memory, not of the free memory: a resumed run must divide its sums in the same way.
        """
        outputs: list[int] = []

        def record(_: nn.Module, __: object, out: object) -> None:
            outputs.append(out.numel() if isinstance(out, Tensor) else 0)

        module = self.model.model.eval()
        hooks = [m.register_forward_hook(record) for m in module.modules()]
        with torch.no_grad():
            module(self.inputs[:1])
        for hook in hooks:
            hook.remove()
        itemsize = 2 if self.precision == "bf16" else self.dtype.itemsize
        per_sample = 4 * itemsize * (sum(outputs) + self.inputs[0].numel())
        total = torch.cuda.get_device_properties(self.device).total_memory if self.device.type == "cuda" else 1 << 32
        least = 1 if self.model.has_forward_rows else 64  # one text takes as much memory as many images
        return max(least, min(1 << 17, ceil(total // 8 / per_sample)))


def _first_rows(z: Tensor, n: int, count: int) -> Tensor:
    """The first `count` of every n rows: `[S·n, ...]` to `[S·count, ...]`."""
    return z.view(-1, n, *z.shape[1:])[:, :count].flatten(0, 1)


def _chunks(indices: Tensor | None, total: int, size: int) -> Iterator[Tensor | slice]:
    """Indices, or those of all `total` samples, at most `size` at a time."""
    if indices is None:
        yield from (slice(first, first + size) for first in range(0, total, size))
    elif len(indices):
        yield from torch.split(indices, size)


def mean_buffer(buffer: Tensor, trials: int) -> Tensor:
    """A buffer `[S·n, ...]` averaged over each trial's clients, `[S, ...]`; integers are rounded."""
    mean = buffer.view(trials, -1, *buffer.shape[1:]).to(torch.float64).mean(1)
    return (mean if buffer.is_floating_point() else mean.round()).to(buffer.dtype)
