"""`depositum federation approve`: from requests to invitations."""

from pathlib import Path
from typing import Annotated

import typer

from depositum.cli.federation import OrganiserFolderOption
from depositum.cli.federation.organiser import find_organiser_folder, print_agreement
from depositum.federation import certificates
from depositum.federation.enrolment import Request
from depositum.federation.organiser_folder import Approval, check_days

_OUTCOMES = {
    "approved": "approved",
    "unchanged": "approved before",
    "renewed": "certificate renewed",
    "moved": "new address",
}


def command(
    requests: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[REQUESTS]…", help="The members' .request files; none: sign a changed plan.", show_default=False
        ),
    ] = None,
    federation: OrganiserFolderOption = None,
    days: Annotated[
        int, typer.Option(metavar="DAYS", help="How long new certificates are valid.")
    ] = certificates.MEMBER_DAYS,
) -> None:
    """The organiser: approve requests, and write the invitations.

    Once every planned member is approved, the agreement is signed, and invitations/NAME.invitation is written for each.
    Approve again whenever the plan, an address or a member changes: the agreement gets a new revision, and members
    accept the new invitations. A request is refused if its key is not the one that was approved before.
    """
    check_days("--days", days)
    folder = find_organiser_folder(federation)
    before = folder.agreement()
    approvals = folder.approve([Request.load(path) for path in requests or []], days)
    for line in _lines(approvals):
        typer.echo(line)
    if approvals:
        typer.echo("Compare each key's fingerprint with its member by telephone before you send an invitation.")
    missing = folder.missing()
    if missing or not folder.agreement():
        waiting = " and ".join(missing) if missing else "at least one more member"
        typer.echo(f"\nnext: approve the request of {waiting}; then all invitations are written")
        return
    print_agreement(folder, before)


def _lines(approvals: list[Approval]) -> list[str]:
    """A line for each request, in columns."""
    rows = [
        (approval.request.name, _OUTCOMES[approval.outcome], approval.request.address or "dials only")
        for approval in approvals
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True))
        + f"  key {approval.request.fingerprint}"
        for row, approval in zip(rows, approvals, strict=True)
    ]
