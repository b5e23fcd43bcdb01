"""A member's status as a table, and that of several members as one."""

from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from depositum.federation.status import Status
from depositum.memory import format_bytes

_STYLES = {"training": "green", "finished": "bold green", "waiting": "yellow", "failed": "bold red"}


def member_table(status: Status, now: float) -> Group:
    """What one member sees of its neighbours."""
    lines = [_headline(status, now)]
    lines += [_waiting_line(status, now)] if status.waiting_for else []
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("neighbour", "connection", "phase", "sent", "received", "without it"):
        table.add_column(column, justify="left" if column in ("neighbour", "connection") else "right", no_wrap=True)
    for one in status.neighbours:
        text = f"{'connected' if one.connected else 'away'} for {duration(now - one.since)}"
        dropped = f"{one.dropped_phases} phases" if one.dropped_phases else "–"
        connection = Text(text, style="green" if one.connected else "yellow")
        table.add_row(
            one.name,
            connection,
            str(one.phase),
            format_bytes(one.bytes_sent),
            format_bytes(one.bytes_received),
            dropped,
        )
    return Group(*lines, table)


def federation_table(statuses: Sequence[tuple[str, Status | None]], now: float) -> Table:
    """Several members side by side, by name."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("member", "state", "iteration", "phase", "loss", "connected", "sent", "received"):
        table.add_column(column, justify="right" if column in _NUMBERS else "left", no_wrap=True)
    for name, status in statuses:
        if status is None:
            table.add_row(name, Text("not started", style="dim"), "", "", "", "", "", "")
            continue
        connected = sum(neighbour.connected for neighbour in status.neighbours)
        links = f"{connected} of {len(status.neighbours)}"
        table.add_row(
            name,
            Text(status.state, style=_STYLES.get(status.state, "")),
            f"{status.iteration}/{status.steps}",
            str(status.phase),
            "" if status.loss is None else f"{status.loss:.4f}",
            links,
            format_bytes(sum(n.bytes_sent for n in status.neighbours)),
            format_bytes(sum(n.bytes_received for n in status.neighbours)),
        )
    return table


_NUMBERS = ("iteration", "phase", "loss", "sent", "received")


def duration(seconds: float) -> str:
    """A duration in its largest unit.

    >>> duration(5.2), duration(130), duration(7300), duration(200000)
    ('5 s', '2 min', '2 h', '2 days')
    """
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= (2 if unit == "days" else 1) * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def _headline(status: Status, now: float) -> Text:
    line = Text.assemble((status.member, "bold"), ": ", (status.state, _STYLES.get(status.state, "")))
    line.append(f", iteration {status.iteration} of {status.steps}, phase {status.phase}")
    line.append("" if status.loss is None else f", loss {status.loss:.4f}")
    line.append(f" (as of {duration(now - status.updated)} ago)")
    if status.reason:
        line.append(f"\n{status.reason}")
    if status.state in ("starting", "waiting", "training") and not status.is_running():
        line.append("\nits process has ended; run `depositum peer` again, and it resumes", style="bold yellow")
    return line


def _waiting_line(status: Status, now: float) -> Text:
    who = "; ".join(f"{w.name} ({w.what}) since {duration(now - w.since)}" for w in status.waiting_for)
    return Text(f"waiting for {who}", style="yellow")
