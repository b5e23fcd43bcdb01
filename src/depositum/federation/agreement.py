"""The agreement of a federation: who takes part, who communicates with whom, and the complete run configuration.

As a file, it is a configuration as `depositum run` takes it, with a section `[federation]` beside the others:

    [federation]
    name = "cancer-study"
    edges = [["hospital-a", "hospital-b"]]

    [[federation.members]]
    name = "hospital-a"
    address = "a.example.org:7443"

    [[federation.members]]
    name = "hospital-b"               # without an address: it only dials

    [problem]
    dataset = "{client}.npz"          # each member names its own file

What members train must be the same for all of them; `digest` stands for it, and neighbours compare it before any work.
"""

import dataclasses
import hashlib
import ipaddress
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tomli_w

from depositum.errors import ConfigError, check_choice, is_integer, is_number, listing, nearest, short_repr
from depositum.toml_file import check_values, read_toml

#: The version of the messages between members that this release speaks.
PROTOCOL = 1
#: The section of the file that is not a section of a run configuration.
SECTION = "federation"
#: The sections of a run configuration that an agreement can have; processes of one cluster are not members.
RUN_SECTIONS = ("problem", "network", "algorithm", "run", "metrics")
#: What an agreement sets in `[network]`: the topology is its edges.
NETWORK_KEYS = ("mixing", "channel", "drop")
#: More members than a federation has; the agreement is read by every one of them.
MOST_MEMBERS = 1000
#: Sixty-three characters are what a label of a domain name can have, and so the name in a certificate.
LONGEST_NAME = 63

Absent = Literal["wait", "drop"]
Evaluate = Literal["sums", "none"]

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Member:
    """An organisation of a federation.

    Attributes
    ----------
    name
        What the others know it by: lower-case letters, digits and hyphens, as in a domain name.
    address
        `host:port`, where its neighbours reach it; None if it only dials.
    """

    name: str
    address: str | None = None


