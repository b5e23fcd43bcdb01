"""Hyper-parameters, periods, networks and regularizers that methods reject, since their analysis excludes them."""

from collections.abc import Callable

import pytest
import torch

import depositum as dp
from depositum.algorithms import (
    D2,
    DPSGD,
    DSGT,
    DSMT,
    GUT,
    KGT,
    Algorithm,
    ExactDiffusion,
    Extra,
    FedNMUT,
    HeavyBallGT,
    MomentumTracking,
    PgExtra,
    QuasiGlobal,
)
from depositum.engines import Simulator
from depositum.problem import from_client_data
from tests.support import method_problems as mp
from tests.support.equations_smooth import LAZY_PATH, PATH, SMOOTH_METHODS
from tests.support.method_problems import case_label, problem_kind, run

# Methods with a server


@pytest.mark.parametrize("name", ["fedavg", "fedavg-m", "scaffold", "scaffold-m"])
def test_smooth_methods_reject_a_regularizer(name: str) -> None:
    with pytest.raises(dp.ConfigError, match="for smooth problems"):
        dp.algorithm(name).check(1, composite=True, prox_modulus=0.0)
    dp.algorithm(name).check(5, composite=False, prox_modulus=0.0)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("feddualavg", "its prox steps grow"),
        ("fast-fedda", "its prox steps grow"),
        ("sonata", "its paper has no other; 'depositum-directed' takes any"),
    ],
)
def test_a_weakly_convex_regularizer_is_rejected_with_the_reason(name: str, why: str) -> None:
    """SONATA's prox step is α: the reason is its analysis."""
    with pytest.raises(dp.ConfigError, match=f"needs a convex h: {why}"):
        dp.algorithm(name).check(1, composite=True, prox_modulus=0.01)
    dp.algorithm(name).check(5, composite=True, prox_modulus=0.0)


@pytest.mark.parametrize(
    ("method", "key"),
    [
        (dp.algorithm("fedmid", alpha=0.3), "alpha"),
        (dp.algorithm("zhang-composite", alpha=0.3), "alpha"),
        (dp.algorithm("fedmid", alpha=0.2, server_step=1.5, client_prox=False), "alpha"),
    ],
)
def test_prox_steps_that_grow_with_the_round_are_checked(method: Algorithm, key: str) -> None:
    """αβρ < 1 is not enough: with T0 = 5 the prox step is 5α, which the error mentions."""
    method.check(1, composite=True, prox_modulus=1.0)
    message = f"^{key}: .*T0·α.* = 1.5·1 = 1.5, but the prox is single-valued"
    with pytest.raises(dp.ConfigError, match=message) as error:
        method.check(5, composite=True, prox_modulus=1.0)
    assert "\n" not in str(error.value)


def test_splitting_methods_check_eta_and_c() -> None:
    """ηβρ < 1 and βρ < c, independent of the inner stepsize; the error names η or c."""
    dp.algorithm("feddr", eta=0.9).check(5, composite=True, prox_modulus=1.0)
    dp.algorithm("fedadmm", c=1.1).check(5, composite=True, prox_modulus=1.0)
    for method, key in ((dp.algorithm("feddr", eta=1.0), "eta"), (dp.algorithm("fedadmm", c=1.0), "c")):
        with pytest.raises(dp.ConfigError, match=f"^{key}: "):
            method.check(5, composite=True, prox_modulus=1.0)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("fedavg", "alpha", 0.0),
        ("fedavg", "server_step", -1.0),
        ("fedavg-m", "gamma", 1.0),
        ("fedavg-m", "server_step", 0.0),
        ("scaffold", "option", "III"),
        ("scaffold", "server_step", 0.0),
        ("scaffold-m", "gamma", -0.1),
        ("scaffold-m", "server_step", float("nan")),
        ("fedmid", "server_step", 0.0),
        ("feddualavg", "server_step", float("inf")),
        ("feddr", "eta", 0.0),
        ("feddr", "relaxation", 2.0),
        ("feddr", "start", "one"),
        ("fedadmm", "c", 0.0),
        ("fast-fedda", "m", 0.0),
        ("fast-fedda", "G", -1.0),
        ("zhang-composite", "server_step", 0.0),
        ("zhang-composite", "start", "one"),
    ],
)
def test_errors_name_the_key_and_the_value(name: str, key: str, value: object) -> None:
    """For hyper-parameters given by name, as in a configuration, and by class."""
    for make in (lambda: dp.algorithm(name, **{key: value}), lambda: dp.algorithms.ALGORITHMS[name](**{key: value})):
        with pytest.raises(dp.ConfigError, match=f"^{key}: {value!r} given"):
            make()


