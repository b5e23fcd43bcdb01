"""Tables in the paper's form: our numbers, the paper's, and the difference in combined standard deviations.

Where the paper's numbers are on another scale, that difference says nothing: the gaps between rows are shown instead,
ours and the paper's.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from depositum.errors import ConfigError, listing
from depositum.experiments.checks import difference, moments
from depositum.experiments.definition import Experiment, TableLine, TableSpec
from depositum.experiments.paper_number import PaperNumber
from depositum.experiments.results import (
    CellResult,
    HasDivergedError,
    NotRunError,
    Results,
    Values,
    check_measure,
    check_statistic,
    measure_title,
)
from depositum.experiments.sweep import matches
from depositum.registry import Spec

NOTE = (
    "Mean ± sample standard deviation over seeds (a number without one is from one seed); in brackets the paper's "
    "number, and ours minus the paper's in combined standard deviations σ = √(s₁² + s₂²), an unknown one counting as 0."
)
NOTE_OTHER_SCALE = "Mean ± sample standard deviation over seeds; in brackets the paper's."
NOTE_GAPS = (
    "By how many percent a number is above that row's: mean ± sample standard deviation of the gaps per seed; in "
    "brackets the gap between the paper's means."
)


@dataclass(frozen=True)
class TableCell:
    """One cell of a table.

    Attributes
    ----------
    values
        Our values over seeds `[S]`; None if there are none.
    reason
        Why there are no values.
    paper
        The paper's number.
    survivors
        If some seeds diverged or collapsed, the values of the others.
    seeds_run
        If some seeds diverged or collapsed, the number of all seeds.
    """

    values: Values | None
    reason: str = ""
    paper: PaperNumber | None = None
    survivors: Values | None = None
    seeds_run: int = 0

    @property
    def seeds(self) -> int:
        """How many seeds were run."""
        return self.seeds_run if self.values is None else len(self.values)

    @property
    def mean(self) -> float | None:
        return None if self.values is None else moments(self.values)[0]

    @property
    def deviations(self) -> float | None:
        """Ours minus the paper's, in √(s₁² + s₂²); an unknown deviation (one seed, or not printed) counts as 0."""
        if self.values is None or self.paper is None:
            return None
        m, s = moments(self.values)
        combined = float(np.hypot(s, self.paper.std or 0.0))
        return (m - self.paper.mean) / combined if combined > 0 else None

    def ours(self) -> str:
        """Our mean ± standard deviation, or why it is missing."""
        if self.values is None:
            some = self.survivors is not None and len(self.survivors) > 0
            return f"{self.reason}, else {replace(self, values=self.survivors).ours()}" if some else self.reason
        overflowed = int(np.sum(~np.isfinite(self.values)))
        if overflowed and len(self.values) > 1:
            return f"not finite for {overflowed} of {len(self.values)}"
        m, s = moments(self.values)
        if self.paper is None and s == 0 and m.is_integer() and abs(m) < 1e9:  # a count
            return f"{m:.0f}" + (" ± 0" if len(self.values) > 1 else "")
        if self.paper is None and m and not 1e-3 <= abs(m) < 1e5:
            return f"{m:.2e}" + (f" ± {s:.1e}" if len(self.values) > 1 else "")
        # As many decimals as the paper prints; otherwise two significant digits of the deviation.
        fitting = 1 - math.floor(math.log10(s)) if s > 0 else 4
        decimals = self.paper.decimals if self.paper else min(max(fitting, 0), 6)
        return f"{m:.{decimals}f}" + (f" ± {s:.{decimals}f}" if len(self.values) > 1 else "")

    def difference(self) -> str:
        """The difference from the paper's number in σ, or "" if it is not known."""
        found = self.deviations
        return "" if found is None else f"{found:+.1f}σ"

    def gap_to(self, other: "TableCell") -> "TableCell":
        """By how many percent this cell is above another: per seed for our values, by means for the paper's."""
        paper = None
        if self.paper is not None and other.paper is not None:
            paper = PaperNumber(100 * (self.paper.mean / other.paper.mean - 1), None, 2)
        if self.values is None or other.values is None:
            return TableCell(None, self.reason or other.reason, paper, seeds_run=self.seeds_run)
        both = min(len(self.values), len(other.values))  # fewer seeds are always the first of more
        return TableCell(100 * (self.values[:both] / other.values[:both] - 1), "", paper)


