"""`depositum federation`: how organisations become the members of a federation."""

from typing import Annotated

import typer

from depositum.cli import STYLE, LazyCommands

#: As `depositum.cli.COMMANDS`, in the order in which they are used.
FEDERATION_COMMANDS = {
    "new": "The organiser: make a federation, with its certificate authority and a plan to edit.",
    "request": "A member: make a key, and a request to send to the organiser.",
    "approve": "The organiser: approve requests, and write the invitations.",
    "accept": "A member: check an invitation, and make the folder for `depositum peer`.",
    "revoke": "The organiser: no longer let a member's certificate take part.",
    "status": "Show how a member is doing: its neighbours, and who is being waited for.",
    "demo": "Show a complete federation at work: four members as four processes on this machine.",
}


class FederationCommands(LazyCommands):
    """The commands of `depositum federation`."""

    package = __name__
    commands_of_package = FEDERATION_COMMANDS


def command() -> None:
    """Enrol organisations that train together, each with its own data: new, request, approve, accept.

    See it at work on this machine:  depositum federation demo

    The organiser:  depositum federation new cancer-study --member hospital-a --member hospital-b

    Each member:  depositum federation request --name hospital-a --listen a.example.org:7443

    The organiser:  depositum federation approve *.request

    Each member:  depositum federation accept hospital-a.invitation --fingerprint F

    Each member:  depositum peer cancer-study --data mine.npz
    """


app = typer.Typer(cls=FederationCommands, no_args_is_help=True, **STYLE)
app.callback()(command)

#: Of commands of the organiser.
OrganiserFolderOption = Annotated[
    str | None,
    typer.Option(
        "--federation",
        metavar="DIR",
        help="The organiser's folder. Default: the only one in the current folder.",
        show_default=False,
    ),
]
