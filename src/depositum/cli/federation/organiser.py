"""What the organiser's commands share: finding the folder, and printing what was signed."""

from pathlib import Path

import typer

from depositum.errors import ConfigError, listing
from depositum.federation.agreement import Agreement
from depositum.federation.enrolment import INVITATION_ENDING
from depositum.federation.organiser_folder import ORGANISER, PLAN, OrganiserFolder


def find_organiser_folder(given: str | None) -> OrganiserFolder:
    """The folder that the user named, or the only one in the current folder."""
    if given is not None:
        return OrganiserFolder(Path(given))
    here = Path()
    found = [
        path for path in (here, *sorted(here.iterdir())) if (path / ORGANISER).is_dir() and (path / PLAN).is_file()
    ]
    if len(found) != 1:
        what = "none in the current folder" if not found else f"the current folder has {listing(map(str, found))}"
        raise ConfigError("--federation", f"missing: {what}; give the folder that `depositum federation new` made")
    return OrganiserFolder(found[0])


def print_agreement(folder: OrganiserFolder, before: Agreement | None) -> None:
    """What was signed, and what members do with it."""
    agreement = folder.agreement()
    assert agreement is not None
    if before is not None and agreement == before:
        typer.echo(f"the agreement is unchanged (revision {agreement.revision})")
    else:
        changes = f": {', '.join(agreement.differences(before)) or 'revoked certificates'}" if before else ""
        typer.echo(f"signed revision {agreement.revision} of the agreement{changes}")
    typer.echo(f"{len(agreement.members)} members, {len(agreement.edges)} edges; who dials whom:")
    for a, b in agreement.edges:
        listener = agreement.listener(a, b)
        caller = a if listener == b else b
        typer.echo(f"  {caller} → {listener} ({agreement.member(listener).address})")
    files = sorted(folder.invitations.glob(f"*{INVITATION_ENDING}"))
    for file in files:
        typer.echo(f"invitation: {file}")
    typer.echo(f"fingerprint of the authority: {folder.authority.fingerprint}")
    typer.echo("\nnext: send each member its invitation, and read it this fingerprint by telephone (do not send both")
    typer.echo("by the same way). With the fingerprint in place of F, the member runs:")
    example = files[0].name if files else f"NAME{INVITATION_ENDING}"
    typer.echo(f"  depositum federation accept {example} --fingerprint F")
