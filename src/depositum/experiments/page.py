"""The whole comparison on one page, made from a folder of results."""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from depositum.experiments.definition import load, names
from depositum.experiments.output import counted
from depositum.report.units import format_duration as duration

INTRODUCTION = """\
# Reproduction

The paper's experiments, ours beside the paper's. Made by `depositum reproduce --page` from what
`depositum reproduce ID` leaves in `results/ID`; what is said in words is in the experiments' files.

```
depositum reproduce stepsize          # one experiment: figure, table, claims in results/stepsize
depositum reproduce all               # every one
depositum reproduce stepsize --quick  # the same path on small data, in seconds
depositum reproduce mine.toml         # one of your own
```

Each experiment is a file, `src/depositum/experiments/ID.toml`: a base configuration, the axes of a sweep, what is drawn
and tabulated, the paper's printed numbers, and each of its claims as a check that can fail.
[The command line](cli.md#reproducing-the-paper) says what the options do and how a file is written.

How to read it: curves and tables are means over seeds with one sample standard deviation. A claim `holds` or `does not
hold` by the criterion in the file, with the numbers that decide it. σ is the combined standard deviation √(s₁² + s₂²)
of the paper's runs and ours.
"""


def page(results: Path, out: Path) -> str:
    """The page's text; links lead from where `out` is to the results."""
    sections, overview, everything = [], [], []
    for name in _found(results):
        folder = results / name
        told = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        overview.append(_overview(name, told))
        everything.append(told)
        sections.append(_section(name, folder, told, out))
    if not sections:
        return f"{INTRODUCTION}\nThere are no results yet: `depositum reproduce all` makes them.\n"
    head = "| experiment | paper | claims | seeds | device time | machine |\n|---|---|---|---|---|---|\n"
    overview.append(_total(everything))
    return "\n".join([INTRODUCTION, head + "\n".join(overview) + "\n", *sections])


def _found(results: Path) -> list[str]:
    """The experiments that have results: the package's in its order, then a person's own."""
    here = [path.parent.name for path in sorted(results.glob("*/summary.json"))]
    return [name for name in names() if name in here] + [name for name in here if name not in names()]


def _overview(name: str, told: dict[str, Any]) -> str:
    return (
        f"| [{told['title']}](#{_anchor(name)}) | {told['paper']} | {counted(told['claims'])} | {_seeds(told)} "
        f"| {_spent(told)} | {', '.join(told['machines'])} |"
    )


def _spent(told: dict[str, Any]) -> str:
    parts = _parts(told)
    return duration(told["seconds"] + told["tuning_seconds"]) + (f" ({parts})" if parts else "")


def _parts(told: dict[str, Any]) -> str:
    """The device time by the values of an axis, where it is told apart."""
    return ", ".join(f"{label} {duration(seconds)}" for label, seconds in told.get("seconds_by", {}).items())


def _total(everything: list[dict[str, Any]]) -> str:
    claims = sum((Counter(told["claims"]) for told in everything), Counter())
    spent = sum(told["seconds"] + told["tuning_seconds"] for told in everything)
    return f"| all | | {counted(claims)} | | {duration(spent)} | |"


def _seeds(told: dict[str, Any]) -> str:
    counts = sorted({len(cell["seeds"]) for cell in told["cells"].values()})
    return " to ".join(dict.fromkeys(str(count) for count in (counts[:1] + counts[-1:]))) or "–"


def _anchor(name: str) -> str:
    return f"experiment-{name}"


def _section(name: str, folder: Path, told: dict[str, Any], out: Path) -> str:
    parts = [f'<a id="{_anchor(name)}"></a>', f"## {told['title']} (`{name}`)"]
    experiment = load(name) if name in names() else None
    parts.append(f"{told['paper']}." + (f" {experiment.about.strip()}" if experiment and experiment.about else ""))
    if told["quick"]:
        parts.append("**A quick run on small data: it says nothing of the paper.**")
    if told["set"]:
        parts.append(f"Run with `{' '.join(told['set'])}`.")
    if (folder / "figure.png").exists():
        link = Path(os.path.relpath(folder, out.parent)).as_posix()
        parts.append(f"![{told['title']}]({link}/figure.png)")
    if (folder / "table.md").exists():
        parts.append((folder / "table.md").read_text(encoding="utf-8").strip())
    parts.append("### Claims\n\n" + (folder / "claims.md").read_text(encoding="utf-8").strip())
    if experiment is not None and experiment.remarks:
        parts.append("### Remarks\n\n" + "\n".join(f"- {text}" for text in experiment.remarks))
    if told["chosen"]:
        parts.append("### Chosen by tuning\n\n" + _chosen(told["chosen"]))
    if experiment is not None and experiment.unstated:
        parts.append("### What the paper leaves open\n\n" + "\n".join(f"- {text}" for text in experiment.unstated))
    if told["not_run"]:
        parts.append(f"Not run: {len(told['not_run'])} cells ({_shortened(told['not_run'])}).")
    diverged = [f"{cell}: {text}" for cell, own in told["cells"].items() for text in own["diverged"]]
    if diverged:
        parts.append(f"Diverged: {_shortened(diverged)}.")
    versions = "; ".join(
        ", ".join(f"{package} {version}" for package, version in own.items()) for own in told["versions"]
    )
    tuning = f", and {duration(told['tuning_seconds'])} of tuning," if told["tuning_seconds"] else ""
    parts.append(f"{duration(told['seconds'])}{tuning} on {', '.join(told['machines']) or '–'} ({versions or '–'}).")
    if each := _parts(told):
        parts.append(f"By {told['time_by']}: {each}.")
    return "\n\n".join(parts) + "\n"


def _chosen(chosen: dict[str, Any]) -> str:
    lines = ["| for | chosen | at the edge of the grid |", "|---|---|---|"]
    for name, own in chosen.items():
        settings = ", ".join(f"{key} = {value}" for key, value in own["settings"].items())
        lines.append(f"| {name} | {settings} | {', '.join(own['edge']) or '–'} |")
    return "\n".join(lines)


def _shortened(texts: list[str], most: int = 12) -> str:
    return "; ".join(texts[:most]) + (f"; … {len(texts) - most} more" if len(texts) > most else "")
