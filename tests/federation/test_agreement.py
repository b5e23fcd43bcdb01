"""The agreement: files give back what was written, the digest stands for all that matters, mistakes are one line."""

import dataclasses
import json
import math
import random
import tomllib
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from depositum.errors import MAX_MESSAGE, ConfigError, DepositumError
from depositum.federation.agreement import Agreement, Member, check_address, check_name, member_of, server_name
from tests.support.federations import RUN, agreement

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
VALUES: Any = st.recursive(
    st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcx_", min_size=1, max_size=5), inner),
    max_leaves=6,
)


@st.composite
def agreements(draw: Any) -> Agreement:
    """Any connected federation of up to six members, with any settings."""
    names = draw(st.lists(NAMES, min_size=2, max_size=6, unique=True))
    n = len(names)
    tree = {(draw(st.integers(0, i - 1)), i) for i in range(1, n)}
    extra = draw(st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=6))
    pairs = sorted(tree | {(min(e), max(e)) for e in extra if e[0] != e[1]})
    edges = tuple(draw(st.sampled_from([(names[i], names[j]), (names[j], names[i])])) for i, j in pairs)
    deaf = draw(st.integers(-1, n - 1))
    members = tuple(Member(name, None if i == deaf else f"host-{i}.org:{7000 + i}") for i, name in enumerate(names))
    return Agreement(
        draw(NAMES),
        members,
        edges,
        {"run": draw(st.dictionaries(st.text("abcx_", min_size=1, max_size=5), VALUES, max_size=4))},
        patience=draw(st.sampled_from([math.inf, 0.5, 60.0])),
        absent=draw(st.sampled_from(["wait", "drop"])),
        evaluate=draw(st.sampled_from(["sums", "none"])),
        classes=draw(st.none() | st.integers(2, 1000)),
        revision=draw(st.integers(1, 99)),
        revoked=tuple(draw(st.lists(st.from_regex(r"[0-9a-f]{64}", fullmatch=True), max_size=2))),
    )


@given(agreements())
@settings(max_examples=60, deadline=None)
def test_a_file_gives_back_the_agreement(found: Agreement) -> None:
    """Breaks if a value does not survive TOML, or if the digest depends on more than the content."""
    again = Agreement.from_table(tomllib.loads(found.dump()))
    assert again == found
    assert (again.digest(), again.canonical()) == (found.digest(), found.canonical())
    assert again.differences(found) == []


@given(agreements(), st.randoms())
@settings(max_examples=40, deadline=None)
def test_neither_order_nor_direction_matters(found: Agreement, rng: random.Random) -> None:
    """The same agreement written by another organiser: keys and edges in another order, edges the other way round."""

    def shuffled(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        keys = rng.sample(list(value), len(value))
        return {key: shuffled(value[key]) for key in keys}

    table = shuffled(found.table())
    edges = [edge[::-1] for edge in table["federation"]["edges"]]
    table["federation"]["edges"] = rng.sample(edges, len(edges))
    assert Agreement.from_table(table).canonical() == found.canonical()


@given(agreements())
@settings(max_examples=40, deadline=None)
def test_neighbours_are_those_of_the_graph(found: Agreement) -> None:
    graph = nx.Graph(list(found.edges))
    assert nx.is_connected(graph)
    for name in found.names:
        assert sorted(found.neighbours(name)) == sorted(graph.neighbors(name))
        assert found.neighbours(name) == sorted(found.neighbours(name), key=found.names.index)
    for a, b in found.edges:
        assert found.listener(a, b) == found.listener(b, a)
        assert found.member(found.listener(a, b)).address is not None


CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("federation.name", {"name": "other"}),
    ("federation.protocol", {"protocol": 2}),
    ("federation.patience", {"patience": 60.0}),
    ("federation.absent", {"absent": "drop"}),
    ("federation.evaluate", {"evaluate": "none"}),
    ("federation.classes", {"classes": 3}),
    ("federation.edges", {"edges": (("m0", "m1"), ("m1", "m2"), ("m2", "m3"))}),
    ("federation.members", {"members": tuple(Member(f"m{i}", f"other:{7000 + i}") for i in range(4))}),
    ("run.steps", {"config": {**RUN, "run": {**RUN["run"], "steps": 13}}}),
    ("run.seeds", {"config": {**RUN, "run": {**RUN["run"], "seeds": [1]}}}),
    ("problem.beta", {"config": {**RUN, "problem": {**RUN["problem"], "beta": 1}}}),
    ("network", {"config": {**RUN, "network": {"channel": "float16"}}}),
]


@pytest.mark.parametrize(("key", "change"), CHANGES, ids=[key for key, _ in CHANGES])
def test_a_difference_is_named_by_its_key(key: str, change: dict[str, Any]) -> None:
    """Breaks if members could train with different settings unnoticed, or were told the wrong one."""
    one, other = agreement(), agreement(**change)
    assert one.digest() != other.digest()
    assert one.differences(other) == other.differences(one) == [key]


