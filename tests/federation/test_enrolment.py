"""Every step from a new federation to a member's folder by the real commands, and every mistake on the way."""

import datetime
import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from depositum.errors import MAX_MESSAGE, DepositumError
from depositum.federation import certificates
from depositum.federation.agreement import Agreement
from depositum.federation.certificates import CertificateError
from depositum.federation.enrolment import Invitation, Request
from depositum.federation.joining import accept, make_request
from depositum.federation.member_folder import MemberFolder
from depositum.federation.organiser_folder import OrganiserFolder
from tests.support.federations import enrolled, organiser
from tests.support.small_runs import cli, files

ADDRESSES: dict[str, str | None] = {"a": "a.example.org:7443", "b": None, "c": "c.example.org:7443"}


def federation(*arguments: object) -> str:
    """Run a command of `depositum federation` that succeeds; return what it printed."""
    done = cli("federation", *map(str, arguments))
    assert (done.code, done.err) == (0, "")
    return done.out


def refused(*arguments: object) -> str:
    """Run a command that is refused; return the one line of its error."""
    done = cli("federation", *map(str, arguments))
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("error: ")
    assert len(line) <= MAX_MESSAGE + len("error: ")
    return line.removeprefix("error: ")


def fingerprint_in(text: str, what: str) -> str:
    """The fingerprint that a command printed after some words."""
    found = re.search(rf"{what}:? ((?:[0-9a-f]{{4}} ?){{8}})", text)
    assert found is not None, text
    return found[1].strip()


def test_all_steps_by_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the documentation: three organisations, each in its own folder; the member's folder can be opened."""
    monkeypatch.chdir(tmp_path)
    out = federation("new", "study", "--member", "a", "--member", "b", "--member", "c")
    authority = fingerprint_in(out, "fingerprint of the authority")
    keys = {}
    for name, address in ADDRESSES.items():
        (tmp_path / name).mkdir()
        options = ["--dials-only"] if address is None else ["--listen", address]
        out = federation("request", "--name", name, *options, "--out", name)
        keys[name] = fingerprint_in(out, "fingerprint of the key")
    out = federation("approve", "a/a.request", "b/b.request")
    assert "approve the request of c" in out
    assert not list(tmp_path.glob("study/invitations/*"))
    out = federation("approve", *(f"{name}/{name}.request" for name in ADDRESSES))
    for name in ADDRESSES:
        assert re.search(rf"^{name} .*key {keys[name]}$", out, re.MULTILINE)
    assert fingerprint_in(out, "fingerprint of the authority") == authority
    for name, address in ADDRESSES.items():
        monkeypatch.chdir(tmp_path / name)
        out = federation("accept", f"../study/invitations/{name}.invitation", "--fingerprint", authority.upper())
        assert "depositum peer study --data" in out
        folder = MemberFolder.open("study")
        assert (folder.name, folder.agreement.names) == (name, ["a", "b", "c"])
        assert folder.agreement.member(name).address == address
        assert folder.key_pem == Path(f"{name}.key").read_bytes()
        assert f"{name} has not been started" in federation("status", "study")
    assert {folder.agreement.digest() for folder in [MemberFolder.open(tmp_path / n / "study") for n in ADDRESSES]} == {
        folder.agreement.digest()
    }


def test_every_command_run_twice_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    commands: list[list[str]] = [
        ["new", "study", "--member", "a", "--member", "b"],
        ["request", "--name", "a", "--listen", "localhost:7443"],
        ["request", "--name", "b", "--dials-only"],
        ["approve", "a.request", "b.request"],
    ]
    for arguments in commands:
        federation(*arguments)
        before = files(tmp_path)
        federation(*arguments)
        assert files(tmp_path) == before, arguments
    fingerprint = OrganiserFolder(Path("study")).authority.fingerprint
    arguments = ["accept", "study/invitations/a.invitation", "--fingerprint", fingerprint, "--out", "mine"]
    federation(*arguments)
    before = files(tmp_path)
    assert "nothing was changed" in federation(*arguments)
    assert files(tmp_path) == before
    federation("revoke", "b")
    before = files(tmp_path)
    assert "nothing was changed" in federation("revoke", "b")
    assert files(tmp_path) == before