@dataclass(frozen=True)
class TableRow:
    """One row of a table: its labels and its cells."""

    labels: list[str]
    cells: list[TableCell]

    @property
    def seeds(self) -> str:
        """How many seeds the cells have: `5`, or `3 to 5`."""
        counts = sorted({cell.seeds for cell in self.cells if cell.seeds})
        return "–" if not counts else " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1]))))


@dataclass(frozen=True)
class FilledTable:
    """A table ready to be written: headings of the labels, headings of the columns, rows.

    With `gaps`, the cells are gaps to another row.
    """

    spec: TableSpec
    headings: list[str]
    columns: list[str]
    rows: list[TableRow]
    gaps: bool = False

    @property
    def title(self) -> str:
        if not self.gaps:
            return self.spec.title
        return f"{self.spec.title}: gaps to {', '.join(self.spec.gaps_to.values())} (%)"

    @property
    def notes(self) -> list[str]:
        """The text above the table."""
        if self.gaps:
            return [NOTE_GAPS]
        compared = any(cell.paper for row in self.rows for cell in row.cells) and not self.spec.line
        note = NOTE_OTHER_SCALE if self.spec.gaps_to else NOTE
        return [text for text in (self.spec.note, note if compared else "") if text]


def check_table(table: TableSpec, experiment: Experiment, key: str) -> None:
    """Raise if a table cannot be made."""
    path = f"{experiment.id}: {key}"
    experiment.check_where(table.where, f"{key}.where")
    for axis in [*table.rows, *table.columns]:
        experiment.check_axis(axis, key)
    check_statistic(table.at, f"{path}.at")
    measures = [*table.measures, *([table.measure] if table.measure else []), *(line.measure for line in table.line)]
    for measure in measures:
        check_measure(measure, experiment, key)
    forms = [
        bool(table.line),
        bool(table.rows and table.columns and table.measure),
        bool(table.rows and table.measures),
    ]
    if sum(forms) != 1:
        raise ConfigError(path, "must have lines; or rows, columns and a measure; or rows and measures")
    if table.gaps_to:
        experiment.check_where(dict(table.gaps_to), f"{key}.gaps_to")
        if set(table.gaps_to) != set(table.rows):
            raise ConfigError(f"{path}.gaps_to", f"must name one row, by {listing(table.rows)}")
    for line in table.line:
        experiment.check_where(dict(line.cell), f"{key}.line.cell")
        experiment.check_where(dict(line.less_than or {}), f"{key}.line.less_than")
        if line.paper is not None:
            PaperNumber.parse(line.paper, f"{path}.line.paper")
    width = len(table.rows) + (len(_columns(table, experiment)) if table.columns else len(table.measures))
    for row in table.paper:
        if len(row) != width:
            raise ConfigError(f"{path}.paper", f"{row} has {len(row)} entries; it must have {width}")
        experiment.check_where(dict(zip(table.rows, row, strict=False)), f"{key}.paper")
        for text in row[len(table.rows) :]:
            if text:
                PaperNumber.parse(text, f"{path}.paper")


def _columns(table: TableSpec, experiment: Experiment) -> list[tuple[str, ...]]:
    """The combinations of labels of the `columns` axes that the table shows."""

    def shown(axis: str) -> list[str]:
        where = {axis: table.where[axis]} if axis in table.where else {}
        return [label for label in experiment.labels(axis) if matches({axis: label}, where)]

    return list(itertools.product(*map(shown, table.columns)))