def test_every_field_is_compared_or_known_not_to_be() -> None:
    """A field that is added later must take part in the digest, unless it is exempt here, with its reason."""
    exempt = {"revision", "revoked"}  # members learn of a revocation at different times
    tested = {key.partition(".")[2] for key, _ in CHANGES if key.startswith("federation.")} | {"config"}
    assert {field.name for field in dataclasses.fields(Agreement)} == tested | exempt
    assert agreement(revision=7, revoked=("ab" * 32,)).digest() == agreement().digest()
    assert agreement(revision=7).canonical() != agreement().canonical()


def test_the_digest_is_the_documented_hash() -> None:
    """A fixed value: breaks if a release changed the form that is hashed, and so could not talk to another."""
    import hashlib

    found = agreement(3, config={"run": {"steps": 5}})
    own = {
        "absent": "wait",
        "edges": [["m0", "m1"], ["m0", "m2"], ["m1", "m2"]],
        "evaluate": "sums",
        "members": [
            {"address": "m0.example.org:7000", "name": "m0"},
            {"address": "m1.example.org:7001", "name": "m1"},
            {"name": "m2"},
        ],
        "name": "study",
        "patience": "float:inf",
        "protocol": 1,
    }
    text = json.dumps({"federation": own, "run": {"steps": 5}}, sort_keys=True, separators=(",", ":"))
    assert found.digest() == hashlib.sha256(text.encode()).hexdigest()


def _without(table: dict[str, Any], *path: Any) -> dict[str, Any]:
    *to, last = path
    inner: Any = table
    for key in to:
        inner = inner[key]
    del inner[last]
    return table


def _with(table: dict[str, Any], value: Any, *path: Any) -> dict[str, Any]:
    *to, last = path
    inner: Any = table
    for key in to:
        inner = inner.setdefault(key, {}) if isinstance(inner, dict) else inner[key]
    inner[last] = value
    return table


