"""A model evaluated for all rows at once: each row's parameters on that row's samples.

Three backends compute the gradients, equal up to rounding. `loop` evaluates one client after another: the plain
reference, and the backend for models that cannot be batched over parameters (control flow that depends on values),
which a warning reports. `channels-last` is `loop` with the channels of images adjacent in memory, in which convolutions
and pooling on a CPU can be much faster. `vmap` evaluates all rows in one batched call; a model that implements
`forward_rows` is given all rows directly instead. On a CPU the fastest backend is found by measurement.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from depositum.errors import ConfigError, describe_exception
from depositum.layout import Layout
from depositum.operators import operator
from depositum.problem.compatibility import attribute_errors, check_loss, describe
from depositum.problem.handles import Handles
from depositum.problem.losses import Loss
from depositum.problem.precision import Precision, forward_backward
from depositum.problem.row_functions import RowFunctions
from depositum.problem.row_layers import with_row_layers
from depositum.randomness import TorchGenerators

Backend = Literal["loop", "channels-last", "vmap"]
Buffers = dict[str, Tensor]
#: Rows `[r, d]`, their inputs and targets `[r, B, ...]`, weights `[r, B]` and buffers.
GradientArguments = tuple[Tensor, Tensor, Tensor, Tensor, Buffers]

#: The fastest backend for everything that it depends on: a process chooses once, so that its runs agree to the byte.
_fastest_backends: dict[tuple[object, ...], Backend] = {}


class RowModel:
    """A model and a loss as functions of rows.

    Until `choose_backend` is called, the backend is `loop`.

    Parameters
    ----------
    model
        The architecture; its frozen parameters are shared by all rows, its trainable ones come from the rows. It may
        implement `forward_rows(parameters, inputs)`: the outputs `[r, B, ...]` for parameters `[r, *shape]` by name and
        inputs `[r, B, ...]`.
    loss
        Loss per sample.
    """

    def __init__(self, model: nn.Module, loss: Loss, precision: Precision) -> None:
        self.model = model
        self.layout = Layout.of(model)
        self.device = next(model.parameters()).device
        self.loss = loss.to(self.device, next(model.parameters()).dtype)
        self.precision = precision
        self._ties_weights = not _only_repeats_modules(model)
        #: The model as called under `vmap`.
        self.vmap_model = with_row_layers(model, precision, self.device)
        self.backend: Backend = "loop"
        self.has_forward_rows = hasattr(model, "forward_rows")
        #: Whether a forward pass in training mode draws random numbers: by hashing, or from torch's generators as well,
        #: which needs the loop.
        self.is_random = self.uses_generators = False
        self._draws = 0
        self._filters = [
            f"{name}.weight"
            for name, module in model.named_modules()
            if isinstance(module, nn.Conv2d | nn.ConvTranspose2d) and f"{name}.weight" in self.layout.names
        ]
        self._handle = _ROW_MODELS.add(self)

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
            `[r, B, ...]`, different samples for each row; or with `shared`, `[B, ...]`, the same for every row.
        weights
            `[r, B]`.
        buffers
            The model's buffers by name, each `[r, ...]`; they are not modified.
        train
            Training mode (batch statistics, dropout) or evaluation mode.
        noise
            A word per row, int64 `[r]`, from which a model's random numbers are hashed; 0 by default.
        """
        if noise is None and self.is_random:
            noise = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        if self.backend == "vmap":
            self.model.train(train)
            self.vmap_model.train(train)
            if self.has_forward_rows and shared:
                inputs, targets, shared = _for_each_row(x, inputs), _for_each_row(x, targets), False
            with forward_backward(self.precision):
                return self._gradients_vmap(x, inputs, targets, weights, buffers, noise, None if shared else 0)
        if shared:
            inputs, targets = _for_each_row(x, inputs), _for_each_row(x, targets)
        out, *new = _loop(self._handle, x, inputs, targets, weights, list(buffers.values()), train, noise)
        return out, dict(zip(buffers, new, strict=True))

    def evaluate(self, x: Tensor, inputs: Tensor, targets: Tensor, buffers: Buffers) -> tuple[Tensor, Tensor | None]:
        """Losses `[r, B]` and correct answers `[r, B]` (or None) of every row on the same samples `[B, ...]`.

        In evaluation mode.
        """
        self.model.eval()
        self.vmap_model.eval()
        buffers = {k: b.clone() for k, b in buffers.items()}  # a model may write to them even in evaluation mode
        batched = self.backend == "vmap" and len(x) > 1

        def losses(row: Tensor, buffers: Buffers) -> tuple[Tensor, Tensor]:
            outputs = self._forward(self._parameters(row), buffers, inputs, self._word(batched), batched)
            per_sample = self.loss.per_sample(outputs, targets)
            correct = self.loss.correct
            return per_sample, correct(outputs, targets) if correct else torch.zeros_like(per_sample, dtype=torch.bool)

        with torch.no_grad(), forward_backward(self.precision):
            if batched and self.has_forward_rows:
                all_targets = _for_each_row(x, targets).flatten(0, 1)
                outputs = self._forward_rows(self.layout.views(x), _for_each_row(x, inputs)).flatten(0, 1)
                values = self.loss.per_sample(outputs, all_targets).view(len(x), -1)
                counted = self.loss.correct(outputs, all_targets) if self.loss.correct else torch.zeros_like(values)
                correct = counted.view(len(x), -1)
            elif batched:
                values, correct = vmap(losses)(x, buffers)
            else:
                pairs = [losses(row, {k: b[i] for k, b in buffers.items()}) for i, row in enumerate(x)]
                values, correct = torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])
        return values, correct if self.loss.correct else None

    def outputs(self, row: Tensor, inputs: Tensor, buffers: Buffers) -> Tensor:
        """The outputs `[B, ...]` of one model `[d]` with its buffers on inputs `[B, ...]`, in evaluation mode."""
        self.model.eval()
        buffers = {k: b.clone() for k, b in buffers.items()}  # a model may write to them even in evaluation mode
        with torch.no_grad(), forward_backward(self.precision):
            return self._forward(self._parameters(row), buffers, inputs, self._word())

    # Preparation

    def check(self, row: Tensor, inputs: Tensor, targets: Tensor, buffers: Buffers) -> None:
        """Check the model and loss on a few inputs `[3, ...]` and all targets `[N, ...]`, in evaluation mode."""
        self.model.eval()
        row_buffers = {k: b[0].clone() for k, b in buffers.items()}
        # Two sizes, to detect a loss averaged over samples even if there are as many outputs as samples.
        for count in {min(size, len(targets)) for size in (2, 3)}:
            with torch.no_grad():
                with attribute_errors("model", f"fails on {describe(inputs[:count])}"):
                    outputs = self._forward(self.layout.views(row), row_buffers, inputs[:count], self._word(True))
                check_loss(self.loss, outputs, targets, count)

    def choose_backend(
        self,
        backend: Backend | Literal["auto"],
        x: Tensor,
        batch: tuple[Tensor, Tensor],
        buffers: Buffers,
        rows: int = 1,
        arguments: Callable[[int], GradientArguments] | None = None,
    ) -> None:
        """Set the backend, after a pass in training mode of one row `[1, d]` with its buffers on one batch `[B, ...]`.

        `"auto"` is `vmap` if the model supports it; on a CPU it is the fastest backend for a run of `rows` rows,
        measured on the first k of them as given by `arguments(k)`. A backend given by name is not measured.
        """
        inputs, targets = batch
        weights = torch.ones(1, len(inputs), dtype=x.dtype, device=x.device)
        what = f"fails in training on {describe(inputs)}"
        word = torch.zeros(1, dtype=torch.int64, device=x.device)
        with TorchGenerators(self.device) as generators, attribute_errors("model", what):
            self._draws = 0
            self.gradients(x, inputs, targets, weights, buffers, train=True, shared=True, noise=word)
            # A model that is given all rows at once does not say which row a random number is for.
            self.uses_generators = generators.were_used() or (self._draws > 0 and self.has_forward_rows)
            self.is_random = self._draws > 0 or self.uses_generators
        if backend in ("loop", "channels-last"):
            self.backend = backend
            return
        candidates: list[Backend] = [*(["channels-last"] if self._filters else []), "loop"]  # type: ignore[list-item]
        each = _for_each_row(x, inputs), _for_each_row(x, targets)
        reason = ""
        if self.uses_generators:
            reason = "it draws random numbers from a generator of torch"
        else:
            self.backend = "vmap"
            try:
                # Different samples for each row, as in training: this fails if the model's code depends on values.
                with innermost_module(self.vmap_model) as layer:
                    self.gradients(x, *each, weights, buffers, train=True, noise=word)
                candidates.insert(0, "vmap")
            except (RuntimeError, ValueError) as error:
                reason = describe_exception(error)
                if layer:
                    reason = f"{layer[-1]}: {reason}"
        if reason and backend == "vmap":
            raise ConfigError("backend", f"'vmap' given, but the model needs 'loop': {reason}")
        self.backend = candidates[0] if "vmap" in candidates else "loop"
        if reason and rows > 1:
            _warn_of_loop(rows, reason)
        if backend == "auto" and self.device.type == "cpu" and len(candidates) > 1 and arguments is not None:
            # A single row leaves nothing to batch.
            self.backend = self._fastest(candidates, rows, arguments) if rows > 1 else "loop"

    def _fastest(
        self, candidates: Sequence[Backend], rows: int, arguments: Callable[[int], GradientArguments]
    ) -> Backend:
        cached: dict[int, GradientArguments] = {}

        def run(backend: Backend, count: int) -> None:
            self.backend = backend
            if count not in cached:
                cached[count] = arguments(count)
            self.gradients(*cached[count], train=True)

        x, inputs, *_ = cached[1] = arguments(1)
        shapes = tuple(self.layout), tuple(inputs.shape), inputs.dtype, x.dtype, self.precision
        key = (str(self.model), self.loss.name, *shapes, rows, tuple(candidates), torch.get_num_threads())
        if key not in _fastest_backends:
            with TorchGenerators(self.device):
                _fastest_backends[key] = fastest_backend(run, candidates, rows)
        return _fastest_backends[key]

    # Passes

    def _parameters(self, row: Tensor) -> dict[str, Tensor]:
        """A row's parameters by name: views of it, except for filters to be copied to the channels-last layout."""
        views = self.layout.views(row)
        if self.backend == "channels-last":
            views |= {name: _channels_last(views[name]) for name in self._filters}
        return views

    def _word(self, wanted: bool = True) -> Tensor | None:
        """What random numbers are hashed from in evaluation; None where no function is replaced."""
        return torch.zeros((), dtype=torch.int64, device=self.device) if wanted or self.is_random else None

    def _forward(
        self,
        parameters: Mapping[str, Tensor],
        buffers: Buffers,
        inputs: Tensor,
        word: Tensor | None,
        batched: bool = False,
    ) -> Tensor:
        """The model's outputs; `buffers` contains the new ones afterwards.

        `word` is what the row's random numbers are hashed from. With None, torch's functions are used as they are.
        `batched` says that this is called under `vmap`.
        """
        state = {**parameters, **buffers}
        functions = RowFunctions(word, batched) if word is not None else None
        with (
            functions or nullcontext(),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"),
        ):
            model = self.vmap_model if batched else self.model
            outputs = functional_call(model, state, (inputs,), tie_weights=self._ties_weights)
        if functions is not None:
            self._draws += functions.draws
        # Most models write to their buffers in place; `state` contains those that are assigned as new tensors.
        buffers.update({name: state[name] for name in buffers})
        return cast(Tensor, outputs.float() if self.precision == "bf16" else outputs)

    def _forward_rows(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """The outputs `[r, B, ...]` of `forward_rows`, for parameters `[r, *shape]` and inputs `[r, B, ...]`."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            outputs: Tensor = self.model.forward_rows(parameters, inputs)  # type: ignore[operator]
        return outputs.float() if self.precision == "bf16" else outputs

    def _gradients_vmap(
        self,
        x: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor,
        buffers: Buffers,
        noise: Tensor | None,
        data: int | None,
    ) -> tuple[Tensor, Buffers]:
        def weighted(
            parameters: dict[str, Tensor],
            buffers: Buffers,
            word: Tensor,
            inputs: Tensor,
            targets: Tensor,
            weights: Tensor,
        ) -> tuple[Tensor, Buffers]:
            # Batch norm writes to its buffers, which vmap allows only for tensors made inside of it.
            buffers = {k: v.clone() for k, v in buffers.items()}
            outputs = self._forward(parameters, buffers, inputs, word, batched=True)
            return (self.loss.per_sample(outputs, targets) * weights).sum(), buffers

        # Rows are independent, so the gradient of the sum over rows contains each row's: autograd stays outside vmap.
        leaves = {k: v.detach().requires_grad_() for k, v in self.layout.views(x).items()}
        with torch.enable_grad():
            if self.has_forward_rows:
                outputs, new = self._forward_rows(leaves, inputs).flatten(0, 1), buffers
                values = self.loss.per_sample(outputs, targets.flatten(0, 1)) * weights.flatten()
            else:
                words = torch.zeros(len(x), dtype=torch.int64, device=x.device) if noise is None else noise
                dims = (0, 0, 0, data, data, 0)
                values, new = vmap(weighted, in_dims=dims)(leaves, buffers, words, inputs, targets, weights)
            parts = torch.autograd.grad(values.sum(), list(leaves.values()), materialize_grads=True)
        out = torch.cat([part.reshape(len(x), -1) for part in parts], dim=1)
        return out, {k: b.detach() for k, b in new.items()}

    def _gradients_loop(
        self, x: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor, buffers: Buffers, noise: Tensor | None
    ) -> tuple[Tensor, Buffers]:
        out = torch.empty_like(x)
        new = {k: b.clone() for k, b in buffers.items()}
        generators = TorchGenerators(self.device) if noise is not None and self.uses_generators else None
        seeds = noise.tolist() if generators and noise is not None else []
        with generators or nullcontext():
            for i, row in enumerate(x):
                if generators:
                    generators.seed(seeds[i])
                leaves = {k: v.detach().requires_grad_() for k, v in self._parameters(row).items()}
                row_buffers = {k: v[i] for k, v in new.items()}
                with torch.enable_grad():
                    outputs = self._forward(leaves, row_buffers, inputs[i], None if noise is None else noise[i])
                    value = (self.loss.per_sample(outputs, targets[i]) * weights[i]).sum()
                    parts = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
                torch.cat([part.reshape(-1) for part in parts], out=out[i])
                for name, buffer in row_buffers.items():
                    new[name][i].copy_(buffer.detach())
        return out, new


@contextmanager
def innermost_module(model: nn.Module) -> Iterator[list[str]]:
    """The modules that are being evaluated, outermost first; after an error in one of them, the last is where it was.

    Each is described by its name and class. Nothing is left of them if the forward pass succeeds.
    """
    entered: list[str] = []
    hooks = []
    for name, module in model.named_modules():
        text = f"layer {name!r} ({type(module).__name__})"
        if name:
            hooks.append(module.register_forward_pre_hook(lambda *_, text=text: entered.append(text)))
            hooks.append(module.register_forward_hook(lambda *_: entered.pop() and None))
    try:
        yield entered
    finally:
        for hook in hooks:
            hook.remove()


def _warn_of_loop(rows: int, reason: str) -> None:
    """Report that the models of all rows cannot be evaluated in one call."""
    warnings.warn(
        f"clients are trained one after another, {rows} passes in every iteration instead of one; on a GPU that takes "
        f"up to {rows} times as long. {reason[:1].upper()}{reason[1:]}"[:400],
        RuntimeWarning,
        stacklevel=2,
    )


def _for_each_row(x: Tensor, samples: Tensor) -> Tensor:
    """The same samples `[B, ...]` for every row, `[r, B, ...]`, without a copy."""
    return samples.expand(len(x), *samples.shape)


def _channels_last(filters: Tensor) -> Tensor:
    """A copy of filters `[O, C, H, W]` in channels-last layout.

    The strides say so even for a single channel, for which torch's own conversion leaves them ambiguous, so that
    convolutions would choose the other layout.
    """
    _, c, h, w = filters.shape
    return torch.empty_strided(
        filters.shape, (c * h * w, 1, c * w, c), dtype=filters.dtype, device=filters.device
    ).copy_(filters)


# The loop over rows as one operator: unrolled by a tracer, it would take minutes to compile and gain little.

_ROW_MODELS = Handles[RowModel]()


@operator("loop")
def _loop(
    handle: int,
    x: Tensor,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    buffers: Sequence[Tensor],
    train: bool,
    noise: Tensor | None,
) -> list[Tensor]:
    """The gradients `[r, d]` of a model's rows, and their new buffers, in the order of the model's buffers."""
    rows = _ROW_MODELS[handle]
    rows.model.train(train)
    named = dict(zip((name for name, _ in rows.model.named_buffers()), buffers, strict=True))
    with forward_backward(rows.precision), _autograd_inside_operator():
        out, new = rows._gradients_loop(x, inputs, targets, weights, named, noise)
    return [out, *new.values()]


@_loop.register_fake
def _(
    handle: int,
    x: Tensor,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    buffers: Sequence[Tensor],
    train: bool,
    noise: Tensor | None,
) -> list[Tensor]:
    return [torch.empty_like(x), *(torch.empty_like(buffer) for buffer in buffers)]


@contextmanager
def _autograd_inside_operator() -> Iterator[None]:
    """Enable autograd inside a custom operator, where torch disables it."""
    dispatch = torch._C
    excluded = dispatch._dispatch_tls_local_exclude_set()
    for key in ("AutogradFunctionality", "AutogradOther", "AutogradNestedTensor"):
        excluded = excluded.remove(getattr(dispatch.DispatchKey, key))
    with dispatch._ForceDispatchKeyGuard(dispatch._dispatch_tls_local_include_set(), excluded):
        yield


# The choice of a backend by measurement.

#: Approximate seconds of a measured pass, and repetitions of each.
PASS_SECONDS, REPEATS = 0.1, 2
#: The first candidate is chosen unless another one takes less than this share of its time.
TIE = 0.9
#: A backend whose first pass takes this many times that of the fastest is not measured again.
HOPELESS = 3.0


def fastest_backend(
    run: Callable[[Backend, int], object],
    candidates: Sequence[Backend],
    rows: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Backend:
    """The fastest of several backends, or the first of them if it takes at most a tenth longer.

    Parameters
    ----------
    run
        Computes the gradients of a number of rows with a backend.
    rows
        Rows of a run. Fewer are measured if they take long.
    """

    def seconds(backend: Backend, count: int) -> float:
        start = clock()
        run(backend, count)
        return clock() - start

    seconds("loop", 1)  # the first call is always slower
    count = min(rows, max(2, int(PASS_SECONDS / max(seconds("loop", 1), 1e-9))))
    best = {backend: seconds(backend, count) for backend in candidates}
    measured = [backend for backend in candidates if best[backend] <= HOPELESS * min(best.values())]
    for _ in range(REPEATS):
        for backend in measured:
            best[backend] = min(best[backend], seconds(backend, count))
    winner = min(best, key=best.__getitem__)
    return candidates[0] if TIE * best[candidates[0]] <= best[winner] else winner


def _only_repeats_modules(model: nn.Module) -> bool:
    """Whether a model uses a module several times, and shares parameters in no other way.

    Torch sets such a module once per use and restores the last one first, so that it would keep a row's parameters;
    one name of it is enough.
    """
    repeats = len(list(model.named_modules(remove_duplicate=False))) > len(list(model.modules()))
    held = [id(z) for m in model.modules() for z in [*m._parameters.values(), *m._buffers.values()] if z is not None]
    return repeats and len(set(held)) == len(held)
