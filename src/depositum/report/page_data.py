"""What a report page shows, as plain data for JSON: runs, their curves, settings, participants and clients.

Everything that is decided about runs (what is ranked, set apart, noted) is decided where `depositum compare` decides
it; the page only shows it. A `View` is one comparison; a page can have several.
"""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from depositum.errors import DepositumError
from depositum.metrics import OVERALL, PERPLEXITY, user_columns
from depositum.networks import MIXINGS, TOPOLOGIES, build
from depositum.report.client_spread import client_spread
from depositum.report.compared_runs import (
    ComparedRun,
    RunGroup,
    Table,
    commonest_problem,
    grouped_by_problem,
    labels,
    notes,
    setting_text,
    stepsizes,
)
from depositum.report.curves import PANELS, SHARES, X_AXES
from depositum.report.history_tables import FORMATS, RANKED_BY, best_first, final_values, format_measure, ranked_by
from depositum.report.run_folders import distinct_names, read_run
from depositum.runs.folder import CLIENTS, PERPLEXITIES, RunFolder
from depositum.runs.participants import PARTICIPANTS, describe_network

if TYPE_CHECKING:
    import pandas as pd

#: A page, or a part of it, ready for JSON.
View = dict[str, Any]

#: Numbers that the histories of a view may take, about 8 bytes each; longer ones are thinned.
NUMBERS = 60_000
#: Evaluations that a measure of a run keeps at the least and at the most.
LEAST_POINTS, MOST_POINTS = 120, 600
#: Measures that can be shown besides those of the figure `curves.png`, and whether they are logarithmic.
FURTHER_PANELS = (
    ("phi", "objective φ(x̄)", False),
    (PERPLEXITY + OVERALL, "perplexity of test responses", False),
    ("client_accuracy_mean", "accuracy of the clients' own models, mean", False),
    ("client_accuracy_worst", "accuracy of the clients' own models, worst", False),
    ("stationarity_mean", "stationarity ‖Gᵅ(x)‖², running mean", True),
    ("gradient_error", "gradient-estimation error", True),
    ("consensus_y", "consensus error of the trackers y", True),
    ("zeta2", "heterogeneity of gradients ζ²", True),
)
#: Shares besides those of the figure.
FURTHER_SHARES = ("client_accuracy_mean", "client_accuracy_worst")
#: Columns of `clients.csv` as the page names them.
CLIENT_HEADINGS = {
    "samples": "samples",
    "averaged_loss": "loss of x̄",
    "averaged_accuracy": "accuracy of x̄ %",
    "own_loss": "loss of own model",
    "own_accuracy": "accuracy of own model %",
}


def folders_view(
    folders: Sequence[Path], title: str = "", reference: Table | None = None, of_a_comparison: bool = False
) -> View:
    """The view of runs in folders, finished or not, and whatever part of their files is missing.

    The problem in question is that of the configuration `reference` or, without one, the first run's, as for `depositum
    compare` of folders; of the folder that a comparison left, whose runs have no order, it is that of most of them.
    """
    names = distinct_names(folders)
    missing: list[str] = []
    runs, extras = [], {}
    for name, folder in zip(names, folders, strict=True):
        own: list[str] = []
        run = read_run(name, folder, own.append)
        missing += own
        run = ComparedRun(name, _with_perplexities(run.history, folder), run.table, run.diverged)
        runs.append(run)
        clients = _clients(folder)
        extras[name] = {
            "folder": str(folder),
            "participants": _participants(folder, run.table),
            "clients": clients,
            "spread": client_spread(folder) if clients else None,
        }
        missing += _missing_files(name, folder, run, extras[name])
    if reference is None and of_a_comparison:
        reference = commonest_problem(runs)
    view = runs_view(
        runs, grouped_by_problem(runs, reference), title or ", ".join(names[:6]) + ", …" * (len(names) > 6)
    )
    for shown in view["runs"]:
        shown |= extras[shown["name"]]
    view["missing"] = missing
    return view


