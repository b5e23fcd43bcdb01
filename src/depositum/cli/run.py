"""`depositum run`: train one seed or several; resume or extend the run in the output folder."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from depositum.cli.interrupt import INTERRUPTED, StopUnderTorchrun
from depositum.cli.options import ConfigFile, Live, Overrides, Report
from depositum.cli.report import offer_report
from depositum.engines import Callback
from depositum.errors import DivergedError
from depositum.interrupt import StopOnSignal
from depositum.launch import launched
from depositum.metrics import ended_worse
from depositum.report.client_spread import client_spread
from depositum.report.compared_runs import ComparedRun
from depositum.report.curves import draw_curves
from depositum.report.history_tables import summary_table
from depositum.report.live import LiveView, screen
from depositum.report.progress import ProgressBar, TuningProgress
from depositum.report.tensorboard import TensorBoard
from depositum.runs import ResolvedConfig, RunResult, execute, execute_distributed, join_run, load
from depositum.tuning import tuned


def command(
    config: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The run's folder. Default: runs/NAME for NAME.toml.")
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write TensorBoard files to the run's folder.")
    ] = False,
    live: Live = False,
    report: Report = False,
) -> None:
    """Train with the settings of CONFIG.toml.

    The run's folder contains config.toml (complete, with every default), history.csv (measures at every evaluated
    iteration), consensus.csv (the consensus error at every iteration), clients.csv (each client's measures on its own
    data), state.safetensors (the last checkpoint), model.safetensors (the averaged model) and curves.png. If DIR
    already contains this run, it resumes from the last checkpoint; with more steps (--set run.steps=1000) it is
    extended. Ctrl-C saves a checkpoint and exits with 130.

    Under torchrun (torchrun --nproc-per-node 10 -m depositum run CONFIG.toml), each process holds its own clients.
    """
    folder = out or Path("runs") / config.stem
    if launched():
        _run_as_process(config, overrides or [], folder, tensorboard, live, report)
        return
    spec = load(config, overrides or [])
    with StopOnSignal() as stop, screen(f"depositum run {config} --out {folder}", live) as view:
        tuning = TuningProgress() if view is None else view.run("tuning", quiet=True)
        spec = tuned(spec, folder, callbacks=[tuning], say=_print_line, on_loop=stop.attach).spec
        result = execute(
            spec,
            folder,
            callbacks=_callbacks(folder, tensorboard, view),
            say=_print_line,
            on_loop=stop.attach,
        )
    _report(result, spec, folder, stop.requested, report)


def _run_as_process(
    config: Path, overrides: list[str], folder: Path, tensorboard: bool, live: bool, report: bool
) -> None:
    """The same as one process of several; only rank 0 prints."""
    stop = StopUnderTorchrun()
    communicator, spec = join_run(config, overrides)
    title = f"depositum run {config} --out {folder}, {communicator.size} processes"
    with screen(title, live and communicator.rank == 0) as view:
        result = execute_distributed(
            spec,
            communicator,
            folder,
            callbacks=_callbacks(folder, tensorboard, view) if communicator.rank == 0 else [],
            say=_print_line,
            on_loop=stop.attach,
        )
    if communicator.rank == 0:
        _report(result, spec, folder, not result.finished, report)
        return
    if result.writes:
        _draw(result, folder)
    if not (result.finished or result.stop_reason):
        raise typer.Exit(INTERRUPTED)
    if result.diverged:
        raise typer.Exit(DivergedError.exit_code)  # rank 0 prints the reason


def _print_line(line: str) -> None:
    typer.echo(line, err=True)


def _callbacks(folder: Path, tensorboard: bool, view: LiveView | None) -> list[Callback]:
    progress = ProgressBar() if view is None else view.run(by_seed=True)
    return [progress, *([TensorBoard(folder / "tensorboard")] if tensorboard else [])]


def _seeds(diverged: list[int]) -> str:
    return f"seed{'s' * (len(diverged) > 1)} {', '.join(map(str, diverged))} diverged" if diverged else ""


def _draw(result: RunResult, folder: Path) -> Path:
    """Draw the curves of a run into its folder."""
    figure = folder / "curves.png"
    draw_curves({folder.resolve().name: result.history.frame}, figure, title=str(folder))
    return figure


def _report(result: RunResult, spec: ResolvedConfig, folder: Path, stopped: bool, page: bool) -> None:
    """Draw the curves and print the table of final measures, or where the run was stopped."""
    name, history, figure = folder.resolve().name, result.history.frame, _draw(result, folder)
    if stopped and not (result.finished or result.stop_reason):
        progress = f"stopped at iteration {result.snapshot.t} of {spec.config.run.steps}"
        typer.echo(f"{progress}; run the same command to resume", err=True)
        raise typer.Exit(INTERRUPTED)
    diverged = [divergence.seed for divergence in result.diverged]
    # The last finite values of a seed that diverged are not a result; if all did, they are all there is.
    sound = history[~history["seed"].isin(diverged)]
    Console().print(summary_table([ComparedRun(name, history if sound.empty else sound, diverged=_seeds(diverged))]))
    if spread := client_spread(folder):
        typer.echo(spread)
    typer.echo(f"curves: {figure}")
    offer_report([folder], folder, page)
    result.raise_if_diverged(spec)
    remedy = f"{spec.algorithm.shorter_steps('algorithm.')}, or `depositum tune`"
    if worse := ended_worse(history, remedy):
        Console(stderr=True).print(Text(f"warning: this run {worse}", style="bold yellow"), soft_wrap=True)