def test_private_keys_can_be_read_by_nobody_else(tmp_path: Path) -> None:
    """Whatever the user's umask."""
    before = os.umask(0)
    try:
        folders = enrolled(tmp_path, ADDRESSES)
    finally:
        os.umask(before)
    keys = [path for path in tmp_path.rglob("*") if path.name.endswith(".key")]
    assert len(keys) == 1 + 2 * len(ADDRESSES)
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders.values()} == {0o700}
    assert stat.S_IMODE((tmp_path / "study" / "organiser").stat().st_mode) == 0o700
    private = b"PRIVATE KEY"
    others = [path for path in tmp_path.rglob("*") if path.is_file() and path not in keys]
    assert [path for path in others if private in path.read_bytes()] == []


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three enrolled members in their folders, and their organiser's; tests must not change them."""
    root = tmp_path_factory.mktemp("enrolled")
    enrolled(root, ADDRESSES)
    return root


@pytest.fixture
def mine(study: Path, tmp_path: Path) -> Path:
    """A copy of it all that a test can change."""
    shutil.copytree(study, tmp_path / "copy")
    return tmp_path / "copy"


def move_clock(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """Let this computer's clock be wrong by some days; certificates are as they are."""
    moved = certificates.current_time() + datetime.timedelta(days=days)
    monkeypatch.setattr(certificates, "current_time", lambda: moved)


# Invitations


def authority_of(root: Path) -> str:
    return OrganiserFolder(root / "study").authority.fingerprint


def test_a_fingerprint_is_needed_and_must_match(study: Path, tmp_path: Path) -> None:
    """The invitation does not tell the fingerprint that the user must hear; a wrong one is shown beside the true."""
    invitation = study / "study" / "invitations" / "a.invitation"
    known = authority_of(study)
    assert known not in refused("accept", invitation, "--out", tmp_path / "new")
    assert known.replace(" ", "") not in invitation.read_text().replace(" ", "")
    wrong = known.translate(str.maketrans("0123456789", "1234567890"))
    message = refused("accept", invitation, "--out", tmp_path / "new", "--fingerprint", wrong)
    assert known in message
    assert wrong in message
    for text in ("12ab", known[:-1], known + "0", "x" * 32, ""):
        assert "--fingerprint" in refused("accept", invitation, "--out", tmp_path / "new", "--fingerprint", text)
    assert not (tmp_path / "new").exists()


def test_an_invitation_of_another_authority_is_refused(study: Path, tmp_path: Path) -> None:
    """Somebody sends an invitation of an authority of their own, with the true names and the true key."""
    impostor = organiser(tmp_path / "study", list(ADDRESSES))
    impostor.approve([Request.load(study / name / f"{name}.request") for name in ADDRESSES])
    forged = impostor.invitations / "a.invitation"
    message = refused("accept", forged, "--fingerprint", authority_of(study), "--out", tmp_path / "new")
    assert "do not use it" in message
    before = files(study / "a" / "study")
    # Nor does it replace what was accepted before, even with its own fingerprint.
    with pytest.raises(CertificateError, match="do not use it"):
        accept(forged, impostor.authority.fingerprint, None, study / "a" / "study")
    assert files(study / "a" / "study") == before


def test_a_stolen_invitation_is_of_no_use(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key, and with another one."""
    stolen = tmp_path / "a.invitation"
    stolen.write_bytes((study / "study" / "invitations" / "a.invitation").read_bytes())
    monkeypatch.chdir(tmp_path)
    known = authority_of(study)
    assert "a.key: the private key is not beside" in refused("accept", stolen, "--fingerprint", known)
    make_request("a", None, tmp_path)
    assert "is for another key than" in refused("accept", stolen, "--fingerprint", known)
    assert not (tmp_path / "study").exists()


def edited(path: Path, change: Callable[[str], str]) -> Path:
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    return path


INVITATION_CHANGES: list[tuple[str, Callable[[str], str], str]] = [
    ("a longer run", lambda t: t.replace("steps = 12", "steps = 13"), "the agreement was changed after"),
    ("another address", lambda t: t.replace("c.example.org", "evil.org"), "the agreement was changed after"),
    ("its patience", lambda t: t.replace('absent = "wait"', 'absent = "drop"'), "the agreement was changed after"),
    ("the member", lambda t: t.replace('member = "a"', 'member = "b"'), "is the certificate of 'a', not of 'b'"),
    ("a stranger", lambda t: t.replace('member = "a"', 'member = "x"'), "'x' is not a member"),
    ("the signature", lambda t: t.replace('signature = "M', 'signature = "N'), "the agreement was changed after"),
    ("no signature", lambda t: re.sub(r'signature = ".*"', 'signature = ""', t), "the agreement was changed after"),
    ("its format", lambda t: t.replace("format = 1", "format = 2"), "has format 2, but this release reads 1"),
    ("a key", lambda t: t.replace("format = 1", "formt = 1"), "formt: unknown key of an invitation"),
    ("the certificate", lambda t: t.replace("BEGIN CERTIFICATE", "BEGIN", 1), "is not a certificate in PEM"),
]


@pytest.mark.parametrize(
    ("change", "message"), [c[1:] for c in INVITATION_CHANGES], ids=[c[0] for c in INVITATION_CHANGES]
)
def test_an_invitation_that_was_changed_is_refused(change: Any, message: str, mine: Path, tmp_path: Path) -> None:
    file = edited(mine / "study" / "invitations" / "a.invitation", change)
    found = refused(
        *("accept", file, "--fingerprint", authority_of(mine), "--key", mine / "a" / "a.key", "--out", tmp_path / "new")
    )
    assert re.search(message, found)
    assert not (tmp_path / "new").exists()


def test_certificates_of_two_members_cannot_be_exchanged(mine: Path, tmp_path: Path) -> None:
    """b puts its own certificate, which is valid, into the invitation of a."""
    a, b = (Invitation.load(mine / "study" / "invitations" / f"{name}.invitation") for name in "ab")
    mixed = tmp_path / "mixed.invitation"
    mixed.write_text(Invitation("a", b.certificate, a.authority, a.signature, a.agreement).dump())
    with pytest.raises(CertificateError, match="is the certificate of 'b', not of 'a'"):
        accept(mixed, authority_of(mine), mine / "b" / "b.key", tmp_path / "new")


def test_nothing_of_the_users_is_overwritten(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a key or a request that exists is left alone, and the message says what to do."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "thesis.txt").write_text("mine")
    invitation, known = mine / "study" / "invitations" / "a.invitation", authority_of(mine)
    key = mine / "a" / "a.key"
    assert "choose another with --out" in refused("accept", invitation, "--fingerprint", known, "--key", key)
    assert "exists; it is not overwritten" in refused("new", "study")
    (tmp_path / "taken").write_text("")
    assert "taken: exists" in refused("accept", invitation, "--fingerprint", known, "--key", key, "--out", "taken")
    assert "is the folder of 'a'" in refused(
        *(
            "accept",
            mine / "study" / "invitations" / "b.invitation",
            "--fingerprint",
            known,
            "--out",
            mine / "a" / "study",
        )
    )
    federation("request", "--name", "x", "--dials-only")
    before = files(tmp_path)
    assert "not overwritten: delete it" in refused("request", "--name", "x", "--listen", "localhost:7443")
    (tmp_path / "y.key").write_text("not a key")
    (tmp_path / "y.key").chmod(0o600)
    assert "y.key: is not a private key" in refused("request", "--name", "y", "--dials-only")
    (tmp_path / "y.key").unlink()
    assert files(tmp_path) == before


def test_a_lost_request_is_made_again_with_the_same_key(tmp_path: Path) -> None:
    one = make_request("a", None, tmp_path)
    one.file.unlink()
    again = make_request("a", "localhost:7443", tmp_path)
    assert again.request.fingerprint == one.request.fingerprint
    assert again.new


# Requests


REQUEST_CHANGES: list[tuple[str, Callable[[str], str], str]] = [
    ("the name", lambda t: t.replace('name = "a"', 'name = "b"'), "the signature does not match"),
    ("the address", lambda t: t.replace('"a.example.org', '"evil.org'), "the signature does not match"),
    ("no address", lambda t: re.sub(r'\naddress = ".*"', "", t), "the signature does not match"),
    ("an unsafe name", lambda t: t.replace('name = "a"', 'name = "../a"'), "name: '../a' given"),
    ("the signature", lambda t: re.sub(r'signature = "...', 'signature = "AAA', t), "the signature does not match"),
    ("not base64", lambda t: re.sub(r'signature = "...', 'signature = "???', t), "the signature does not match"),
    ("no key", lambda t: t.replace("BEGIN PUBLIC KEY", "BEGIN"), "is not a public key in PEM"),
    ("a number", lambda t: t.replace('name = "a"', "name = 3"), "name: 3 given"),
    ("not TOML", lambda t: t + "=", "is not valid TOML"),
    ("a run configuration", lambda t: "[run]\nsteps = 3\n", "is not a request of depositum"),
]


@pytest.mark.parametrize(("change", "message"), [c[1:] for c in REQUEST_CHANGES], ids=[c[0] for c in REQUEST_CHANGES])
def test_a_request_that_was_changed_is_refused(change: Any, message: str, mine: Path) -> None:
    """Its sender must have the key, and what it says must be what was signed with it."""
    before = files(mine / "study")
    file = edited(mine / "a" / "a.request", change)
    assert message in refused("approve", file, "--federation", mine / "study")
    assert files(mine / "study") == before


def test_the_key_in_a_request_cannot_be_replaced(mine: Path, tmp_path: Path) -> None:
    """Somebody on the way puts a key of their own into the request of a."""
    other = make_request("a", ADDRESSES["a"], tmp_path).request
    text = (mine / "a" / "a.request").read_text()
    mixed = Request.load(mine / "a" / "a.request")
    (mine / "a" / "a.request").write_text(text.replace(mixed.public_key.strip(), other.public_key.strip()))
    assert "the signature does not match" in refused(
        "approve", mine / "a" / "a.request", "--federation", mine / "study"
    )


def test_unknown_members_and_changed_keys_are_refused(mine: Path, tmp_path: Path) -> None:
    """All or none: a good request beside a bad one is not approved either."""
    for name in ("aa", "x"):
        make_request(name, None, tmp_path)
    message = refused("approve", tmp_path / "aa.request", "--federation", mine / "study")
    assert "'aa' asks to join, but is not among the members" in message
    assert "did you mean 'a'?" in message
    changed = make_request("b", None, tmp_path).file
    before = files(mine / "study")
    message = refused("approve", mine / "a" / "a.request", changed, "--federation", mine / "study")
    known = Request.load(mine / "b" / "b.request").fingerprint
    assert Request.load(changed).fingerprint in message
    assert known in message
    assert "depositum federation revoke b" in message
    assert files(mine / "study") == before
    assert "two different requests of 'b'" in refused(
        *("approve", mine / "b" / "b.request", changed, "--federation", mine / "study")
    )


def test_a_new_address_reaches_all_members(mine: Path) -> None:
    """The agreement gets a new revision; each member accepts it without comparing the fingerprint again."""
    moved = Request.make("a", "new.example.org:7443", (mine / "a" / "a.key").read_bytes())
    (mine / "moved.request").write_text(moved.dump())
    out = federation("approve", mine / "moved.request", "--federation", mine / "study")
    assert "new address" in out
    assert "signed revision 2 of the agreement: federation.members" in out
    out = federation("accept", mine / "study" / "invitations" / "b.invitation", "--out", mine / "b" / "study")
    assert "updated to revision 2 of the agreement; changed: federation.members" in out
    assert MemberFolder.open(mine / "b" / "study").agreement.member("a").address == "new.example.org:7443"
    assert Agreement.load(mine / "b" / "study" / "federation.revision-1.toml").revision == 1


def test_a_changed_plan_is_signed_when_asked(mine: Path) -> None:
    edited(mine / "study" / "federation.toml", lambda t: t.replace("steps = 12", "steps = 24"))
    before = (mine / "study" / "federation.toml").read_bytes()
    assert "signed revision 2 of the agreement: run.steps" in federation("approve", "--federation", mine / "study")
    assert (mine / "study" / "federation.toml").read_bytes() == before
    edited(mine / "study" / "federation.toml", lambda t: t.replace("steps = 24", "stesp = 24"))
    kept = files(mine / "study")
    assert "did you mean 'steps'?" in refused("approve", "--federation", mine / "study")
    assert files(mine / "study") == kept


def test_a_member_never_returns_to_an_earlier_agreement(mine: Path, tmp_path: Path) -> None:
    """An old invitation is signed too: somebody could replay it to bring back a revoked member."""
    old = tmp_path / "a.invitation"
    old.write_bytes((mine / "study" / "invitations" / "a.invitation").read_bytes())
    federation("revoke", "b", "--federation", mine / "study")
    new = mine / "study" / "invitations" / "a.invitation"
    assert "revoked certificates" in federation("accept", new, "--out", mine / "a" / "study")
    kept = files(mine / "a" / "study")
    assert "has revision 1 of the agreement, but revision 2 was accepted" in refused(
        *("accept", old, "--out", mine / "a" / "study")
    )
    assert files(mine / "a" / "study") == kept


def test_a_revoked_member(mine: Path, tmp_path: Path) -> None:
    """The others learn of it; its own certificate is of no use; with a new key it can come back, with the old never."""
    agreed = MemberFolder.open(mine / "a" / "study").agreement
    old = certificates.read_certificate(MemberFolder.open(mine / "b" / "study").certificate_pem, "b")
    invitation = tmp_path / "b.invitation"
    invitation.write_bytes((mine / "study" / "invitations" / "b.invitation").read_bytes())
    federation("revoke", "b", "--federation", mine / "study")
    assert not (mine / "study" / "invitations" / "b.invitation").exists()
    signed = OrganiserFolder(mine / "study").agreement()
    assert signed is not None
    assert signed.revoked == (old.sha256,)
    assert signed.digest() == agreed.digest()  # members train on while the news spreads
    parts = Invitation.load(mine / "study" / "invitations" / "a.invitation")
    forged = Invitation("b", old.pem.decode(), parts.authority, parts.signature, parts.agreement)
    invitation.write_text(forged.dump())
    message = refused(
        "accept", invitation, "--fingerprint", authority_of(mine), "--key", mine / "b" / "b.key", "--out", "x"
    )
    assert "was revoked by the organiser of 'study'" in message
    assert "has the key whose certificate was revoked" in refused(
        *("approve", mine / "b" / "b.request", "--federation", mine / "study")
    )
    make_request("b", None, tmp_path)
    assert "approved" in federation("approve", tmp_path / "b.request", "--federation", mine / "study")
    again = accept(
        mine / "study" / "invitations" / "b.invitation", authority_of(mine), tmp_path / "b.key", tmp_path / "n"
    )
    assert again.folder.agreement.revoked == (old.sha256,)
    present = ("accept", mine / "study" / "invitations" / "b.invitation", "--out", mine / "b" / "study")
    present = (*present, "--key", tmp_path / "b.key")
    advice = "member.key; if that one was revoked, delete it and give the new one by --key"
    assert advice in refused(*present)
    (mine / "b" / "study" / "member.key").unlink()
    assert "updated to revision" in federation(*present)
    assert "'x' is not an approved member" in refused("revoke", "x", "--federation", mine / "study")


def test_a_certificate_is_renewed_when_it_is_about_to_expire(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same request, approved again: unchanged at first, renewed in the last third; the member accepts it."""
    folder = OrganiserFolder(mine / "study")
    request = Request.load(mine / "a" / "a.request")
    assert [approval.outcome for approval in folder.approve([request])] == ["unchanged"]
    before = MemberFolder.open(mine / "a" / "study").certificate_pem

    move_clock(monkeypatch, 300)
    assert [approval.outcome for approval in folder.approve([request])] == ["renewed"]
    joined = accept(mine / "study" / "invitations" / "a.invitation", folder=mine / "a" / "study")
    assert (joined.outcome, joined.changed) == ("updated", ("this member's certificate",))
    assert joined.folder.certificate_pem != before
    assert joined.folder.key_pem == (mine / "a" / "a.key").read_bytes()


def test_without_a_list_whoever_is_approved_is_a_member(tmp_path: Path) -> None:
    """The order of clients is that of the alphabet; one more member later is a new revision for all."""
    folder = organiser(tmp_path / "open")
    requests = {name: make_request(name, f"{name}:1", tmp_path).request for name in ("c", "a", "d")}
    folder.approve([requests["c"]])
    assert folder.agreement() is None
    folder.approve([requests["a"]])
    first = folder.agreement()
    assert first is not None
    assert (first.names, first.edges, first.revision) == (["a", "c"], (("a", "c"),), 1)
    folder.approve([requests["d"]])
    second = folder.agreement()
    assert second is not None
    assert (second.names, len(second.edges), second.revision) == (["a", "c", "d"], 3, 2)


def test_two_members_that_only_dial_cannot_be_neighbours(tmp_path: Path) -> None:
    folder = organiser(tmp_path / "study", ["a", "b", "c"])
    requests = [make_request(name, None if name != "a" else "a:1", tmp_path).request for name in "abc"]
    with pytest.raises(
        DepositumError, match="'b' and 'c' are neighbours, and both only dial; one of them needs an addr"
    ):
        folder.approve(requests)
    assert OrganiserFolder(tmp_path / "study").register.members == {}
    assert not (tmp_path / "study" / "signed").exists()


# The member's folder, whenever it is opened


def test_a_readable_key_is_refused_with_the_command(mine: Path) -> None:
    folder = mine / "a" / "study"
    (folder / "member.key").chmod(0o644)
    with pytest.raises(CertificateError, match=rf"other users \(mode 0644\); run: chmod 600 {folder / 'member.key'}"):
        MemberFolder.open(folder)
    (mine / "study" / "organiser" / "authority.key").chmod(0o640)
    assert "chmod 600" in refused("approve", "--federation", mine / "study")


FOLDER_CHANGES: list[tuple[str, str, Callable[[str], str], str]] = [
    ("the run", "federation.toml", lambda t: t.replace("steps = 12", "steps = 13"), "was changed after the organiser"),
    ("who is revoked", "federation.toml", lambda t: t.replace("revision = 1", "revision = 2"), "was changed after"),
    ("the signature", "agreement.signature", lambda t: t[:-10] + "\n", "was changed after the organiser"),
    (
        "the name",
        "member.toml",
        lambda t: t.replace('name = "a"', 'name = "b"'),
        "is the certificate of 'a', not of 'b'",
    ),
    ("the federation", "member.toml", lambda t: t.replace('"study"', '"other"'), "authority of 'other'"),
    ("the fingerprint", "member.toml", lambda t: re.sub(r'(authority = ")....', r"\g<1>0000", t), "was accepted"),
    ("a certificate", "member.pem", lambda t: t.replace("M", "N", 3), "is not a certificate in PEM"),
    ("an authority", "authority.pem", lambda t: "", "is not a certificate in PEM"),
    ("a key", "member.key", lambda t: "", "is not a private key"),
]


@pytest.mark.parametrize(
    ("file", "change", "message"), [c[1:] for c in FOLDER_CHANGES], ids=[c[0] for c in FOLDER_CHANGES]
)
def test_a_folder_that_was_changed_is_refused(file: str, change: Any, message: str, mine: Path) -> None:
    edited(mine / "a" / "study" / file, change)
    assert message in refused("status", mine / "a" / "study")


def test_parts_of_other_members_are_refused(mine: Path) -> None:
    """The key, or key and certificate, of another member of the same federation."""
    a, b = mine / "a" / "study", mine / "b" / "study"
    (a / "member.key").write_bytes((b / "member.key").read_bytes())
    assert "is not the key of the certificate member.pem" in refused("status", a)
    (a / "member.pem").write_bytes((b / "member.pem").read_bytes())
    assert "is the certificate of 'b', not of 'a'" in refused("status", a)


@pytest.mark.parametrize("file", ["member.toml", "federation.toml", "agreement.signature", "member.key", "member.pem"])
def test_a_lost_file_comes_back_with_the_invitation(file: str, mine: Path) -> None:
    """All but the file that says whose folder it is can be restored by accepting the same invitation again."""
    folder = mine / "a" / "study"
    before = files(folder)
    (folder / file).unlink()
    assert f"{file} is missing; accept the invitation again" in refused("status", folder)
    arguments = [
        "accept",
        mine / "study" / "invitations" / "a.invitation",
        "--out",
        folder,
        "--key",
        mine / "a" / "a.key",
    ]
    if file == "member.toml":
        assert "is not this member's folder" in refused(*arguments)
        return
    federation(*arguments)
    assert files(folder) == before


@pytest.mark.parametrize(
    ("days", "message"), [(400, "expired on"), (-1, "set the clock")], ids=["expired", "not yet valid"]
)
def test_a_folder_at_the_wrong_time(days: int, message: str, study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this computer is moved, and not the certificate."""
    move_clock(monkeypatch, days)
    with pytest.raises(CertificateError, match=message):
        MemberFolder.open(study / "a" / "study")


def test_other_folders_are_not_a_members(tmp_path: Path, study: Path) -> None:
    assert "does not exist" in refused("status", tmp_path / "absent")
    assert "is not a member's folder" in refused("status", tmp_path)
    assert "is not a member's folder" in refused("status", study / "study")
    (tmp_path / "file").write_text("")
    assert "is a file" in refused("status", tmp_path / "file")


# Plans


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new", "Cancer"], "NAME: 'Cancer' given; .* 'cancer'"),
        (["new", "s", "--member", "A"], r"federation.members\[0\]: 'A' given"),
        (["new", "s", "--topology", "rign", "--member", "a", "--member", "b"], "did you mean 'ring'"),
        (["new", "s", "--topology", "one-peer-exponential", "--member", "a", "--member", "b"], "in every phase"),
        (["new", "s", "--member", "a", "--member", "a"], r"members\[1\]: 'a' given twice"),
        (["new", "s", "--days", "0"], "--days: 0 given"),
        (["new", "s", "--config", "absent.toml"], "--config: 'absent.toml' cannot be read"),
        (["request", "--name", "a"], "--listen: neither given"),
        (["request", "--name", "a", "--listen", "a:1", "--dials-only"], "--listen: both given"),
        (["request", "--name", "a", "--listen", "a"], "--listen: 'a' given; an address is HOST:PORT"),
        (["request", "--name", "a/b", "--dials-only"], "--name: 'a/b' given"),
        (["request", "--name", "a", "--dials-only", "--out", "absent"], "absent: no such folder"),
        (["approve", "x.request"], "--federation: missing: none in the current folder"),
        (["accept", "x.invitation"], "x.invitation: no such file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_refused_before_anything_is_written(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert re.search(message, refused(*arguments))
    assert list(tmp_path.iterdir()) == []


def test_a_plan_has_no_other_keys(mine: Path) -> None:
    """The error offers what a plan can have, not what is set when the agreement is signed."""
    plan = mine / "study" / "federation.toml"
    plan.write_text(plan.read_text().replace("topology =", "topolgy ="))
    message = refused("approve", "--federation", mine / "study")
    assert "federation.topolgy: unknown key; it can be 'name', 'members', 'topology', 'edges'" in message
    assert message.endswith("'evaluate' or 'classes'; did you mean 'topology'?")


def test_requests_and_invitations_are_told_apart(mine: Path) -> None:
    request, invitation = mine / "b" / "b.request", mine / "study" / "invitations" / "b.invitation"
    assert refused("accept", request) == f"{request}: is not an invitation of depositum"
    assert refused("approve", invitation, "--federation", mine / "study").endswith("is not a request of depositum")


def test_a_run_configuration_becomes_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its topology and number of clients are the federation's; a dataset by name is refused with what to write."""
    monkeypatch.chdir(tmp_path)
    run = Path("run.toml")
    run.write_text('[problem]\ndataset = "digits"\nclients = 9\n[network]\ntopology = "star"\nchannel = "float16"\n')
    assert "'digits' given, but each member has its own file; write '{client}.npz'" in refused(
        *("new", "s", "--config", run)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]
    run.write_text(
        '[problem]\ndataset = "{client}.npz"\nclients = 9\n[network]\ntopology = "star"\nchannel = "float16"\n'
    )
    federation("new", "s", "--config", run)
    plan = OrganiserFolder(Path("s")).plan.table
    assert plan["network"] == {"channel": "float16"}
    assert "clients" not in plan["problem"]
    assert "is a federation's plan already" in refused("new", "t", "--config", "s/federation.toml")
