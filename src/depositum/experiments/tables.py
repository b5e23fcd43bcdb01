"""Tables in the paper's form: ours, the paper's number, and the difference in combined standard deviations.

Where the paper's numbers are on another scale, that difference says nothing: the gaps between rows are shown instead,
ours and the paper's.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from depositum.errors import ConfigError, listing
from depositum.experiments.checks import difference
from depositum.experiments.definition import Experiment, Line, Tabulated
from depositum.experiments.entries import Entry, Printed
from depositum.experiments.results import (
    HasDivergedError,
    NotRunError,
    Outcome,
    Results,
    check_measure,
    check_statistic,
    title,
)
from depositum.experiments.sweep import check_axis, check_where, matches
from depositum.registry import Spec


@dataclass(frozen=True)
class Made:
    """A table ready to be written: headings, then rows of label cells and entries, which may be gaps to another row."""

    spec: Tabulated
    headings: list[str]
    columns: list[str]
    rows: list[tuple[list[str], list[Entry], str]]  #: labels, entries, seeds
    gaps: bool = False

    @property
    def title(self) -> str:
        if not self.gaps:
            return self.spec.title
        return f"{self.spec.title}: gaps to {', '.join(self.spec.gaps_to.values())} (%)"

    @property
    def notes(self) -> list[str]:
        """What stands above the table."""
        compared = any(entry.paper for _, entries, _ in self.rows for entry in entries)
        if self.gaps:
            return [GAPS]
        explained = EXPLAINED if not self.spec.gaps_to else OTHER_SCALE
        return [text for text in (self.spec.note, explained if compared and not self.spec.line else "") if text]


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
    if table.gaps_to:
        check_where(dict(table.gaps_to), experiment, f"{key}.gaps_to")
        if set(table.gaps_to) != set(table.rows):
            raise ConfigError(f"{where}.gaps_to", f"must name one row, by {listing(table.rows)}")
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


def make_all(table: Tabulated, experiment: Experiment, results: Results) -> list[Made]:
    """A table, and where it names a row to compare with, the gaps to that row."""
    made = make(table, experiment, results)
    return [made, *_gaps(made)] if table.gaps_to else [made]


def _gaps(made: Made) -> list[Made]:
    reference = [made.spec.gaps_to[axis] for axis in made.headings]
    to = next((entries for labels, entries, _ in made.rows if labels == reference), None)
    if to is None:  # not asked for this time
        return []
    others = [
        (labels, [entry.gap_to(own) for entry, own in zip(entries, to, strict=True)])
        for labels, entries, _ in made.rows
        if labels != reference
    ]
    return [replace(made, rows=[(labels, entries, _seeds(entries)) for labels, entries in others], gaps=True)]


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
        why = f"diverged ({len(outcome.diverged)} of {len(outcome.kept.seeds)})"
        return Entry(None, why, printed, outcome.survived(measure, at), len(outcome.kept.seeds))


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
    counts = sorted({entry.seeds for entry in entries if entry.seeds})
    return "–" if not counts else " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1]))))


def _best(made: Made, entries: Sequence[Entry]) -> int | None:
    """The place to print in bold."""
    known = [(entry.mean, k) for k, entry in enumerate(entries) if entry.mean is not None]
    if made.spec.bold is None or len(known) < 2:
        return None
    return (max if made.spec.bold == "highest" else min)(known)[1]


EXPLAINED = (
    "Mean ± sample standard deviation over seeds, a number without one being of one seed; in brackets the paper's, and "
    "ours less the paper's in combined standard deviations σ = √(s₁² + s₂²), one that is not known counting as 0."
)
OTHER_SCALE = "Mean ± sample standard deviation over seeds; in brackets the paper's."
GAPS = (
    "By how much a number lies above that row's, in percent: mean ± sample standard deviation of the gaps seed by "
    "seed; in brackets the gap between the paper's means."
)


def markdown(made: Made) -> str:
    """The table as Markdown."""
    head, body = _cells(made, "**", "**")
    lines = [f"**{made.title}**", ""]
    lines += [line for note in made.notes for line in (note, "")]
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
            apart = "" if made.spec.gaps_to else entry.apart()
            inside = "; ".join(part for part in (str(entry.paper) if entry.paper else "", apart) if part)
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
        f"\\caption{{{_escaped(made.title)}}}",
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
