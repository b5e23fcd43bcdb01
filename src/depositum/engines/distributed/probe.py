"""What a process's code makes of inputs that are the same on every process: its model, its loss, its regularizer.

Parameters, shapes and names do not show that one host's file has another activation or another penalty. Outputs on the
same numbers do. The numbers are pseudo-random, and no sample of any client is used.
"""

import copy
import inspect
from collections.abc import Callable
from hashlib import blake2b

import torch
from torch import Tensor

from depositum.algorithms import Algorithm
from depositum.problem import Problem
from depositum.problem.model_copy import has_frozen_base

#: Samples in the batch, by how much parameters are moved from the start (where they may all be 0), τ of the prox.
SAMPLES, SPREAD, STEP = 4, 0.1, 0.05

#: Numbers by what was computed; None where the code does not accept these inputs.
Answers = dict[str, Tensor | None]


def probe(problem: Problem) -> Answers:
    """The outputs of the model, the losses of samples, h and its prox, in float64 if possible.

    Only the shape and the kind of a sample matter. The large frozen base of a language model is not run: processes
    compare its digest.
    """
    answers: Answers = dict.fromkeys(("outputs", "losses", "penalties", "proxes"))
    if not has_frozen_base(problem.model):
        for dtype in (torch.float64, torch.float32):
            outputs = _attempt(lambda dtype=dtype: _outputs(problem, dtype))  # type: ignore[misc]
            if outputs is not None:
                answers["outputs"] = outputs
                answers["losses"] = _attempt(lambda outputs=outputs: _losses(problem, outputs))  # type: ignore[misc]
                break
    if problem.composite:
        row, h = uniform(problem.layout.size).double().unsqueeze(0), problem.regularizer
        answers["penalties"], answers["proxes"] = _attempt(lambda: h.value(row)), _attempt(lambda: h.prox(row, STEP))
    return answers


def source_digest(algorithm: Algorithm) -> str:
    """A digest of the code of a user-defined method; empty for those of the package, or where there is no source."""
    kind = type(algorithm)
    if kind.__module__.split(".")[0] == __name__.split(".")[0]:
        return ""
    try:
        lines = inspect.getsource(kind).splitlines()
    except (OSError, TypeError):
        return ""
    return blake2b("\n".join(line.rstrip() for line in lines).encode(), digest_size=8).hexdigest()


def uniform(*shape: int) -> Tensor:
    """Numbers in [−1, 1), the same on every machine, float32."""
    return 2 * torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 1


def _outputs(problem: Problem, dtype: torch.dtype) -> Tensor:
    samples, layout = problem.train.inputs, problem.layout
    inputs = uniform(SAMPLES, *samples.shape[1:])
    # Any model that takes whole numbers (tokens, categories) accepts 0 and 1.
    inputs = inputs.to(dtype) if samples.is_floating_point() else (inputs > 0).to(samples.dtype)
    model = copy.deepcopy(problem.model).to("cpu", dtype).eval()
    row = problem.trials[0].start.detach().to("cpu", dtype) + SPREAD * uniform(layout.size).to(dtype)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        outputs = torch.func.functional_call(model, layout.views(row), (inputs,))
    assert isinstance(outputs, Tensor)
    return outputs


def _losses(problem: Problem, outputs: Tensor) -> Tensor:
    like = problem.train.targets
    targets = torch.zeros(SAMPLES, *like.shape[1:], dtype=outputs.dtype if like.is_floating_point() else like.dtype)
    return problem.loss.to(torch.device("cpu"), outputs.dtype).per_sample(outputs, targets)


def _attempt(compute: Callable[[], Tensor]) -> Tensor | None:
    """What is computed, or None if the user's code does not accept the inputs: a run with real samples shows why."""
    try:
        return compute().detach()
    except Exception:
        return None
