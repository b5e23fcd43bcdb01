"""Tables in the paper's form: ours, the paper's number, and the difference in combined standard deviations."""

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from depositum.errors import ConfigError
from depositum.experiments.checks import difference, moments
from depositum.experiments.definition import Experiment, Line, Tabulated
from depositum.experiments.results import (
    HasDivergedError,
    NotRunError,
    Outcome,
    Results,
    Values,
    check_measure,
    check_statistic,
    title,
)
from depositum.experiments.sweep import check_axis, check_where, matches
from depositum.registry import Spec

_PRINTED = re.compile(r"^(-?\d+(?:\.\d+)?)(?:±(\d+(?:\.\d+)?))?$")


@dataclass(frozen=True)
class Printed:
    """A number of the paper: its mean, its standard deviation where it prints one, and its decimals."""

    mean: float
    std: float | None
    decimals: int

    @classmethod
    def read(cls, text: str, key: str) -> "Printed":
        """Read `"94.20±0.13"` or `"27.242"`."""
        found = _PRINTED.match(text.replace(" ", ""))
        if not found:
            raise ConfigError(key, f"{text!r} given; it must be a number, or mean±deviation as in '94.20±0.13'")
        mean, std = found[1], found[2]
        return cls(float(mean), float(std) if std else None, len(mean.partition(".")[2]))

    def __str__(self) -> str:
        d = self.decimals
        return f"{self.mean:.{d}f}" + (f" ± {self.std:.{d}f}" if self.std is not None else "")


@dataclass(frozen=True)
class Entry:
    """One place of a table: what we found over seeds `[S]`, or why there is nothing; and the paper's number."""

    values: Values | None
    why: str = ""
    paper: Printed | None = None

    @property
    def mean(self) -> float | None:
        return None if self.values is None else moments(self.values)[0]

    @property
    def deviations(self) -> float | None:
        """Ours less the paper's, in √(s₁² + s₂²); the paper's deviation counts as 0 where it prints none."""
        if self.values is None or self.paper is None:
            return None
        m, s = moments(self.values)
        combined = float(np.hypot(s, self.paper.std or 0.0))
        return (m - self.paper.mean) / combined if combined > 0 else None

    def ours(self) -> str:
        if self.values is None:
            return self.why
        m, s = moments(self.values)
        if self.paper is None and m and not 1e-3 <= abs(m) < 1e5:
            return f"{m:.2e}" + (f" ± {s:.1e}" if len(self.values) > 1 else "")
        # As many decimals as the paper prints, or else as two digits of the deviation need.
        fitting = 1 - math.floor(math.log10(s)) if s > 0 else 4
        decimals = self.paper.decimals if self.paper else min(max(fitting, 0), 6)
        return f"{m:.{decimals}f}" + (f" ± {s:.{decimals}f}" if len(self.values) > 1 else "")

    def apart(self) -> str:
        found = self.deviations
        return "" if found is None else f"{found:+.1f}σ"


@dataclass(frozen=True)
class Made:
    """A table ready to be written: headings, then rows of label cells and entries."""

    spec: Tabulated
    headings: list[str]
    columns: list[str]
    rows: list[tuple[list[str], list[Entry], str]]  #: labels, entries, seeds


def check_table(table: Tabulated, experiment: Experiment, key: str) -> None:
    """Refuse a table that cannot be made."""
    where = f"{experiment.id}: {key}"
    check_where(table.where, experiment, f"{key}.where")
    for axis in [*table.rows, *table.columns]:
        check_axis(axis, experiment, key)
    check_statistic(table.at, f"{where}.at")
    for measure in [*table.measures, *([table.measure] if table.measure else []), *(own.measure for own in table.line)]:
        check_measure(measure, where)
    forms = [
        bool(table.line),
        bool(table.rows and table.columns and table.measure),
        bool(table.rows and table.measures),
    ]
    if sum(forms) != 1:
        raise ConfigError(where, "must have lines; or rows, columns and a measure; or rows and measures")
    for line in table.line:
        check_where(dict(line.cell), experiment, f"{key}.line.cell")
        check_where(dict(line.less_than or {}), experiment, f"{key}.line.less_than")
        if line.paper is not None:
            Printed.read(line.paper, f"{where}.line.paper")
    width = len(table.rows) + (len(_columns(table, experiment)) if table.columns else len(table.measures))
    for row in table.paper:
        if len(row) != width:
            raise ConfigError(f"{where}.paper", f"{row} has {len(row)} entries; it must have {width}")
        check_where(dict(zip(table.rows, row, strict=False)), experiment, f"{key}.paper")
        for text in row[len(table.rows) :]:
            if text:
                Printed.read(text, f"{where}.paper")


def _columns(table: Tabulated, experiment: Experiment) -> list[tuple[str, ...]]:
    return list(itertools.product(*(_asked(table, axis, experiment.labels(axis)) for axis in table.columns)))


def _asked(table: Tabulated, axis: str, labels: Sequence[str]) -> list[str]:
    """The labels of an axis that a table asks for."""
    asked = {axis: table.where[axis]} if axis in table.where else {}
    return [label for label in labels if matches({axis: label}, asked)]


