"""`depositum theory`: the paper's convergence theory applied to a configuration, before any training."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from depositum import theory
from depositum.algorithms import Constant, Depositum, as_schedule
from depositum.channels import Channel
from depositum.cli.options import ConfigFile, Overrides
from depositum.errors import ConfigError
from depositum.metrics import cheap
from depositum.networks import Network
from depositum.networks.communication_network import MAX_WINDOW_CLIENTS
from depositum.problem.constants import MeasuredConstant, smoothness, variance
from depositum.runs import ResolvedConfig, build_engine, load

#: Terminal width needed by the table of conditions; in a narrower one the numbers are printed below each condition.
WIDE_TABLE = 76


def command(
    config: ConfigFile,
    overrides: Overrides = None,
    smooth: Annotated[
        float | None, typer.Option("--smoothness", metavar="L", help="Use this L instead of measuring it.")
    ] = None,
    noise: Annotated[
        float | None, typer.Option("--variance", metavar="SIGMA2", help="Use this σ² instead of measuring it.")
    ] = None,
) -> None:
    """Check the conditions of Theorem 1 for CONFIG.toml.

    L and σ² are measured on the data at the initial model (L in closed form for a linear model). Prints each condition
    with its slack and remedies, the largest stepsize that the theorem admits, its bound term by term, and the schedule
    of Corollary 1. These are worst-case guarantees; which stepsizes to try in practice is printed last.
    """
    _check_option("--smoothness", smooth, positive=True)
    _check_option("--variance", noise, positive=False)
    spec = load(config, overrides or [])
    method = spec.algorithm
    if not isinstance(method, Depositum):
        raise ConfigError("algorithm.name", f"{method.name!r} given; the theory applies to 'depositum' only")
    if not spec.config.run.steps:
        raise ConfigError("run.steps", "0 given; the theory needs at least one iteration")
    with Console(stderr=True).status("measuring L and σ² on the data"):  # minutes for a large model on a CPU
        measured = measure(spec, smooth, noise)
    console = Console(highlight=False)
    try:
        conditions = _condition_table(measured.setting, console.width)
        lines = [
            *_remedies(measured.setting),
            *_conclusions(measured),
            *_limitations(method, measured.network, spec.channel),
            *_practice(measured.setting),
        ]
    except (OverflowError, ZeroDivisionError):
        raise ConfigError(
            "--smoothness", f"L = {measured.setting.L:g} is too large to compute with; scale the loss"
        ) from None
    console.print(_input_table(measured))
    console.print(conditions)
    for line in lines:
        typer.echo(line)


@dataclass(frozen=True)
class MeasuredSetting:
    """The setting of a configuration, and the sources of its measured values."""

    setting: theory.Setting
    smoothness: MeasuredConstant
    variance: MeasuredConstant
    gap_known: bool  #: False if φ(x0) is infinite (x0 violates the constraint of an indicator): there are no bounds
    network: Network
    full: bool  #: whether gradients are full, so that σ² = 0 whatever the variance of one sample


def measure(spec: ResolvedConfig, smooth: float | None = None, noise: float | None = None) -> MeasuredSetting:
    """Measure the setting of a configuration on its data (for the first of several seeds)."""
    engine, run = build_engine([spec]), spec.config.run
    if len(engine.problem.trials) > 1:
        engine = engine.with_trials(engine.problem.labels[:1])
    engine.start()
    oracle, problem, batch = engine.oracle, engine.problem, run.batch_size
    L = MeasuredConstant(smooth, "given") if smooth is not None else smoothness(oracle)
    sigma2 = MeasuredConstant(noise, "given") if noise is not None else variance(oracle)
    # Losses and regularizers are ≥ 0, so φ(x0) is an upper bound on φ(x0) − φ*.
    gap = float(cheap(engine.state, oracle)["phi"][0])
    method = spec.algorithm
    assert isinstance(method, Depositum)
    setting = theory.Setting(
        n=problem.n,
        lam=engine.network.lam,
        period=run.period,
        beta=problem.beta,
        rho=problem.regularizer.rho,
        gamma=method.gamma,
        alpha=method.largest_prox_step(run.period),
        L=L.value,
        sigma2=0.0 if batch == "full" else sigma2.value,
        batch_size=1 if batch == "full" else batch,
        steps=run.steps,
        gap=gap if isfinite(gap) else 0.0,
    )
    return MeasuredSetting(setting, L, sigma2, isfinite(gap), engine.network, batch == "full")


def _check_option(key: str, value: float | None, positive: bool) -> None:
    if value is not None and not (isfinite(value) and (value > 0 or (value == 0 and not positive))):
        raise ConfigError(key, f"{value:g} given; it must be a finite number {'> 0' if positive else '≥ 0'}")


def _input_table(measured: MeasuredSetting) -> Table:
    """The quantities of the setting and their sources."""
    setting = measured.setting
    batch = "full" if measured.full else str(setting.batch_size)
    sample = f"{measured.variance.value:.6g}  ({measured.variance.how})"
    table = Table(title="inputs of the theory", title_justify="left", show_header=False)
    rows = (
        ("n, T0, T + 1, B", f"{setting.n}, {setting.period}, {setting.steps}, {batch}"),
        ("α, β, γ", f"{setting.alpha:g}, {setting.beta:g}, {setting.gamma:g}"),
        ("λ (spectral gap 1 − λ)", f"{setting.lam:.6g} ({1 - setting.lam:.6g}){_lam_scope(measured.network)}"),
        ("ρ of h", f"{setting.rho:g}"),
        ("L", f"{setting.L:.6g}  ({measured.smoothness.how})"),
        ("σ²", f"0  (full gradients; one sample: {sample})" if measured.full else sample),
        ("φ(x0) − φ* at most", f"{setting.gap:.6g}" if measured.gap_known else "∞  (h is infinite at x0)"),
    )
    for name, value in rows:
        table.add_row(name, value)
    return table


def _condition_table(setting: theory.Setting, width: int) -> Table:
    """Each condition with its numbers, in separate columns if the terminal is wide enough, otherwise below it."""
    table = Table(title="the conditions of Theorem 1", title_justify="left")
    wide = width >= WIDE_TABLE
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
    """The remedies of each violated condition, as lines."""
    violated = [condition for condition in theory.conditions(setting) if not condition.holds]
    if not violated:
        yield "all conditions hold"
        return
    yield "the theorem does not cover this run, which may converge all the same;"
    yield "to satisfy each condition, use:"
    for condition in violated:
        changes = [remedy.sentence.removeprefix("use ") for remedy in condition.remedies]
        yield f"  {condition.formula}:  {', or '.join(changes) or 'no change of a single value is sufficient'}"


def _conclusions(measured: MeasuredSetting) -> Iterator[str]:
    """The largest stepsize, the bound of Theorem 1 and the schedule of Corollary 1, as lines."""
    setting = measured.setting
    largest = theory.largest_alpha(setting)
    alpha = theory.rounded_down(largest.alpha)
    yield f"largest α that Theorem 1 admits: {alpha:.4g}  (αL = {alpha * setting.L:.3g}; worst case)"
    at = setting if theory.conditions_hold(setting) else replace(setting, alpha=alpha)
    where = "" if at is setting else f" at α = {at.alpha:.4g}"
    if measured.gap_known:
        bound = theory.bound(at)
        yield f"bound (T1i) on the mean of s/n over {setting.steps} iterations{where}: {bound.total:.4g}"
        yield from (f"  {name}: {value:.4g}" for name, value in bound.terms.items())
    else:
        yield "bound (T1i): none, since φ(x0) is infinite; start from a model that satisfies the constraint"
    if setting.steps < setting.n:
        yield f"Corollary 1 needs T + 1 ≥ n: at least {setting.n} steps"
        return
    # The schedule uses mini-batches, even if the configuration uses full gradients.
    setting = replace(setting, sigma2=measured.variance.value)
    schedule = theory.corollary_schedule(setting.n, setting.steps, setting.L)
    gamma, alpha = (theory.rounded_down(value) for value in (schedule.gamma, schedule.alpha))
    yield f"Corollary 1's schedule: batch_size = {schedule.batch_size}, gamma = {gamma:.4g}, alpha = {alpha:.4g}"
    if not theory.conditions_hold(theory.corollary_setting(setting)):
        steps = theory.smallest_steps(setting)
        yield "  it satisfies the conditions of Theorem 1 " + (
            f"from {steps:,} steps on" if steps else "for no number of steps"
        )
    elif measured.gap_known:
        yield f"  its bound (C1i): {theory.corollary_bound(setting).total:.4g}"


def _practice(setting: theory.Setting) -> Iterator[str]:
    """What the numbers above mean for the choice of a stepsize, as lines."""
    low, start, high = (theory.rounded_down(alpha, digits=2) for alpha in theory.practical_alphas(setting))
    yield ""
    yield "In practice: this is a worst-case guarantee, sufficient but not necessary;"
    yield "stepsizes that work are usually orders of magnitude larger (docs/theory.md)."
    yield f"Start with α = {start:g} (about 1/L), and try {low:g} to {high:g}."
    yield 'To have it chosen: depositum tune CONFIG.toml, or algorithm.alpha = "auto"'


def _lam_scope(network: Network) -> str:
    """Which W the λ of a time-varying network refers to."""
    if network.one_peer is not None or network.sequence is not None:
        return "  (of the mean W over all phases)"
    return "  (of W with all links present)" if network.intermittent else ""


def _limitations(method: Depositum, network: Network, channel: Channel) -> Iterator[str]:
    """Notes on the parts of the configuration that the theorem does not cover."""
    if network.varies:
        yield "note: the theorem assumes one W for all phases; nothing above is proven for this time-varying network"
        if network.n <= MAX_WINDOW_CLIENTS:
            phases = network.window
            yield f"effective λ, ‖W^{{B−1}} ⋯ W^0 − J‖^(1/B): {network.effective_lam():.6g} over B = {phases} phases"
    if not channel.exact:
        yield f"note: the theorem assumes that rows arrive as they are; nothing is proven for channel {channel.name!r}"
    if not isinstance(as_schedule(method.alpha), Constant):
        yield "note: the theorem assumes a constant α; the values above use the largest α of the schedule"
    if method.start != "average":
        yield f"note: the theorem assumes start = 'average'; this configuration has {method.start!r}"
