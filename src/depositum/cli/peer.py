"""`depositum peer`: train as one member of a federation."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from depositum.cli.interrupt import INTERRUPTED
from depositum.errors import ConfigError, DataError, DivergedError, renamed_keys
from depositum.federation.member_folder import MemberFolder
from depositum.interrupt import StopOnSignal


def command(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", help="The member's folder, from `depositum federation accept`.", show_default=False
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="This member's own data: it never leaves.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="What a member chooses for itself, e.g. run.device=cpu."),
    ] = None,
) -> None:
    """Train as one member of a federation; run again, it resumes.

    The member connects with its neighbours, and only with them, over mutual TLS. It waits for those that are not there
    yet, compares the agreement, and trains. Stop it at any time (Ctrl-C): the others wait, and the same command
    resumes, also after a crash. FOLDER/run has what every run has, and sent.csv and received.csv, an account of all
    that left and came in. Watch it from another terminal: depositum federation status FOLDER
    """
    member = MemberFolder.open(folder)  # before torch is imported: a second that a mistake need not take
    if data is None:
        raise ConfigError("--data", "missing; give this member's own data, as the agreement's problem.dataset reads it")
    from depositum.peers import run_member
    from depositum.report.progress import ProgressBar

    neighbours = ", ".join(member.agreement.neighbours(member.name))
    _print_line(f"{member.name} of {member.agreement.name}; neighbours: {neighbours}")
    with StopOnSignal() as stop, _as_typed():
        result = run_member(
            member,
            data=data,
            overrides=overrides or [],
            callbacks=[ProgressBar()],
            say=_print_line,
            on_loop=stop.attach,
        )
    if not (result.finished or result.stop_reason):
        steps = f"stopped at iteration {result.snapshot.t}"
        _print_line(f"{steps}; the others wait for {member.name}: run the same command to resume")
        raise typer.Exit(INTERRUPTED)
    if result.diverged:
        raise DivergedError(str(result.diverged[0]), result)
    last = result.history.records[-1]
    losses = {"training loss": last.get("train_loss"), "loss of its own model on its own data": last.get("own_loss")}
    reached = "".join(f", {name} {value:.4f}" for name, value in losses.items() if value is not None)
    typer.echo(f"finished: {result.snapshot.t} iterations{reached}")
    typer.echo(f"model: {member.runs / 'model.safetensors'}; history: {member.runs / 'history.csv'}")
    typer.echo(f"what left this computer: {member.runs / 'sent.csv'}; what came in: {member.runs / 'received.csv'}")


@contextmanager
def _as_typed() -> Iterator[None]:
    """In errors, name a member's data by what the user typed."""
    try:
        with renamed_keys(lambda key: "--data" if key in ("data", "problem.dataset") else key):
            yield
    except DataError as error:
        raise DataError(str(error).replace("problem.dataset:", "--data:", 1)) from None


def _print_line(line: str) -> None:
    typer.echo(line, err=True)
