"""Files of an experiment: `runs.csv`, figure, tables, `claims.md`, `tuning.csv` and `summary.json` in one folder."""

import gzip
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from depositum.errors import RunError
from depositum.experiments.cache import CachedCell
from depositum.experiments.claims import VERDICTS, JudgedClaim, judge
from depositum.experiments.definition import Experiment
from depositum.experiments.figures import draw_figure
from depositum.experiments.plan import Plan, check_report
from depositum.experiments.results import CellResult, Results
from depositum.experiments.sweep import SweepOptions, make_cells
from depositum.experiments.tables import as_latex, as_markdown, make_tables, printed_numbers
from depositum.experiments.tuning import TuningTask
from depositum.metrics import COLUMNS
from depositum.runs import parse

#: The file that says which experiment a folder belongs to.
SUMMARY = "summary.json"
QUICK_NOTE = "A quick run on small data: it shows that everything works, and says nothing about the claims.\n"


def write_results(plan: Plan, results: Results, folder: Path) -> list[JudgedClaim]:
    """Write all files, and return the judged claims."""
    experiment = plan.experiment
    make_folder(folder, "--out")
    judged = judge_all(experiment, results)
    # First, since it identifies the folder: a call that is killed while writing can then be repeated.
    _write_summary(folder, summarize(plan, results, judged))
    _write(folder / "runs.csv", runs_frame(results).to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    if experiment.trace:
        text = trace_frame(results).to_csv(index=False, float_format="%.4g", lineterminator="\n")
        # No time in the header: equal results give equal bytes.
        (folder / "trace.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    _write_report(experiment, results, judged, folder, plan.options.quick)
    if plan.tuning:
        text = tuning_frame(plan.tuning).to_csv(index=False, float_format="%.6g", lineterminator="\n")
        _write(folder / "tuning.csv", text)
    return judged


def judge_all(experiment: Experiment, results: Results) -> list[JudgedClaim]:
    """Decide the experiment's claims; those about printed numbers know the numbers of its tables."""
    results = replace(results, printed=printed_numbers(experiment))
    return [judge(claim, results, f"claim {k}") for k, claim in enumerate(experiment.claim, start=1)]


def _write_summary(folder: Path, summary: dict[str, Any]) -> None:
    _write(folder / SUMMARY, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")


def _write_report(
    experiment: Experiment, results: Results, judged: list[JudgedClaim], folder: Path, quick: bool
) -> None:
    """Write what follows from the results: figure, tables and claims."""
    if experiment.figure is not None:
        draw_figure(experiment, results, folder)
    for name, text in report_texts(experiment, results, judged, quick).items():
        _write(folder / name, text)


def report_texts(experiment: Experiment, results: Results, judged: list[JudgedClaim], quick: bool) -> dict[str, str]:
    """The tables and claims that follow from the results, by the names of their files."""
    note = f"{QUICK_NOTE}\n" if quick else ""
    texts = {"claims.md": note + claims_as_markdown(judged)}
    filled = [table for spec in experiment.table for table in make_tables(spec, experiment, results)]
    if filled:
        texts["table.md"] = note + "\n".join(map(as_markdown, filled))
        texts["table.tex"] = (f"% {QUICK_NOTE}" if note else "") + "\n".join(map(as_latex, filled))
    return texts


def redraw(experiment: Experiment, folder: Path) -> list[JudgedClaim]:
    """Draw the figure, fill the tables and judge the claims again from the results in a folder, running nothing.

    Cells that the experiment's file has now, and the folder has not, are not run.
    """
    summary = read_summary(folder)
    _check_same(experiment, summary, folder)
    results = read_results(experiment, folder)
    judged = judge_all(experiment, results)
    _write_report(experiment, results, judged, folder, summary["quick"])
    _write_summary(folder, summary | {"claims": dict(Counter(each.verdict for each in judged))})
    return judged


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of the results in a folder; raises if there are none."""
    path = folder / SUMMARY
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = summary["cells"], summary["quick"], summary["set"], summary["title"]
    except FileNotFoundError:
        raise RunError(f"{folder}: contains no results of an experiment (there is no {SUMMARY})") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path}: cannot be read ({error or type(error).__name__})") from None
    return summary


def read_results(experiment: Experiment, folder: Path) -> Results:
    """The results in a folder as they were written: of every cell its history, its trace, and who diverged.

    Of a cell's configuration the numbers, the graph and the regularizer are needed: data and models are not.
    """
    axes, summary = experiment.axes, read_summary(folder)
    made = make_cells(experiment, SweepOptions(quick=summary["quick"], overrides=tuple(summary["set"])))
    check_report(experiment, made)
    runs = _read_table(folder / "runs.csv", axes)
    traced = folder / "trace.csv.gz"
    traces = _read_table(traced, axes) if traced.exists() else None
    cells = []
    for cell in made:
        empty = CellResult(cell.labels, parse(cell.table), None, variance=experiment.variance)
        entry, history = summary["cells"].get(empty.name), _cell_rows(runs, cell.labels)
        if entry is None or history.empty:
            cells.append(empty)
            continue
        cached = CachedCell(folder, entry["seeds"], entry["diverged"], entry["seconds"], "", {})
        trace = None if traces is None else _cell_rows(traces, cell.labels)
        cells.append(replace(empty, cached=cached, history=history.drop(columns="diverged"), trace=trace))
    return Results(cells, {axis: experiment.labels(axis) for axis in axes})


def _read_table(path: Path, axes: Sequence[str]) -> pd.DataFrame:
    """A table that `write_results` wrote; labels such as "none" are text."""
    try:
        return pd.read_csv(path, dtype=dict.fromkeys(axes, str), keep_default_na=False, na_values=[""])
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({error})") from None


def _cell_rows(table: pd.DataFrame, labels: Mapping[str, str]) -> pd.DataFrame:
    """The rows of a cell, without the columns of its labels."""
    for axis, label in labels.items():
        table = table[table[axis] == label]
    return table.drop(columns=list(labels)).reset_index(drop=True)


def check_folder(plan: Plan, folder: Path, cache: Path) -> None:
    """Raise if a folder contains something else: unrelated files, or the results of another experiment.

    It may contain the cache.
    """
    allowed = [cache.resolve(), *cache.resolve().parents]
    if not folder.is_dir() or all(path.resolve() in allowed for path in folder.iterdir()):
        return
    path = folder / SUMMARY
    if not path.exists():
        raise RunError(f"--out {folder}: is not empty and does not contain results; choose another folder")
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
        _ = summary["title"], summary["quick"]
    except (OSError, ValueError, TypeError, KeyError):
        raise RunError(f"--out {folder}: its {SUMMARY} is not from an experiment; choose another folder") from None
    _check_same(plan.experiment, summary, folder)
    if plan.options.quick and not summary["quick"]:
        raise RunError(
            f"--out {folder}: contains the results of the full experiment; choose another folder for --quick"
        )


def _check_same(experiment: Experiment, summary: dict[str, Any], folder: Path) -> None:
    title = summary["title"]
    if title != experiment.title:
        raise RunError(f"--out {folder}: contains the results of another experiment ({title!r}); choose another folder")


def make_folder(folder: Path, key: str) -> None:
    """Create a folder if it does not exist; raise if it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunError(f"{key} {folder}: cannot be written to ({error.strerror})") from None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror})") from None


def runs_frame(results: Results) -> pd.DataFrame:
    """All evaluated iterations: a column per axis, then the columns of the history that have values (no wall time)."""
    parts = []
    for cell in results:
        if cell.history is not None:
            frame = _with_labels(cell.history.drop(columns="seconds"), cell)
            # A seed that diverged ends early: mark its rows.
            diverged = {int(text.split()[1]) for text in cell.diverged}  # "seed 3 diverged: …"
            parts.append(frame.assign(diverged=[int(seed in diverged) for seed in frame["seed"]]))
    table = _concatenate(parts, results)
    empty = [name for name in COLUMNS if parts and name in table and table[name].isna().all()]
    return table.drop(columns=empty)


def trace_frame(results: Results) -> pd.DataFrame:
    """The consensus error after every iteration: a column per axis, seed, iteration, consensus_x."""
    parts = [_with_labels(cell.trace.copy(), cell) for cell in results if cell.trace is not None]
    return _concatenate(parts, results)


def _with_labels(frame: pd.DataFrame, cell: CellResult) -> pd.DataFrame:
    """The frame with a cell's labels as its first columns."""
    for position, (axis, label) in enumerate(cell.labels.items()):
        frame.insert(position, axis, label)
    return frame


def _concatenate(parts: list[pd.DataFrame], results: Results) -> pd.DataFrame:
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*results.order, "seed", "iteration"])


