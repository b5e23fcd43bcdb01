"""`depositum methods`: what each method is, assumes, sends and asks for."""

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from depositum.algorithms import ALGORITHMS, Algorithm
from depositum.errors import ConfigError, listing, nearest
from depositum.runs.own_names import register_method

#: What the tables need to be read; a narrower terminal folds the lines itself.
WIDTH = 124


def command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A method to explain.")] = None,
) -> None:
    """List the methods, with the paper's complexity table for those it compares; with NAME, explain one."""
    if name is not None:
        explain(name)
        return
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(overview())
    console.print(complexity())
    typer.echo("`depositum methods NAME` explains one: its equations, hyper-parameters and defaults.")


def method_class(name: str) -> type[Algorithm]:
    """The class of a method, by the name a configuration gives it."""
    register_method(name, Path(), "")
    if name not in ALGORITHMS:
        raise ConfigError("", f"{name!r} is no method; it can be {listing(ALGORITHMS)}{nearest(name, ALGORITHMS)}")
    kind = ALGORITHMS[name]
    assert isinstance(kind, type)
    assert issubclass(kind, Algorithm)
    return kind


def in_order() -> list[str]:
    """The methods: composite ones among neighbours first, then smooth ones, then those with a server."""

    def place(name: str) -> tuple[bool, bool, bool, str]:
        kind = method_class(name)
        return name != "depositum", kind.server, kind.handles == "smooth", name

    return sorted(ALGORITHMS, key=place)


def overview() -> Table:
    """A line per method: what it is for and what it sends."""
    table = Table(title="methods", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("name", "regularizer h", "talks to", "period T0", "sends / phase", "method"):
        table.add_column(heading, no_wrap=heading != "method")
    for name in in_order():
        kind = method_class(name)
        method = kind()
        periods = "any" if method.periods is None else ", ".join(map(str, method.periods))
        sent = method.vectors()
        table.add_row(
            name,
            "none" if kind.handles == "smooth" else kind.handles,
            "a server" if kind.server else "neighbours",
            periods,
            f"{sent} vector{'s' * (sent != 1)}",
            kind.about.title,
        )
    return table


def complexity() -> Table:
    """The paper's Table "complexity": assumptions, complexity and communication schedule."""
    table = Table(
        title="the paper's comparison (K: mixing rounds)", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    headings = ("method", "mean-sq.\nsmooth", "bounded\nheterog.", "batch", "communication", "gradients\nper client",
                "mega-\nbatch", "linear\nspeedup", "interval", "mixing")  # fmt: skip
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    for name in in_order():
        kind = method_class(name)
        about = kind.about
        if not about.communication:
            continue
        table.add_row(
            name,
            yes(about.mean_squared_smoothness),
            yes(about.bounded_heterogeneity),
            about.batch,
            about.communication,
            about.gradients,
            yes(about.mega_batch),
            yes(about.linear_speedup),
            "T0" if name == "depositum" else "1",
            about.mixing,
        )
    return table


def yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def explain(name: str) -> None:
    """Print one method: its citation, its equations as its file opens, and its hyper-parameters."""
    kind = method_class(name)
    needed = [k for k, parameter in ALGORITHMS.parameters(name).items() if parameter.default is parameter.empty]
    if needed:
        raise ConfigError("", f"{name!r} has no defaults for {listing(needed)}, without which there is none to explain")
    about = kind.about
    supported = kind().periods
    periods = "any period T0" if supported is None else f"period T0 = {', '.join(map(str, supported))} only"
    handles = "no regularizer (h = 0)" if kind.handles == "smooth" else f"a {kind.handles} h"
    typer.echo(f"{name}: {about.title}\n{about.citation}\n")
    typer.echo(f"takes {handles}, {periods}, and talks to {'a server' if kind.server else 'neighbours'}; "
               f"sends {kind().vectors()} vector(s) per phase\n")  # fmt: skip
    typer.echo(inspect.getdoc(sys.modules[kind.__module__]) or "")
    typer.echo(f"\n{inspect.getdoc(kind)}\n")
    typer.echo("defaults:")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        typer.echo(f"  {field.name} = {getattr(kind(), field.name)!r}")
    if about.notes:
        typer.echo(f"\n{about.notes}")
