"""Which runs can be ranked: the problem that each solves, and the settings in which they differ.

A run is known by its complete configuration, as `config.toml` in its folder has it. Two runs solve the same problem if
their `[problem]` sections agree; the regularizer does not count where β = 0.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from depositum.algorithms import ALGORITHMS
from depositum.metrics import ended_worse
from depositum.runs import Config

if TYPE_CHECKING:
    import pandas as pd

#: A complete configuration: sections and their keys.
Table = Mapping[str, Mapping[str, Any]]

SYMBOLS = {"alpha": "α", "eta": "η"}
#: Settings besides the problem and the method that change a trajectory or its cost.
COMPARED_SETTINGS = (
    *(("network", key) for key in ("topology", "mixing", "drop", "lost", "late", "channel")),
    *(("run", key) for key in ("steps", "period", "batch_size", "sampling", "participation")),
    *(("run", key) for key in ("seeds", "dtype", "precision")),
)
#: Names of runs that a note lists, at most.
LISTED = 6


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison.

    Attributes
    ----------
    history
        One row per seed and evaluated iteration.
    table
        Its complete configuration; None if that is not known.
    diverged
        Where its seeds diverged, in words; empty if none did.
    """

    name: str
    history: "pd.DataFrame"
    table: Table | None = None
    diverged: str = ""

    @property
    def stepsize(self) -> str:
        """The stepsize by the method's own name for it, such as `"η = 0.1"`; empty if it is not known."""
        return "" if self.table is None else stepsize_text(self.table)

    @property
    def unfinished(self) -> str:
        """How far a run came that was stopped before its end; empty for any other."""
        steps = None if self.table is None else self.table.get("run", {}).get("steps")
        last = int(self.history["iteration"].max())
        return f"{last} of {steps} iterations" if steps is not None and last < steps and not self.diverged else ""

    @cached_property
    def worse(self) -> str:
        """How it ended worse than it began, in one line; empty if it did not."""
        return "" if self.diverged else ended_worse(self.history, "another stepsize") or ""


class RunGroup(NamedTuple):
    """Runs of a comparison that are shown together.

    Attributes
    ----------
    title
        What is common to them; empty if all runs of the comparison are.
    kind
        "ranked": they solve the problem in question; "apart": another one; "diverged".
    """

    title: str
    runs: list[ComparedRun]
    kind: Literal["ranked", "apart", "diverged"]


def solved_problem(table: Table) -> dict[str, Any]:
    """What a run minimises, over which data: the keys of `[problem]`, without a regularizer that β = 0 switches off."""
    problem = {**Config().problem.model_dump(exclude_none=True), **table.get("problem", {})}
    if not problem["beta"] or problem["regularizer"] in ("zero", {"zero": {}}):
        problem |= {"beta": 0.0, "regularizer": "zero"}
    return problem


def problem_differences(table: Table, reference: Table) -> dict[str, tuple[Any, Any]]:
    """The keys in which the problem of a run differs from another's, with both values (None: not set); empty if same.

    >>> base = {"problem": {"regularizer": "l1", "beta": 0.01}}
    >>> problem_differences({"problem": {"regularizer": "l1", "beta": 0.0}}, base)
    {'beta': (0.0, 0.01), 'regularizer': ('zero', 'l1')}
    """
    own, other = solved_problem(table), solved_problem(reference)
    keys = sorted({*own, *other})
    return {key: (own.get(key), other.get(key)) for key in keys if own.get(key) != other.get(key)}


def stepsize_text(table: Table) -> str:
    """A method's stepsize by its own name, such as `"η = 0.1"`; empty for a method whose name for it is not known."""
    method = table.get("algorithm", {})
    key = ALGORITHMS.attribute(method.get("name", "depositum"), "stepsize_key", "alpha")
    return f"{SYMBOLS.get(key, key)} = {setting_text(method[key])}" if key in method else ""


def grouped_by_problem(runs: Sequence[ComparedRun], reference: Table | None = None) -> list[RunGroup]:
    """Group runs by the problem that they solve; runs that diverged are a group of their own.

    Parameters
    ----------
    reference
        The configuration whose problem is in question; without one (or if no run solves its problem), the first run's.
    """
    sound = [run for run in runs if not run.diverged]
    known = [run.table for run in sound if run.table is not None]
    if reference is None or not any(not problem_differences(table, reference) for table in known):
        reference = known[0] if known else None
    groups: dict[str, list[ComparedRun]] = {}
    for run in sound:
        groups.setdefault(_group_title(run, reference), []).append(run)
    ranked = groups.pop("", [])
    apart = [RunGroup(title, members, "apart") for title, members in groups.items()]
    # All runs whose problem is not known may solve the same one.
    if not ranked and len(apart) == 1:
        ranked, apart = apart[0].runs, []
    out = [RunGroup(_own_problem(ranked, apart, reference), ranked, "ranked")] if ranked else []
    diverged = [run for run in runs if run.diverged]
    return [*out, *apart, *([RunGroup("diverged, not ranked", diverged, "diverged")] if diverged else [])]


def commonest_problem(runs: Sequence[ComparedRun]) -> Table | None:
    """The configuration of a run whose problem most runs solve, the first of equals; None if none is known.

    It is what a folder of runs compares, where the configuration that it was made from is not at hand.
    """
    tables = [run.table for run in runs if run.table is not None]
    return max(tables, key=lambda t: sum(not problem_differences(t, other) for other in tables), default=None)