def claims_as_markdown(judged: list[JudgedClaim]) -> str:
    """The paper's claims, whether each holds, by which test and numbers, and the reason where it does not."""
    lines = [f"{count_verdicts(Counter(each.verdict for each in judged))}.", ""] if judged else []
    lines += ["| claim | verdict | test | numbers |", "|---|---|---|---|"]
    for each in judged:
        parts = [*each.numbers, *(["Left out: " + "; ".join(each.left_out)] if each.left_out else [])]
        verdict = each.verdict if each.verdict == "holds" else f"**{each.verdict}**"
        text = each.claim.text + (f"<br>*Reason: {each.reason}*" if each.reason else "")
        row = [text, verdict, each.test or "–", "<br>".join(parts)]
        lines.append("| " + " | ".join(entry.replace("|", "\\|") for entry in row) + " |")
    return "\n".join(lines) + "\n"


def count_verdicts(verdicts: Mapping[Any, int]) -> str:
    """How many claims have which verdict: `5 hold, 1 does not hold`."""
    plural = {"holds": "hold", "does not hold": "do not hold"}
    counts = [(name, verdicts[name]) for name in VERDICTS if verdicts.get(name)]
    return ", ".join(f"{count} {plural.get(name, name) if count != 1 else name}" for name, count in counts) or "–"