def runs_view(runs: Sequence[ComparedRun], groups: Sequence[RunGroup], title: str, in_order: bool = False) -> View:
    """The view of runs that are known, without what only their folders have.

    The best run of each group comes first; with `in_order`, runs stay as they are given, and are not ranked.
    """
    unsorted = {id(group) for group in groups if in_order or group.kind == "diverged"}
    ordered = [run for group in groups for run in (group.runs if id(group) in unsorted else best_first(group.runs))]
    position = {run.name: index for index, run in enumerate(ordered)}
    measures = _measures(runs)
    final = [measure["key"] for measure in measures if measure["final"]]
    columns = list(dict.fromkeys([*(name for name in RANKED_BY if name in FORMATS), *final, *FORMATS]))
    columns = [name for name in columns if any(_has(run.history, name) for run in runs)]
    points = _points_per_measure(runs, [m["key"] for m in measures])
    kinds = {run.name: group.kind for group in groups for run in group.runs}
    label_of, size = labels(runs), {run.name: _evaluations(run.history) for run in runs}
    return {
        "title": title,
        "groups": [
            {
                "title": group.title,
                "kind": group.kind,
                "by": "" if id(group) in unsorted else _ranked_by(group),
                "runs": [position[run.name] for run in ordered if run in group.runs],
            }
            for group in groups
        ],
        "runs": [
            {
                "name": run.name,
                "label": label_of[run.name],
                "kind": kinds[run.name],
                "stepsize": run.stepsize,
                "seeds": int(run.history["seed"].nunique()),
                "diverged": run.diverged,
                "unfinished": run.unfinished,
                "worse": run.worse,
                "history": _history(run.history, [m["key"] for m in measures], points),
                "final": {} if run.diverged else _final(run, columns),
            }
            for run in ordered
        ],
        "measures": measures,
        "axes": [{"key": k, "title": t, "form": _axis_form(k)} for k, t in X_AXES.items() if _some_have(runs, k)],
        "columns": [{"key": name, "heading": _heading(name), "form": _form(name)} for name in columns],
        "stepsizes": bool(stepsizes(runs)),
        "notes": notes(runs),
        "settings": _settings(ordered),
        "thinned": f"Curves show at most {points} of up to {max(size.values())} evaluations per run and measure: the "
        "first, the last, and the smallest and largest mean between them."
        if max(size.values()) > points
        else "",
        "missing": [],
        "experiment": None,
        "filters": [],
    }


# Measures and curves


