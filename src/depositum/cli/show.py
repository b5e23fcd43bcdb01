"""`depositum show`: the network and the partition of a configuration, as a figure."""

from pathlib import Path

import typer
from matplotlib.figure import Figure

from depositum import data
from depositum.cli.options import ConfigFile, FigureFile, Force, Overrides, check_figure_file
from depositum.networks.drawing import draw_network
from depositum.report.figure_file import save_figure
from depositum.runs import load
from depositum.runs.problems import load_data, partition


def command(
    config: ConfigFile,
    overrides: Overrides = None,
    out: FigureFile = Path("show.png"),
    force: Force = False,
) -> None:
    """Draw the network and the partition of a configuration.

    Also prints the network's spectral gap, and how heterogeneous the partition is. With several seeds, the partition of
    the first is shown.
    """
    spec = load(config, overrides or [])
    check_figure_file(out, force)
    network = spec.network
    dataset = load_data(spec)
    parts, _ = partition(spec, dataset, spec.config.run.seeds[0])
    classes = dataset.class_labels
    typer.echo(str(network) if network else f"{spec.algorithm.name} has a server: clients talk to it only")
    sizes = sorted(map(len, parts))
    typer.echo(f"samples per client: {sizes[0]} to {sizes[-1]}, {sum(sizes)} in all")
    if classes is not None:
        figure = Figure(figsize=(11, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        data.draw_partition(parts, classes, right, dataset.train.categories)
        what = "category" if dataset.train.categories else "label"
        typer.echo(
            f"heterogeneity (mean total-variation distance of {what} distributions): "
            f"{data.heterogeneity(parts, classes):.3f}"
        )
    else:
        figure = Figure(figsize=(5, 4.2), layout="constrained")
        left = figure.subplots()
    if network:
        draw_network(network, left)
    else:
        left.text(0.5, 0.5, "every client talks to a server", ha="center", va="center")
        left.set_axis_off()
    save_figure(figure, out)
    typer.echo(f"figure: {out}")
