"""The command line: what a person types. One file per command; errors a person can cause are one line."""

import io
import signal
import sys
import warnings
from contextlib import nullcontext
from typing import Annotated

import typer

from depositum.cli import compare, data, methods, reproduce, run, show, theory
from depositum.cli.interrupt import Interrupted, StopOnSignal
from depositum.engines.processes import launched
from depositum.errors import DepositumError

#: What a run that was interrupted exits with (docs/cli.md); errors have codes of their own.
INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    help="""Decentralized composite federated learning: n clients, no server, one sparse, low-rank or constrained model.

    Begin with:  depositum run examples/demo.toml --out runs/demo

    Then change a setting:  depositum run examples/demo.toml --set algorithm.alpha=0.1 --out runs/slower

    And look at both:  depositum compare runs/demo runs/slower""",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command("run")(run.command)
app.command("compare")(compare.command)
app.command("methods")(methods.command)
app.command("reproduce")(reproduce.command)
app.command("show")(show.command)
app.command("theory")(theory.command)
app.command("data")(data.command)


def _version(wanted: bool) -> None:
    if wanted:
        from depositum import __version__

        print(f"depositum {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _warn(message: Warning | str, *_: object) -> None:
    """A warning is one line too, and says nothing of where in the code it was given."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line; a person's mistake ends with one line and exit code 2, Ctrl-C with 130.

    One process among many ends at once when its launcher says so, until it trains (`StopTogether`).
    """
    warnings.showwarning = _warn  # type: ignore[assignment]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # where there is no α, a "?" is better than nothing
    try:
        with nullcontext() if launched() else StopOnSignal():
            app()
    except DepositumError as mistake:
        print(f"error: {' '.join(str(mistake).split())}", file=sys.stderr, flush=True)
        sys.exit(mistake.exit_code)
    except Interrupted:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
