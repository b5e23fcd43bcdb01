"""`depositum compare`: runs side by side, or all methods on one configuration."""

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console

from depositum.algorithms import ALGORITHMS
from depositum.cli.figure import Force, check_figure
from depositum.cli.interrupt import StopOnSignal
from depositum.cli.run import Overrides
from depositum.errors import ConfigError, RunError, listing, nearest
from depositum.report import ProgressBar, comparison, draw_curves
from depositum.report.curves import AGAINST
from depositum.runs import Config, execute, load
from depositum.runs.folder import read_history
from depositum.runs.reading import register_own_of


def command(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="DIR… | CONFIG.toml", help="Folders of runs, or a configuration.", show_default=False),
    ],
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES", help="With CONFIG.toml: methods to run on it, with commas between (default all)."
        ),
    ] = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Where the figure goes (default compare.png); with CONFIG.toml, the folder for runs and figure "
            "(default runs/ and the file's name).",
        ),
    ] = None,
    against: Annotated[
        str, typer.Option(metavar=f"<{'|'.join(AGAINST)}>", help="What the curves are drawn against.")
    ] = "iteration",
    force: Force = False,
) -> None:
    """Compare runs: a table of final measures, and their curves in one figure.

    With folders, what they hold, finished or still running. With CONFIG.toml, every method is run on it (or gone on
    with), from the same seeds, partitions and initial models, with what the file's [override.METHOD] parts say of it; a
    method that diverges is reported and the rest goes on. `depositum methods` lists the methods.
    """
    if against not in AGAINST:
        raise ConfigError("--against", f"{against!r} given; it can be {listing(AGAINST)}{nearest(against, AGAINST)}")
    if len(runs) == 1 and runs[0].suffix == ".toml":
        # All are checked before the first is run.
        checked = {name: load(runs[0], overrides or [], name) for name in _chosen(methods, runs[0], overrides or [])}
        folder = out or Path("runs") / runs[0].stem
        figure = folder / "compare.png"
        if not any((folder / _folder(name) / "config.toml").exists() for name in ALGORITHMS) and figure.exists():
            check_figure(figure, force)  # it is none of this command's
        frames = run_methods(checked, folder, base=runs[0].parent)
    else:
        for option, given in (("--methods", methods), ("--set", " ".join(overrides or []))):
            if given:
                raise ConfigError(option, f"{given} given; folders hold runs as they are, it is for CONFIG.toml")
        figure = out or Path("compare.png")
        check_figure(figure, force)
        _check_different(runs)
        frames = {name: read_history(path) for name, path in zip(_labels(runs), runs, strict=True)}
    draw_curves(frames, figure, against=against)
    console = Console()
    console.print(comparison(frames, console.width))
    typer.echo(f"curves: {figure}")


def run_methods(checked: Mapping[str, Config], folder: Path, base: Path) -> dict[str, pd.DataFrame]:
    """The histories of methods, by name with their configurations, each run in a folder of its own name."""
    if folder.exists() and not folder.is_dir():
        raise RunError(f"--out {folder}: is a file; it must be a folder")
    frames = {}
    for place, (name, own) in enumerate(checked.items(), start=1):
        typer.echo(f"{place}/{len(checked)} {name}", err=True)
        with StopOnSignal() as stop:
            result = execute(own, folder / _folder(name), base=base, callbacks=[ProgressBar()], on_loop=stop.attach)
        if stop.requested and not result.finished:
            typer.echo(
                f"{name} stopped at iteration {result.snapshot.t}; the same command goes on from there", err=True
            )
            raise typer.Exit(128 + signal.SIGINT)
        for divergence in result.diverged:
            typer.echo(f"{name}: {divergence}", err=True)
        label = name if not result.diverged else f"{name} (diverged)"
        frames[label] = result.history.frame
    return frames


def _folder(method: str) -> str:
    """What the folder of a method's run is called; a person's own has a colon in its name."""
    return method.replace(":", ".")


def _chosen(methods: str | None, config: Path, overrides: Sequence[str]) -> list[str]:
    """The methods named, or all that there are, those of one's own that the configuration names with them."""
    if methods in (None, "all"):
        register_own_of(config, overrides)
        # One's own have two names, of which the later says where they are.
        return list({ALGORITHMS[name]: name for name in ALGORITHMS}.values())
    names = list(dict.fromkeys(name.strip() for name in methods.split(",")))
    for name in names:
        if name not in ALGORITHMS and ":" not in name:
            raise ConfigError(
                "--methods", f"{name!r} is no method; it can be {listing(ALGORITHMS)}{nearest(name, ALGORITHMS)}"
            )
    return names


def _check_different(folders: list[Path]) -> None:
    """Refuse a run that would be compared with itself."""
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise RunError(f"{folder}: is named twice; name the folder of each run once")
        seen.add(folder.resolve())


def _labels(folders: list[Path]) -> list[str]:
    """The folders' names, or their paths where names repeat."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