@dataclass(frozen=True)
class Agreement:
    """What all members of a federation agree on; see the module.

    Attributes
    ----------
    name
        The federation's name.
    members
        The organisations; the position of one is its client.
    edges
        Who communicates with whom: pairs of names, each once, the lower client first, in order.
    config
        The run configuration, without a topology and a number of clients: these are the edges and the members.
    protocol
        The version of the messages between members.
    patience
        Seconds that a silent neighbour is waited for; without end by default.
    absent
        What is done beyond them: `"wait"`, or `"drop"` the edge for the phases concerned.
    evaluate
        Whether members sum their measures (`"sums"`), or nothing about their data leaves them but rows (`"none"`).
    classes
        How many classes the members' labels have in all; by default, as many as every member finds in its own data.
    revision
        Counts the agreements that the organiser has signed; a member never returns to an earlier one.
    revoked
        SHA-256 fingerprints of certificates that are no longer accepted, 64 hexadecimal digits each.
    """

    name: str
    members: tuple[Member, ...]
    edges: tuple[tuple[str, str], ...]
    config: dict[str, Any] = field(default_factory=dict)
    protocol: int = PROTOCOL
    patience: float = math.inf
    absent: Absent = "wait"
    evaluate: Evaluate = "sums"
    classes: int | None = None
    revision: int = 1
    revoked: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse whatever members could not work with, by the key that the user wrote."""
        check_name("federation.name", self.name)
        _check_members(self.members)
        object.__setattr__(self, "edges", _in_order(self.edges, [member.name for member in self.members]))
        self._check_settings()
        _check_config(self.config, len(self.members))
        if unreached := self._not_reached():
            raise ConfigError("federation.edges", f"no path from {self.members[0].name!r} to {listing(unreached)}")
        for a, b in self.edges:
            self.listener(a, b)

    # Who communicates with whom

    @property
    def names(self) -> list[str]:
        """The members' names, by client."""
        return [member.name for member in self.members]

    def client(self, name: str) -> int:
        """The client that a member is."""
        if name not in self._clients:
            raise ConfigError("member", f"{short_repr(name)} is not a member; {_known(self.names, name)}")
        return self._clients[name]

    def member(self, name: str) -> Member:
        """The member with this name."""
        return self.members[self.client(name)]

    def neighbours(self, name: str) -> list[str]:
        """The members that a member communicates with, in the order of clients."""
        self.client(name)
        return sorted((b if a == name else a for a, b in self.edges if name in (a, b)), key=self.client)

    def listener(self, a: str, b: str) -> str:
        """The end of an edge that listens, the other one dials: the one with an address; of two, the lower client."""
        first, second = sorted((a, b), key=self.client)
        for name in (first, second):
            if self.member(name).address is not None:
                return name
        problem = f"{first!r} and {second!r} are neighbours, and both only dial; one of them needs an address"
        raise ConfigError("federation.edges", problem)

    @property
    def client_edges(self) -> list[tuple[int, int]]:
        """The edges as pairs of clients, in order."""
        return [(self.client(a), self.client(b)) for a, b in self.edges]

    # Files and comparisons

    @classmethod
    def load(cls, path: Path) -> "Agreement":
        """Read an agreement; whatever is wrong with the file is an error in one line that names it."""
        table = read_toml(path, pipes=False)
        check_values(table)
        return cls.from_table(table)

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Agreement":
        """The agreement of a file's table."""
        own, config = _sections(table)
        known = [f.name for f in dataclasses.fields(cls) if f.name != "config"]
        for key in own:
            if key not in known:
                raise ConfigError(f"federation.{key}", f"unknown key; it can be {listing(known)}{nearest(key, known)}")
        for key in ("name", "members"):
            if key not in own:
                raise ConfigError(f"federation.{key}", "missing")
        return cls(
            **{
                **own,
                "members": tuple(_member(index, entry) for index, entry in enumerate(_list(own, "members"))),
                "edges": tuple(_edge(index, entry) for index, entry in enumerate(_list(own, "edges"))),
                "revoked": tuple(_list(own, "revoked")),
                "config": config,
            }
        )

    def table(self) -> dict[str, Any]:
        """The agreement as plain tables, every key included."""
        own: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "config"}
        own = {key: value for key, value in own.items() if value is not None}
        own["members"] = [{k: v for k, v in vars(member).items() if v is not None} for member in self.members]
        own["edges"] = [list(edge) for edge in self.edges]
        own["revoked"] = list(self.revoked)
        return {SECTION: own, **self.config}

    def dump(self) -> str:
        """The agreement as a file; `load` gives the same agreement."""
        return tomli_w.dumps(self.table())

    def canonical(self) -> bytes:
        """The complete agreement in one form, whatever the order and layout of a file; this is what is signed."""
        return _canonical(self.table())

    def digest(self) -> str:
        """The SHA-256 hash of what all members must have in common, 64 hexadecimal digits.

        The revision and the revoked certificates are not part of it: members learn of a revocation at different times,
        and it takes effect at each from then on.
        """
        return hashlib.sha256(_canonical(self._compared())).hexdigest()

    def differences(self, other: "Agreement") -> list[str]:
        """The keys in which two agreements of different digests differ, such as `"run.steps"`, in order."""
        return compare_tables(self._compared(), other._compared())

    def compared_table(self) -> dict[str, Any]:
        """What all members must have in common, for a neighbour to name the keys that differ; see `digest`."""
        return self._compared()

    def _compared(self) -> dict[str, Any]:
        table = self.table()
        table[SECTION] = {k: v for k, v in table[SECTION].items() if k not in ("revision", "revoked")}
        return table

    # Checks

    @cached_property
    def _clients(self) -> dict[str, int]:
        return {member.name: client for client, member in enumerate(self.members)}

    def _not_reached(self) -> list[str]:
        """The members without a path to the first one."""
        reached, waiting = {self.names[0]}, [self.names[0]]
        linked: dict[str, list[str]] = {name: [] for name in self.names}
        for a, b in self.edges:
            linked[a].append(b)
            linked[b].append(a)
        while waiting:
            new = [name for name in linked[waiting.pop()] if name not in reached]
            reached.update(new)
            waiting += new
        return [name for name in self.names if name not in reached]

    def _check_settings(self) -> None:
        for key in ("protocol", "revision"):
            value = getattr(self, key)
            if not is_integer(value) or isinstance(value, bool) or not 1 <= value < 1 << 31:
                raise ConfigError(f"federation.{key}", f"{short_repr(value)} given; it must be a whole number ≥ 1")
        if self.classes is not None and (
            not is_integer(self.classes) or isinstance(self.classes, bool) or not 2 <= self.classes < 1 << 20
        ):
            given = f"{short_repr(self.classes)} given"
            raise ConfigError("federation.classes", f"{given}; it must be a whole number from 2 to 2²⁰ − 1")
        if not is_number(self.patience) or isinstance(self.patience, bool) or not self.patience > 0:
            given = f"{short_repr(self.patience)} given"
            raise ConfigError("federation.patience", f"{given}; it must be a number of seconds > 0, or inf")
        object.__setattr__(self, "patience", float(self.patience))
        check_choice("federation.absent", self.absent, ("wait", "drop"))
        check_choice("federation.evaluate", self.evaluate, ("sums", "none"))
        for index, fingerprint in enumerate(self.revoked):
            if not isinstance(fingerprint, str) or not _FINGERPRINT.fullmatch(fingerprint):
                given = short_repr(fingerprint)
                raise ConfigError(f"federation.revoked[{index}]", f"{given} given; it must be 64 hexadecimal digits")
        object.__setattr__(self, "revoked", tuple(sorted(set(self.revoked))))


