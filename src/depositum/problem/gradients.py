"""Gradients and losses of all rows at once: each row's parameters against that row's samples.

Two equal backends. `loop` evaluates one client after another: the plain reference, the faster one for convolutions on
CPU, and the one for models that draw random numbers themselves (dropout) or that cannot be batched over parameters
(control flow on values). `vmap` evaluates all rows in one batched call. They differ by rounding only.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from depositum.errors import ConfigError
from depositum.layout import Layout
from depositum.problem.batched import batched
from depositum.problem.losses import Loss, check_per_sample
from depositum.problem.precision import Precision, forward_backward
from depositum.randomness import TorchGenerators

Buffers = dict[str, Tensor]
Backend = Literal["loop", "vmap"]


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
        #: Whether a forward pass in training mode is itself random.
        self.random = False

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
        self.model.train(train)
        self.batched.train(train)
        with forward_backward(self.precision):
            if self.backend == "vmap":
                return self._gradients_vmap(x, inputs, targets, weights, buffers, None if shared else 0)
            if shared:
                inputs, targets = inputs.expand(len(x), *inputs.shape), targets.expand(len(x), *targets.shape)
            return self._gradients_loop(x, inputs, targets, weights, buffers, noise)

    def evaluate(self, x: Tensor, inputs: Tensor, targets: Tensor, buffers: Buffers) -> tuple[Tensor, Tensor | None]:
        """Losses `[r, B]` and right answers `[r, B]` (or None) of every row on the same samples, in evaluation mode."""
        self.model.eval()
        self.batched.eval()
        buffers = {k: b.clone() for k, b in buffers.items()}  # measuring leaves no trace, whatever a model writes to

        together = self.backend == "vmap" and len(x) > 1

        def losses(row: Tensor, own: Buffers) -> tuple[Tensor, Tensor]:
            outputs = self._forward(self.layout.views(row), own, inputs, self.batched if together else self.model)
            per_sample = self.loss.per_sample(outputs, targets)
            correct = self.loss.correct
            return per_sample, correct(outputs, targets) if correct else torch.zeros_like(per_sample, dtype=torch.bool)

        with torch.no_grad(), forward_backward(self.precision):
            if together:
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
                with _blamed_on("problem.model", f"fails on {_described(inputs[:few])}"):
                    outputs = self._forward(self.layout.views(row), own, inputs[:few])
                if self.loss.check:
                    self.loss.check(outputs, targets)
                what = (
                    f"{self.loss.name!r} fails on outputs {_described(outputs)} and targets {_described(targets[:few])}"
                )
                with _blamed_on("loss", what):
                    losses = self.loss.per_sample(outputs, targets[:few])
                check_per_sample(losses, few)

    def settle(self, backend: Backend | Literal["auto"], x: Tensor, batch: tuple[Tensor, Tensor], own: Buffers) -> None:
        """Choose the backend, by trying one row `[1, d]` with its buffers on one batch `[B, ...]` in training mode.

        `"auto"` is `loop` where that is needed, or faster (convolutions on CPU), and `vmap` otherwise.
        """
        inputs, targets = batch
        weights = torch.ones(1, len(inputs), dtype=x.dtype, device=x.device)
        what = f"fails in training on {_described(inputs)}"
        with TorchGenerators(self.device) as generators, _blamed_on("problem.model", what):
            self.gradients(x, inputs, targets, weights, own, train=True, shared=True)
            self.random = generators.moved()
        convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in self.model.modules())
        if backend == "loop" or (backend == "auto" and (self.random or (convolves and self.device.type == "cpu"))):
            return
        self.backend = "vmap"
        try:
            self.gradients(x, inputs, targets, weights, own, train=True, shared=True)
        except (RuntimeError, ValueError) as error:
            if backend == "vmap":
                raise ConfigError("run.backend", f"'vmap' given, but the model needs 'loop': {_said(error)}") from error
            self.backend = "loop"

    # How it is done

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
            values, new = vmap(weighted, in_dims=(0, 0, data, data, 0))(leaves, buffers, inputs, targets, weights)
            parts = torch.autograd.grad(values.sum(), list(leaves.values()), materialize_grads=True)
        out = torch.cat([part.reshape(len(x), -1) for part in parts], dim=1)
        return out, {k: b.detach() for k, b in new.items()}

    def _gradients_loop(
        self, x: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor, buffers: Buffers, noise: Tensor | None
    ) -> tuple[Tensor, Buffers]:
        out = torch.empty_like(x)
        new = {k: b.clone() for k, b in buffers.items()}
        generators = TorchGenerators(self.device) if noise is not None else None
        seeds = noise.tolist() if noise is not None else []
        with generators or nullcontext():
            for i, row in enumerate(x):
                if generators:
                    generators.seed(seeds[i])
                leaves = {k: v.detach().requires_grad_() for k, v in self.layout.views(row).items()}
                own = {k: v[i] for k, v in new.items()}
                with torch.enable_grad():
                    outputs = self._forward(leaves, own, inputs[i])
                    value = (self.loss.per_sample(outputs, targets[i]) * weights[i]).sum()
                    parts = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
                torch.cat([part.reshape(-1) for part in parts], out=out[i])
                for name, buffer in own.items():
                    new[name][i].copy_(buffer.detach())
        return out, new


@contextmanager
def _blamed_on(key: str, what: str) -> Iterator[None]:
    """A person's own code may raise anything: say whose it is, what it was given and what it said, in one line."""
    try:
        yield
    except Exception as error:
        raise ConfigError(key, f"{what}: {_said(error)}") from error


def _said(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _described(value: object) -> str:
    return f"{list(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__
