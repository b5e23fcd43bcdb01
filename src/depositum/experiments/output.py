"""What an experiment leaves: `runs.csv`, figure, tables, `claims.md`, `tuning.csv` and `summary.json` in one folder."""

import gzip
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from depositum.errors import RunError
from depositum.experiments import figures, tables
from depositum.experiments.claims import VERDICTS, Judged, judge
from depositum.experiments.perform import Plan
from depositum.experiments.results import Results
from depositum.experiments.tune import Choice
from depositum.metrics import COLUMNS

#: Says whose results a folder has.
SUMMARY = "summary.json"
QUICK = "A quick run on small data: it shows that everything works, and says nothing of the claims.\n"


def write(plan: Plan, results: Results, folder: Path) -> list[Judged]:
    """Write everything, and return the claims as they were decided."""
    experiment = plan.experiment
    make_folder(folder, "--out")
    judged = [judge(claim, results, f"claim {k}") for k, claim in enumerate(experiment.claim, start=1)]
    # First, since it says whose the folder is: a call that is killed in the midst of writing can be made again.
    _write(folder / SUMMARY, json.dumps(summary(plan, results, judged), indent=1, ensure_ascii=False) + "\n")
    _write(folder / "runs.csv", runs(results).to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    if experiment.trace:
        text = traces(results).to_csv(index=False, float_format="%.4g", lineterminator="\n")
        # No time in the header: the same results are the same bytes.
        (folder / "trace.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
    if experiment.figure is not None:
        figures.draw(experiment, results, folder)
    note = f"{QUICK}\n" if plan.options.quick else ""
    made = [made for table in experiment.table for made in tables.make_all(table, experiment, results)]
    if made:
        _write(folder / "table.md", note + "\n".join(map(tables.markdown, made)))
        _write(folder / "table.tex", (f"% {QUICK}" if note else "") + "\n".join(map(tables.tex, made)))
    _write(folder / "claims.md", note + claims(judged))
    if plan.choices:
        text = tuning(plan.choices).to_csv(index=False, float_format="%.6g", lineterminator="\n")
        _write(folder / "tuning.csv", text)
    return judged


def check_folder(plan: Plan, folder: Path, cache: Path) -> None:
    """Refuse a folder that holds something else: files of a person's own, or the results of another experiment.

    The cache may lie within.
    """
    kept = [cache.resolve(), *cache.resolve().parents]
    if not folder.is_dir() or all(path.resolve() in kept for path in folder.iterdir()):
        return
    path = folder / SUMMARY
    if not path.exists():
        raise RunError(f"--out {folder}: is not empty and holds no results; choose another folder")
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        title, quick = told["title"], told["quick"]
    except (OSError, ValueError, TypeError, KeyError):
        raise RunError(f"--out {folder}: its {SUMMARY} is no experiment's; choose another folder") from None
    if title != plan.experiment.title:
        raise RunError(
            f"--out {folder}: holds the results of another experiment ({title!r}); choose another folder, or remove it"
        )
    if plan.options.quick and not quick:
        raise RunError(f"--out {folder}: holds the results of the whole experiment; choose another folder for --quick")


def make_folder(folder: Path, key: str) -> None:
    """Make a folder, or say that it cannot be written to."""
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


def runs(results: Results) -> pd.DataFrame:
    """All evaluated iterations: a column per axis, then the history's (but wall time) as far as they have values."""
    parts = []
    for outcome in results:
        if outcome.history is not None:
            frame = outcome.history.drop(columns="seconds")
            for place, (axis, label) in enumerate(outcome.labels.items()):
                frame.insert(place, axis, label)
            # A seed that diverged ends early; here it is said of which rows that is true.
            ended = _diverged_seeds(outcome.diverged)
            parts.append(frame.assign(diverged=[int(seed in ended) for seed in frame["seed"]]))
    if not parts:
        return pd.DataFrame(columns=[*results.order, "seed", "iteration"])
    table = pd.concat(parts, ignore_index=True)
    empty = [name for name in COLUMNS if name in table and table[name].isna().all()]
    return table.drop(columns=empty)


def _diverged_seeds(said: list[str]) -> set[int]:
    """The seeds of "seed 3 diverged: …"."""
    return {int(text.split()[1]) for text in said}


def traces(results: Results) -> pd.DataFrame:
    """The consensus error after every iteration: a column per axis, seed, iteration, consensus_x."""
    parts = []
    for outcome in results:
        if outcome.trace is not None:
            frame = outcome.trace.copy()
            for place, (axis, label) in enumerate(outcome.labels.items()):
                frame.insert(place, axis, label)
            parts.append(frame)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*results.order, "seed", "iteration"])


