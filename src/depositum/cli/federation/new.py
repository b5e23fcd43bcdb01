"""`depositum federation new`: the organiser's folder."""

from pathlib import Path
from typing import Annotated

import typer

from depositum.errors import ConfigError, RunError
from depositum.federation import certificates
from depositum.federation.agreement import RUN_SECTIONS, SECTION, check_name
from depositum.federation.organiser_folder import PLAN, OrganiserFolder, Plan, check_days
from depositum.toml_file import parse_toml


def command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The federation's name, and its folder's.", show_default=False)
    ],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="A run configuration to start from.", show_default=False),
    ] = None,
    member: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A member; repeat it for each. Default: whoever you approve."),
    ] = None,
    topology: Annotated[
        str, typer.Option(metavar="NAME", help="Who communicates with whom: ring, complete, …")
    ] = "ring",
    classes: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many classes the labels of all members have.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The folder. Default: NAME.", show_default=False)
    ] = None,
    days: Annotated[
        int, typer.Option(metavar="DAYS", help="How long the authority's certificate is valid.")
    ] = certificates.AUTHORITY_DAYS,
) -> None:
    """The organiser: make a federation, with its certificate authority and a plan to edit.

    The folder has federation.toml, the plan: members, who communicates with whom, and the run's configuration, all in
    one file with comments. Edit it until you approve the members. The private key of the authority stays in the
    folder organiser; back it up, and give it to nobody.
    """
    check_name("NAME", name)
    check_days("--days", days)
    folder = out or Path(name)
    if (folder / PLAN).exists():
        existing = OrganiserFolder(folder)
        if existing.plan.name != name:
            raise RunError(f"{folder}: is the folder of the federation {existing.plan.name!r}")
        typer.echo(f"{folder}: exists already; nothing was changed")
        _print_next(existing)
        return
    text = plan_text(name, member or [], topology, _run_text(config), classes)
    _check_run(Plan.parse(text))
    created = OrganiserFolder.create(folder, text, days)
    typer.echo(f"{folder / PLAN}: the plan; edit it now: members, who communicates with whom, the run")
    typer.echo(f"{folder / 'organiser'}: the certificate authority; its key never leaves this folder (back it up)")
    typer.echo(f"fingerprint of the authority: {created.authority.fingerprint}")
    _print_next(created)


def plan_text(name: str, members: list[str], topology: str, run: str, classes: int | None = None) -> str:
    """A plan as a file with comments."""
    set_classes = "# classes = 10" if classes is None else f"classes = {classes}"
    listed = ", ".join(f'"{member}"' for member in members)
    return f"""# The plan of the federation {name}. Edit it until you approve the members.
# Later changes take effect once you run `depositum federation approve` again and all members have accepted their new
# invitations.

[federation]
name = "{name}"
# In the order of clients. Empty: whoever you approve, in the order of the alphabet.
members = [{listed}]
# Who communicates with whom; or list the pairs: edges = [["hospital-a", "hospital-b"], …]
topology = "{topology}"
# A neighbour that is slow or away is waited for, and nothing is lost meanwhile. With "drop", it is waited for this many
# seconds only; then the others continue without it until it returns.
absent = "wait"
patience = inf
# "sums": members learn the sums of their measures; "none": nothing about their data leaves them but rows.
evaluate = "sums"
# How many classes the labels of all members have; needed if a member may lack the last of them.
{set_classes}

{run}"""


#: What is trained, where the organiser has not chosen yet.
DEFAULT_RUN = """# What is trained, as for `depositum run` (docs/cli.md). Each member names its own file by --data.
[problem]
dataset = "{client}.npz"
model = "linear"
regularizer = "l1"
beta = 1e-4

[algorithm]
name = "depositum"
alpha = 0.05
gamma = 0.5

[run]
steps = 500
period = 5
batch_size = 32
seeds = [0]
"""


def _run_text(config: Path | None) -> str:
    """The sections of a run configuration, as the user wrote them but for what a plan states differently."""
    if config is None:
        return DEFAULT_RUN
    import tomli_w

    try:
        text = config.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--config", f"{str(config)!r} cannot be read ({error})") from None
    table = parse_toml(text, str(config))
    if SECTION in table:
        raise ConfigError("--config", f"{str(config)!r} is a federation's plan already; give a run configuration")
    table.get("problem", {}).pop("clients", None) if isinstance(table.get("problem"), dict) else None
    network = table.get("network")
    if isinstance(network, dict):
        network.pop("topology", None)
    kept = {key: value for key, value in table.items() if key in RUN_SECTIONS and value != {}}
    return f"# What is trained, from {config.name}.\n" + tomli_w.dumps(kept)


def _check_run(plan: Plan) -> None:
    """Refuse a run that members could not train, before anything is written."""
    from depositum.federation.agreement import Member
    from depositum.federation.member_config import resolve_agreement

    names = plan.members if len(plan.members) > 1 else ("first-member", "second-member")
    members = [Member(name, f"address.invalid:{1 + i}") for i, name in enumerate(names)]
    resolve_agreement(plan.complete(members, (), 1))


def _print_next(folder: OrganiserFolder) -> None:
    typer.echo("\nnext: each member runs, with its own name and address, and sends you the file NAME.request:")
    example = folder.plan.members[0] if folder.plan.members else "hospital-a"
    typer.echo(f"  depositum federation request --name {example} --listen HOST:PORT      (or --dials-only)")
    typer.echo("then you run:")
    typer.echo(f"  depositum federation approve *.request --federation {folder.path}")
