"""`depositum show`: the partition and the network of a configuration, as a picture."""

from pathlib import Path

import typer
from matplotlib.figure import Figure

from depositum import data
from depositum.cli.figure import FigureFile, Force, check_figure
from depositum.cli.run import ConfigFile, Overrides
from depositum.data import picture
from depositum.networks import draw
from depositum.report.saving import save
from depositum.runs import load
from depositum.runs.build import load_data, partition


def command(
    config: ConfigFile,
    overrides: Overrides = None,
    out: FigureFile = Path("show.png"),
    force: Force = False,
) -> None:
    """Draw who talks to whom and who has which classes.

    Also says the network's spectral gap, and how heterogeneous the partition is; of several seeds, the first's.
    """
    checked = load(config, overrides or [])
    check_figure(out, force)
    network = checked.make_network(config.parent)
    dataset = load_data(checked, config.parent)
    parts, _ = partition(checked, dataset, checked.run.seeds[0])
    kinds = dataset.kinds
    typer.echo(str(network) if network else f"{checked.algorithm.name} has a server: every client talks to it alone")
    sizes = sorted(map(len, parts))
    typer.echo(f"samples per client: {sizes[0]} to {sizes[-1]}, {sum(sizes)} in all")
    if kinds is not None:
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        picture.draw(parts, kinds, right, dataset.train.categories)
        what = "category" if dataset.train.categories else "label"
        typer.echo(
            f"heterogeneity (mean total-variation distance of {what} distributions): "
            f"{data.heterogeneity(parts, kinds):.3f}"
        )
    else:
        figure = Figure(figsize=(5, 4.2), layout="constrained")
        left = figure.subplots()
    if network:
        draw.draw(network, left)
    else:
        left.text(0.5, 0.5, "every client talks to a server", ha="center", va="center")
        left.set_axis_off()
    save(figure, out)
    typer.echo(f"picture: {out}")
