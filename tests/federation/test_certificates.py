"""Certificates are judged by others: Python's TLS, and the command `openssl` where there is one."""

import datetime
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from depositum.federation import certificates
from depositum.federation.agreement import server_name
from depositum.federation.certificates import Certificate, CertificateError


class Authority:
    """An authority, and members that it certifies."""

    def __init__(self, federation: str = "study") -> None:
        self.federation = federation
        self.key = certificates.new_key()
        self.certificate = certificates.read_certificate(certificates.new_authority(federation, self.key), "authority")

    def member(self, name: str, days: int = 30) -> tuple[bytes, Certificate]:
        """The private key and the certificate of a new member."""
        key = certificates.new_key()
        pem = certificates.new_member_certificate(
            self.federation, name, certificates.public_key(key), self.certificate, self.key, days
        )
        return key, certificates.read_certificate(pem, name)


def context(
    folder: Path, purpose: ssl.Purpose, authority: Authority, key: bytes, certificate: Certificate
) -> ssl.SSLContext:
    """One end of a connection with mutual TLS."""
    name = f"{certificate.serial}"
    (folder / name).write_bytes(key + certificate.pem)
    made = ssl.create_default_context(purpose, cadata=authority.certificate.pem.decode())
    made.load_cert_chain(folder / name)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    return made


def handshake(listener: ssl.SSLContext, caller: ssl.SSLContext, name: str) -> str:
    """Both ends in memory; the name that the listener saw, or the first error."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = listener.wrap_bio(to_server, to_client, server_side=True)
    client = caller.wrap_bio(to_client, to_server, server_hostname=name)
    waiting = [client, server]
    try:
        for _ in range(20):
            for end in list(waiting):
                try:
                    end.do_handshake()
                    waiting.remove(end)
                except ssl.SSLWantReadError:
                    pass
            if not waiting:
                found = server.getpeercert()
                assert found is not None
                return str(dict(found["subjectAltName"])["DNS"])  # type: ignore[arg-type]
    except ssl.SSLError as error:
        return f"{error}"
    return "no end"


def test_members_of_one_authority_meet_by_name(tmp_path: Path) -> None:
    """Breaks if a certificate lacked what TLS wants of it in either role, or if a name or authority did not matter."""
    ours, theirs = Authority(), Authority()
    a, b, stranger = ours.member("a"), ours.member("b"), theirs.member("b")
    server = context(tmp_path, ssl.Purpose.CLIENT_AUTH, ours, *a)
    client = context(tmp_path, ssl.Purpose.SERVER_AUTH, ours, *b)
    assert handshake(server, client, server_name("study", "a")) == "b.members.study"
    assert "Hostname mismatch" in handshake(server, client, server_name("study", "c"))
    trusting = context(tmp_path, ssl.Purpose.SERVER_AUTH, ours, *stranger)
    assert "CERTIFICATE_VERIFY_FAILED" in handshake(server, trusting, server_name("study", "a"))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the command openssl is not installed")
def test_openssl_accepts_the_chain(tmp_path: Path) -> None:
    ours, other = Authority(), Authority()
    _, member = ours.member("a")
    for name, pem in {"ca": ours.certificate.pem, "other": other.certificate.pem, "a": member.pem}.items():
        (tmp_path / name).write_bytes(pem)

    def verify(authority: str, *options: str) -> int:
        run = ["openssl", "verify", "-x509_strict", "-CAfile", authority, *options, "a"]
        return subprocess.run(run, cwd=tmp_path, capture_output=True, check=False).returncode

    assert verify("ca", "-purpose", "sslserver") == verify("ca", "-purpose", "sslclient") == 0
    assert verify("other") != 0
    later = int((datetime.datetime.now() + datetime.timedelta(days=31)).timestamp())
    assert verify("ca", "-attime", str(later)) != 0


def test_an_authority_signs_no_authorities_and_no_other_names() -> None:
    found = Authority().certificate.x509
    constraints = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    names = found.extensions.get_extension_for_class(x509.NameConstraints).value
    assert [name.value for name in names.permitted_subtrees] == ["members.study"]


def test_a_member_cannot_certify_another(tmp_path: Path) -> None:
    """A member's own certificate in the place of the authority's is refused."""
    ours = Authority()
    key, member = ours.member("a")
    with pytest.raises(CertificateError, match="is not the certificate of the authority of 'study'"):
        certificates.check_authority(member, "study", "x")
    forged_pem = certificates.new_member_certificate(
        "study", "b", certificates.public_key(certificates.new_key()), member, key, 30
    )
    forged = certificates.read_certificate(forged_pem, "forged")
    with pytest.raises(CertificateError, match="is not signed by the authority"):
        certificates.check_member(forged, ours.certificate, "study", "b", "forged")


def test_a_member_is_itself_and_nobody_else() -> None:
    ours, other = Authority(), Authority("other-study")
    _, a = ours.member("a")
    certificates.check_member(a, ours.certificate, "study", "a", "a.pem")
    with pytest.raises(CertificateError, match=r"a.pem: is the certificate of 'a', not of 'b'"):
        certificates.check_member(a, ours.certificate, "study", "b", "a.pem")
    with pytest.raises(CertificateError, match=r"is not signed by the authority of 'other-study'"):
        certificates.check_member(a, other.certificate, "other-study", "a", "a.pem")
    with pytest.raises(CertificateError, match="is not a member's certificate|is the certificate of"):
        certificates.check_member(ours.certificate, ours.certificate, "study", "a", "a.pem")
    with pytest.raises(CertificateError, match="authority of 'other-study'"):
        certificates.check_authority(ours.certificate, "other-study", "x")


def test_times_are_checked_and_a_wrong_clock_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moments just inside and just outside; both messages say what this computer's clock shows."""
    _, a = Authority().member("a", days=10)
    second = datetime.timedelta(seconds=1)

    def check_at(moment: datetime.datetime) -> None:
        monkeypatch.setattr(certificates, "current_time", lambda: moment)
        a.check_time("a.pem")

    check_at(a.not_before)
    check_at(a.not_after)
    with pytest.raises(CertificateError, match=r"this computer's clock says .* UTC; set the clock"):
        check_at(a.not_before - second)
    with pytest.raises(CertificateError, match=r"expired on .* \(this computer's clock says .*approve"):
        check_at(a.not_after + second)
    assert a.not_before <= datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=59)
    assert (a.not_after - a.not_before).days == 10


