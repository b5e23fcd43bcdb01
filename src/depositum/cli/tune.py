"""`depositum tune`: choose the stepsize of a configuration, or other hyper-parameters, on held-out training data."""

import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from depositum.cli.options import ConfigFile, Overrides
from depositum.errors import ConfigError, RunError
from depositum.interrupt import StopOnSignal
from depositum.report.history_tables import FORMATS, MeasureFormat, format_measure
from depositum.report.progress import TuningProgress
from depositum.runs import load
from depositum.runs.folder import TUNING_RESULT
from depositum.tuning import AUTO, TuningResult, automatic, tune, write_result

#: Columns of the printed table besides the settings, with their headings and formats, which are those of all tables.
COLUMNS = {
    "iterations": FORMATS["iteration"],
    "held_out": MeasureFormat("held-out loss", FORMATS["test_loss"].form),
    "deviation": MeasureFormat("± sd", "{:.2g}"),
    "objective": MeasureFormat("φ on training", FORMATS["phi"].form),
    "test_accuracy": MeasureFormat("held-out accuracy %", FORMATS["test_accuracy"].form),
    "sparsity": FORMATS["sparsity"],
}


def command(
    config: ConfigFile,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="KEY=VALUES",
            help="A hyper-parameter and its values: algorithm.gamma=0.5,0.9 or problem.beta=1e-4,1e-3; repeatable.",
        ),
    ] = None,
    overrides: Overrides = None,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", help="Seeds of every candidate; the worst counts. Default: the run's, from 3 to 5."),
    ] = None,
    holdout: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of each client's training data that candidates are judged on.")
    ] = 0.1,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where to write tuning.toml, tuning.csv and tuning.png. Default: nowhere."),
    ] = None,
) -> None:
    """Choose the stepsize of CONFIG.toml, or other hyper-parameters, on held-out training data.

    The stepsize is searched for around 1/L, at every combination of the values of --over, unless it is among them. The
    candidates run side by side, with several seeds, on the clients' training data without a held-out part of each;
    the better half continues up to the length of the run. Of those whose held-out loss is within one standard
    deviation of the best, the one with the lowest training objective is chosen (of several values of β, the sparsest
    model); one that is close to a diverging one is not. With algorithm.alpha = "auto", `depositum run` does this first.
    """
    spec = load(config, overrides or [])
    grids = dict(map(_parse, over or []))
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"--out {out}: exists and is not an empty folder; choose another")
    name = f"algorithm.{spec.algorithm.stepsize_key}"
    if hasattr(spec.algorithm, spec.algorithm.stepsize_key) and not {name, spec.algorithm.stepsize_key} & {*grids}:
        spec = automatic(spec)
    with StopOnSignal() as stop:
        result = tune(
            spec, grids or None, seeds=seeds, holdout=holdout, callbacks=[TuningProgress()], on_loop=stop.attach
        )
    console = Console()
    console.print(_table(result, every=len(grids) == 0))
    for line in result.summary:
        typer.echo(line)
    if out is not None:
        write_result(result, spec, out)
        typer.echo(f"written: {out / TUNING_RESULT}")
    settings = " ".join(f"--set {key}={value}" for key, value in result.best.items())
    typer.echo(f"to use it: depositum run {config} {settings}")


def _parse(text: str) -> tuple[str, Any]:
    """`key=value,value` as a key and its values, each read as TOML or as a plain word."""
    key, equals, values = text.partition("=")
    if not equals or not key.strip() or not values.strip():
        raise ConfigError("--over", f"{text!r} given; it must be key=value,value, as in algorithm.gamma=0.5,0.9")
    return key.strip(), AUTO if values.strip() == AUTO else [_value(part) for part in values.split(",")]


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def _table(result: TuningResult, every: bool) -> Table:
    """All candidates or, of several values of other keys, the best stepsize of each combination."""
    shown = result.table if every else result.table[result.table["selected"]]
    columns = {name: text for name, text in COLUMNS.items() if shown[name].notna().any()}
    table = Table(
        *(key.partition(".")[2] for key in result.best),
        *(heading for heading, _ in columns.values()),
        "",
        box=None,
        pad_edge=False,
    )
    for _, row in shown.sort_values([*result.best, "iterations"]).iterrows():
        cells = [format_measure(row[[name]], form) for name, (_, form) in columns.items()]
        remark = "chosen" if row["chosen"] else "" if row["stable"] else _instability(int(row["diverged"]))
        values = [f"{row[key]:.4g}" if isinstance(row[key], float) else str(row[key]) for key in result.best]
        table.add_row(*values, *cells, remark, style="bold" if row["chosen"] else "")
    return table


def _instability(diverged: int) -> str:
    return f"{diverged} seed{'s' * (diverged != 1)} diverged" if diverged else "ended worse than it began"