def server_name(federation: str, member: str) -> str:
    """The name of a member in its certificate, which does not depend on its address.

    >>> server_name("cancer-study", "hospital-a")
    'hospital-a.members.cancer-study'
    """
    return f"{member}.members.{federation}"


def member_of(server_name: str, federation: str) -> str | None:
    """The member that a name in a certificate stands for; None if it is not of this federation.

    >>> member_of("hospital-a.members.cancer-study", "cancer-study"), member_of("example.org", "cancer-study")
    ('hospital-a', None)
    """
    name = server_name.removesuffix(f".members.{federation}")
    return name if name != server_name and _NAME.fullmatch(name) else None


def check_name(key: str, value: object) -> None:
    """Refuse a name that is not a label of a domain name: it is used in certificates and names of files."""
    if isinstance(value, str) and _NAME.fullmatch(value):
        return
    lower = re.sub(r"[^a-z0-9]+", "-", value[:LONGEST_NAME].lower()).strip("-") if isinstance(value, str) else ""
    advice = f"; for example {lower!r}" if lower else ""
    allowed = f"lower-case letters, digits and hyphens, at most {LONGEST_NAME} characters"
    raise ConfigError(key, f"{short_repr(value)} given; a name has {allowed}{advice}")


def check_address(key: str, value: object) -> tuple[str, int]:
    """The host and the port of an address that others can dial; anything else is refused.

    >>> check_address("--listen", "a.example.org:7443"), check_address("--listen", "[2001:db8::1]:7443")
    (('a.example.org', 7443), ('2001:db8::1', 7443))
    """
    problem = f"{short_repr(value)} given; an address is HOST:PORT, as in a.example.org:7443"
    if not isinstance(value, str) or not value.isascii():
        raise ConfigError(key, problem)
    host, colon, port = value.rpartition(":")
    if not colon or not port.isdigit() or len(port) > 5 or port.startswith("0") or not 1 <= int(port) <= 65535:
        raise ConfigError(key, f"{problem}, with a port from 1 to 65535")
    literal = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        number = ipaddress.ip_address(literal)
    except ValueError:
        if literal != host or not _HOST.fullmatch(host) or host.replace(".", "").isdigit():
            raise ConfigError(key, problem) from None
        return host, int(port)
    if (number.version == 6) != (literal != host) or "%" in literal:
        raise ConfigError(key, f"{problem}; an IPv6 address stands in brackets, as in [2001:db8::1]:7443")
    if number.is_unspecified or number.is_multicast:
        raise ConfigError(key, f"{short_repr(value)} given; others cannot dial it: give this host's public name")
    return literal, int(port)


