"""The two files that enrolment exchanges, as text that anyone can read: a request, and an invitation.

A request has a member's name, address and public key, and a signature with its private key, which proves that the
sender holds it. An invitation has the member's certificate, the authority's, and the agreement with the authority's
signature. Neither is secret: an invitation is of no use without the member's private key, which never leaves it.
Whether they come from whom they seem to is for people to check, by fingerprints that they read to each other.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from depositum.errors import ConfigError, DepositumError, is_integer, listing, nearest, short_repr
from depositum.federation import certificates
from depositum.federation.agreement import Agreement, check_address, check_name
from depositum.federation.certificates import Certificate, CertificateError
from depositum.federation.member_folder import check_membership
from depositum.toml_file import check_values, read_toml

#: The version of both formats.
FORMAT = 1
#: How the names of the files end.
REQUEST_ENDING, INVITATION_ENDING, KEY_ENDING = ".request", ".invitation", ".key"

_REQUEST_KEYS = ("format", "name", "address", "public_key", "signature")
_INVITATION_KEYS = ("format", "member", "certificate", "authority", "signature", "agreement")


@dataclass(frozen=True)
class Request:
    """What an organisation asks the organiser of a federation; its signature has been verified.

    Attributes
    ----------
    name, address
        As in `Member`.
    public_key
        The member's public key, in PEM.
    signature
        Of all that, with the private key.
    """

    name: str
    address: str | None
    public_key: str
    signature: str

    @classmethod
    def make(cls, name: str, address: str | None, key_pem: bytes) -> "Request":
        """A request for a private key."""
        check_name("--name", name)
        if address is not None:
            check_address("--listen", address)
        public = certificates.public_key(key_pem).decode()
        return cls(name, address, public, certificates.sign(key_pem, _signed_request(name, address, public)))

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the member's key."""
        return certificates.key_fingerprint(self.public_key.encode(), "the key")

    def dump(self) -> str:
        """The file."""
        table = {"format": FORMAT, "name": self.name}
        if self.address is not None:
            table["address"] = self.address
        table |= {"public_key": self.public_key, "signature": self.signature}
        listens = f"It listens at {self.address}" if self.address else "It dials only"
        comment = f"# {self.name} asks to join a federation of depositum. {listens}.\n# Key: {self.fingerprint}\n\n"
        return comment + tomli_w.dumps(table, multiline_strings=True)

    @classmethod
    def load(cls, path: Path) -> "Request":
        """Read a request, and refuse one whose signature is not that of its key."""
        table = _read(path, "request", _REQUEST_KEYS, optional=("address",))
        name, address, public, signature = (table.get(k) for k in ("name", "address", "public_key", "signature"))
        check_name(f"{path}: name", name)
        if address is not None:
            check_address(f"{path}: address", address)
        public, signature = _text(path, "public_key", public), _text(path, "signature", signature)
        assert isinstance(name, str)
        key = certificates.read_public_key(public.encode(), f"{path}: public_key")
        if not certificates.is_signed(key, signature, _signed_request(name, address, public)):
            problem = "the signature does not match: it was changed after it was made, or was made with another key"
            raise CertificateError(f"{path}: {problem}; ask for a new one")
        return cls(name, address, public, signature)


@dataclass(frozen=True)
class Invitation:
    """A member's certificate and the agreement, as the organiser sends them; see `check`."""

    member: str
    certificate: str
    authority: str
    signature: str
    agreement: Agreement

    @property
    def federation(self) -> str:
        """The federation's name."""
        return self.agreement.name

    def dump(self) -> str:
        """The file."""
        table = {
            "format": FORMAT,
            "member": self.member,
            "certificate": self.certificate,
            "authority": self.authority,
            "signature": self.signature,
            "agreement": self.agreement.table(),
        }
        comment = (
            f"# {self.member} is invited to the federation {self.federation}. This file is of no use without the "
            f"private key of {self.member}.\n# Ask the organiser by telephone for the fingerprint, then run:\n"
            f"#   depositum federation accept {self.member}{INVITATION_ENDING} --fingerprint …\n\n"
        )
        return comment + tomli_w.dumps(table, multiline_strings=True)

    @classmethod
    def load(cls, path: Path) -> "Invitation":
        """Read an invitation; whether it is true is a matter of `check`."""
        table = _read(path, "invitation", _INVITATION_KEYS)
        check_name(f"{path}: member", table["member"])
        texts = {key: _text(path, key, table[key]) for key in ("certificate", "authority", "signature")}
        if not isinstance(table["agreement"], Mapping):
            raise ConfigError(f"{path}: agreement", f"{short_repr(table['agreement'])} given; it must be a table")
        return cls(table["member"], agreement=Agreement.from_table(table["agreement"]), **texts)

    def check(self, file: str, fingerprint: str | None, pinned: str | None = None) -> Certificate:
        """Refuse an invitation that the organiser did not make, or that this member cannot use; return its certificate.

        Parameters
        ----------
        file
            Names it in errors.
        fingerprint
            What the organiser read out. It is needed unless the authority was accepted before.
        pinned
            The fingerprint of the authority that was accepted before, if this is an update.
        """
        authority = certificates.read_certificate(self.authority.encode(), f"{file}: authority")
        expected = pinned if fingerprint is None else certificates.read_fingerprint("--fingerprint", fingerprint)
        if expected is None:
            what = "ask the organiser for it by telephone, and compare it with what you hear, not with this file"
            raise ConfigError("--fingerprint", f"missing; {what}")
        if authority.fingerprint != expected or (pinned is not None and pinned != expected):
            shown = f"the invitation has {authority.fingerprint}, but {expected} was " + (
                "accepted before" if fingerprint is None else "given"
            )
            raise CertificateError(f"{file}: {shown}; it does not come from that organiser: do not use it")
        certificates.check_authority(authority, self.federation, f"{file}: authority")
        if not certificates.is_signed(authority.public_key, self.signature, self.agreement.canonical()):
            raise CertificateError(f"{file}: the agreement was changed after the organiser signed it; do not use it")
        certificate = certificates.read_certificate(self.certificate.encode(), f"{file}: certificate")
        check_membership(self.agreement, self.member, certificate, authority, f"{file}: certificate")
        return certificate


def _signed_request(name: str, address: str | None, public_key: str) -> bytes:
    return json.dumps(["depositum request", FORMAT, name, address, public_key]).encode()


def _read(path: Path, what: str, keys: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    table = read_toml(path, pipes=False)
    check_values(table)
    kind = f"an {what}" if what == "invitation" else f"a {what}"
    if keys[1] not in table:  # which an invitation has and a request has not, and the other way round
        raise ConfigError(str(path), f"is not {kind} of depositum")
    for key in table:
        if key not in keys:
            raise ConfigError(f"{path}: {key}", f"unknown key of {kind}; it can be {listing(keys)}{nearest(key, keys)}")
    for key in keys:
        if key not in table and key not in optional:
            raise ConfigError(f"{path}: {key}", f"missing; this is not a complete {what}")
    version = table["format"]
    if not is_integer(version) or isinstance(version, bool) or version != FORMAT:
        raise DepositumError(f"{path}: has format {short_repr(version)}, but this release reads {FORMAT}; upgrade it")
    return table


def _text(path: Path, key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{path}: {key}", f"{short_repr(value)} given; it must be a text")
    return value
