"""`depositum federation accept`: from an invitation to a member's folder."""

from pathlib import Path
from typing import Annotated

import typer

from depositum.federation import certificates
from depositum.federation.joining import Joined, accept


def command(
    invitation: Annotated[
        Path, typer.Argument(metavar="FILE", help="The invitation that the organiser sent.", show_default=False)
    ],
    fingerprint: Annotated[
        str | None,
        typer.Option(metavar="F", help="The fingerprint that the organiser read to you.", show_default=False),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The private key. Default: NAME.key beside the invitation or here."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The member's folder. Default: the federation's name.")
    ] = None,
) -> None:
    """A member: check an invitation, and make the folder for `depositum peer`.

    Nothing in an invitation is believed that the organiser's authority did not sign, and the authority is believed only
    if its fingerprint is the one that the organiser read to you by telephone. A later invitation, with a changed
    agreement or a renewed certificate, is accepted by the same command; the fingerprint is not needed again.
    """
    joined = accept(invitation, fingerprint, key, out)
    _print(joined)


def _print(joined: Joined) -> None:
    folder = joined.folder
    agreement, name = folder.agreement, folder.name
    if joined.outcome == "unchanged":
        typer.echo(f"{folder.path}: has this invitation already; nothing was changed")
    elif joined.outcome == "updated":
        what = f"; changed: {', '.join(joined.changed)}" if joined.changed else ""
        typer.echo(f"{folder.path}: updated to revision {agreement.revision} of the agreement{what}")
        typer.echo("a `depositum peer` that runs here takes note of it when it is started again")
    else:
        typer.echo(f"{folder.path}: {name} is a member of {agreement.name}; the private key was copied here")
    end = certificates.read_certificate(folder.certificate_pem, "certificate").not_after
    typer.echo(f"certificate: valid until {end:%Y-%m-%d}")
    for neighbour in agreement.neighbours(name):
        listener = agreement.listener(name, neighbour)
        how = "dials this member" if listener == name else f"is dialled at {agreement.member(neighbour).address}"
        typer.echo(f"neighbour: {neighbour}, which {how}")
    address = agreement.member(name).address
    if address is not None and any(agreement.listener(name, n) == name for n in agreement.neighbours(name)):
        typer.echo(f"the firewall must let others reach {address} (TCP, one port)")
    typer.echo(f"what was agreed: {folder.path / 'federation.toml'}; agreement {agreement.digest()[:16]}")
    typer.echo("\nnext:")
    typer.echo(f"  depositum peer {folder.path} --data FILE      (waits for its neighbours, trains, shows progress)")