def compare_tables(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """The dotted keys in which nested tables differ, in order.

    >>> compare_tables({"run": {"steps": 1, "period": 2}}, {"run": {"steps": 3, "period": 2}, "x": 1})
    ['run.steps', 'x']
    """
    return sorted(_differing(one, other, ""))


def _differing(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key in {*one, *other}:
        a, b = one.get(key), other.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _differing(a, b, f"{prefix}{key}.")
        elif key not in one or key not in other or _canonical(a) != _canonical(b):
            yield f"{prefix}{key}"


def _canonical(value: Any) -> bytes:
    """JSON with sorted keys and without blanks; numbers that JSON does not have are text."""
    text = json.dumps(_finite(value), sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return f"float:{value}"
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    return [_finite(inner) for inner in value] if isinstance(value, list | tuple) else value


def _known(names: Sequence[str], near: str = "") -> str:
    return f"it can be {listing(names)}{nearest(near, names)}"


def _sections(table: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The section of the federation, and the run configuration beside it."""
    own = table.get(SECTION)
    if not isinstance(own, Mapping):
        problem = "missing; it has the name, the members and the edges" if own is None else "must be a table"
        raise ConfigError(SECTION, problem)
    return dict(own), {key: value for key, value in table.items() if key != SECTION}


def _list(own: Mapping[str, Any], key: str) -> list[Any]:
    value = own.get(key, [])
    if not isinstance(value, list):
        raise ConfigError(f"federation.{key}", f"{short_repr(value)} given; it must be a list")
    if len(value) > MOST_MEMBERS * MOST_MEMBERS:
        raise ConfigError(f"federation.{key}", f"has {len(value)} entries; that is too many")
    return value


def _member(index: int, entry: Any) -> Member:
    key = f"federation.members[{index}]"
    if not isinstance(entry, Mapping):
        raise ConfigError(key, f"{short_repr(entry)} given; it must be a table with 'name' and, to listen, 'address'")
    known = ("name", "address")
    for name in entry:
        if name not in known:
            raise ConfigError(f"{key}.{name}", f"unknown key; {_known(known, name)}")
    if "name" not in entry:
        raise ConfigError(f"{key}.name", "missing")
    return Member(**entry)


def _edge(index: int, entry: Any) -> tuple[str, str]:
    if not isinstance(entry, list) or len(entry) != 2:
        raise ConfigError(f"federation.edges[{index}]", f"{short_repr(entry)} given; an edge is a pair of names")
    return entry[0], entry[1]


def _check_members(members: Sequence[Member]) -> None:
    if not 2 <= len(members) <= MOST_MEMBERS:
        given = f"{len(members)} given; a federation has from 2 to {MOST_MEMBERS}"
        raise ConfigError("federation.members", given)
    names: dict[str, int] = {}
    addresses: dict[tuple[str, int], str] = {}
    for index, member in enumerate(members):
        key = f"federation.members[{index}]"
        check_name(f"{key}.name", member.name)
        if names.setdefault(member.name, index) != index:
            raise ConfigError(f"{key}.name", f"{member.name!r} given; another member has this name")
        if member.address is None:
            continue
        address = check_address(f"{key}.address", member.address)
        if addresses.setdefault(address, member.name) != member.name:
            raise ConfigError(f"{key}.address", f"{member.address!r} given; it is also {addresses[address]!r}'s")


def _in_order(edges: Sequence[tuple[str, str]], names: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The edges with the lower client first, sorted; what is not an edge between two members is refused."""
    client = {name: index for index, name in enumerate(names)}
    found: dict[tuple[int, int], int] = {}
    for index, edge in enumerate(edges):
        key = f"federation.edges[{index}]"
        for name in edge:
            if not isinstance(name, str) or name not in client:
                near = name if isinstance(name, str) else ""
                raise ConfigError(key, f"{short_repr(name)} is not a member; {_known(names, near)}")
        first, second = sorted(client[name] for name in edge)
        if first == second:
            raise ConfigError(key, f"{short_repr(list(edge))} given; a member is not its own neighbour")
        if found.setdefault((first, second), index) != index:
            raise ConfigError(key, f"{short_repr(list(edge))} given twice; each edge is given once")
    return tuple((names[first], names[second]) for first, second in sorted(found))


def _check_config(config: Mapping[str, Any], members: int) -> None:
    """Refuse what contradicts members and edges; all else is checked where the configuration is resolved."""
    for key, section in config.items():
        if key not in RUN_SECTIONS:
            known = (SECTION, *RUN_SECTIONS)
            raise ConfigError(key, f"unknown section; {_known(known, key)}")
        if not isinstance(section, Mapping):
            raise ConfigError(key, f"{short_repr(section)} given; it must be a table")
    clients = config.get("problem", {}).get("clients", members)
    if clients != members or isinstance(clients, bool):
        given = f"{short_repr(clients)} given, but there are {members} members; leave it out"
        raise ConfigError("problem.clients", given)
    for key in config.get("network", {}):
        if key == "topology":
            raise ConfigError("network.topology", "given, but members communicate along federation.edges; leave it out")
        if key not in NETWORK_KEYS:
            raise ConfigError(f"network.{key}", f"unknown key; {_known(NETWORK_KEYS, key)}")
