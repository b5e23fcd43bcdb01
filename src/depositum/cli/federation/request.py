"""`depositum federation request`: a member's key, and its request to the organiser."""

from pathlib import Path
from typing import Annotated

import typer

from depositum.errors import ConfigError
from depositum.federation.joining import make_request


def command(
    name: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="This member's name: lower-case letters, digits, hyphens.", show_default=False
        ),
    ],
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where neighbours reach this member.", show_default=False),
    ] = None,
    dials_only: Annotated[
        bool, typer.Option("--dials-only", help="Nobody can reach this member (behind NAT): it dials its neighbours.")
    ] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the key and the request are written.")] = Path(),
) -> None:
    """A member: make a key, and a request to send to the organiser.

    NAME.key is the private key; it never leaves this computer. NAME.request has the name, the address and the public
    key: send it to the organiser. Run again, the same key is used, and nothing is overwritten.
    """
    if (listen is None) != dials_only:
        given = "both given" if dials_only else "neither given"
        raise ConfigError("--listen", f"{given}; give either --listen HOST:PORT or --dials-only")
    made = make_request(name, listen, out)
    where = f"listens at {made.request.address}" if made.request.address else "dials only"
    typer.echo(f"{made.key_file}: the private key; it stays here, and nobody else may have it")
    exists = "" if made.new else " (made before; nothing was changed)"
    typer.echo(f"{made.file}: the request of {name}, which {where}{exists}")
    typer.echo(f"fingerprint of the key: {made.request.fingerprint}")
    typer.echo(f"\nnext: send {made.file.name} to the organiser, who will compare this fingerprint by telephone.")
    typer.echo(f"Then {name}.invitation comes back. With the fingerprint that the organiser reads to you for F:")
    typer.echo(f"  depositum federation accept {name}.invitation --fingerprint F")