F = "federation"
MISTAKES: list[tuple[Any, str]] = [
    (lambda t: _without(t, F), "federation: missing; it has the name"),
    (lambda t: _with(t, 3, F), "federation: must be a table"),
    (lambda t: _without(t, F, "name"), "federation.name: missing"),
    (lambda t: _without(t, F, "members"), "federation.members: missing"),
    (lambda t: _with(t, 1.0, F, "patiense"), "federation.patiense: unknown key.*did you mean 'patience'"),
    (lambda t: _with(t, "Cancer Study", F, "name"), "federation.name: 'Cancer Study' given; .*example 'cancer-study'"),
    (lambda t: _with(t, "../x", F, "members", 0, "name"), r"federation.members\[0\].name: '../x' given"),
    (lambda t: _with(t, "a.b", F, "members", 0, "name"), r"members\[0\].name: 'a.b' given"),
    (lambda t: _with(t, "x" * 64, F, "members", 0, "name"), r"members\[0\].name: .*at most 63"),
    (lambda t: _with(t, "m1", F, "members", 0, "name"), r"federation.members\[1\].name: .*another member"),
    (lambda t: _with(t, 1, F, "members", 0, "adress"), r"members\[0\].adress: unknown key.*did you mean 'address'"),
    (lambda t: _with(t, "m1.example.org", F, "members", 0, "address"), "an address is HOST:PORT"),
    (lambda t: _with(t, "m1.example.org:7001", F, "members", 0, "address"), "it is also 'm0'"),
    (lambda t: _with(t, "0.0.0.0:7000", F, "members", 0, "address"), "others cannot dial it"),
    (lambda t: _with(t, [["m0", "m1"]], F, "edges"), "federation.edges: no path from 'm0' to 'm2' or 'm3'"),
    (lambda t: _with(t, [], F, "edges"), "federation.edges: no path"),
    (lambda t: _with(t, ["m0", "m1", "m2"], F, "edges", 0), r"edges\[0\]: .* an edge is a pair of names"),
    (lambda t: _with(t, ["m0", "mm1"], F, "edges", 0), r"edges\[0\]: 'mm1' is not a member.*did you mean 'm1'"),
    (lambda t: _with(t, ["m0", "m0"], F, "edges", 0), "not its own neighbour"),
    (lambda t: _with(t, ["m2", "m1"], F, "edges", 0), "each edge is given once"),
    (lambda t: _without(t, F, "members", 0, "address"), "both only dial"),
    (lambda t: _with(t, 0, F, "patience"), "federation.patience: 0 given"),
    (lambda t: _with(t, math.nan, F, "patience"), "federation.patience: nan given"),
    (lambda t: _with(t, "abandon", F, "absent"), "federation.absent: 'abandon' given; it can be 'wait' or 'drop'"),
    (lambda t: _with(t, "sum", F, "evaluate"), "did you mean 'sums'"),
    (lambda t: _with(t, 1, F, "classes"), "federation.classes: 1 given"),
    (lambda t: _with(t, True, F, "classes"), "federation.classes: True given"),
    (lambda t: _with(t, 0, F, "protocol"), "federation.protocol: 0 given"),
    (lambda t: _with(t, ["12ab"], F, "revoked"), r"federation.revoked\[0\]: '12ab' given"),
    (lambda t: _with(t, 5, "problem", "clients"), "problem.clients: 5 given, but there are 4 members"),
    (lambda t: _with(t, "ring", "network", "topology"), "network.topology: given, but members communicate along"),
    (lambda t: _with(t, "x", "network", "chanel"), "network.chanel: unknown key.*did you mean 'channel'"),
    (lambda t: _with(t, {}, "processes"), "processes: unknown section"),
    (lambda t: _with(t, {}, "algoritm"), "algoritm: unknown section.*did you mean 'algorithm'"),
    (lambda t: _with(t, 3, "run"), "run: 3 given; it must be a table"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_a_mistake_is_one_line_that_names_the_key(change: Any, message: str, tmp_path: Path) -> None:
    ring = agreement()
    line = tuple(Member(m.name, m.address if m.name != "m2" else "m2.example.org:7002") for m in ring.members)
    table = json.loads(json.dumps(dataclasses.replace(ring, members=line).table(), allow_nan=True))
    # A ring m0 – m1 – m2 – m3 in which m3 dials only.
    path = tmp_path / "federation.toml"
    path.write_text(tomli_w.dumps(change(table)))
    with pytest.raises(ConfigError, match=message) as caught:
        Agreement.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= MAX_MESSAGE


def test_mutated_files_end_in_one_line_or_none(tmp_path: Path) -> None:
    """Bytes are replaced, removed, repeated and swapped at random: no traceback, no long or unprintable message."""
    original = agreement().dump().encode()
    path = tmp_path / "federation.toml"
    messages = []
    for number in range(400):
        rng = random.Random(number)
        content = bytearray(original)
        for _ in range(rng.randint(1, 4)):
            at, length = rng.randrange(len(content)), rng.randint(1, 12)
            kind = rng.randrange(4)
            if kind == 0:
                content[at : at + length] = rng.randbytes(length)
            elif kind == 1:
                del content[at : at + length]
            elif kind == 2:
                content[at:at] = content[at : at + length] * rng.randint(1, 9)
            else:
                content[at : at + 1] = rng.choice([b"0", b'"', b"[", b"]", b"=", b"-1", b"inf", b"{}", b"\n"])
            content = content or bytearray(b"x")
        path.write_bytes(content)
        try:
            Agreement.load(path)
        except DepositumError as error:
            messages.append(str(error))
    assert len(messages) > 200
    assert all(message.isprintable() and len(message) <= MAX_MESSAGE for message in messages)


@pytest.mark.parametrize(
    "address",
    ["a:1", "a.example.org:7443", "127.0.0.1:65535", "[::1]:80", "[2001:db8::1]:7443", "localhost:7443"],
)
def test_addresses_that_can_be_dialled(address: str) -> None:
    host, port = check_address("--listen", address)
    assert f"{f'[{host}]' if ':' in host else host}:{port}" == address


@pytest.mark.parametrize(
    "address",
    [
        *("", ":", "a", "a:", ":80", "a:0", "a:65536", "a:080", "a:-1", "a:1e3", "a b:80", "-a:80", "a-:80", "a..b:80"),
        *("::1:80", "[::1]", "[::1]:", "[a]:80", "127.0.0:80", "256.0.0.1:80", "1.2.3.4.5:80", "[127.0.0.1]:80"),
        *("[::]:80", "0.0.0.0:80", "224.0.0.1:80", "http://a:80", "a:80/x", "ä:80", "a:８０", "a\n:80"),
        *("[fe80::1%eth0]:80", "a" * 64 + ":80", "a." * 127 + "a:80", "user@a:80", None, 80, ["a:80"]),
    ],
)
def test_addresses_that_cannot(address: Any) -> None:
    with pytest.raises(ConfigError, match="--listen: "):
        check_address("--listen", address)


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "A", "a.b", "a b", "a/b", "..", "a\0", "ä", "a" * 64, "a\n", "$a", "~", "a_b", None, 3]
)
def test_names_that_could_do_harm_are_refused(name: Any) -> None:
    with pytest.raises(ConfigError, match="name"):
        check_name("name", name)


def test_the_name_in_a_certificate_stands_for_one_member_only() -> None:
    """No two members of any two federations have the same name in their certificates."""
    pairs = [(f, m) for f in ("a", "b", "members", "a-members") for m in ("a", "b", "members", "x-a")]
    assert len({server_name(f, m) for f, m in pairs}) == len(pairs)
    for federation, member in pairs:
        assert member_of(server_name(federation, member), federation) == member
        assert member_of(server_name(federation, member), "other") is None
    assert member_of("x.y.members.a", "a") is None
    assert member_of(".members.a", "a") is None