def make_tables(table: TableSpec, experiment: Experiment, results: Results) -> list[FilledTable]:
    """The table and, with `gaps_to`, a second one with the gaps to that row."""
    filled = fill_table(table, experiment, results)
    return [filled, *_gaps(filled)] if table.gaps_to else [filled]


def fill_table(table: TableSpec, experiment: Experiment, results: Results) -> FilledTable:
    """Fill a table with the results of the cells."""
    if table.line:
        rows = [TableRow([line.what], [_fill_line(line, results)]) for line in table.line]
        return FilledTable(table, [""], ["ours"], rows)
    selected = results.where(table.where)
    columns = _columns(table, experiment)
    paper_rows = {tuple(row[: len(table.rows)]): row[len(table.rows) :] for row in table.paper}
    rows = []
    for labels in itertools.product(*(experiment.labels(axis) for axis in table.rows)):
        in_row = selected.where(dict(zip(table.rows, labels, strict=True)))
        if not in_row.cells:
            continue
        paper = paper_rows.get(labels, [])
        if table.columns:
            assert table.measure is not None
            in_columns = [in_row.where(dict(zip(table.columns, column, strict=True))).cells for column in columns]
            entries = [(_only_cell(found), table.measure) for found in in_columns]
        else:
            entries = [(_only_cell(in_row.cells), measure) for measure in table.measures]
        cells = [
            _fill_cell(result, measure, table.at, paper[k] if k < len(paper) else "")
            for k, (result, measure) in enumerate(entries)
        ]
        rows.append(TableRow(list(labels), cells))
    headings = [", ".join(column) for column in columns] if table.columns else list(map(measure_title, table.measures))
    return FilledTable(table, list(table.rows), headings, rows)


def _only_cell(found: Sequence[CellResult]) -> CellResult | None:
    """The only result for a cell of the table, or None."""
    if len(found) > 1:
        raise ConfigError(
            "rows", f"several cells ({found[0].name}; {found[1].name}) share one cell of the table; name more axes"
        )
    return found[0] if found else None


def _fill_cell(result: CellResult | None, measure: str, at: Spec, paper: str) -> TableCell:
    number = PaperNumber.parse(paper, "paper") if paper else None
    if result is None:
        return TableCell(None, "–", number)
    try:
        values = result.values(measure, at)
    except NotRunError:
        return TableCell(None, "not run", number)
    except HasDivergedError:
        values = np.array([])
    if not result.lost:
        return TableCell(values, "", number)
    assert result.cached is not None
    return TableCell(None, result.losses, number, values, len(result.cached.seeds))


def printed_numbers(experiment: Experiment) -> dict[tuple[str, str], PaperNumber]:
    """The numbers that the paper's tables print, by measure and name of the cell."""
    found: dict[tuple[str, str], PaperNumber] = {}
    for table in experiment.table:
        if table.measure is None or not table.columns:
            continue
        fixed = {axis: label for axis, label in table.where.items() if isinstance(label, str)}
        for row in table.paper:
            for column, text in zip(_columns(table, experiment), row[len(table.rows) :], strict=True):
                labels = (
                    fixed | dict(zip(table.rows, row, strict=False)) | dict(zip(table.columns, column, strict=True))
                )
                if text and set(labels) == set(experiment.axes):
                    name = ", ".join(labels[axis] for axis in experiment.axes)
                    found[table.measure, name] = PaperNumber.parse(text, "paper")
    return found


def _fill_line(line: TableLine, results: Results) -> TableCell:
    number = PaperNumber.parse(line.paper, "paper") if line.paper else None
    try:
        return TableCell(difference(results, line.measure, line.cell, line.less_than), "", number)
    except NotRunError:
        return TableCell(None, "not run", number)
    except HasDivergedError:
        return TableCell(None, "diverged", number)