def test_a_certificate_does_not_outlive_its_authority() -> None:
    ours = Authority()
    _, a = ours.member("a", days=certificates.MOST_DAYS)
    assert a.not_after == ours.certificate.not_after


@pytest.mark.parametrize("curve", ["SECP384R1", "SECP256K1"])
def test_keys_of_other_kinds_are_refused(curve: str) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    made = [
        ec.generate_private_key(getattr(ec, curve)()),
        rsa.generate_private_key(65537, 2048),
    ]
    for key in made:
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        with pytest.raises(CertificateError, match=r"mine.key: is not a key of the curve P-256"):
            certificates.read_key(pem, "mine.key")
        public = key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        with pytest.raises(CertificateError, match=r"P-256"):
            certificates.read_public_key(public, "mine.key")


@pytest.mark.parametrize(
    "content", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_not_pem_is_one_line(content: bytes) -> None:
    for read in (certificates.read_certificate, certificates.read_key, certificates.read_public_key):
        with pytest.raises(CertificateError, match="^mine: is not"):
            read(content, "mine")


def test_fingerprints_are_compared_however_they_are_typed() -> None:
    found = Authority().certificate.fingerprint
    digits = found.replace(" ", "")
    assert len(digits) == certificates.FINGERPRINT_DIGITS
    for typed in (found, digits, found.upper(), found.replace(" ", ":"), f" {found} ", found.replace(" ", "-")):
        assert certificates.read_fingerprint("--fingerprint", typed) == found


def test_a_missing_package_is_one_line_with_the_command(tmp_path: Path) -> None:
    """As on a computer without the extra: the import of `cryptography` fails."""
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "sys.argv = ['depositum', 'federation', 'request', '--name', 'a', '--dials-only']\n"
        "from depositum.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: a federation needs the package 'cryptography', which is not installed: pip install 'depositum[peer]'"
    ]
    assert list(tmp_path.iterdir()) == []
