"""Keys, certificates and signatures of a federation, by the package `cryptography`; nothing here is our own scheme.

Keys are of the curve P-256, certificates X.509, signatures ECDSA with SHA-256: what TLS 1.3 has everywhere. The
organiser's authority signs the members' certificates and the agreement. A certificate has the member's name, not its
address (`server_name`), and serves both ends of a connection.
"""

import base64
import datetime
import hashlib
from dataclasses import dataclass
from typing import Any

from depositum.errors import ConfigError, DepositumError, short_repr
from depositum.federation.agreement import member_of, server_name

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError:
    raise DepositumError(
        "a federation needs the package 'cryptography', which is not installed: pip install 'depositum[peer]'"
    ) from None

#: Days for which an authority and a member's certificate are valid, unless the organiser chooses otherwise.
AUTHORITY_DAYS, MEMBER_DAYS = 3650, 365
#: The most days that can be chosen.
MOST_DAYS = 7300
#: How far clocks may differ: a certificate is valid from so long before it was signed.
CLOCK_TOLERANCE = datetime.timedelta(hours=1)
#: The hexadecimal digits of a fingerprint that people compare: 128 bits, in groups of four.
FINGERPRINT_DIGITS, GROUP = 32, 4

PrivateKey = ec.EllipticCurvePrivateKey


class CertificateError(DepositumError):
    """A key, a certificate or a signature that is not what it must be."""


def current_time() -> datetime.datetime:
    """What this computer's clock says, in UTC."""
    return datetime.datetime.now(datetime.UTC)


def new_key() -> bytes:
    """A new private key, in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def public_key(key_pem: bytes) -> bytes:
    """The public key of a private one, in PEM."""
    return _public_pem(read_key(key_pem, "the key").public_key())


def read_key(pem: bytes, name: str) -> PrivateKey:
    """A private key; `name` says whose it is in errors."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError):
        raise CertificateError(f"{name}: is not a private key without a password, in PEM") from None
    except Exception:  # an algorithm that the library does not support
        raise CertificateError(f"{name}: is not a key of the curve P-256") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(f"{name}: is not a key of the curve P-256")
    return key


def read_public_key(pem: bytes, name: str) -> ec.EllipticCurvePublicKey:
    """A public key; `name` says whose it is in errors."""
    try:
        key = serialization.load_pem_public_key(pem)
    except Exception:
        raise CertificateError(f"{name}: is not a public key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(f"{name}: is not a key of the curve P-256")
    return key


def sign(key_pem: bytes, content: bytes) -> str:
    """The signature of some bytes, in base64."""
    signature = read_key(key_pem, "the key").sign(content, ec.ECDSA(hashes.SHA256()))
    return base64.b64encode(signature).decode()


def is_signed(key: ec.EllipticCurvePublicKey, signature: str, content: bytes) -> bool:
    """Whether a signature of some bytes was made with the private key of a public one."""
    try:
        key.verify(base64.b64decode(signature, validate=True), content, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def fingerprint(content: bytes) -> str:
    """What people read to each other: the first 128 bits of a SHA-256 hash, in groups of four hexadecimal digits.

    >>> fingerprint(b"certificate")
    '03d6 6dd0 8835 c1ca 3f12 8cce acd1 f31a'
    """
    digits = hashlib.sha256(content).hexdigest()[:FINGERPRINT_DIGITS]
    return " ".join(digits[i : i + GROUP] for i in range(0, FINGERPRINT_DIGITS, GROUP))


def read_fingerprint(key: str, text: str) -> str:
    """A fingerprint as the user typed it, in the form of `fingerprint`; blanks, colons and case do not matter."""
    digits = "".join(c for c in text.lower() if c not in " :-\t")
    if len(digits) != FINGERPRINT_DIGITS or any(c not in "0123456789abcdef" for c in digits):
        allowed = f"it must be {FINGERPRINT_DIGITS} hexadecimal digits, such as 12ab-34cd-…"
        raise ConfigError(key, f"{short_repr(text)} given; {allowed}")
    return " ".join(digits[i : i + GROUP] for i in range(0, FINGERPRINT_DIGITS, GROUP))


# Certificates


@dataclass(frozen=True)
class Certificate:
    """A certificate, as this package needs it.

    Attributes
    ----------
    pem
        The certificate, in PEM.
    subject
        The member's name in its federation, as a domain name; that of the authority for its own.
    not_before, not_after
        From when, and until when it is valid; in UTC.
    serial
        The number that the authority gave it.
    """

    pem: bytes
    subject: str
    not_before: datetime.datetime
    not_after: datetime.datetime
    serial: int
    x509: Any

    @property
    def der(self) -> bytes:
        """The certificate's bytes."""
        der: bytes = self.x509.public_bytes(serialization.Encoding.DER)
        return der

    @property
    def fingerprint(self) -> str:
        """What people compare."""
        return fingerprint(self.der)

    @property
    def sha256(self) -> str:
        """The complete hash, 64 hexadecimal digits: what the agreement lists once it is revoked."""
        return hashlib.sha256(self.der).hexdigest()

    @property
    def public_key(self) -> ec.EllipticCurvePublicKey:
        """The key that was signed."""
        key: ec.EllipticCurvePublicKey = self.x509.public_key()
        return key

    def has_key(self, key_pem: bytes, name: str) -> bool:
        """Whether this is the certificate of a private key."""
        return _public_pem(read_key(key_pem, name).public_key()) == _public_pem(self.public_key)

    def is_issued_by(self, authority: "Certificate") -> bool:
        """Whether an authority's key signed this certificate."""
        try:
            self.x509.verify_directly_issued_by(authority.x509)
        except (InvalidSignature, ValueError, TypeError):
            return False
        return True

    def check_time(self, name: str) -> None:
        """Refuse a certificate that is not valid now, and say so if it is the clock that must be wrong."""
        now = current_time()
        if now < self.not_before:
            clock = f"this computer's clock says {_minute(now)}"
            problem = f"{name}: is valid from {_minute(self.not_before)}, but {clock}"
            raise CertificateError(f"{problem}; set the clock")
        if now > self.not_after:
            problem = f"{name}: expired on {_minute(self.not_after)} (this computer's clock says {_minute(now)})"
            raise CertificateError(f"{problem}; ask the organiser to approve the request again")


def new_authority(federation: str, key_pem: bytes, days: int = AUTHORITY_DAYS) -> bytes:
    """The certificate of a federation's authority, which signs members' certificates and nothing below them."""
    key = read_key(key_pem, "the authority's key")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _authority_name(federation))])
    builder = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .add_extension(
            x509.NameConstraints([x509.DNSName(f"members.{federation}")], None),
            critical=True,
        )
    )
    return _signed_pem(builder, key)


