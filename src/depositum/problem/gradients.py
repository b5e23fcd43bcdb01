"""Gradients and losses of all rows at once: each row's parameters against that row's samples.

Three equal backends. `loop` evaluates one client after another: the plain reference, and the one for models that draw
random numbers themselves (dropout) or that cannot be batched over parameters (control flow on values).
`channels-last` is the same with another layout of images in memory. `vmap` evaluates all rows in one batched call. They
differ by rounding only; on a CPU the fastest is found by trying. A model that can take all rows as one batch itself
(`forward_rows`) is asked to, in the place of `vmap`.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from depositum.errors import ConfigError, describe_exception
from depositum.layout import Layout
from depositum.problem import row_loop
from depositum.problem.backends import Backend as Backend
from depositum.problem.backends import fastest
from depositum.problem.batched import batched
from depositum.problem.losses import Loss
from depositum.problem.precision import Precision, forward_backward
from depositum.problem.tried import blamed_on, check_loss, described
from depositum.randomness import TorchGenerators

Buffers = dict[str, Tensor]
#: Rows `[r, d]`, their inputs and targets `[r, B, ...]`, weights `[r, B]` and buffers.
Work = tuple[Tensor, Tensor, Tensor, Tensor, Buffers]

#: What was found fastest, by all that it depends on: a process chooses once, so that its runs agree to the byte.
_found: dict[tuple[object, ...], Backend] = {}


class RowModel:
    """A model seen from the rows.

    Parameters
    ----------
    model
        The architecture; its frozen parameters are shared by all rows, its trainable ones come from the rows.
    loss
        Loss per sample.

    Until `settle` is called, the backend is `loop`.
    """

    def __init__(self, model: nn.Module, loss: Loss, precision: Precision) -> None:
        self.model = model
        self.layout = Layout.of(model)
        self.device = next(model.parameters()).device
        self.loss = loss.to(self.device, next(model.parameters()).dtype)
        self.precision = precision
        #: The model as `vmap` is to see it.
        self.batched = batched(model, precision, self.device)
        self.backend: Backend = "loop"
        #: Whether the model itself takes the samples of all rows at once, and their parameters `[r, *shape]`.
        self.folds = hasattr(model, "forward_rows")
        #: Whether a forward pass in training mode is itself random.
        self.random = False
        self._filters = [
            f"{name}.weight"
            for name, module in model.named_modules()
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d) and f"{name}.weight" in self.layout.names
        ]
        self._number = row_loop.MODELS.add(self)

    def gradients(
        self,
        x: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor,
        buffers: Buffers,
        *,
        train: bool,
        shared: bool = False,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Buffers]:
        """Gradients `[r, d]` of each row's weighted loss Σ_b weights[b]·l_b, and the rows' new buffers.

        Parameters
        ----------
        x
            Rows `[r, d]`.
        inputs, targets
            `[r, B, ...]`, each row its own samples; or with `shared`, `[B, ...]`, the same samples for every row.
        weights
            `[r, B]`.
        buffers
            The model's buffers by name, each `[r, ...]`; left as they are, the new ones are returned.
        train
            Training mode (batch statistics, dropout) or evaluation mode.
        noise
            A seed per row `[r]`, for models that draw random numbers.
        """
        if self.backend == "vmap":
            self.model.train(train)
            self.batched.train(train)
            if self.folds and shared:
                inputs, targets, shared = _for_each(x, inputs), _for_each(x, targets), False
            with forward_backward(self.precision):
                return self._gradients_vmap(x, inputs, targets, weights, buffers, None if shared else 0)
        if shared:
            inputs, targets = _for_each(x, inputs), _for_each(x, targets)
        own = [buffers[name] for name in buffers]
        out, *new = row_loop.loop(self._number, x, inputs, targets, weights, own, train, noise)
        return out, dict(zip(buffers, new, strict=True))

    def evaluate(self, x: Tensor, inputs: Tensor, targets: Tensor, buffers: Buffers) -> tuple[Tensor, Tensor | None]:
        """Losses `[r, B]` and right answers `[r, B]` (or None) of every row on the same samples, in evaluation mode."""
        self.model.eval()
        self.batched.eval()
        buffers = {k: b.clone() for k, b in buffers.items()}  # measuring leaves no trace, whatever a model writes to

        together = self.backend == "vmap" and len(x) > 1

        def losses(row: Tensor, own: Buffers) -> tuple[Tensor, Tensor]:
            outputs = self._forward(self._parameters(row), own, inputs, self.batched if together else self.model)
            per_sample = self.loss.per_sample(outputs, targets)
            correct = self.loss.correct
            return per_sample, correct(outputs, targets) if correct else torch.zeros_like(per_sample, dtype=torch.bool)

        with torch.no_grad(), forward_backward(self.precision):
            if together and self.folds:
                all_targets = _for_each(x, targets).flatten(0, 1)
                outputs = self._forward_rows(self.layout.views(x), _for_each(x, inputs)).flatten(0, 1)
                values = self.loss.per_sample(outputs, all_targets).view(len(x), -1)
                counted = self.loss.correct(outputs, all_targets) if self.loss.correct else torch.zeros_like(values)
                right = counted.view(len(x), -1)
            elif together:
                values, right = vmap(losses)(x, buffers)
            else:
                pairs = [losses(row, {k: b[i] for k, b in buffers.items()}) for i, row in enumerate(x)]
                values, right = torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])
        return values, right if self.loss.correct else None

    # Before any work

    def check(self, row: Tensor, inputs: Tensor, targets: Tensor, buffers: Buffers) -> None:
        """Try a person's model and loss on a few samples, and all targets, in evaluation mode."""
        self.model.eval()
        own = {k: b[0].clone() for k, b in buffers.items()}
        # Two sizes, so that a loss averaged over samples is found out even if there are as many outputs as samples.
        for few in {min(size, len(targets)) for size in (2, 3)}:
            with torch.no_grad():
                with blamed_on("problem.model", f"fails on {described(inputs[:few])}"):
                    outputs = self._forward(self.layout.views(row), own, inputs[:few])
                check_loss(self.loss, outputs, targets, few)

    def settle(
        self,
        backend: Backend | Literal["auto"],
        x: Tensor,
        batch: tuple[Tensor, Tensor],
        own: Buffers,
        rows: int = 1,
        work: Callable[[int], Work] | None = None,
    ) -> None:
        """Choose the backend, after trying one row `[1, d]` with its buffers on one batch `[B, ...]` in training mode.

        `"auto"` is `vmap` where that works, or on a CPU whatever is fastest for a run of so many `rows`, measured on
        the first k of them as `work(k)` gives them. A backend given by its name is not measured.
        """
        inputs, targets = batch
        weights = torch.ones(1, len(inputs), dtype=x.dtype, device=x.device)
        what = f"fails in training on {described(inputs)}"
        with TorchGenerators(self.device) as generators, blamed_on("problem.model", what):
            self.gradients(x, inputs, targets, weights, own, train=True, shared=True)
            self.random = generators.moved()
        if backend in ("loop", "channels-last"):
            self.backend = backend
            return
        candidates: list[Backend] = [*(["channels-last"] if self._filters else []), "loop"]  # type: ignore[list-item]
        if backend == "vmap" or not self.random:
            self.backend = "vmap"
            try:
                # Each row with samples of its own, as in training: a model that looks at their values cannot have it.
                self.gradients(x, _for_each(x, inputs), _for_each(x, targets), weights, own, train=True)
                candidates.insert(0, "vmap")
            except (RuntimeError, ValueError) as error:
                if backend == "vmap":
                    said = f"'vmap' given, but the model needs 'loop': {describe_exception(error)}"
                    raise ConfigError("run.backend", said) from error
        self.backend = candidates[-1] if self.random else candidates[0]
        if backend == "auto" and self.device.type == "cpu" and len(candidates) > 1 and work is not None:
            # One row alone has nothing to be batched with.
            self.backend = self._fastest(candidates, rows, work) if rows > 1 else "loop"

    def _fastest(self, candidates: Sequence[Backend], rows: int, work: Callable[[int], Work]) -> Backend:
        def run(backend: Backend, count: int) -> None:
            self.backend = backend
            self.gradients(*parts(count), train=True)

        def parts(count: int) -> Work:
            if count not in kept:
                kept[count] = work(count)
            return kept[count]

        kept: dict[int, Work] = {}
        x, inputs, *_ = parts(1)
        shapes = tuple(self.layout), tuple(inputs.shape), inputs.dtype, x.dtype, self.precision
        key = (str(self.model), self.loss.name, *shapes, rows, tuple(candidates), torch.get_num_threads())
        if key not in _found:
            with TorchGenerators(self.device):
                _found[key] = fastest(run, candidates, rows)
        return _found[key]

    # How it is done

    def _parameters(self, row: Tensor) -> dict[str, Tensor]:
        """A row's parameters by name: views of it, or copies of filters whose channels are to lie side by side."""
        views = self.layout.views(row)
        if self.backend == "channels-last":
            views |= {name: _channels_last(views[name]) for name in self._filters}
        return views

    def _forward(
        self, parameters: Mapping[str, Tensor], buffers: Buffers, inputs: Tensor, model: nn.Module | None = None
    ) -> Tensor:
        """The model's outputs; `buffers` holds the new ones afterwards."""
        state = {**parameters, **buffers}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            outputs = functional_call(model or self.model, state, (inputs,))
        # Most models write to their buffers in place; one that assigns a new tensor has it here.
        buffers.update({name: state[name] for name in buffers})
        return cast(Tensor, outputs.float() if self.precision == "bf16" else outputs)

    def _forward_rows(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """The outputs `[r, B, ...]` of a model that folds, for parameters `[r, *shape]` and inputs `[r, B, ...]`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            outputs: Tensor = self.model.forward_rows(parameters, inputs)  # type: ignore[operator]
        return outputs.float() if self.precision == "bf16" else outputs

    def _gradients_vmap(
        self, x: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor, buffers: Buffers, data: int | None
    ) -> tuple[Tensor, Buffers]:
        def weighted(
            parameters: dict[str, Tensor], own: Buffers, a: Tensor, b: Tensor, w: Tensor
        ) -> tuple[Tensor, Buffers]:
            # Batch norm writes to its buffers; a clone is this transform's own, so that it may.
            own = {k: v.clone() for k, v in own.items()}
            outputs = self._forward(parameters, own, a, self.batched)
            return (self.loss.per_sample(outputs, b) * w).sum(), own

        # Rows are independent, so the gradient of the sum over rows is every row's own: autograd stays outside of vmap.
        leaves = {k: v.detach().requires_grad_() for k, v in self.layout.views(x).items()}
        with torch.enable_grad():
            if self.folds:
                outputs, new = self._forward_rows(leaves, inputs).flatten(0, 1), buffers
                values = self.loss.per_sample(outputs, targets.flatten(0, 1)) * weights.flatten()
            else:
                values, new = vmap(weighted, in_dims=(0, 0, data, data, 0))(leaves, buffers, inputs, targets, weights)
            parts = torch.autograd.grad(values.sum(), list(leaves.values()), materialize_grads=True)
        out = torch.cat([part.reshape(len(x), -1) for part in parts], dim=1)
        return out, {k: b.detach() for k, b in new.items()}

    def gradients_one_by_one(
        self, x: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor, buffers: Buffers, noise: Tensor | None
    ) -> tuple[Tensor, Buffers]:
        """As `gradients`, of one row after another: what the operation `row_loop.loop` does."""
        out = torch.empty_like(x)
        new = {k: b.clone() for k, b in buffers.items()}
        generators = TorchGenerators(self.device) if noise is not None else None
        seeds = noise.tolist() if noise is not None else []
        with generators or nullcontext():
            for i, row in enumerate(x):
                if generators:
                    generators.seed(seeds[i])
                leaves = {k: v.detach().requires_grad_() for k, v in self._parameters(row).items()}
                own = {k: v[i] for k, v in new.items()}
                with torch.enable_grad():
                    outputs = self._forward(leaves, own, inputs[i])
                    value = (self.loss.per_sample(outputs, targets[i]) * weights[i]).sum()
                    parts = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
                torch.cat([part.reshape(-1) for part in parts], out=out[i])
                for name, buffer in own.items():
                    new[name][i].copy_(buffer.detach())
        return out, new


def _for_each(x: Tensor, samples: Tensor) -> Tensor:
    """The same samples `[B, ...]` for every row, `[r, B, ...]`, without a copy."""
    return samples.expand(len(x), *samples.shape)


def _channels_last(filters: Tensor) -> Tensor:
    """A copy of filters `[O, C, H, W]` whose layout says channels last even of a single channel, where torch's own
    conversion leaves it open and convolutions then take the other.
    """
    _, c, h, w = filters.shape
    return torch.empty_strided(
        filters.shape, (c * h * w, 1, c * w, c), dtype=filters.dtype, device=filters.device
    ).copy_(filters)
