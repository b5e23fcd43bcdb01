"""`depositum federation revoke`: end the validity of a member's certificate."""

from typing import Annotated

import typer

from depositum.cli.federation import OrganiserFolderOption
from depositum.cli.federation.organiser import find_organiser_folder, print_agreement


def command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The member.", show_default=False)],
    federation: OrganiserFolderOption = None,
) -> None:
    """The organiser: no longer let a member's certificate take part.

    The other members refuse it once they have accepted their new invitations and started `depositum peer` again. The
    member itself stays part of the plan: approve a request with a new key, or remove it from federation.toml and
    approve again.
    """
    folder = find_organiser_folder(federation)
    before = folder.agreement()
    if folder.is_revoked(name):
        typer.echo(f"{name}: its certificate is revoked already; nothing was changed")
    else:
        typer.echo(f"{name}: certificate {folder.revoke(name)[:16]}… is revoked")
    if folder.agreement() is not None:
        print_agreement(folder, before)
    typer.echo(
        f"Until the others have accepted their new invitations, and have started again, they still talk to {name}."
    )
    typer.echo(f"To keep {name}, approve a request with a new key; to continue without it, remove it from")
    typer.echo(f"{folder.path / 'federation.toml'}, and run `depositum federation approve` again.")
