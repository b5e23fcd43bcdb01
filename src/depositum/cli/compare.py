"""`depositum compare`: finished runs side by side, or several methods on one configuration."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from depositum.algorithms import ALGORITHMS
from depositum.cli.interrupt import INTERRUPTED
from depositum.cli.options import Force, Live, Overrides, Report, check_figure_file
from depositum.cli.report import offer_report
from depositum.engines import describe_divergences
from depositum.errors import ConfigError, RunError, listing, nearest
from depositum.interrupt import StopOnSignal
from depositum.report.compared_runs import ComparedRun, Table, grouped_by_problem
from depositum.report.curves import X_AXES, draw_comparison
from depositum.report.history_tables import comparison_table
from depositum.report.live import LiveView, screen
from depositum.report.progress import ProgressBar, TuningProgress
from depositum.report.run_folders import distinct_names, read_run
from depositum.runs import ResolvedConfig, execute, load
from depositum.runs.config_file import register_extensions_of
from depositum.tuning import automatic, tuned


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR… | CONFIG.toml", help="Folders of runs, or a configuration file.", show_default=False
        ),
    ],
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="With CONFIG.toml: the methods to run, separated by commas (default all)."),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The figure's file (default compare.png); with CONFIG.toml, the folder of runs and figure "
            "(default runs/NAME for NAME.toml, or runs/NAME-tuned).",
        ),
    ] = None,
    tune: Annotated[
        bool,
        typer.Option("--tune", help="With CONFIG.toml: search for the best stepsize of every method before it is run."),
    ] = False,
    against: Annotated[
        str, typer.Option(metavar=f"<{'|'.join(X_AXES)}>", help="The horizontal axis of the curves.")
    ] = "iteration",
    live: Live = False,
    report: Report = False,
    force: Force = False,
) -> None:
    """Compare runs: a table of final measures, and their curves in one figure.

    With folders, the runs in them, finished or not. With CONFIG.toml, every method is run on it (or resumed) from the
    same seeds, partitions and initial models, with the settings of the file's [override.METHOD] sections; a method that
    diverges is reported, and the others continue. `depositum methods` lists the methods.

    Only runs that solve the same problem are ranked: those with another regularizer, β, loss, model or data, and those
    that diverged, are set apart. The stepsizes are shown where they differ: without --tune, they are those of the file
    or, for a method that it does not mention, the defaults. With --tune, each method has the stepsize that `depositum
    tune` chooses for it, with three seeds, on held-out training data; it is stored in the method's folder.
    """
    if against not in X_AXES:
        raise ConfigError("--against", f"{against!r} given; it can be {listing(X_AXES)}{nearest(against, X_AXES)}")
    reference: Table | None = None
    if len(runs) == 1 and runs[0].suffix == ".toml":
        # All configurations are checked before the first method runs.
        configs = load_methods(runs[0], methods, overrides or [])
        if tune:
            configs = {name: _with_automatic_stepsize(config) for name, config in configs.items()}
        folder = out or Path("runs") / (runs[0].stem + "-tuned" * tune)
        figure = folder / "compare.png"
        if not any((folder / _folder_name(name) / "config.toml").exists() for name in ALGORITHMS) and figure.exists():
            check_figure_file(figure, force)  # not written by an earlier call of this command
        with screen(f"depositum compare {runs[0]}, in {folder}", live) as view:
            compared = run_methods(configs, folder, view)
        reference = own_problem(runs[0], overrides or [])
        runs, page_folder = [folder / _folder_name(run.name) for run in compared], folder
    else:
        settings = " ".join(overrides or [])
        for option, given in (
            ("--methods", methods),
            ("--set", settings),
            ("--tune", "the option" * tune),
            ("--live", "the option" * live),
        ):
            if given:
                raise ConfigError(option, f"{given} given; it can only be used with CONFIG.toml, not with folders")
        figure = out or Path("compare.png")
        check_figure_file(figure, force)
        _check_distinct(runs)
        page_folder = figure.parent
        compared = [read_run(name, path, _warn) for name, path in zip(distinct_names(runs), runs, strict=True)]
    groups = grouped_by_problem(compared, reference)
    draw_comparison(groups, figure, against=against)
    console = Console()
    console.print(comparison_table(groups, console.width, show_stepsizes=tune))
    if tune:
        typer.echo(f"each method has its own best stepsize, chosen on held-out data: {folder}/METHOD/tuning.toml")
    typer.echo(f"curves: {figure}")
    offer_report(runs, page_folder, report, reference)


def load_methods(config: Path, methods: str | None, overrides: Sequence[str]) -> dict[str, ResolvedConfig]:
    """The configuration of each method to run, all of them checked.

    If methods were not chosen by name, those that do not support the configuration are left out, and reported.
    """
    names = selected_methods(methods, config, overrides)
    if methods not in (None, "all"):
        return {name: load(config, overrides, name) for name in names}
    load(config, overrides)  # what is wrong for the file's own method is an error, not a property of a method
    out: dict[str, ResolvedConfig] = {}
    refused: dict[str, list[str]] = {}
    for name in names:
        try:
            out[name] = load(config, overrides, name)
        except ConfigError as error:
            refused.setdefault(error.key, []).append(name)
    for key, left_out in refused.items():
        typer.echo(f"not run, since they do not support this {key}: {', '.join(left_out)}", err=True)
    if refused:
        typer.echo("[override.METHOD] sections change settings for them: docs/methods.md", err=True)
    return out


def own_problem(config: Path, overrides: Sequence[str]) -> Table | None:
    """The complete table of the file's own method, whose problem the others are compared with; None if it has none."""
    try:
        return tomllib.loads(load(config, overrides).dump())
    except ConfigError:  # a file whose own settings are all in its [override] sections
        return None