def tuning_frame(tasks: list[TuningTask]) -> pd.DataFrame:
    """Every point of every grid: its task, its settings, its final validation value, and which one was chosen."""
    rows = []
    for task in tasks:
        for k, point in enumerate(task.points):
            value = task.values[k] if task.values is not None else None
            chosen = task.values is not None and k == task.best
            settings = " ".join(f"{key}={value}" for key, value in point.settings.items())
            rows.append(
                {
                    **task.labels,
                    "settings": settings,
                    "steps": point.configs[0].config.run.steps,
                    f"validation {task.tuning.by}": "diverged" if value == float("inf") else value,
                    "chosen": int(chosen),
                    "edge": " ".join(task.edges) if chosen else "",
                }
            )
    return pd.DataFrame(rows)


def _seconds_by(axis: str, results: Results, tasks: Sequence[TuningTask]) -> dict[str, float]:
    """The device time of cells, and of tuning for them, by their label on an axis."""
    spent: dict[str, float] = defaultdict(float)
    seen: set[Path] = set()
    for cell in results:
        if cell.cached is not None and cell.cached.folder not in seen:
            seen.add(cell.cached.folder)
            spent[cell.labels[axis]] += cell.cached.seconds
    for task in tasks:
        labels = {cell.labels[axis] for cell in task.targets}
        spent[labels.pop() if len(labels) == 1 else "tuning for several"] += task.seconds
    return {label: round(seconds, 1) for label, seconds in spent.items()}


def summarize(plan: Plan, results: Results, judged: list[JudgedClaim]) -> dict[str, Any]:
    """The content of `summary.json`: machines, times, versions, tuned hyper-parameters, verdicts."""
    experiment = plan.experiment
    cached = {cell.name: cell.cached for cell in results if cell.cached is not None}
    by_folder = {cell.folder: cell for cell in cached.values()}  # cells with equal configurations share a folder
    tasks = {task.name: task for task in plan.tuning if task.values is not None}
    return {
        "id": experiment.id,
        "title": experiment.title,
        "paper": experiment.paper,
        "quick": plan.options.quick,
        "set": list(plan.options.overrides),
        "machines": sorted({cell.machine for cell in by_folder.values()}),
        "versions": [dict(v) for v in sorted({tuple(sorted(cell.versions.items())) for cell in by_folder.values()})],
        "seconds": round(sum(cell.seconds for cell in by_folder.values()), 1),
        "tuning_seconds": round(sum(task.seconds for task in tasks.values()), 1),
        "time_by": experiment.time_by,
        "seconds_by": _seconds_by(experiment.time_by, results, list(tasks.values())) if experiment.time_by else {},
        "cells": {
            name: {
                "seeds": cell.seeds,
                "seconds": cell.seconds,
                "diverged": cell.diverged,
                "folder": cell.folder.parent.name,
            }
            for name, cell in cached.items()
        },
        "not_run": [cell.name for cell in results if cell.cached is None],
        "chosen": {
            name: {"settings": task.points[task.best].settings, "edge": task.edges} for name, task in tasks.items()
        },
        "claims": dict(Counter(each.verdict for each in judged)),
    }