def stepsizes(runs: Sequence[ComparedRun], always: bool = False) -> dict[str, str]:
    """The stepsize of each run by name, where runs differ in it (or `always`); otherwise nothing."""
    texts = {run.name: run.stepsize for run in runs}
    return texts if always or len(set(texts.values())) > 1 else {}


def labels(runs: Sequence[ComparedRun]) -> dict[str, str]:
    """The label of each run in a legend: its name, and its stepsize where runs differ in it."""
    differing = stepsizes(runs)
    return {run.name: ", ".join(part for part in (run.name, differing.get(run.name)) if part) for run in runs}


def differing_settings(runs: Sequence[ComparedRun]) -> Iterator[str]:
    """One line for each setting, besides problem and stepsize, in which runs differ.

    Hyper-parameters are compared among runs of the same method: others may give another meaning to the name.
    """
    tables = {run.name: run.table for run in runs if run.table is not None}
    for section, key in COMPARED_SETTINGS:
        default = getattr(getattr(Config(), section), key)
        yield from _differing(
            f"{section}.{key}",
            {name: table[section].get(key, default) for name, table in tables.items() if section in table},
        )
    by_method: dict[str, dict[str, Mapping[str, Any]]] = {}
    for name, table in tables.items():
        own = table.get("algorithm", {})
        by_method.setdefault(str(own.get("name")), {})[name] = own
    for method, settings in by_method.items():
        stepsize = ALGORITHMS.attribute(method, "stepsize_key", "alpha")
        for key in dict.fromkeys(key for keys in settings.values() for key in keys):
            if key not in ("name", stepsize):
                yield from _differing(f"algorithm.{key}", {name: keys.get(key) for name, keys in settings.items()})


def notes(runs: Sequence[ComparedRun]) -> list[str]:
    """What a reader of a table must know about its runs, one line each."""
    out = [f"{run.name}: {run.unfinished}" for run in runs if run.unfinished]
    out += [f"! {run.name} {run.worse}" for run in runs if run.worse]
    return [*out, *differing_settings(runs)]


def _group_title(run: ComparedRun, reference: Table | None) -> str:
    """What runs that solve the problem of `run` have in common; empty if it is that of `reference`."""
    if run.table is None or reference is None:
        return "problem not known (no config.toml)"
    found = problem_differences(run.table, reference)
    return f"another problem: {_problem_text(run.table, reference, found)}" if found else ""


def _own_problem(ranked: Sequence[ComparedRun], apart: Sequence[RunGroup], reference: Table | None) -> str:
    """The problem of the ranked runs, in the settings in which others differ from it."""
    tables = [run.table for group in apart for run in group.runs if run.table is not None]
    if reference is None or not tables or not ranked:
        return ""
    found = {key for table in tables for key in problem_differences(table, reference)}
    return f"problem: {_problem_text(reference, tables[0], found)}"


def _problem_text(table: Table, other: Table, keys: Any) -> str:
    """The settings `keys` of a table's problem, in words."""
    problem, compared = solved_problem(table), solved_problem(other)
    parts = []
    if {"beta", "regularizer"} & set(keys):
        h = "no regularizer" if not problem["beta"] else setting_text(problem["regularizer"])
        parts.append(f"{h}, β = {problem['beta']:g}")
    others = sorted(set(keys) - {"beta", "regularizer"})
    parts += [f"{key} = {setting_text(problem.get(key), compared.get(key))}" for key in others]
    return "; ".join(parts)


def _differing(key: str, values: Mapping[str, Any]) -> Iterator[str]:
    """The line of one setting, with the most common value first."""
    groups: dict[str, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(setting_text(value), []).append(name)
    if len(groups) < 2:
        return
    common, *others = sorted(groups, key=lambda text: -len(groups[text]))
    differing = "; ".join(f"{text} for {_names(groups[text])}" for text in others)
    whose = f" for {_names(groups[common])}" if len(groups[common]) == 1 else ""
    yield f"{key}: {common}{whose}; {differing}"


def _names(names: Sequence[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")


def setting_text(value: Any, other: Any = None) -> str:
    """A setting in a few words; of a choice by name, only the arguments in which it differs from `other`.

    >>> setting_text(0.05), setting_text({"dirichlet": {"theta": 0.5}})
    ('0.05', 'dirichlet (theta = 0.5)')
    >>> setting_text({"ring": {"hops": 1}}, {"ring": {"hops": 2}})
    'ring (hops = 1)'
    """
    if value is None:
        return "not set"
    if isinstance(value, bool) or not isinstance(value, int | float | Mapping | list | tuple):
        return str(value)
    if isinstance(value, int | float):
        return f"{value:g}" if isinstance(value, float) else str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(setting_text, value)) + "]" if len(value) <= LISTED else f"{len(value)} values"
    parts = []
    for name, arguments in value.items():
        compared = other.get(name) if isinstance(other, Mapping) else None
        if isinstance(arguments, Mapping):
            shown = {
                k: v for k, v in arguments.items() if not isinstance(compared, Mapping) or compared.get(k) != v
            } or arguments
            listed = ", ".join(f"{k} = {setting_text(v)}" for k, v in shown.items())
            parts.append(f"{name} ({listed})" if listed else str(name))
        else:
            parts.append(f"{name} = {setting_text(arguments)}")
    return ", ".join(parts)
