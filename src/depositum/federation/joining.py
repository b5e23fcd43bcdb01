"""What a member does to join: make a key and a request, and accept the invitation that comes back."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tomli_w

from depositum.errors import ConfigError, RunError
from depositum.federation import certificates
from depositum.federation.agreement import check_address, check_name
from depositum.federation.certificates import CertificateError
from depositum.federation.enrolment import KEY_ENDING, REQUEST_ENDING, Invitation, Request
from depositum.federation.member_folder import (
    AGREEMENT,
    AUTHORITY,
    CERTIFICATE,
    FILES,
    KEY,
    OWN,
    SIGNATURE,
    MemberFolder,
    check_private,
    read_bounded,
)
from depositum.federation.new_files import PRIVATE, PRIVATE_FOLDER, new_folder, replace_own, write_new
from depositum.toml_file import read_toml


@dataclass(frozen=True)
class MadeRequest:
    """A request in its file, beside its key; `new` says whether it was made now."""

    request: Request
    file: Path
    key_file: Path
    new: bool


def make_request(name: str, address: str | None, folder: Path) -> MadeRequest:
    """Make a key and a request in a folder; the key of an earlier request is used again, and nothing is replaced."""
    check_name("--name", name)
    if address is not None:
        check_address("--listen", address)
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder")
    file, key_file = folder / f"{name}{REQUEST_ENDING}", folder / f"{name}{KEY_ENDING}"
    if file.exists():
        return MadeRequest(_same_request(file, key_file, name, address), file, key_file, new=False)
    if key_file.exists():
        check_private(key_file)
    else:
        write_new(key_file, certificates.new_key(), PRIVATE)
    request = Request.make(name, address, _read_key(key_file))
    write_new(file, request.dump().encode())
    return MadeRequest(request, file, key_file, new=True)


def _same_request(file: Path, key_file: Path, name: str, address: str | None) -> Request:
    found = Request.load(file)
    if (found.name, found.address) != (name, address):
        there = f"listens at {found.address}" if found.address else "dials only"
        problem = f"exists, and says that {found.name} {there}; it is not overwritten: delete it to make another one"
        raise RunError(f"{file}: {problem} (the key stays)")
    if not key_file.exists():
        raise RunError(f"{file}: exists, but its key {key_file.name} does not; delete it to make another one")
    check_private(key_file)
    public = certificates.public_key(_read_key(key_file))
    if certificates.key_fingerprint(public, str(key_file)) != found.fingerprint:
        raise CertificateError(f"{file}: is not the request of the key {key_file.name}; delete it to make another one")
    return found


Outcome = Literal["joined", "updated", "unchanged"]


@dataclass(frozen=True)
class Joined:
    """A member's folder after an invitation was accepted; `changed` names what an update changed."""

    folder: MemberFolder
    outcome: Outcome
    changed: tuple[str, ...] = ()


def accept(
    file: Path, fingerprint: str | None = None, key_file: Path | None = None, folder: Path | None = None
) -> Joined:
    """Check an invitation, and make the member's folder from it, or bring the existing one up to date.

    Parameters
    ----------
    fingerprint
        The authority's, as the organiser read it out; not needed for a folder that accepted this authority before.
    key_file
        The member's private key (default: `NAME.key` beside the invitation or in the current folder).
    folder
        The member's folder (default: the federation's name).
    """
    invitation = Invitation.load(file)
    folder = folder or Path(invitation.federation)
    if folder.exists():
        return _update(invitation, file, fingerprint, key_file, folder)
    invitation.check(str(file), fingerprint)
    key_path = key_file or _find_key(invitation.member, file)
    check_private(key_path)
    key = _read_key(key_path)
    _check_key(invitation, key, file, key_path, "accept it where the request was made, with --key if need be")
    _write(invitation, key, folder)
    return Joined(MemberFolder.open(folder), "joined")