def make(table: Tabulated, experiment: Experiment, results: Results) -> Made:
    """Fill a table with what the cells gave."""
    if table.line:
        return _lines(table, results)
    inside = results.where(table.where)
    columns = _columns(table, experiment)
    printed = {tuple(row[: len(table.rows)]): row[len(table.rows) :] for row in table.paper}
    rows = []
    for labels in itertools.product(*(experiment.labels(axis) for axis in table.rows)):
        own = inside.where(dict(zip(table.rows, labels, strict=True)))
        if not own.outcomes:
            continue
        paper = printed.get(labels, [])
        if table.columns:
            assert table.measure is not None
            cells = [own.where(dict(zip(table.columns, column, strict=True))).outcomes for column in columns]
            places = [(_alone(found), table.measure) for found in cells]
        else:
            places = [(_alone(own.outcomes), measure) for measure in table.measures]
        entries = [
            _entry(outcome, measure, table.at, paper[k] if k < len(paper) else "")
            for k, (outcome, measure) in enumerate(places)
        ]
        rows.append((list(labels), entries, _seeds(entries)))
    headings = [", ".join(column) for column in columns] if table.columns else list(map(title, table.measures))
    return Made(table, list(table.rows), headings, rows)


def _alone(found: Sequence[Outcome]) -> Outcome | None:
    """The only cell of a place of the table."""
    if len(found) > 1:
        raise ConfigError("rows", f"several cells ({found[0].name}; {found[1].name}) have one place; name more axes")
    return found[0] if found else None


def _entry(outcome: Outcome | None, measure: str, at: Spec, paper: str) -> Entry:
    printed = Printed.read(paper, "paper") if paper else None
    if outcome is None:
        return Entry(None, "–", printed)
    try:
        return Entry(outcome.values(measure, at), "", printed)
    except NotRunError:
        return Entry(None, "not run", printed)
    except HasDivergedError:
        assert outcome.kept is not None
        return Entry(None, f"diverged ({len(outcome.diverged)} of {len(outcome.kept.seeds)})", printed)


def _lines(table: Tabulated, results: Results) -> Made:
    rows = []
    for line in table.line:
        entry = _line(line, results)
        rows.append(([line.what], [entry], _seeds([entry])))
    return Made(table, [""], ["ours"], rows)


def _line(line: Line, results: Results) -> Entry:
    printed = Printed.read(line.paper, "paper") if line.paper else None
    try:
        return Entry(difference(results, line.measure, line.cell, line.less_than), "", printed)
    except NotRunError:
        return Entry(None, "not run", printed)
    except HasDivergedError:
        return Entry(None, "diverged", printed)


def _seeds(entries: Sequence[Entry]) -> str:
    counts = sorted({len(entry.values) for entry in entries if entry.values is not None})
    return "–" if not counts else " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1]))))


def _best(made: Made, entries: Sequence[Entry]) -> int | None:
    """The place to print in bold."""
    known = [(entry.mean, k) for k, entry in enumerate(entries) if entry.mean is not None]
    if made.spec.bold is None or len(known) < 2:
        return None
    return (max if made.spec.bold == "highest" else min)(known)[1]


EXPLAINED = (
    "Mean ± sample standard deviation over seeds; in brackets the paper's, and ours less the paper's in combined "
    "standard deviations σ = √(s₁² + s₂²) (s₂ = 0 where the paper prints none)."
)


def markdown(made: Made) -> str:
    """The table as Markdown."""
    compared = any(entry.paper for _, entries, _ in made.rows for entry in entries)
    head, body = _cells(made, "**", "**")
    lines = [f"**{made.spec.title}**", ""]
    notes = [text for text in (made.spec.note, EXPLAINED if compared and not made.spec.line else "") if text]
    lines += [line for note in notes for line in (note, "")]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in body]
    return "\n".join(lines) + "\n"


def _cells(made: Made, bold: str, plain: str) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of a table as texts, the best of a row between the marks `bold` and `plain`."""
    if made.spec.line:
        return _line_cells(made)
    body = []
    for labels, entries, seeds in made.rows:
        best = _best(made, entries)
        texts = []
        for k, entry in enumerate(entries):
            ours = f"{bold}{entry.ours()}{plain}" if k == best else entry.ours()
            inside = "; ".join(part for part in (str(entry.paper) if entry.paper else "", entry.apart()) if part)
            texts.append(f"{ours} ({inside})" if inside else ours)
        body.append([*labels, *texts, seeds])
    return [*made.headings, *made.columns, "seeds"], body


def _line_cells(made: Made) -> tuple[list[str], list[list[str]]]:
    head = ["", "ours", "paper", "difference", "in σ", "seeds"]
    body = []
    for labels, (entry,), seeds in made.rows:
        paper = str(entry.paper) if entry.paper else "–"
        apart = "–"
        if entry.mean is not None and entry.paper is not None:
            apart = f"{entry.mean - entry.paper.mean:+.{entry.paper.decimals}f}"
        body.append([*labels, entry.ours(), paper, apart, entry.apart() or "–", seeds])
    return head, body


_TEX = {"&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "±": r"$\pm$", "σ": r"$\sigma$", "–": "--", "α": r"$\alpha$",
        "β": r"$\beta$", "γ": r"$\gamma$", "φ": r"$\phi$", "‖": r"$\Vert$", "²": "$^2$", "ᵅ": r"$^\alpha$",
        "₀": "$_0$", "⁻": "$^-$", "³": "$^3$", "⁴": "$^4$", "·": r"$\cdot$", "√": r"$\surd$", "₁": "$_1$",
        "₂": "$_2$", "≤": r"$\le$", "−": "$-$"}  # fmt: skip


def tex(made: Made) -> str:
    """The table as LaTeX (booktabs)."""
    head, body = _cells(made, "\0", "\1")  # put in after what LaTeX needs escaped
    count = 1 if made.spec.line else len(made.headings)
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_escaped(made.spec.title)}}}",
        f"\\begin{{tabular}}{{{'l' * count}{'c' * (len(head) - count)}}}",
        "\\toprule",
        " & ".join(map(_escaped, head)) + " \\\\",
        "\\midrule",
        *(" & ".join(map(_escaped, row)) + " \\\\" for row in body),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    text = "".join(_TEX.get(character, character) for character in text)
    return text.replace("\0", "\\textbf{").replace("\1", "}")
