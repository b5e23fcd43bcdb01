"""The command line. One module per command, imported when the command is invoked; user errors are one line."""

import io
import sys
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from depositum.cli.interrupt import INTERRUPTED
from depositum.errors import DepositumError
from depositum.interrupt import Interrupted, StopOnSignal
from depositum.launch import launched

#: Commands in the order of the help: each is the function `command` of the module with its name, which is imported only
#: when it is invoked (torch alone takes a second). The text repeats the first sentence of the function's docstring.
COMMANDS = {
    "run": "Train with the settings of CONFIG.toml.",
    "compare": "Compare runs: a table of final measures, and their curves in one figure.",
    "report": "Write one HTML page about runs: curves, network, clients, settings, tables.",
    "tune": "Choose the stepsize of CONFIG.toml, or other hyper-parameters, on held-out training data.",
    "methods": "List the methods, with the paper's complexity table; with NAME, explain one.",
    "reproduce": "Run an experiment of the paper, and compare the results with the paper's.",
    "show": "Draw the network and the partition of a configuration.",
    "theory": "Check the conditions of Theorem 1 for CONFIG.toml.",
    "data": "List the datasets, and which files are present or missing; with NAME, download one.",
    "federation": "Enrol organisations that train together, each with its own data: new, request, approve, accept.",
    "peer": "Train as one member of a federation; run again, it resumes.",
}
#: How every command behaves: no completion scripts, plain help, errors in one line.
STYLE: dict[str, Any] = {"add_completion": False, "rich_markup_mode": None, "pretty_exceptions_enable": False}


class LazyCommands(TyperGroup):
    """A group whose commands are imported when they are invoked, not when they are listed.

    Attributes
    ----------
    package, commands_of_package
        The package whose modules define the commands, and their names with the texts of the help.
    """

    package = __name__
    commands_of_package: Mapping[str, str] = COMMANDS

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands_of_package)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands_of_package:
            return None
        module = import_module(f"{self.package}.{cmd_name}")
        if hasattr(module, "app"):  # a group of its own
            return typer.main.get_command(module.app)
        single = typer.Typer(**STYLE)
        single.command(cmd_name)(module.command)
        return typer.main.get_command(single)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.commands_of_package.items()))


app = typer.Typer(
    cls=LazyCommands,
    help="""Decentralized composite federated learning: n clients, no server, one sparse, low-rank or constrained model.

    Start with:  depositum run examples/demo.toml --out runs/demo

    Change a setting:  depositum run examples/demo.toml --set algorithm.alpha=0.1 --out runs/slower

    Compare both:  depositum compare runs/demo runs/slower""",
    no_args_is_help=True,
    **STYLE,
)


def _print_version(requested: bool) -> None:
    if requested:
        from depositum import __version__

        print(f"depositum {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def _print_warning(message: Warning | str, *_: object) -> None:
    """Print a warning as one line, without the position in the source code."""
    print(f"warning: {' '.join(str(message).split())}", file=sys.stderr, flush=True)


def main() -> None:
    """Run the command line: a user error prints one line and exits with code 2, Ctrl-C exits with 130.

    Under torchrun, signals end the process immediately until it trains (`StopUnderTorchrun`).
    """
    warnings.showwarning = _print_warning  # type: ignore[assignment]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without α prints "?" instead of failing
    try:
        with nullcontext() if launched() else StopOnSignal():
            app()
    except DepositumError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
    except Interrupted:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
