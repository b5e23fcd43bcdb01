"""`depositum methods`: what each method is, assumes, sends and needs."""

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

#: Width at which the tables are readable; on a narrower terminal, long lines wrap.
WIDTH = 124


def command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A method to explain.")] = None,
) -> None:
    """List the methods, with the paper's complexity table; with NAME, explain one."""
    if name is not None:
        explain(name)
        return
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(overview())
    console.print(complexity())
    typer.echo("`depositum methods NAME` explains one: its equations, hyper-parameters and defaults.")


def method_class(name: str) -> type[Algorithm]:
    """The class of a method, by its name in a configuration; user-defined methods are `package.module:Class`."""
    if ":" in name:
        from depositum.runs.user_extensions import (
            register_method,  # loads torch, which the list of methods does not need
        )

        register_method(name, Path(), "")
    if name not in ALGORITHMS:
        raise ConfigError("", f"{name!r} is not a method; it can be {listing(ALGORITHMS)}{nearest(name, ALGORITHMS)}")
    kind = ALGORITHMS[name]
    assert isinstance(kind, type)
    assert issubclass(kind, Algorithm)
    return kind


def in_order() -> list[str]:
    """The paper's method, then composite methods over neighbours, then smooth ones, then methods with a server."""

    def rank(name: str) -> tuple[bool, bool, bool, str]:
        kind = method_class(name)
        return name != "depositum", kind.server, kind.handles == "smooth", name

    return sorted(ALGORITHMS, key=rank)


def overview() -> Table:
    """One line per method: its regularizers, its communication and its title."""
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
        about = method_class(name).about
        if not about.communication:
            continue
        table.add_row(
            name,
            _yes_or_no(about.mean_squared_smoothness),
            _yes_or_no(about.bounded_heterogeneity),
            about.batch,
            about.communication,
            about.gradients,
            _yes_or_no(about.mega_batch),
            _yes_or_no(about.linear_speedup),
            about.interval,
            about.mixing,
        )
    return table


def _yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def explain(name: str) -> None:
    """Print one method: its citation, the equations of its module docstring, and its hyper-parameters."""
    kind = method_class(name)
    required = [k for k, parameter in ALGORITHMS.parameters(name).items() if parameter.default is parameter.empty]
    if required:
        raise ConfigError(
            "", f"{name!r} has no defaults for {listing(required)}; only a method with defaults is explained"
        )
    about, method = kind.about, kind()
    periods = "any period T0" if method.periods is None else f"period T0 = {', '.join(map(str, method.periods))} only"
    handles = "no regularizer (h = 0)" if kind.handles == "smooth" else f"a {kind.handles} h"
    typer.echo(f"{name}: {about.title}\n{about.citation}\n")
    typer.echo(f"supports {handles}, {periods}, and talks to {'a server' if kind.server else 'neighbours'}; "
               f"sends {method.vectors()} vector(s) per phase\n")  # fmt: skip
    typer.echo(inspect.getdoc(sys.modules[kind.__module__]) or "")
    typer.echo(f"\n{inspect.getdoc(kind)}\n")
    typer.echo("defaults:")
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        typer.echo(f"  {field.name} = {getattr(method, field.name)!r}")
    if about.notes:
        typer.echo(f"\n{about.notes}")
