"""The right-hand sides of Theorem 1 and Corollary 1 for a cell, as measures beside what was measured.

They are computed from the cell's configuration: L is its `metrics.smoothness`, σ² the experiment's `variance`, and
φ(x0) − φ* is at most φ(x0), as losses and regularizers are not negative.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from depositum import networks, regularizers, theory
from depositum.algorithms import Constant, Depositum, as_schedule
from depositum.channels import as_channel
from depositum.engines import with_participation
from depositum.errors import ConfigError
from depositum.runs.config import Config
from depositum.runs.resolved import build_method


def _theorem1(setting: theory.Setting, t: int) -> float:
    """(T1i) for T = t: on the mean over x^0 … x^t."""
    bound = theory.bound(replace(setting, steps=t + 1))
    return bound.total if bound.proven else np.nan


def _corollary1(setting: theory.Setting, t: int) -> float:
    """(C1i) at the end of a run with the α, γ and B that the corollary prescribes for its length."""
    if t < setting.steps:
        return np.nan
    bound, prescribed = theory.corollary_bound(setting), theory.corollary_setting(setting)
    names = ("alpha", "gamma", "batch_size")
    same = all(np.isclose(getattr(setting, name), getattr(prescribed, name), rtol=1e-9) for name in names)
    return bound.total if bound.proven and same else np.nan


#: Measures that are right-hand sides, each a function of the setting and t; NaN where its conditions do not hold.
BOUNDS: dict[str, Callable[[theory.Setting, int], float]] = {"theorem1": _theorem1, "corollary1": _corollary1}


def check_bound(measure: str, variance: float | None, key: str) -> None:
    """Raise if a measure is a bound, and the experiment does not give the variance that it needs."""
    if measure in BOUNDS and variance is None:
        raise ConfigError(key, f"{measure!r} given; it needs variance (σ²) in the file")


def bound_values(measure: str, config: Config, variance: float, history: pd.DataFrame) -> "pd.Series[float]":
    """A bound at every record of a history, indexed as the history; each seed has its own φ(x0)."""
    setting = theory_setting(config, variance)
    if not is_covered(config):
        return pd.Series(np.nan, index=history.index)
    gaps = history[history["iteration"] == 0].set_index("seed")["phi"]
    values = {
        (seed, t): BOUNDS[measure](replace(setting, gap=float(gaps[seed])), int(t))
        for seed, t in zip(history["seed"], history["iteration"], strict=True)
    }
    return pd.Series(values.values(), index=history.index, dtype=float)


def is_covered(config: Config) -> bool:
    """Whether the theorem is about such a run: one W for all phases, rows that arrive as they are, one α, y⁰ = ḡ⁰."""
    method, section = build_method(config), config.network
    network = networks.build(section.topology, section.mixing, config.problem.clients, Path(), **section.losses)
    network = with_participation(network, config.run.engine_settings().participation)
    return (
        isinstance(method, Depositum)
        and method.start == "average"
        and isinstance(as_schedule(method.alpha), Constant)
        and as_channel(section.channel).exact
        and not (network.varies or network.directed or network.lost is not None)
    )


def theory_setting(config: Config, variance: float) -> theory.Setting:
    """The quantities of a configuration that the theory depends on; the gap is not known yet."""
    problem, network, run, method = config.problem, config.network, config.run, build_method(config)
    smoothness, batch = config.metrics.smoothness, run.batch_size
    if not isinstance(method, Depositum) or not isinstance(smoothness, float):
        raise ConfigError("variance", "the bounds are those of 'depositum', with a number as metrics.smoothness")
    return theory.Setting(
        n=problem.clients,
        lam=networks.build(network.topology, network.mixing, problem.clients, Path()).lam,
        period=run.period,
        beta=problem.beta,
        rho=regularizers.build(problem.regularizer).rho,
        gamma=method.gamma,
        alpha=method.largest_prox_step(run.period),
        L=smoothness,
        sigma2=0.0 if batch == "full" else variance,
        batch_size=1 if batch == "full" else batch,
        steps=run.steps,
        gap=0.0,
    )
