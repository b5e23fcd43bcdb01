"""A results folder as a view of a report page: curves of its cells, claims with verdicts, the paper's numbers.

Read from the files that `write_results` leaves, so that the results of earlier releases have a page too.
"""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

from depositum.errors import RunError
from depositum.experiments.definition import experiment_names, load_experiment
from depositum.experiments.results_folder import QUICK_NOTE, SUMMARY, count_verdicts
from depositum.metrics import COLUMNS
from depositum.report.compared_runs import ComparedRun, RunGroup
from depositum.report.page_data import View, runs_view
from depositum.report.units import format_duration

#: The rows of runs.csv are those of cells; an axis has this many labels at first, where all cells would be too many.
MOST_CURVES = 12


def is_results_folder(folder: Path) -> bool:
    """Whether a folder holds the results of an experiment."""
    return (folder / SUMMARY).is_file()


def results_view(folder: Path) -> View:
    """The view of a folder that `depositum reproduce` wrote."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        title, cells = str(summary["title"]), dict(summary["cells"])
    except (OSError, ValueError, TypeError, KeyError):
        raise RunError(f"{folder}: its {SUMMARY} is not from an experiment") from None
    missing: list[str] = []
    runs, labels = _runs(folder, cells, missing)
    if not runs:
        raise RunError(f"{folder}: has no results (runs.csv is missing or empty)")
    sound, diverged = [run for run in runs if not run.diverged], [run for run in runs if run.diverged]
    # Cells need not solve the same problem, so nothing is ranked.
    groups = [RunGroup("", sound, "apart")] if sound else []
    groups += [RunGroup("diverged, not ranked", diverged, "diverged")] if diverged else []
    view = runs_view(runs, groups, title, in_order=True)
    for shown in view["runs"]:
        shown |= {"labels": labels[shown["name"]], "folder": str(folder)}
    view["filters"] = _filters(labels)
    view["experiment"] = _experiment(folder, summary, missing)
    view["missing"] = missing
    return view


def _runs(folder: Path, cells: dict[str, Any], missing: list[str]) -> tuple[list[ComparedRun], dict[str, Any]]:
    """The cells that were run, in the order of the sweep, and their labels by name."""
    try:
        frame = pd.read_csv(folder / "runs.csv")
    except (OSError, ValueError):
        return [], {}
    axes = [str(column) for column in frame.columns[: list(frame.columns).index("seed")]]
    runs, labels = [], {}
    frame[axes] = frame[axes].astype(str)
    for key, rows in frame.groupby(axes, sort=False):
        own = dict(zip(axes, map(str, key), strict=True))
        name = ", ".join(own.values())
        known = cells.get(name)
        reported = [str(text) for text in known.get("diverged", ())] if isinstance(known, dict) else []
        if known is None:
            missing.append(f"{name}: {SUMMARY} does not have this cell; whether seeds diverged is not known")
        where = reported[0] + f" ({len(reported)} of {rows['seed'].nunique()} seeds)" if reported else ""
        columns = [str(column) for column in rows.columns if column not in (*axes, "diverged", *COLUMNS)]
        history = rows.reindex(columns=[*COLUMNS, *columns]).reset_index(drop=True)
        runs.append(ComparedRun(name, history, None, where))
        labels[name] = own
    return runs, labels


def _filters(labels: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """The axes of the sweep with their labels, and which label is chosen at first (None: all)."""
    axes: dict[str, list[str]] = {}
    for own in labels.values():
        for axis, label in own.items():
            axes.setdefault(axis, [])
            if label not in axes[axis]:
                axes[axis].append(label)
    left, out = list(labels.values()), []
    for axis, values in axes.items():
        fixed = values[0] if len(left) > MOST_CURVES and len(values) > 1 else None
        if fixed is not None:
            left = [own for own in left if own[axis] == fixed]
        out.append({"axis": axis, "labels": values, "first": fixed})
    return out


def _experiment(folder: Path, summary: dict[str, Any], missing: list[str]) -> dict[str, Any]:
    name = str(summary.get("id", folder.name))
    known = load_experiment(name) if name in experiment_names() else None
    claims = _read(folder / "claims.md", missing)
    tables = markdown_tables(_read(folder / "table.md", missing if known is None or known.table else []))
    judged = [row for table in markdown_tables(claims) for row in table["rows"]]
    spent = format_duration(float(summary.get("seconds", 0)))
    tuning = float(summary.get("tuning_seconds", 0))
    versions = "; ".join(
        ", ".join(f"{package} {version}" for package, version in each.items()) for each in summary.get("versions", [])
    )
    return {
        "id": name,
        "paper": str(summary.get("paper", "")),
        "about": " ".join(known.about.split()) if known else "",
        "quick": QUICK_NOTE.strip() if summary.get("quick") else "",
        "set": " ".join(map(str, summary.get("set", []))),
        "verdicts": count_verdicts(summary.get("claims", {})),
        "claims": [
            # Between verdict and numbers stands the test that decided, which earlier releases did not write.
            {"text": text, "verdict": verdict, "numbers": [line for cell in rest for line in cell.split("\n")]}
            for text, verdict, *rest in judged
        ],
        "tables": tables,
        "chosen": [
            [
                task,
                ", ".join(f"{key} = {value}" for key, value in choice["settings"].items()),
                ", ".join(choice["edge"]) or "–",
            ]
            for task, choice in summary.get("chosen", {}).items()
        ],
        "remarks": list(known.remarks) if known else [],
        "unstated": list(known.unstated) if known else [],
        "not_run": list(map(str, summary.get("not_run", []))),
        "made": f"{spent}{f', and {format_duration(tuning)} of tuning,' if tuning else ''} on "
        f"{', '.join(summary.get('machines', [])) or 'an unknown machine'} ({versions or 'versions not known'})",
    }


def _read(path: Path, missing: list[str]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        missing.append(f"{path.name} is missing")
        return ""


def markdown_tables(text: str) -> list[dict[str, Any]]:
    r"""The tables of a Markdown file as `write_results` writes it, each with its title and notes above it.

    A cell in bold is marked in `bold`, `[rows][columns]`; `<br>` is a new line.

    >>> markdown_tables("**Loss**\n\nA note.\n\n| a | b |\n|---|---|\n| x | **1** |\n")[0]["rows"]
    [['x', '1']]
    """
    tables: list[dict[str, Any]] = []
    title = ""
    above: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("|"):
            table: dict[str, Any] = {"title": title, "notes": above, "head": _cells(line), "rows": [], "bold": []}
            next(lines, None)  # the rule
            for row in lines:
                if not row.startswith("|"):
                    break
                cells = _cells(row)
                table["bold"].append([cell.startswith("**") for cell in cells])
                table["rows"].append([cell.replace("**", "").replace("<br>", "\n") for cell in cells])
            tables.append(table)
            title, above = "", []
        elif line.startswith("**") and line.endswith("**"):
            title = line.strip("*")
        elif line.strip():
            above = [*above, line.strip()]
    return tables


def _cells(line: str) -> list[str]:
    """The cells of a row: separated by `|` that are not escaped."""
    parts = re.split(r"(?<!\\)\|", line.strip())[1:-1]
    return [part.strip().replace("\\|", "|") for part in parts]
