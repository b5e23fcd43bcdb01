"""Different user-defined code on one rank is refused by name, although shapes and initial values are the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import depositum as dp
from depositum.engines.distributed import check_consistency
from depositum.engines.distributed.probe import probe
from depositum.errors import ConfigError, GroupError
from depositum.problem import Problem, from_client_data
from tests.support.thread_communicator import ThreadCommunicator, run_threads

DATA = [(torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.arange(20) % 3)]


def network_of(activation: type[nn.Module], zero: bool = False) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 3))
    if zero:
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
    return model


class Penalty(dp.Regularizer):
    """A user-defined h = weight·‖x‖²/2."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def value(self, x: Tensor) -> Tensor:
        return self.weight * x.square().sum(-1) / 2

    def _prox(self, z: Tensor, tau: Any) -> Tensor:
        return z / (1 + tau * self.weight)

    def subdifferential_distance(self, x: Tensor, v: Tensor) -> Tensor:
        return (v - self.weight * x).norm(dim=-1)


def problem(model: nn.Module | None = None, **changes: Any) -> Problem:
    return from_client_data(model or network_of(nn.ReLU), DATA, **{"seed": 0, **changes})


def refusals(*own: Callable[[], Problem]) -> list[str]:
    """The error of each rank, whose problems these are."""

    # Not in the threads: they would draw initial parameters from one generator at the same time.
    problems = [make() for make in own]

    def one(communicator: ThreadCommunicator) -> str:
        try:
            check_consistency(communicator, problems[communicator.rank], None)
        except (ConfigError, GroupError) as error:
            return str(error)
        return ""

    return run_threads(len(own), one)


@pytest.mark.parametrize("zero", [False, True])
def test_another_activation_on_one_rank_is_refused(zero: bool) -> None:
    """Tanh against ReLU; also where all initial parameters are 0, and so are all outputs. Fails if it trains."""
    relu, tanh = (lambda a=a: problem(network_of(a, zero)) for a in (nn.ReLU, nn.Tanh))  # type: ignore[misc]
    first, second, third = refusals(relu, relu, tanh)
    expected = "model: outputs on the same numbers differ between rank 2 (thread) and rank 0 (thread)"
    assert third.startswith(expected)
    assert first == second == f"rank 2 (thread) stopped: {third}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": lambda outputs, targets: outputs.square().sum(1)}, "loss: losses on the same numbers differ"),
        ({"regularizer": Penalty(1.01), "beta": 0.1}, "regularizer: penalties on the same numbers differ"),
    ],
)
def test_another_loss_or_penalty_on_one_rank_is_refused(changes: dict[str, Any], message: str) -> None:
    same = {"loss": lambda outputs, targets: outputs.abs().sum(1), "regularizer": Penalty(1.0), "beta": 0.1}
    first, second = refusals(lambda: problem(**same), lambda: problem(**same | changes))
    assert second.startswith(message)
    assert first.endswith(second)


def test_a_penalty_with_another_prox_is_refused() -> None:
    """The value is the same; only the prox has a mistake."""

    class Mistaken(Penalty):
        def _prox(self, z: Tensor, tau: Any) -> Tensor:
            return z / (1 + 2 * tau * self.weight)

    own = [lambda h=h: problem(regularizer=h(1.0), beta=0.1) for h in (Penalty, Mistaken)]
    assert refusals(*own)[1].startswith("regularizer: proxes on the same numbers differ")


@pytest.mark.parametrize(
    "make",
    [
        lambda: problem(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))),
        lambda: from_client_data(nn.Linear(4, 1), [(torch.zeros(9, 4), torch.zeros(9))], seed=0),
        lambda: from_client_data(
            nn.Sequential(nn.Embedding(7, 2), nn.Flatten(), nn.Linear(6, 2)),
            [(torch.ones(9, 3, dtype=torch.int64), torch.zeros(9, dtype=torch.int64))],
            seed=0,
        ),
        lambda: problem(regularizer=dp.MCP(), beta=1e-3),
    ],
)
def test_the_same_code_is_accepted(make: Callable[[], Problem]) -> None:
    """Models with buffers, dropout and whole numbers as inputs, regression, a nonconvex penalty; all can be probed."""
    torch.manual_seed(3)
    made = make()
    assert refusals(lambda: made, lambda: made) == ["", ""]
    answers = probe(made)
    assert answers["outputs"] is not None
    assert answers["losses"] is not None
    assert (answers["proxes"] is not None) == made.composite


class Cautious(nn.Linear):
    """Accepts only the inputs that it was made for, in their own dtype."""

    def forward(self, x: Tensor) -> Tensor:
        if not (x.abs() > 5).all():
            raise ValueError("these are not mine")
        return super().forward(x)


def test_code_that_does_not_accept_the_numbers_is_not_refused() -> None:
    """All ranks fail alike. Fails if a probe is an obstacle for a model that works with its own data."""
    data = [(torch.full((9, 4), 6.0), torch.zeros(9, dtype=torch.int64))]
    own = [lambda: from_client_data(Cautious(4, 3), data, seed=0) for _ in range(2)]
    torch.manual_seed(0)
    made = own[0]()
    assert refusals(lambda: made, lambda: made) == ["", ""]


def test_a_probe_draws_no_random_numbers() -> None:
    """Fails if a later draw, such as that of dropout, depends on it."""
    made = problem(nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    probe(made)
    assert torch.equal(torch.rand(3), expected)