def _with_automatic_stepsize(config: ResolvedConfig) -> ResolvedConfig:
    """The configuration with a stepsize to be searched for; as it is, for a method without a known stepsize."""
    return automatic(config) if hasattr(config.algorithm, config.algorithm.stepsize_key) else config


def run_methods(configs: Mapping[str, ResolvedConfig], folder: Path, view: LiveView | None = None) -> list[ComparedRun]:
    """Run (or resume) each method with its configuration in a subfolder of `folder`.

    A method for which no stepsize is found is reported, and the others continue.
    """
    if folder.exists() and not folder.is_dir():
        raise RunError(f"--out {folder}: is a file; it must be a folder")
    out, failed = [], None
    if view is not None:
        view.wait_for(configs)
    for number, (name, config) in enumerate(configs.items(), start=1):
        if view is None:
            typer.echo(f"{number}/{len(configs)} {name}", err=True)
        subfolder = folder / _folder_name(name)
        with StopOnSignal() as stop:
            try:
                tuning = TuningProgress() if view is None else view.run(f"{name}, tuning", quiet=True)
                choice = tuned(config, subfolder, callbacks=[tuning], on_loop=stop.attach)
            except ConfigError as error:
                failed = error
                typer.echo(f"{name} is left out: {error}", err=True)
                continue
            if choice.result is not None:
                first, *_, cost = choice.result.summary
                typer.echo(f"{name}: {first}; {cost}", err=True)
            progress = ProgressBar() if view is None else view.run(name)
            result = execute(choice.spec, subfolder, callbacks=[progress], on_loop=stop.attach)
        if result.damage is not None:
            typer.echo(f"warning: {result.damage}", err=True)
        if stop.requested and not result.finished:
            typer.echo(f"{name} stopped at iteration {result.snapshot.t}; run the same command to resume", err=True)
            raise typer.Exit(INTERRUPTED)
        diverged = describe_divergences(result.diverged, len(config.config.run.seeds))
        if diverged and view is None:
            typer.echo(f"{name}: {diverged}", err=True)
        out.append(ComparedRun(name, result.history.frame, tomllib.loads(choice.spec.dump()), diverged))
    if not out and failed is not None:
        raise failed
    return out


def _folder_name(method: str) -> str:
    """The folder of a method's run; names of user-defined methods (`file.py:Class`) contain a colon."""
    return method.replace(":", ".")


def selected_methods(methods: str | None, config: Path, overrides: Sequence[str]) -> list[str]:
    """The methods to run: those of `--methods`, or all, including user-defined ones that the configuration names."""
    if methods in (None, "all"):
        register_extensions_of(config, overrides)
        # A user-defined method is registered under two names; keep the last, which says where it is defined.
        return list({ALGORITHMS[name]: name for name in ALGORITHMS}.values())
    names = list(dict.fromkeys(name.strip() for name in methods.split(",")))
    for name in names:
        if name not in ALGORITHMS and ":" not in name:
            raise ConfigError(
                "--methods", f"{name!r} is not a method; it can be {listing(ALGORITHMS)}{nearest(name, ALGORITHMS)}"
            )
    return names


def _check_distinct(folders: list[Path]) -> None:
    """Raise if a run would be compared with itself."""
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise RunError(f"{folder}: given twice; give the folder of each run once")
        seen.add(folder.resolve())


def _warn(line: str) -> None:
    typer.echo(f"warning: {line}", err=True)