def claims(judged: list[Judged]) -> str:
    """The paper's claims, whether each holds, and why."""
    counts = Counter(own.verdict for own in judged)
    lines = [f"{counted(counts)}.", ""] if judged else []
    lines += ["| claim | verdict | numbers |", "|---|---|---|"]
    for own in judged:
        numbers = "<br>".join(own.numbers).replace("|", "\\|")
        verdict = own.verdict if own.verdict == "holds" else f"**{own.verdict}**"
        text = own.claim.text.replace("|", "\\|")
        lines.append(f"| {text} | {verdict} | {numbers} |")
    return "\n".join(lines) + "\n"


def counted(verdicts: Mapping[Any, int]) -> str:
    """How many claims have which verdict: `5 hold, 1 does not hold`."""
    plural = {"holds": "hold", "does not hold": "do not hold"}
    there = [(name, verdicts[name]) for name in VERDICTS if verdicts.get(name)]
    said = [f"{count} {plural.get(name, name) if count != 1 else name}" for name, count in there]
    return ", ".join(said) or "–"


def tuning(choices: list[Choice]) -> pd.DataFrame:
    """Every point of every grid: for what, its settings, the validation value it ended with, and the choice."""
    rows = []
    for choice in choices:
        for k, point in enumerate(choice.points):
            value = choice.values[k] if choice.values is not None else None
            chosen = choice.values is not None and k == choice.best
            settings = " ".join(f"{key}={value}" for key, value in point.settings.items())
            rows.append(
                {
                    **choice.labels,
                    "settings": settings,
                    "steps": point.configs[0].run.steps,
                    f"validation {choice.tune.by}": "diverged" if value == float("inf") else value,
                    "chosen": int(chosen),
                    "edge": " ".join(choice.edges) if chosen else "",
                }
            )
    return pd.DataFrame(rows)


def _seconds_by(axis: str, results: Results, chosen: Sequence[Choice]) -> dict[str, float]:
    """The device time of cells, and of tuning for them, by their label on an axis."""
    spent: dict[str, float] = defaultdict(float)
    seen: set[Path] = set()
    for outcome in results:
        if outcome.kept is not None and outcome.kept.folder not in seen:
            seen.add(outcome.kept.folder)
            spent[outcome.labels[axis]] += outcome.kept.seconds
    for choice in chosen:
        labels = {cell.labels[axis] for cell in choice.targets}
        spent[labels.pop() if len(labels) == 1 else "tuning for several"] += choice.seconds
    return {label: round(seconds, 1) for label, seconds in spent.items()}


def summary(plan: Plan, results: Results, judged: list[Judged]) -> dict[str, Any]:
    """The machine, times, versions, and what was chosen."""
    experiment = plan.experiment
    kept = {outcome.name: outcome for outcome in results if outcome.kept is not None}
    folders = {outcome.kept.folder: outcome.kept for outcome in kept.values() if outcome.kept is not None}
    chosen = {choice.name: choice for choice in plan.choices if choice.values is not None}
    return {
        "id": experiment.id,
        "title": experiment.title,
        "paper": experiment.paper,
        "quick": plan.options.quick,
        "set": list(plan.options.overrides),
        "machines": sorted({own.machine for own in folders.values()}),
        "versions": [dict(own) for own in sorted({tuple(sorted(own.versions.items())) for own in folders.values()})],
        "seconds": round(sum(own.seconds for own in folders.values()), 1),
        "tuning_seconds": round(sum(choice.seconds for choice in chosen.values()), 1),
        "time_by": experiment.time_by,
        "seconds_by": _seconds_by(experiment.time_by, results, list(chosen.values())) if experiment.time_by else {},
        "cells": {
            name: {
                "seeds": outcome.kept.seeds,
                "seconds": outcome.kept.seconds,
                "diverged": outcome.kept.diverged,
                "folder": outcome.kept.folder.parent.name,
            }
            for name, outcome in kept.items()
            if outcome.kept is not None
        },
        "not_run": [outcome.name for outcome in results if outcome.kept is None],
        "chosen": {
            name: {"settings": choice.points[choice.best].settings, "edge": choice.edges}
            for name, choice in chosen.items()
        },
        "claims": dict(Counter(own.verdict for own in judged)),
    }
