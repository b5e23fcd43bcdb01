"""`depositum theory`: what the paper's theory says of a configuration, before any stepsize is chosen."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from depositum import theory
from depositum.algorithms import Constant, Depositum, as_schedule
from depositum.cli.options import ConfigFile, Overrides
from depositum.errors import ConfigError
from depositum.metrics import cheap
from depositum.networks import Network
from depositum.problem.constants import MeasuredConstant, smoothness, variance
from depositum.runs import Config, build_simulator, load

#: The columns that the table of conditions needs; a narrower one has the numbers below each condition.
WIDE = 76


def command(
    config: ConfigFile,
    overrides: Overrides = None,
    smooth: Annotated[
        float | None, typer.Option("--smoothness", metavar="L", help="Take this L instead of measuring it.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option("--variance", metavar="SIGMA2", help="Take this σ² instead of measuring it.")
    ] = None,
) -> None:
    """Check Theorem 1 for CONFIG.toml: what holds, and what would make the rest hold.

    L and σ² are measured on the data at the start (L in closed form for a linear model). Then: each condition with
    its slack and a remedy, the largest stepsize the theorem admits, its bound term by term, and Corollary 1's schedule.
    """
    _check_given("--smoothness", smooth, positive=True)
    _check_given("--variance", noise, positive=False)
    checked = load(config, overrides or [])
    method = checked.make_algorithm()
    if not isinstance(method, Depositum):
        raise ConfigError("algorithm.name", f"{method.name!r} given; the theory is of 'depositum'")
    if not checked.run.steps:
        raise ConfigError("run.steps", "0 given; theory speaks of one iteration or more")
    measured = measure(checked, config.parent, smooth, noise)
    console = Console(highlight=False)
    try:
        conditions = _conditions(measured.setting, console.width)
        lines = [*_remedies(measured.setting), *_conclusions(measured), *_beyond(method, measured.network)]
    except (OverflowError, ZeroDivisionError):
        raise ConfigError(
            "--smoothness", f"L = {measured.setting.L:g} is beyond what can be calculated with; scale the loss"
        ) from None
    console.print(_numbers(measured))
    console.print(conditions)
    for line in lines:
        typer.echo(line)


@dataclass(frozen=True)
class Asked:
    """The setting that theory is asked about, and where its measured numbers come from."""

    setting: theory.Setting
    smoothness: MeasuredConstant
    variance: MeasuredConstant
    gap_known: bool  #: False where φ(x0) is infinite, x0 being outside the set of an indicator: bounds say nothing
    network: Network
    full: bool  #: whether gradients are full ones, so that σ² = 0 whatever one sample's is


def measure(config: Config, base: Path, smooth: float | None = None, noise: float | None = None) -> Asked:
    """The setting of a configuration, from its data (of several seeds, the first)."""
    simulator = build_simulator(config, base)
    if len(simulator.problem.trials) > 1:
        simulator = simulator.with_seeds(simulator.problem.seeds[:1])
    simulator.start()
    oracle, problem, batch = simulator.oracle, simulator.problem, config.run.batch_size
    L = MeasuredConstant(smooth, "given") if smooth is not None else smoothness(oracle)
    sigma2 = MeasuredConstant(noise, "given") if noise is not None else variance(oracle)
    # Losses and regularizers here are ≥ 0, so φ(x0) itself bounds φ(x0) − φ*.
    gap = float(cheap(simulator.state, oracle)["phi"][0])
    method = config.make_algorithm()
    assert isinstance(method, Depositum)
    setting = theory.Setting(
        n=problem.n,
        lam=simulator.network.lam,
        period=config.run.period,
        beta=problem.beta,
        rho=problem.regularizer.rho,
        gamma=method.gamma,
        alpha=method.largest_prox_step(config.run.period),
        L=L.value,
        sigma2=0.0 if batch == "full" else sigma2.value,
        batch_size=1 if batch == "full" else batch,
        steps=config.run.steps,
        gap=gap if isfinite(gap) else 0.0,
    )
    return Asked(setting, L, sigma2, isfinite(gap), simulator.network, batch == "full")


def _check_given(key: str, value: float | None, positive: bool) -> None:
    if value is not None and not (isfinite(value) and (value > 0 or (value == 0 and not positive))):
        raise ConfigError(key, f"{value:g} given; it must be a finite number {'> 0' if positive else '≥ 0'}")


def _numbers(asked: Asked) -> Table:
    setting = asked.setting
    batch = "full" if asked.full else str(setting.batch_size)
    sample = f"{asked.variance.value:.6g}  ({asked.variance.how})"
    table = Table(title="what the theory is told", title_justify="left", show_header=False)
    rows = (
        ("n, T0, T + 1, B", f"{setting.n}, {setting.period}, {setting.steps}, {batch}"),
        ("α, β, γ", f"{setting.alpha:g}, {setting.beta:g}, {setting.gamma:g}"),
        ("λ (spectral gap 1 − λ)", f"{setting.lam:.6g} ({1 - setting.lam:.6g}){_of_what(asked.network)}"),
        ("ρ of h", f"{setting.rho:g}"),
        ("L", f"{setting.L:.6g}  ({asked.smoothness.how})"),
        ("σ²", f"0  (full gradients; of one sample {sample})" if asked.full else sample),
        ("φ(x0) − φ* at most", f"{setting.gap:.6g}" if asked.gap_known else "∞  (h is infinite at x0)"),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def _conditions(setting: theory.Setting, width: int) -> Table:
    """Each condition with its numbers, in columns of their own where there is room for that, or below it."""
    table = Table(title="the conditions of Theorem 1", title_justify="left")
    wide = width >= WIDE
    table.add_column("condition" if wide else "condition\n  left, right; slack", no_wrap=wide, overflow="fold")
    for heading in ("left", "right", "slack") if wide else ():
        table.add_column(heading, justify="right")
    table.add_column("holds", no_wrap=True)
    for condition in theory.conditions(setting):
        left, right, slack = (f"{value:.3g}" for value in (condition.left, condition.right, condition.slack))
        cells = (
            (condition.formula, left, right, slack) if wide else (f"{condition.formula}\n  {left}, {right}; {slack}",)
        )
        table.add_row(*cells, "yes" if condition.holds else "no")
    return table


def _remedies(setting: theory.Setting) -> Iterator[str]:
    broken = [condition for condition in theory.conditions(setting) if not condition.holds]
    if not broken:
        yield "all conditions hold"
        return
    yield "what would make each hold:"
    for condition in broken:
        ways = [remedy.sentence.removeprefix("take ") for remedy in condition.remedies]
        yield f"  {condition.formula}:  {', or '.join(ways) or 'no change of one number alone'}"


def _conclusions(asked: Asked) -> Iterator[str]:
    """The largest stepsize, the bound of Theorem 1 and the schedule of Corollary 1, in lines."""
    setting = asked.setting
    largest = theory.largest_alpha(setting)
    alpha = theory.rounded_down(largest.alpha)
    yield f"largest α that Theorem 1 admits here: {alpha:.4g}  (αL = {alpha * setting.L:.3g})"
    at = setting if theory.proven(setting) else replace(setting, alpha=alpha)
    where = "here" if at is setting else f"at α = {at.alpha:.4g}"
    if asked.gap_known:
        bound = theory.bound(at)
        yield f"bound (T1i) on the mean of s/n over {setting.steps} iterations {where}: {bound.total:.4g}"
        yield from (f"  {name}: {value:.4g}" for name, value in bound.terms.items())
    else:
        yield "bound (T1i): none, since φ(x0) is infinite; begin from a model that satisfies the constraint"
    if setting.steps < setting.n:
        yield f"Corollary 1 needs T + 1 ≥ n: at least {setting.n} steps"
        return
    # Its batches are of samples, whatever those of the configuration are.
    setting = replace(setting, sigma2=asked.variance.value)
    schedule = theory.corollary(setting.n, setting.steps, setting.L)
    gamma, alpha = (theory.rounded_down(value) for value in (schedule.gamma, schedule.alpha))
    yield f"Corollary 1's schedule: batch_size = {schedule.batch_size}, gamma = {gamma:.4g}, alpha = {alpha:.4g}"
    if not theory.proven(theory.corollary_setting(setting)):
        steps = theory.smallest_steps(setting)
        yield "  Theorem 1's conditions hold there " + (
            f"from {steps:,} steps on" if steps else "for no number of steps"
        )
    elif asked.gap_known:
        yield f"  its bound (C1i): {theory.corollary_bound(setting).total:.4g}"


def _of_what(network: Network) -> str:
    """Which W it is that has this λ, where there are many."""
    if network.one_peer is not None:
        return "  (of the mean of all phases)"
    return "  (of all links together)" if network.drop is not None else ""


def _beyond(method: Depositum, network: Network) -> Iterator[str]:
    """What of the configuration the theorem does not speak of."""
    if network.drop is not None or network.one_peer is not None:
        yield "note: the theorem is of one W in all phases; this network changes, and nothing above is proven of it"
    if not isinstance(as_schedule(method.alpha), Constant):
        yield "note: the theorem is of a constant α; the numbers above take the schedule's largest"
    if method.start != "average":
        yield f"note: the theorem is of start = 'average'; this configuration has {method.start!r}"
