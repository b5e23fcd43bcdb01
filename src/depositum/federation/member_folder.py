"""The folder of a member: everything it needs to take part, written by `depositum federation accept`.

    federation.toml       the agreement
    agreement.signature   the authority's signature of it
    member.toml           who this member is, and the fingerprint of the authority that was accepted
    member.key            the private key (0600), which never leaves this folder
    member.pem            the member's certificate
    authority.pem         the authority's certificate
    run/                  the run folder, with logs, status.json, sent.csv and received.csv

What is in it is checked whenever it is opened: nothing is trusted that the authority did not sign.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from depositum.bounded_reading import open_regular_file
from depositum.errors import ConfigError, RunError, short_repr
from depositum.federation import certificates
from depositum.federation.agreement import Agreement, check_name
from depositum.federation.certificates import Certificate, CertificateError
from depositum.toml_file import MAX_BYTES, check_values, read_toml

AGREEMENT, SIGNATURE, OWN = "federation.toml", "agreement.signature", "member.toml"
KEY, CERTIFICATE, AUTHORITY, RUN = "member.key", "member.pem", "authority.pem", "run"
#: What must be there for a folder to be a member's.
FILES = (OWN, AGREEMENT, SIGNATURE, KEY, CERTIFICATE, AUTHORITY)


@dataclass(frozen=True)
class MemberFolder:
    """The checked content of a member's folder.

    Attributes
    ----------
    path
        The folder.
    name
        The member.
    agreement
        What it agreed to, signed by the authority.
    key_pem, certificate_pem, authority_pem
        The member's private key, its certificate and the authority's, in PEM.
    """

    path: Path
    name: str
    agreement: Agreement
    key_pem: bytes
    certificate_pem: bytes
    authority_pem: bytes

    @property
    def runs(self) -> Path:
        """The run folder, with logs, status, and the accounts of what was sent and received."""
        return self.path / RUN

    def __repr__(self) -> str:
        """Without the key."""
        return f"MemberFolder({str(self.path)!r}, {self.name!r})"

    @classmethod
    def open(cls, path: str | Path) -> "MemberFolder":
        """Read a member's folder, and refuse it with the reason if this member could not take part with it."""
        folder = Path(path).expanduser()
        _check_present(folder)
        own = read_toml(folder / OWN, pipes=False)
        check_values(own)
        name, federation, accepted = (own.get(key) for key in ("name", "federation", "authority"))
        check_name(f"{folder / OWN}: name", name)
        check_name(f"{folder / OWN}: federation", federation)
        assert isinstance(name, str)
        assert isinstance(federation, str)
        check_private(folder / KEY)
        key, pem, authority_pem = (read_bounded(folder / file) for file in (KEY, CERTIFICATE, AUTHORITY))
        authority = certificates.read_certificate(authority_pem, str(folder / AUTHORITY))
        if authority.fingerprint != accepted:
            problem = f"has the fingerprint {authority.fingerprint}, but {short_repr(accepted)} was accepted"
            raise CertificateError(f"{folder / AUTHORITY}: {problem}")
        certificates.check_authority(authority, federation, str(folder / AUTHORITY))
        agreement = _signed_agreement(folder, federation, authority)
        certificate = certificates.read_certificate(pem, str(folder / CERTIFICATE))
        check_membership(agreement, name, certificate, authority, str(folder / CERTIFICATE))
        if not certificate.has_key(key, str(folder / KEY)):
            raise CertificateError(f"{folder / KEY}: is not the key of the certificate {CERTIFICATE} beside it")
        return cls(folder, name, agreement, key, pem, authority_pem)


def check_membership(
    agreement: Agreement, name: str, certificate: Certificate, authority: Certificate, file: str
) -> None:
    """Refuse a certificate with which a member could not take part; `file` names it."""
    if name not in agreement.names:
        raise ConfigError("member", f"{name!r} is not a member of {agreement.name!r} any more")
    certificates.check_member(certificate, authority, agreement.name, name, file)
    if certificate.sha256 in agreement.revoked:
        raise CertificateError(f"{file}: was revoked by the organiser of {agreement.name!r}; ask for the reason")
    authority.check_time("the authority's certificate")
    certificate.check_time(file)


def check_private(path: Path) -> None:
    """Refuse a private key that other users of this computer can read."""
    if os.name != "posix":
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise CertificateError(f"{path}: can be read by other users (mode {mode:04o}); run: chmod 600 {path}")


def read_bounded(path: Path) -> bytes:
    """The content of a small file; one that is missing, or longer than any file here, is refused."""
    with open_regular_file(path) as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ConfigError(str(path), f"has more than {MAX_BYTES} bytes")
    return content


def _signed_agreement(folder: Path, federation: str, authority: Certificate) -> Agreement:
    agreement = Agreement.load(folder / AGREEMENT)
    signature = read_bounded(folder / SIGNATURE).decode("ascii", "replace").strip()
    if not certificates.is_signed(authority.public_key, signature, agreement.canonical()):
        problem = "was changed after the organiser signed it; ask for the invitation again, and accept it"
        raise CertificateError(f"{folder / AGREEMENT}: {problem}")
    if agreement.name != federation:
        raise ConfigError("federation.name", f"{agreement.name!r} given, but this member joined {federation!r}")
    return agreement


def _check_present(folder: Path) -> None:
    if not folder.is_dir():
        problem = "does not exist" if not folder.exists() else "is a file"
        raise RunError(f"{folder}: {problem}; give the folder that `depositum federation accept` wrote")
    missing = [name for name in FILES if not (folder / name).exists()]
    if len(missing) == len(FILES) or (folder / "organiser").is_dir():
        raise RunError(f"{folder}: is not a member's folder; `depositum federation accept` writes one")
    if missing:
        raise RunError(f"{folder}: {missing[0]} is missing; accept the invitation again")
