"""The rows of a problem on a device: the data, which row has which samples, the model, and how much fits at once."""

from collections.abc import Sequence
from math import ceil
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from depositum.data import Samples
from depositum.errors import ConfigError
from depositum.problem.backends import Backend
from depositum.problem.gradients import Buffers, RowModel, Work
from depositum.problem.placed import placed
from depositum.problem.precision import Precision
from depositum.problem.problem import Problem
from depositum.problem.streaming import Streamed, place
from depositum.randomness import hash_words, purpose_code

BatchSize = int | Literal["full"]
#: Samples per row, at most, on which the backends are tried for full gradients.
LARGEST_TRIED = 256


class Rows:
    """A problem's data and models, laid out for rows.

    Parameters
    ----------
    problem
        What is minimised, with the trials whose rows are held here.
    batch_size
        B, or `"full"` for full local gradients.
    clients
        The clients held here (default all), in increasing order; a process of many holds only its own.
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
    ) -> None:
        self.problem = problem
        self.batch_size = batch_size
        self.device, self.dtype, self.precision = torch.device(device), dtype, precision
        self.held = list(range(problem.n)) if clients is None else list(clients)
        self.trials = len(problem.trials)
        self.rows = self.trials * len(self.held)
        self._check_batch_size()
        model = placed(problem.model, self.device, dtype, precision)
        self.model = RowModel(model, problem.loss, precision)
        self.inputs, self.targets = self._place(problem.train)
        self.test = self._place(problem.test) if problem.test is not None else None
        self.categories: tuple[str, ...] = ()
        self.tested = self._tested()
        self._own_tables()
        #: β: one number for all rows, or one for each where trials differ, float64 `[rows, 1]`.
        self.beta: float | Tensor = self._one_or_each(problem.betas)
        self.buffers: Buffers = {
            name: buffer.expand(self.rows, *buffer.shape).clone() for name, buffer in model.named_buffers()
        }
        self._try_out(backend)
        self.samples_per_pass = self._fit_memory()
        self.begin(torch.zeros((), dtype=torch.int64, device=self.device))

    def begin(self, t: Tensor) -> None:
        """Set the iteration t (an int64 tensor on the device) and start counting draws and evaluations anew."""
        self.t = t
        self.draws = 0
        self.evaluations = 0.0

    def start(self) -> Tensor:
        """The common initial models x_0, `[rows, d]`."""
        starts = torch.stack([trial.start for trial in self.problem.trials]).to(self.device, self.dtype)
        return starts.repeat_interleave(len(self.held), dim=0)

    def _words(self, purpose: str, draw: int) -> Tensor:
        """A hash per row of (seed, purpose, client, iteration, draw), int64 `[rows]`."""
        return hash_words(self.seed_words, purpose_code(purpose), self.client_words, self.t, draw)

    def _place(self, samples: Samples) -> tuple[Tensor | Streamed, Tensor]:
        def cast(part: Tensor) -> Tensor:
            return part.to(self.dtype) if part.is_floating_point() else part

        return place(cast(samples.inputs), self.device), cast(samples.targets).to(self.device)

    def _tested(self) -> list[Tensor] | None:
        """The places in the test data of each trial, if one of them has not all."""
        if self.test is None or all(trial.tested is None for trial in self.problem.trials):
            return None
        whole = np.arange(len(self.test[1]))
        chosen = [whole if trial.tested is None else trial.tested for trial in self.problem.trials]
        return [torch.as_tensor(places, device=self.device) for places in chosen]

    def _own_tables(self) -> None:
        """One table of sample indices for all rows, with each row's offset and size in it."""
        parts = [torch.as_tensor(trial.parts[i]) for trial in self.problem.trials for i in self.held]
        sizes = torch.tensor([len(part) for part in parts])
        totals = torch.tensor([sum(map(len, trial.parts)) for trial in self.problem.trials for _ in self.held])
        by_samples = torch.tensor([w == "samples" for w in self.problem.weightings]).repeat_interleave(len(self.held))
        scales = torch.where(by_samples, self.problem.n * sizes / totals.to(torch.float64), 1.0)
        self.table = torch.cat(parts).to(self.device, torch.int64)
        self.sizes = sizes.to(self.device)
        self.offsets = (sizes.cumsum(0) - sizes).to(self.device)
        self.scales = scales.to(self.device, self.dtype)
        #: How many terms the loss of each row has over all its samples: as many as samples, but for losses of tokens.
        self.terms = self.sizes
        if self.model.loss.terms:
            counted = torch.split(self._terms(self.targets)[self.table], sizes.tolist())
            self.terms = torch.stack([own.sum() for own in counted])
        #: How many terms the loss has over the training data, and over all the test data of each trial.
        self.whole_terms = {"train": [float(self._terms(self.targets).sum())] * self.trials}
        if self.test is not None:
            terms = self._terms(self.test[1])
            own = [terms] * self.trials if self.tested is None else [terms[places] for places in self.tested]
            self.whole_terms["test"] = [float(part.sum()) for part in own]
            self._tell_categories_apart(terms)
        seeds = [trial.seed for trial in self.problem.trials for _ in self.held]
        self.seed_words = torch.tensor(seeds, dtype=torch.int64, device=self.device)
        self.client_words = torch.tensor(self.held * self.trials, dtype=torch.int64, device=self.device)

    def _tell_categories_apart(self, terms: Tensor) -> None:
        """Whether a test sample is of a kind, `[N, kinds]`, and how many terms each kind's loss has, `[S, kinds]`."""
        test = self.problem.test
        if test is None or test.category is None:
            return
        self.categories = test.categories
        self.category = one_hot(test.category, len(test.categories)).to(self.device, torch.float64)
        counted = terms[:, None] * self.category
        own = [counted] * self.trials if self.tested is None else [counted[places] for places in self.tested]
        self.category_terms = torch.stack([part.sum(0) for part in own])

    def _terms(self, targets: Tensor) -> Tensor:
        """The terms of each sample's loss, `[N]` (or `[rows, B]`) for targets `[N, ...]`."""
        counted = self.model.loss.terms
        return counted(targets) if counted else torch.ones(len(targets), dtype=torch.int64, device=self.device)

    def _one_or_each(self, values: Sequence[float]) -> float | Tensor:
        """A number per trial as one for all, if it is, or as a column with one for each row, float64 `[rows, 1]`."""
        if len(set(values)) == 1:
            return values[0]
        column = torch.tensor(values, dtype=torch.float64, device=self.device)
        return column.repeat_interleave(len(self.held))[:, None]

    def _check_batch_size(self) -> None:
        size = self.batch_size
        if size == "full":
            if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.problem.model.modules()):
                raise ConfigError(
                    "run.batch_size", "'full' given, but the model has batch norm, whose statistics need mini-batches"
                )
        elif not isinstance(size, int | np.integer) or size < 1:
            raise ConfigError("run.batch_size", f"{size!r} given; it must be a whole number ≥ 1, or 'full'")

    def _try_out(self, backend: Backend | Literal["auto"]) -> None:
        """Refuse, before any work, a model or loss that cannot be used with this data; choose the backend."""
        x = self.start()[:1]
        for inputs, targets in [(self.inputs, self.targets), *([self.test] if self.test else [])]:
            self.model.check(x[0], inputs[:3], targets, self.buffers)
        few = [0] * (2 if self.batch_size == "full" else min(2, self.batch_size))
        batch = self.inputs[few], self.targets[few]
        own = {k: b[:1] for k, b in self.buffers.items()}
        self.model.settle(backend, x, batch, own, self.rows, self._first_rows)

    def _first_rows(self, count: int) -> Work:
        """Gradients to make of the first rows, of the shapes that a run makes them of."""
        size = min(LARGEST_TRIED, int(self.sizes.max())) if self.batch_size == "full" else self.batch_size
        columns = torch.arange(size, device=self.device) % self.sizes[:count, None]
        indices = self.table[self.offsets[:count, None] + columns]
        weights = torch.full(indices.shape, 1 / size, dtype=self.dtype, device=self.device)
        buffers = {k: b[:count] for k, b in self.buffers.items()}
        return self.start()[:count], self.inputs[indices], self.targets[indices], weights, buffers

    def _test(self) -> tuple[Tensor | Streamed, Tensor]:
        assert self.test is not None, "there is no test data"
        return self.test

    def _fit_memory(self) -> int:
        """Samples per pass whose activations, forward and backward, fit in a share of the memory.

        Of all the memory, not of what is free: sums must be cut alike in every sitting of a run.
        """
        outputs: list[int] = []

        def note(_: nn.Module, __: object, out: object) -> None:
            outputs.append(out.numel() if isinstance(out, Tensor) else 0)

        module = self.model.model.eval()
        hooks = [m.register_forward_hook(note) for m in module.modules()]
        with torch.no_grad():
            module(self.inputs[:1])
        for hook in hooks:
            hook.remove()
        itemsize = 2 if self.precision == "bf16" else self.dtype.itemsize
        per_sample = 4 * itemsize * (sum(outputs) + self.inputs[0].numel())
        whole = torch.cuda.get_device_properties(self.device).total_memory if self.device.type == "cuda" else 1 << 32
        budget = whole // 8
        least = 1 if self.model.folds else 64  # a text takes as much as many pictures
        return max(least, min(1 << 17, ceil(budget / per_sample)))
