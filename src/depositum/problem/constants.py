"""Estimates of the problem's constants in the theory: the smoothness L and the variance σ².

Both concern the local functions f_i (Assumptions 1 and 3), so they are maxima over clients.
"""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

from depositum.layout import Layout
from depositum.problem.oracle import Oracle
from depositum.problem.precision import forward_backward
from depositum.problem.row_model import Buffers
from depositum.randomness import seed_for


@dataclass(frozen=True)
class MeasuredConstant:
    """A constant and how it was found: `"closed form"` is a global bound, `"at the start"` an estimate at x_0."""

    value: float
    how: str


def smoothness(oracle: Oracle, iterations: int = 50) -> MeasuredConstant:
    """L, the maximum over clients: in closed form for a linear model, else by power iteration at the start point."""
    closed = _linear_smoothness(oracle)
    if closed is not None:
        return MeasuredConstant(max(closed), "closed form")
    return MeasuredConstant(max(_hessian_norms(oracle, iterations)), "at the start, power iteration")


def smoothness_of_trials(oracle: Oracle, iterations: int = 50) -> list[float]:
    """L of each trial, the maximum over its clients, independent of the other trials."""
    rows = _linear_smoothness(oracle) or _hessian_norms(oracle, iterations)
    n = len(rows) // oracle.trials
    return [max(rows[k : k + n]) for k in range(0, len(rows), n)]


def variance(oracle: Oracle, draws: int = 64) -> MeasuredConstant:
    """σ², the maximum over clients of E‖∇F_i(x, ξ) − ∇f_i(x)‖² at the start point, from `draws` samples each."""
    x = oracle.start()
    full = oracle.full_grad(x)
    total = torch.zeros(oracle.rows, dtype=torch.float64, device=oracle.device)
    oracle.begin(torch.full((), -1, dtype=torch.int64, device=oracle.device))
    for _ in range(draws):
        indices = oracle.sample(1).indices
        assert indices is not None
        inputs, targets = oracle.inputs[indices], oracle.targets[indices]
        terms = oracle.model.loss.terms  # the loss of a text is the sum over its tokens
        weights = oracle.scales[:, None] / (terms(targets) if terms else 1)
        single, _ = oracle.model.gradients(x, inputs, targets, weights, oracle.buffers, train=False)
        total += (single - full).square().sum(1, dtype=torch.float64)
    return MeasuredConstant(float(total.max()) / draws, f"at the start, {draws} samples per client")


def _linear_smoothness(oracle: Oracle) -> list[float] | None:
    """C λ_max(AᵀA/N_i) of every row for a single linear layer, c being the curvature of the loss.

    A contains a column of ones if the layer has a bias. None for any other model or loss.
    """
    curvature = oracle.problem.loss.curvature
    layer = _single_linear_layer(oracle.model.model)
    if curvature is None or layer is None or oracle.inputs[0].numel() != layer.in_features:
        return None
    bounds = []
    ends = [*oracle.offsets.tolist(), len(oracle.table)]
    for row, (first, last) in enumerate(pairwise(ends)):
        a = oracle.inputs[oracle.table[first:last]].flatten(1).double()
        if layer.bias is not None:
            a = torch.cat([a, torch.ones_like(a[:, :1])], dim=1)
        gram = a.T @ a if a.shape[1] <= a.shape[0] else a @ a.T
        norm = torch.linalg.matrix_norm(gram, 2) / (last - first)
        bounds.append(curvature * float(norm) * float(oracle.scales[row]))
    return bounds


def _single_linear_layer(model: nn.Module) -> nn.Linear | None:
    """The layer of a model that consists of one linear layer, possibly after flattening; None for any other model.

    Types are compared exactly: a user-defined module may do anything with a linear layer inside.
    """
    modules = [m for m in model.modules() if type(m) not in (nn.Sequential, nn.Flatten)]
    trained = all(p.requires_grad for p in model.parameters())
    return modules[0] if trained and len(modules) == 1 and type(modules[0]) is nn.Linear else None


def _hessian_norms(oracle: Oracle, iterations: int) -> list[float]:
    """‖∇²f_i(x_0)‖ of every row, by power iteration on Hessian-vector products."""
    model, layout = oracle.model.model.eval(), oracle.model.layout
    start = oracle.start()
    ends = [*oracle.offsets.tolist(), len(oracle.table)]
    norms = []
    for row, (first, last) in enumerate(pairwise(ends)):
        indices = oracle.table[first:last]
        buffers = {k: b[row].clone() for k, b in oracle.buffers.items()}
        # The same for each row, so that the result does not depend on the other rows.
        generator = torch.Generator().manual_seed(seed_for(0, purpose="power iteration"))
        v = torch.randn(layout.size, generator=generator, dtype=torch.float64).to(oracle.device, oracle.dtype)
        v, size = v / v.norm(), 0.0
        for _ in range(iterations):
            product = _hessian_product(oracle, model, layout, start[row], v, indices, buffers)
            product = product / float(oracle.terms[row])
            before, size = size, float(product.norm())
            if size == 0:
                break
            v = product / size
            if abs(size - before) <= 1e-3 * size:
                break
        norms.append(size * float(oracle.scales[row]))
    return norms


def _hessian_product(
    oracle: Oracle, model: nn.Module, layout: Layout, x: Tensor, v: Tensor, indices: Tensor, buffers: Buffers
) -> Tensor:
    """The Hessian of the sum of the losses of samples at x `[d]`, times v `[d]`."""
    out = torch.zeros_like(x)
    for chunk in torch.split(indices, oracle.samples_per_pass):
        inputs, targets = oracle.inputs[chunk], oracle.targets[chunk]

        def loss(row: Tensor, inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            outputs = functional_call(model, {**layout.views(row), **buffers}, (inputs,))
            return oracle.model.loss.per_sample(outputs, targets).sum()

        # Fused attention kernels have no second derivative.
        with forward_backward("float32"), sdpa_kernel(SDPBackend.MATH):
            out += vjp(grad(loss), x)[1](v)[0]
    return out