def new_member_certificate(
    federation: str, member: str, public_pem: bytes, authority: Certificate, authority_key: bytes, days: int
) -> bytes:
    """The certificate of a member's public key."""
    key = read_public_key(public_pem, "the member's key")
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, member)])
    signer = read_key(authority_key, "the authority's key")
    issuer_key = authority.x509.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    builder = (
        _builder(subject, authority.x509.subject, key, days, latest=authority.not_after)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name(federation, member))]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False)
    )
    return _signed_pem(builder, signer)


def read_certificate(pem: bytes, name: str) -> Certificate:
    """A certificate; `name` says whose it is in errors. Whether it is valid is checked by its methods."""
    try:
        found = x509.load_pem_x509_certificate(pem)
        if len(x509.load_pem_x509_certificates(pem)) != 1:
            raise CertificateError(f"{name}: has more than one certificate")
        names = _names(found)
        key = found.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise CertificateError(f"{name}: is not of a key of the curve P-256")
        begin, end = found.not_valid_before_utc, found.not_valid_after_utc
        return Certificate(pem, names[0] if names else "", begin, end, found.serial_number, found)
    except DepositumError:
        raise
    except Exception:  # whatever the parser finds: ValueError, UnsupportedAlgorithm, InvalidVersion, …
        raise CertificateError(f"{name}: is not a certificate in PEM") from None


def check_authority(authority: Certificate, federation: str, name: str) -> None:
    """Refuse a certificate that is not one of a federation's authority, or not signed by itself."""
    constraints = _extension(authority, x509.BasicConstraints)
    common = authority.x509.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    named = [attribute.value for attribute in common] == [_authority_name(federation)]
    if not (constraints is not None and constraints.ca and authority.is_issued_by(authority) and named):
        raise CertificateError(f"{name}: is not the certificate of the authority of {federation!r}")


def check_member(certificate: Certificate, authority: Certificate, federation: str, member: str, name: str) -> None:
    """Refuse a certificate that the authority did not sign, or that is of another member or purpose."""
    if not certificate.is_issued_by(authority):
        raise CertificateError(f"{name}: is not signed by the authority of {federation!r} ({authority.fingerprint})")
    if _names(certificate.x509) != [server_name(federation, member)]:
        owner = member_of(certificate.subject, federation) or certificate.subject or "nobody"
        raise CertificateError(f"{name}: is the certificate of {owner!r}, not of {member!r}")
    constraints = _extension(certificate, x509.BasicConstraints)
    if constraints is None or constraints.ca:
        raise CertificateError(f"{name}: is not a member's certificate")


def _builder(
    subject: Any, issuer: Any, key: ec.EllipticCurvePublicKey, days: int, latest: datetime.datetime | None = None
) -> Any:
    now = current_time().replace(microsecond=0)
    end = now + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_TOLERANCE)
        .not_valid_after(min(end, latest) if latest else end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _signed_pem(builder: Any, key: PrivateKey) -> bytes:
    pem: bytes = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return pem


def _usage(authority: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_name(federation: str) -> str:
    return f"authority.{federation}"[:64]


def _names(certificate: Any) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found]


def _extension(certificate: Certificate, kind: type) -> Any:
    try:
        return certificate.x509.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, ValueError):
        return None


def _public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def _minute(moment: datetime.datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def key_fingerprint(public_pem: bytes, name: str) -> str:
    """The fingerprint of a public key, whatever the layout of its PEM."""
    key = read_public_key(public_pem, name)
    return fingerprint(key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo))