def _update(invitation: Invitation, file: Path, fingerprint: str | None, key_file: Path | None, folder: Path) -> Joined:
    """Replace the agreement and the certificate of a folder by those of a later invitation."""
    if not (folder / OWN).is_file():
        advice = f"choose another with --out, as in --out {invitation.federation}-{invitation.member}"
        raise RunError(f"{folder}: exists, and is not this member's folder; it is not overwritten: {advice}")
    own = read_toml(folder / OWN, pipes=False)
    if (own.get("name"), own.get("federation")) != (invitation.member, invitation.federation):
        whose = f"is the folder of {own.get('name')!r} in {own.get('federation')!r}"
        raise RunError(f"{folder}: {whose}; choose another with --out")
    pinned = own.get("authority")
    invitation.check(str(file), fingerprint, pinned if isinstance(pinned, str) else "")
    key_path = folder / KEY if (folder / KEY).exists() else key_file or _find_key(invitation.member, file)
    check_private(key_path)
    key = _read_key(key_path)
    _check_key(invitation, key, file, key_path, "if that one was revoked, delete it and give the new one by --key")
    if key_path != folder / KEY:
        write_new(folder / KEY, key, PRIVATE)
    try:
        before = MemberFolder.open(folder)
    except (CertificateError, ConfigError, RunError):  # what an update repairs: an expired certificate, a lost file
        before = None
    if before is not None:
        last, new = before.agreement, invitation.agreement
        if new.revision < last.revision:
            problem = f"has revision {new.revision} of the agreement, but revision {last.revision} was accepted"
            raise CertificateError(f"{file}: {problem}; ask for the latest invitation")
        if new.canonical() == last.canonical() and before.certificate_pem == invitation.certificate.encode():
            return Joined(before, "unchanged")
        replace_own(folder / f"federation.revision-{last.revision}.toml", last.dump().encode())
    _write_signed(invitation, folder)
    after = MemberFolder.open(folder)
    return Joined(after, "updated", tuple(_changes(before, after)) if before else ())


def _changes(before: MemberFolder, after: MemberFolder) -> list[str]:
    """What an update changed, as the user knows it."""
    changed = after.agreement.differences(before.agreement)
    if before.agreement.revoked != after.agreement.revoked:
        changed.append("the list of revoked certificates")
    if before.certificate_pem != after.certificate_pem:
        changed.append("this member's certificate")
    return changed


def _check_key(invitation: Invitation, key: bytes, file: Path, key_file: Path, advice: str) -> None:
    certificate = certificates.read_certificate(invitation.certificate.encode(), f"{file}: certificate")
    if not certificate.has_key(key, str(key_file)):
        raise CertificateError(f"{file}: is for another key than {key_file}; {advice}")


def _write(invitation: Invitation, key: bytes, folder: Path) -> None:
    """Make the folder under another name, which it has until it is complete."""
    final, folder = folder, folder.with_name(f".{folder.name}.partial")
    if folder.exists():  # of an attempt that was interrupted
        shutil.rmtree(folder)
    new_folder(folder, PRIVATE_FOLDER)
    authority = certificates.read_certificate(invitation.authority.encode(), "authority")
    own = {"name": invitation.member, "federation": invitation.federation, "authority": authority.fingerprint}
    write_new(folder / OWN, tomli_w.dumps(own).encode())
    write_new(folder / KEY, key, PRIVATE)
    _write_signed(invitation, folder)
    folder.rename(final)


def _write_signed(invitation: Invitation, folder: Path) -> None:
    replace_own(folder / AUTHORITY, invitation.authority.encode())
    replace_own(folder / CERTIFICATE, invitation.certificate.encode())
    replace_own(folder / SIGNATURE, f"{invitation.signature}\n".encode())
    replace_own(folder / AGREEMENT, invitation.agreement.dump().encode())
    assert {OWN, KEY, AUTHORITY, CERTIFICATE, SIGNATURE, AGREEMENT} == {*FILES}


def _find_key(member: str, invitation: Path) -> Path:
    places = [invitation.parent / f"{member}{KEY_ENDING}", Path(f"{member}{KEY_ENDING}")]
    for place in places:
        if place.is_file():
            return place
    where = "beside the invitation or in the current folder"
    advice = "an invitation is of no use without it: accept it where the request was made, or give --key FILE"
    raise RunError(f"{member}{KEY_ENDING}: the private key is not {where}; {advice}")


def _read_key(path: Path) -> bytes:
    content = read_bounded(path)
    certificates.read_key(content, str(path))
    return content
