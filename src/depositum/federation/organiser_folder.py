"""The folder of a federation's organiser: its plan, its certificate authority, and whom it approved.

    federation.toml           the plan: members, edges or a topology, the run; the organiser's own file, never rewritten
    organiser/authority.key   the authority's private key (0600), which never leaves this folder
    organiser/authority.pem   its certificate
    organiser/register.toml   the approved members, the revoked certificates, the revision
    signed/                   the agreement as it was signed, with the members' addresses, and the signature
    invitations/              one for each member

The plan is an agreement (`depositum.federation.agreement`) without what approval completes: its members are a list of
names, or empty until the first approval, and a topology may stand for the edges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from depositum.errors import ConfigError, RunError, is_integer, listing, nearest, renamed_keys, short_repr
from depositum.federation import certificates
from depositum.federation.agreement import SECTION, Agreement, Member, check_name
from depositum.federation.certificates import CertificateError
from depositum.federation.enrolment import INVITATION_ENDING, Invitation, Request
from depositum.federation.member_folder import SIGNATURE, check_private, read_bounded
from depositum.federation.new_files import PRIVATE, PRIVATE_FOLDER, new_folder, replace_own, write_new
from depositum.toml_file import check_values, parse_toml, read_toml

PLAN, ORGANISER, SIGNED, INVITATIONS = "federation.toml", "organiser", "signed", "invitations"
AUTHORITY_KEY, AUTHORITY, REGISTER = "authority.key", "authority.pem", "register.toml"
#: What the organiser sets in `[federation]`; all else is set when the agreement is signed.
PLAN_KEYS = ("name", "members", "topology", "edges", "absent", "patience", "evaluate", "classes")
#: A certificate is renewed when less than this part of its time is left.
RENEWED_BELOW = 1 / 3


@dataclass(frozen=True)
class Approved:
    """A member that the organiser approved."""

    name: str
    address: str | None
    public_key: str
    certificate: str

    @property
    def key_fingerprint(self) -> str:
        """The fingerprint of the member's key."""
        return certificates.key_fingerprint(self.public_key.encode(), f"the key of {self.name}")


@dataclass(frozen=True)
class Register:
    """What the organiser has done so far."""

    members: dict[str, Approved] = field(default_factory=dict)
    revoked: tuple[str, ...] = ()
    revision: int = 0


@dataclass(frozen=True)
class Approval:
    """What became of a request: `"approved"`, `"unchanged"`, `"renewed"` or `"moved"` (to another address)."""

    request: Request
    outcome: str