def _gaps(table: FilledTable) -> list[FilledTable]:
    """The table of gaps to the reference row; none if that row was not run."""
    reference = [table.spec.gaps_to[axis] for axis in table.headings]
    to = next((row.cells for row in table.rows if row.labels == reference), None)
    if to is None:
        return []
    rows = [
        TableRow(row.labels, [cell.gap_to(other) for cell, other in zip(row.cells, to, strict=True)])
        for row in table.rows
        if row.labels != reference
    ]
    return [replace(table, rows=rows, gaps=True)]


def _best(table: FilledTable, cells: Sequence[TableCell]) -> int | None:
    """The index of the cell to print in bold."""
    known = [(cell.mean, k) for k, cell in enumerate(cells) if cell.mean is not None]
    if table.spec.bold is None or len(known) < 2:
        return None
    return (max if table.spec.bold == "highest" else min)(known)[1]


def as_markdown(table: FilledTable) -> str:
    """The table as Markdown."""
    head, body = _text_cells(table, "**", "**")
    lines = [f"**{table.title}**", ""]
    lines += [line for note in table.notes for line in (note, "")]
    lines += ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(text.replace("|", "\\|") for text in row) + " |" for row in body]
    return "\n".join(lines) + "\n"


def _text_cells(table: FilledTable, bold: str, plain: str) -> tuple[list[str], list[list[str]]]:
    """The headings and rows of a table as text; the best of each row is put between the marks `bold` and `plain`."""
    if table.spec.line:
        return _line_text_cells(table)
    body = []
    for row in table.rows:
        best = _best(table, row.cells)
        texts = []
        for k, cell in enumerate(row.cells):
            ours = f"{bold}{cell.ours()}{plain}" if k == best else cell.ours()
            difference = "" if table.spec.gaps_to else cell.difference()
            inside = "; ".join(part for part in (str(cell.paper) if cell.paper else "", difference) if part)
            texts.append(f"{ours} ({inside})" if inside else ours)
        body.append([*row.labels, *texts, row.seeds])
    return [*table.headings, *table.columns, "seeds"], body


def _line_text_cells(table: FilledTable) -> tuple[list[str], list[list[str]]]:
    head = ["", "ours", "paper", "difference", "in σ", "seeds"]
    body = []
    for row in table.rows:
        (cell,) = row.cells
        paper = str(cell.paper) if cell.paper else "–"
        difference = "–"
        if cell.mean is not None and cell.paper is not None:
            difference = f"{cell.mean - cell.paper.mean:+.{cell.paper.decimals}f}"
        body.append([*row.labels, cell.ours(), paper, difference, cell.difference() or "–", row.seeds])
    return head, body


_LATEX = {"&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "±": r"$\pm$", "σ": r"$\sigma$", "–": "--", "α": r"$\alpha$",
        "β": r"$\beta$", "γ": r"$\gamma$", "φ": r"$\phi$", "‖": r"$\Vert$", "²": "$^2$", "ᵅ": r"$^\alpha$",
        "₀": "$_0$", "⁻": "$^-$", "³": "$^3$", "⁴": "$^4$", "·": r"$\cdot$", "√": r"$\surd$", "₁": "$_1$",
        "₂": "$_2$", "≤": r"$\le$", "−": "$-$"}  # fmt: skip


def as_latex(table: FilledTable) -> str:
    """The table as LaTeX (booktabs)."""
    head, body = _text_cells(table, "\0", "\1")  # replaced after escaping
    count = 1 if table.spec.line else len(table.headings)
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_escape_latex(table.title)}}}",
        f"\\begin{{tabular}}{{{'l' * count}{'c' * (len(head) - count)}}}",
        "\\toprule",
        " & ".join(map(_escape_latex, head)) + " \\\\",
        "\\midrule",
        *(" & ".join(map(_escape_latex, row)) + " \\\\" for row in body),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _escape_latex(text: str) -> str:
    text = "".join(_LATEX.get(character, character) for character in text)
    return text.replace("\0", "\\textbf{").replace("\1", "}")