def _measures(runs: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """Measures that have values, in the order of their panels, and which of these are shown at first."""
    own = user_columns(run.history.columns for run in runs)
    categories = dict.fromkeys(c for run in runs for c in run.history.columns if c.startswith(PERPLEXITY))
    known = {name for name, *_ in (*PANELS, *FURTHER_PANELS)}
    panels = [(*panel, True) for panel in PANELS]
    panels += [(*panel, panel[0] == PERPLEXITY + OVERALL) for panel in FURTHER_PANELS]
    panels += [(name, name, False, True) for name in own]
    panels += [
        (name, f"perplexity: {name.removeprefix(PERPLEXITY)}", False, False) for name in categories if name not in known
    ]
    out = []
    for key, title, logarithmic, shown in panels:
        if not any(_has(_drawn(run.history, key), key) for run in runs):
            continue
        if key == "test_loss":  # as in the figure: only where an evaluation lacks another measure
            shown = any(_lacks_others(run.history) for run in runs)
        form = _form(key)
        if key not in FORMATS and logarithmic:
            form = "{:.1e}"
        out.append(
            {
                "key": key,
                "title": title,
                "log": logarithmic,
                "form": form,
                "shown": shown,
                "final": key in own or key == PERPLEXITY + OVERALL,
                "quality": key in RANKED_BY or key == PERPLEXITY + OVERALL or key in own,
            }
        )
    return out


def _lacks_others(history: "pd.DataFrame") -> bool:
    points = history.dropna(subset=["test_loss"])
    return bool(points[["train_loss", "test_accuracy"]].isna().any(axis=None)) if len(points) else False


def _form(column: str) -> str:
    if column in FORMATS:
        return FORMATS[column].form
    return "percent" if column in (*SHARES, *FURTHER_SHARES) else "{:.4f}"


def _axis_form(key: str) -> str:
    return FORMATS[key].form if key in FORMATS else "{:.0f}"


def _heading(column: str) -> str:
    if column == PERPLEXITY + OVERALL:
        return "perplexity"
    return FORMATS[column].heading if column in FORMATS else column


def _drawn(history: "pd.DataFrame", column: str) -> "pd.DataFrame":
    """All clients start from one model: the consensus error at t = 0 is nothing but rounding, and is not drawn."""
    return history[history["iteration"] > 0] if column == "consensus_x" else history


def _has(history: "pd.DataFrame", column: str) -> bool:
    return column in history and bool(np.isfinite(history[column].astype(float)).any())


def _some_have(runs: Sequence[ComparedRun], column: str) -> bool:
    return any(_has(run.history, column) for run in runs)


def _evaluations(history: "pd.DataFrame") -> int:
    return int(history["iteration"].nunique())


def _points_per_measure(runs: Sequence[ComparedRun], keys: Sequence[str]) -> int:
    """How many evaluations of a measure a run shows, at most."""
    series = sum(run.history["seed"].nunique() * sum(_has(run.history, key) for key in keys) for run in runs)
    return int(min(MOST_POINTS, max(LEAST_POINTS, NUMBERS // max(series, 1))))


def _history(history: "pd.DataFrame", keys: Sequence[str], points: int) -> dict[str, Any]:
    """Costs at all evaluations that are shown (means over seeds), and of each measure one list per seed.

    `at` are the positions of a measure's evaluations among those of the run; left out where it has all of them.
    """
    history = history.drop_duplicates(["seed", "iteration"], keep="last")
    tables, chosen = {}, {}
    for key in keys:
        drawn = _drawn(history, key)
        if not _has(drawn, key):
            continue
        table = drawn.pivot(index="iteration", columns="seed", values=key).astype(float)
        table = table.replace([np.inf, -np.inf], np.nan).dropna(how="all")
        tables[key] = table.loc[_thinned(table, points)]
        chosen[key] = tables[key].index
    iterations = sorted({int(t) for index in chosen.values() for t in index})
    costs = history.groupby("iteration").mean().loc[iterations]
    out: dict[str, Any] = {"iteration": iterations}
    out |= {key: _numbers(costs[key], 5) for key in X_AXES if key != "iteration" and _has(history, key)}
    series: dict[str, Any] = {}
    where = {t: k for k, t in enumerate(iterations)}
    for key, table in tables.items():
        series[key] = {"y": [_numbers(table[seed], 5) for seed in table]}
        if len(table) < len(iterations):
            series[key]["at"] = [where[int(t)] for t in table.index]
    return {**out, "seeds": [int(seed) for seed in sorted(history["seed"].unique())], "series": series}


def _thinned(table: "pd.DataFrame", points: int) -> Any:
    """The iterations of a table `[evaluations, seeds]` to show: in each part of the run, its extremes."""
    if len(table) <= points:
        return table.index
    mean = table.mean(axis=1).to_numpy()
    keep = {0, len(table) - 1}
    for part in np.array_split(np.arange(1, len(table) - 1), max((points - 2) // 2, 1)):
        keep |= {int(part[mean[part].argmin()]), int(part[mean[part].argmax()])}
    return table.index[sorted(keep)]


def _numbers(values: Any, digits: int) -> list[float | int | None]:
    """Numbers with few digits, whole ones without a fraction; None for one that is not finite."""
    out: list[float | int | None] = []
    for value in values:
        number = float(value)
        if not isfinite(number):
            out.append(None)
        else:
            short = number if abs(number) >= 10**digits and number.is_integer() else float(f"{number:.{digits}g}")
            out.append(int(short) if short.is_integer() and abs(short) < 2**53 else short)
    return out


# Tables


def _final(run: ComparedRun, columns: Sequence[str]) -> dict[str, Any]:
    """Final measures as every table shows them, and as numbers: mean and sample standard deviation over seeds."""
    last = final_values(run.history)
    out = {}
    for column in columns:
        if column not in last:
            continue
        values = last[column].dropna().astype(float)
        values = values[np.isfinite(values)]
        mean, sd = (values.mean(), values.std()) if len(values) else (float("nan"), float("nan"))
        out[column] = {
            "text": format_measure(last[column], _form(column)),
            "value": _numbers([mean], 10)[0],
            "sd": _numbers([sd], 6)[0],
        }
    return out


def _ranked_by(group: RunGroup) -> str:
    """The measure by which a group is sorted, as `compare` words it; empty if it is not."""
    measure = ranked_by(group.runs) if len(group.runs) > 1 else None
    return "" if measure is None else f"by {FORMATS[measure].heading.removesuffix(' %')}"


def _settings(runs: Sequence[ComparedRun]) -> list[dict[str, Any]]:
    """All settings, one line each, with their text for every run; None for a run that does not have one."""
    tables: list[Table] = [run.table or {} for run in runs]
    keys = dict.fromkeys(
        (section, key) for section in ("problem", "network", "algorithm", "run", "metrics", "processes") for t in tables
        for key in t.get(section, {})
    )  # fmt: skip
    out = []
    for section, key in keys:
        values = [setting_text(t[section][key]) if key in t.get(section, {}) else None for t in tables]
        known = [value for value, table in zip(values, tables, strict=True) if table]
        out.append({"key": f"{section}.{key}", "values": values, "differs": len(set(known)) > 1})
    return out


# What folders have besides the history


def _with_perplexities(history: "pd.DataFrame", folder: Path) -> "pd.DataFrame":
    """The history of a language model, completed with its perplexities."""
    import pandas as pd

    records = RunFolder(folder).read_table(PERPLEXITIES)
    if not records:
        return history
    table = pd.DataFrame(records).rename(columns=lambda c: c if c in ("seed", "iteration") else PERPLEXITY + c)
    return history.merge(table.drop_duplicates(["seed", "iteration"]), on=["seed", "iteration"], how="left")


def _participants(folder: Path, table: Table | None) -> dict[str, Any] | None:
    """The network and the data of a run: as it recorded them or, of an older run, the network that its settings name.

    No code that a configuration names is run here.
    """
    try:
        found = json.loads((folder / PARTICIPANTS).read_text(encoding="utf-8"))
        return _checked_participants(found)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    section = (table or {}).get("network")
    if table is None or section is None:
        return None if table is None else {"network": None, "data": []}
    topology, mixing = section.get("topology", "ring"), section.get("mixing", "metropolis")
    if _registered(topology, TOPOLOGIES) and _registered(mixing, MIXINGS):
        try:
            clients = table.get("problem", {}).get("clients", 10)
            links = {key: section[key] for key in ("drop", "lost", "late") if key in section}
            return {"network": describe_network(build(topology, mixing, clients, **links))}
        except DepositumError:
            return None
    return None


def _registered(chosen: Any, registry: Any) -> bool:
    name = chosen if isinstance(chosen, str) else next(iter(chosen), None) if isinstance(chosen, Mapping) else None
    return isinstance(name, str) and ":" not in name and name in registry


def _checked_participants(found: Any) -> dict[str, Any]:
    """Participants with the fields that the page reads; raises if the file has another form."""
    network = found["network"]
    if network is not None:
        n = int(network["clients"])
        links = [[int(i), int(j), float(w)] for i, j, w in network.get("links", [])]
        positions = [[float(x), float(y)] for x, y in network.get("positions", [])]
        if any(not (0 <= i < n and 0 <= j < n) for i, j, _ in links) or len(positions) not in (0, n):
            raise ValueError("a link or position of a client that does not exist")
        network = {
            **{key: str(network[key]) for key in ("text", "name", "mixing")},
            "clients": n,
            "edges": int(network["edges"]),
            "lambda": float(network["lambda"]),
            "varies": bool(network["varies"]),
            "links": links,
            "positions": positions,
        }
    data = []
    for part in found.get("data", []):
        own = {"seed": int(part["seed"]), "samples": [int(count) for count in part["samples"]]}
        if "kind" in part:
            own |= {"kind": str(part["kind"]), "heterogeneity": float(part["heterogeneity"])}
        if "counts" in part:
            own |= {
                "classes": [str(name) for name in part["classes"]],
                "counts": [[int(count) for count in row] for row in part["counts"]],
            }
        data.append(own)
    return {"network": network, "data": data}


def _clients(folder: Path) -> dict[str, Any] | None:
    """Measures of each client at the end: means over seeds, and their sample standard deviations."""
    import pandas as pd

    try:
        table = pd.read_csv(folder / CLIENTS).drop(columns="seed")
        groups = table.astype(float).groupby("client")
    except (OSError, ValueError, KeyError):
        return None
    mean, std = groups.mean(), groups.std()
    columns = []
    for name in mean:
        form = "{:.0f}" if name == "samples" else "percent" if str(name).endswith("_accuracy") else "{:.4f}"
        columns.append(
            {
                "key": name,
                "heading": CLIENT_HEADINGS.get(str(name), str(name).replace("_", " ")),
                "form": form,
                "values": _numbers(mean[name], 7),
                "sd": _numbers(std[name], 5),
                "text": [format_measure(groups.get_group(client)[name], form) for client in mean.index],
            }
        )
    return {"clients": [int(client) for client in mean.index], "columns": columns}


def _missing_files(name: str, folder: Path, run: ComparedRun, extra: Mapping[str, Any]) -> list[str]:
    """What a folder does not have, and what is therefore not known."""
    out = []
    if run.table is None:
        out.append(
            f"{name}: config.toml is missing or cannot be read; its problem, settings and stepsize are not known"
        )
    if not any((folder / file).exists() for file in ("state.safetensors", "state.previous.safetensors")):
        out.append(f"{name}: no checkpoint; whether seeds diverged is not known")
    participants = extra["participants"]
    if participants is None:
        out.append(f"{name}: {PARTICIPANTS} is missing or cannot be read; its network and data are not known")
    elif not participants.get("data"):
        out.append(f"{name}: who holds what is not recorded (a run of processes, or of an earlier release)")
    if extra["clients"] is None:
        out.append(f"{name}: {CLIENTS} is missing (the run has not ended, or ran as processes)")
    return out