def test_fedmid_without_any_prox_is_rejected() -> None:
    with pytest.raises(dp.ConfigError, match="'fedavg'"):
        dp.algorithm("fedmid", client_prox=False, server_prox=False)


# Decentralized methods


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: DPSGD(0.0), "alpha"),
        (lambda: DPSGD(form="both"), "form"),  # type: ignore[arg-type]
        (lambda: DSGT(form="third"), "form"),  # type: ignore[arg-type]
        (lambda: GUT(mu=1.1), "mu"),
        (lambda: GUT(mu=float("nan")), "mu"),
        (lambda: GUT(form="round"), "form"),  # type: ignore[arg-type]
        (lambda: FedNMUT(noise=-0.1), "noise"),
        (lambda: FedNMUT(noise_on="y"), "noise_on"),  # type: ignore[arg-type]
        (lambda: KGT(eta=0.0), "eta"),
        (lambda: MomentumTracking(b=1.0), "b"),
        (lambda: DSMT(b=-0.1), "b"),
        (lambda: HeavyBallGT(b=1.0), "b"),
        (lambda: HeavyBallGT(form="nesterov"), "form"),  # type: ignore[arg-type]
        (lambda: QuasiGlobal(b=1.0), "b"),
        (lambda: QuasiGlobal(mu=1.0), "mu"),
    ],
)
def test_invalid_hyperparameters_are_rejected(make: Callable[[], dp.Algorithm], key: str) -> None:
    with pytest.raises(dp.ConfigError) as caught:
        make()
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", [Extra(), PgExtra(), ExactDiffusion(), D2(), DSMT(), HeavyBallGT()], ids=case_label)
def test_methods_without_local_steps_reject_a_period(method: dp.Algorithm) -> None:
    with pytest.raises(dp.ConfigError) as caught:
        run(method, problem_kind(method), network=LAZY_PATH, period=2)
    assert caught.value.key == "period"


def test_d2_rejects_a_matrix_with_too_small_an_eigenvalue() -> None:
    """The smallest eigenvalue of an even ring with weights 1/3 is −1/3, up to rounding."""
    with pytest.raises(dp.ConfigError) as caught:
        run(D2(), "ridge", network=dp.ring(mp.N))
    assert caught.value.key == "mixing"
    run(D2(), "ridge", network=dp.ring(mp.N, mixing="lazy-metropolis"))


def test_decentralized_smooth_methods_reject_a_regularizer_and_pg_extra_too_large_a_step() -> None:
    smooth = {name: method for name, (method, *_) in SMOOTH_METHODS.items() if method.handles == "smooth"}
    assert len(smooth) == len(SMOOTH_METHODS) - 1
    for method in smooth.values():
        with pytest.raises(dp.ConfigError) as caught:
            run(method, "lasso", network=LAZY_PATH)
        assert caught.value.key == "regularizer"
    clients = list(zip(mp.A, mp.B, strict=True))
    model = torch.nn.Linear(mp.DIM, 1, bias=False).double()
    problem = from_client_data(model, clients, loss="mse", regularizer=dp.MCP(lam=1.0, theta=4.0), beta=2.0)
    Simulator(problem, PATH, PgExtra(1.9), settings=mp.SETTINGS)
    with pytest.raises(dp.ConfigError, match="αβρ"):
        Simulator(problem, PATH, PgExtra(2.0), settings=mp.SETTINGS)
