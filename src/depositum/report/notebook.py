"""A result at the end of a notebook's cell: its curves and a short table, as one piece of HTML without other files."""

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from depositum.report.curves import history_figure
from depositum.report.history_tables import all_formats, final_values, format_measure

if TYPE_CHECKING:
    import pandas as pd

#: Pixels per inch; the picture is shown at half its size, so that it is sharp on screens of high resolution.
DPI = 160
_TABLE = "border-collapse:collapse;margin:0 0 0.5em 0"
_CELL = "padding:0.15em 0.9em 0.15em 0;text-align:right;white-space:nowrap"
_WARNING = "color:#8a4b00;background:#fff4e0;border-left:4px solid #e08a00;padding:0.3em 0.7em;margin:0 0 0.5em 0"


def result_html(title: str, history: "pd.DataFrame", diverged: dict[int, str], warnings: Sequence[str]) -> str:
    """The HTML of a result.

    Parameters
    ----------
    history
        One row per seed and evaluated iteration.
    diverged
        Where seeds diverged, by seed: the table leaves them out, unless all did.
    warnings
        What the user must not overlook, besides.
    """
    sound = history[~history["seed"].isin(list(diverged))]
    shown = history if sound.empty else sound
    notes = [*diverged.values(), *warnings]
    parts = [f"<p style='margin:0 0 0.4em 0'><b>{escape(title)}</b></p>"]
    parts += [f"<p style='{_WARNING}'>{escape(note)}</p>" for note in notes]
    return f"<div>{''.join(parts)}{_table(shown)}{_picture(history)}</div>"


def _table(history: "pd.DataFrame") -> str:
    """The final measures, mean ± standard deviation over seeds, in the formats of every table."""
    last = final_values(history)
    cells = [("seeds", str(len(last)))] if len(last) > 1 else []
    for column, (heading, form) in all_formats([last]).items():
        if column in last and last[column].notna().any():
            cells.append((heading, format_measure(last[column], form)))
    head = "".join(f"<th style='{_CELL}'>{escape(heading)}</th>" for heading, _ in cells)
    body = "".join(f"<td style='{_CELL}'>{escape(value)}</td>" for _, value in cells)
    return (
        f"<div style='overflow-x:auto'><table style='{_TABLE}'><thead><tr>{head}</tr></thead>"
        f"<tbody><tr>{body}</tr></tbody></table></div>"
    )


def _picture(history: "pd.DataFrame") -> str:
    """The curves, as a PNG inside the HTML."""
    figure, content = history_figure(history), io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    width = round(figure.get_figwidth() * DPI / 2)
    data = base64.b64encode(content.getvalue()).decode()
    return (
        f"<img alt='curves of the measures over the iterations' style='max-width:100%;width:{width}px' "
        f"src='data:image/png;base64,{data}'>"
    )