class OrganiserFolder:
    """The checked folder of an organiser."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_dir():
            raise RunError(f"{path}: no such folder; `depositum federation new NAME` makes one")
        missing = [
            f for f in (PLAN, f"{ORGANISER}/{AUTHORITY_KEY}", f"{ORGANISER}/{AUTHORITY}") if not (path / f).exists()
        ]
        if missing:
            raise RunError(f"{path}: is not an organiser's folder ({missing[0]} is missing)")
        check_private(path / ORGANISER / AUTHORITY_KEY)
        self.plan = Plan.load(path / PLAN)
        self.authority = certificates.read_certificate(
            read_bounded(path / ORGANISER / AUTHORITY), str(path / ORGANISER / AUTHORITY)
        )
        certificates.check_authority(self.authority, self.plan.name, str(path / ORGANISER / AUTHORITY))
        self.authority.check_time("the authority's certificate")
        if not self.authority.has_key(self._key(), str(path / ORGANISER / AUTHORITY_KEY)):
            raise CertificateError(f"{path / ORGANISER / AUTHORITY_KEY}: is not the key of {AUTHORITY} beside it")
        self.register = self._read_register()

    @classmethod
    def create(cls, path: Path, plan: str, days: int = certificates.AUTHORITY_DAYS) -> "OrganiserFolder":
        """A new folder with an authority of its own; `plan` is the text of `federation.toml`."""
        name = Plan.parse(plan).name
        new_folder(path)
        new_folder(path / ORGANISER, PRIVATE_FOLDER)
        key = certificates.new_key()
        write_new(path / ORGANISER / AUTHORITY_KEY, key, PRIVATE)
        write_new(path / ORGANISER / AUTHORITY, certificates.new_authority(name, key, days))
        write_new(path / PLAN, plan.encode())
        return cls(path)

    @property
    def invitations(self) -> Path:
        """Where the invitations are."""
        return self.path / INVITATIONS

    def missing(self) -> list[str]:
        """The planned members that have not been approved yet."""
        return [name for name in self.plan.members if name not in self.register.members]

    def approve(self, requests: Sequence[Request], days: int = certificates.MEMBER_DAYS) -> list[Approval]:
        """Approve requests, all or none; invitations are written once every planned member is approved."""
        approvals, members = [], dict(self.register.members)
        seen: dict[str, Request] = {}
        for request in requests:
            if seen.setdefault(request.name, request) != request:
                raise ConfigError("REQUESTS", f"two different requests of {request.name!r} given")
            approval, approved = self._approved(request, days)
            members[request.name] = approved
            approvals.append(approval)
        register = replace(self.register, members=members)
        names = self.plan.members or sorted(members)
        if set(names) <= set(members) and len(names) > 1:
            self._sign(register, names)
        else:
            self._write_register(register)
        return approvals

    def revoke(self, name: str) -> str:
        """Revoke a member's certificate, sign the agreement again, and return the certificate's SHA-256 hash."""
        if name not in self.register.members:
            known = list(self.register.members)
            given = f"{short_repr(name)} is not an approved member"
            choices = f"; it can be {listing(known)}{nearest(name, known)}" if known else ""
            raise ConfigError("NAME", given + choices)
        pem = self.register.members[name].certificate
        revoked = certificates.read_certificate(pem.encode(), f"the certificate of {name}").sha256
        register = replace(self.register, revoked=tuple(sorted({*self.register.revoked, revoked})))
        names = self.plan.members or sorted(register.members)
        if set(names) <= set(register.members) and len(names) > 1:
            self._sign(register, names)
        else:
            self._write_register(register)
        return revoked

    def is_revoked(self, name: str) -> bool:
        """Whether a member's present certificate is revoked."""
        member = self.register.members.get(name)
        if member is None:
            return False
        found = certificates.read_certificate(member.certificate.encode(), f"the certificate of {name}")
        return found.sha256 in self.register.revoked

    def agreement(self) -> Agreement | None:
        """The agreement as it was signed; None before all members are approved."""
        path = self.path / SIGNED / PLAN
        return Agreement.load(path) if path.exists() else None

    def _approved(self, request: Request, days: int) -> tuple[Approval, Approved]:
        name = request.name
        if self.plan.members and name not in self.plan.members:
            choices = f"it can be {listing(self.plan.members)}{nearest(name, self.plan.members)}"
            where = f"members of {self.path / PLAN}"
            raise ConfigError("name", f"{name!r} asks to join, but is not among the {where}; {choices}")
        before, outcome = self.register.members.get(name), "approved"
        if before is not None and not self.is_revoked(name):
            if before.key_fingerprint != request.fingerprint:
                change = f"has the key {request.fingerprint}, but {before.key_fingerprint} was approved"
                advice = f"if the member lost its key: depositum federation revoke {name}, then approve again"
                raise CertificateError(f"the request of {name!r} {change}; {advice}")
            outcome = "unchanged" if before.address == request.address else "moved"
            if not self._expires_soon(before):
                return Approval(request, outcome), replace(before, address=request.address)
            outcome = "renewed"
        elif before is not None and before.key_fingerprint == request.fingerprint:
            problem = f"the request of {name!r} has the key whose certificate was revoked"
            raise CertificateError(f"{problem}; the member needs a new one: delete {name}.key there, and request again")
        pem = certificates.new_member_certificate(
            self.plan.name, name, request.public_key.encode(), self.authority, self._key(), days
        )
        return Approval(request, outcome), Approved(name, request.address, request.public_key, pem.decode())

    def _expires_soon(self, member: Approved) -> bool:
        found = certificates.read_certificate(member.certificate.encode(), f"the certificate of {member.name}")
        return (found.not_after - certificates.current_time()) < RENEWED_BELOW * (found.not_after - found.not_before)

    def _sign(self, register: Register, names: Sequence[str]) -> None:
        """Complete the plan to an agreement, sign it if it is not the last one, and write the invitations."""
        members = tuple(Member(name, register.members[name].address) for name in names)
        last = self.agreement()
        revision = max(register.revision, 1)
        agreement = self.plan.complete(members, register.revoked, revision)
        if last is not None and agreement.canonical() != replace(last, revision=revision).canonical():
            agreement = replace(agreement, revision=max(last.revision, register.revision) + 1)
        from depositum.federation.member_config import resolve_agreement  # heavy, and needed only to sign

        resolve_agreement(agreement)
        signature = self._signature(agreement)
        self._write_register(replace(register, revision=agreement.revision))
        for folder in (SIGNED, INVITATIONS):
            (self.path / folder).mkdir(exist_ok=True)
        if last is None or agreement != last:
            replace_own(self.path / SIGNED / PLAN, agreement.dump().encode())
        replace_own(self.path / SIGNED / SIGNATURE, f"{signature}\n".encode())
        authority = self.authority.pem.decode()
        for name in names:
            file = self.invitations / f"{name}{INVITATION_ENDING}"
            pem = register.members[name].certificate
            if certificates.read_certificate(pem.encode(), name).sha256 in register.revoked:
                file.unlink(missing_ok=True)
                continue
            replace_own(file, Invitation(name, pem, authority, signature, agreement).dump().encode())

    def _signature(self, agreement: Agreement) -> str:
        """The signature of an agreement: that of the last time if it still holds, since each new one differs."""
        path = self.path / SIGNED / SIGNATURE
        before = read_bounded(path).decode("ascii", "replace").strip() if path.exists() else ""
        if certificates.is_signed(self.authority.public_key, before, agreement.canonical()):
            return before
        return certificates.sign(self._key(), agreement.canonical())

    def _key(self) -> bytes:
        return read_bounded(self.path / ORGANISER / AUTHORITY_KEY)

    def _read_register(self) -> Register:
        path = self.path / ORGANISER / REGISTER
        if not path.exists():
            return Register()
        table = read_toml(path, pipes=False)
        try:
            members = {name: Approved(name, **{"address": None, **entry}) for name, entry in table["members"].items()}
            for name in members:
                check_name(f"{path}: members", name)
            return Register(members, tuple(table["revoked"]), int(table["revision"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise RunError(f"{path}: is damaged; restore it from a backup") from None

    def _write_register(self, register: Register) -> None:
        members = {
            name: {key: value for key, value in vars(member).items() if key != "name" and value is not None}
            for name, member in sorted(register.members.items())
        }
        table = {"revision": register.revision, "revoked": list(register.revoked), "members": members}
        text = tomli_w.dumps(table, multiline_strings=True)
        replace_own(self.path / ORGANISER / REGISTER, text.encode(), PRIVATE)
        self.register = register


@dataclass(frozen=True)
class Plan:
    """The organiser's `federation.toml`: an agreement without the members' addresses.

    Attributes
    ----------
    name
        The federation's name.
    members
        The planned members, by client; empty if whoever is approved becomes one.
    topology
        The graph, where the plan does not list its edges.
    table
        All of it, as in the file.
    """

    name: str
    members: tuple[str, ...]
    topology: str | Mapping[str, Any] | None
    table: dict[str, Any]

    @classmethod
    def load(cls, path: Path) -> "Plan":
        """Read the plan in a file."""
        return cls._of(read_toml(path, pipes=False))

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """The plan in a text."""
        return cls._of(parse_toml(text, PLAN))

    @classmethod
    def _of(cls, table: dict[str, Any]) -> "Plan":
        check_values(table)
        own = table.get(SECTION)
        if not isinstance(own, dict):
            raise ConfigError(SECTION, "missing; it has the name and the members")
        check_name("federation.name", own.get("name"))
        entries = own.get("members", [])
        if not isinstance(entries, list):
            raise ConfigError("federation.members", f"{short_repr(entries)} given; it must be a list of names")
        members: list[str] = []
        for index, entry in enumerate(entries):
            key = f"federation.members[{index}]"
            if isinstance(entry, dict):
                problem = f"{short_repr(entry)} given; it must be a name (its address comes with its request)"
                raise ConfigError(key, problem)
            check_name(key, entry)
            if entry in members:
                raise ConfigError(key, f"{entry!r} given twice")
            members.append(entry)
        topology = own.get("topology")
        if topology is not None and "edges" in own:
            raise ConfigError("federation.topology", "given beside federation.edges; leave one of them out")
        if "edges" in own and not members:
            raise ConfigError("federation.edges", "given, but federation.members is empty; list the members as well")
        for key in ("revision", "revoked", "protocol"):
            if key in own:
                raise ConfigError(f"federation.{key}", "given; it is set when the agreement is signed: leave it out")
        for key in own:
            if key not in PLAN_KEYS:
                choices = f"it can be {listing(PLAN_KEYS)}{nearest(key, PLAN_KEYS)}"
                raise ConfigError(f"federation.{key}", f"unknown key; {choices}")
        plan = cls(own["name"], tuple(members), topology, table)
        if len(members) > 1:
            plan.complete([Member(name, f"address.invalid:{1 + i}") for i, name in enumerate(members)], (), 1)
        return plan

    def complete(self, members: Sequence[Member], revoked: Sequence[str], revision: int) -> Agreement:
        """The agreement of the plan with these members."""
        own = {key: value for key, value in self.table[SECTION].items() if key != "topology"}
        own["members"] = [{k: v for k, v in vars(member).items() if v is not None} for member in members]
        if "edges" not in own:
            own["edges"] = [[members[i].name, members[j].name] for i, j in self._drawn_edges(len(members))]
        own |= {"revoked": list(revoked), "revision": revision}
        return Agreement.from_table({**self.table, SECTION: own})

    def _drawn_edges(self, n: int) -> list[tuple[int, int]]:
        from depositum.networks import TOPOLOGIES  # heavy, and needed only to sign
        from depositum.networks.specifications import topology_graph

        topology = "ring" if self.topology is None else self.topology
        if isinstance(topology, str) and topology not in TOPOLOGIES:
            choices = f"it can be {listing(TOPOLOGIES)}{nearest(topology, TOPOLOGIES)}"
            raise ConfigError("federation.topology", f"{short_repr(topology)} given; {choices}")
        with renamed_keys(lambda key: f"federation.{key}" if key.startswith("topology") else key):
            _, graph = topology_graph(topology, n)
        if "one_peer" in graph.graph:
            raise ConfigError(
                "federation.topology", f"{short_repr(topology)} given; members communicate in every phase"
            )
        return sorted((min(edge), max(edge)) for edge in graph.edges)


def check_days(key: str, days: object) -> int:
    """The days of a certificate."""
    if not is_integer(days) or not 1 <= int(str(days)) <= certificates.MOST_DAYS:
        raise ConfigError(key, f"{short_repr(days)} given; it must be from 1 to {certificates.MOST_DAYS} days")
    return int(str(days))
