"""`depositum federation status`: how a member is doing."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from depositum.cli.federation.status_table import member_table
from depositum.federation.member_folder import RUN, MemberFolder
from depositum.federation.status import Status


def command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The member's folder.", show_default=False)],
    watch: Annotated[bool, typer.Option("--watch", help="Show it until Ctrl-C, twice a second.")] = False,
) -> None:
    """Show how a member is doing: its neighbours, and who is being waited for."""
    member = MemberFolder.open(folder)
    console = Console()
    status = Status.read(member.path / RUN)
    if status is None:
        typer.echo(f"{member.name} has not been started; run: depositum peer {folder} --data FILE")
        return
    if not watch:
        console.print(member_table(status, time.time()))
        return
    from rich.live import Live

    with Live(member_table(status, time.time()), console=console, refresh_per_second=4) as live:
        while status.is_running():
            time.sleep(0.5)
            status = Status.read(member.path / RUN) or status
            live.update(member_table(status, time.time()))
