"""Whoever else connects to a member: with no certificate or another one, or a neighbour that does not behave."""

import contextlib
import datetime
import json
import socket
import ssl
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from depositum.engines.distributed import Subject
from depositum.federation import certificates
from depositum.federation.agreement import server_name
from depositum.federation.member_folder import MemberFolder
from depositum.peers.frames import HEAD, Envelope, Kind, frame, message_frame, read_head
from tests.support.peer_federations import Authority

Place = tuple[str, int]


def place_of(folder: MemberFolder) -> Place:
    """Where a member listens."""
    address = folder.agreement.member(folder.name).address
    assert address is not None
    host, _, port = address.rpartition(":")
    return host, int(port)


def credentials(path: Path, authority: Authority, name: str, begin: float = -1.0, end: float = 10.0) -> tuple[str, str]:
    """The files of a certificate, valid from `begin` to `end` days from now, and of its key."""
    key = certificates.new_key()
    now = datetime.datetime.now(datetime.UTC)
    public = certificates.read_public_key(certificates.public_key(key), "")
    issuer = authority.certificate.x509
    built = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=begin))
        .not_valid_after(now + datetime.timedelta(days=end))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(server_name(authority.federation, name))]), False)
        .sign(certificates.read_key(authority.key, ""), hashes.SHA256())
    )
    path.mkdir(parents=True, exist_ok=True)
    (path / "pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    (path / "key").write_bytes(key)
    return str(path / "pem"), str(path / "key")


def sent_raw(place: Place, content: bytes) -> None:
    """Send bytes to a port, whatever answers."""
    with contextlib.suppress(OSError), socket.create_connection(place, timeout=10) as plain:
        plain.sendall(content)
        plain.shutdown(socket.SHUT_WR)
        while plain.recv(1 << 16):
            pass


def shake_hands(place: Place, files: tuple[str, str] | None) -> str:
    """Try to speak TLS with a certificate or without one; return why it failed, or an empty text."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if files is not None:
        context.load_cert_chain(*files)
    try:
        with socket.create_connection(place, timeout=10) as plain, context.wrap_socket(plain) as secured:
            # With TLS 1.3 the client learns only then whether it was accepted.
            return "" if secured.recv(1) else "closed"
    except OSError as error:
        return str(error)


class Neighbour:
    """A neighbour whose every frame is written by hand, with a certificate that is right."""

    def __init__(self, folder: MemberFolder, place: Place) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_cert_chain(folder.path / "member.pem", folder.path / "member.key")
        context.load_verify_locations(folder.path / "authority.pem")
        context.check_hostname = False
        self.name = folder.name
        self.socket = context.wrap_socket(socket.create_connection(place, timeout=20))
        #: What the member at the other end tells first.
        self.hello = self.receive(Kind.HELLO)

    def introduce(self, **changes: Any) -> None:
        """Say the same as the other end, with changes, and ask for everything from the beginning."""
        self.say(Kind.HELLO, {**self.hello, "member": self.name, "starting": False, **changes})

    def position(self, needs: int = 0) -> None:
        self.say(Kind.POSITION, {"needs": needs, "first": 0, "covered": 0, "done": False})

    def say(self, kind: Kind, body: dict[str, Any]) -> None:
        self.socket.sendall(frame(kind, body))

    def send(self, number: int, content: bytes, subject: Subject, size: int | None = None) -> None:
        """A message, whose head may announce another size than it has."""
        envelope = Envelope(number, len(content) if size is None else size, subject)
        with contextlib.suppress(OSError):
            self.socket.sendall(message_frame(envelope) + content)

    def receive(self, wanted: Kind) -> dict[str, Any]:
        """The next frame of a kind; others are skipped, messages too."""
        while True:
            kind, length = read_head(self._exactly(HEAD.size))
            body = self._exactly(length)
            if kind is wanted:
                return dict(json.loads(body))
            if kind is Kind.MESSAGE:
                self._exactly(int.from_bytes(body[8:16], "big"))

    def refused(self) -> str:
        """Why the other end closes the connection."""
        return str(self.receive(Kind.REFUSED)["reason"])

    def _exactly(self, size: int) -> bytes:
        content = b""
        while len(content) < size:
            part = self.socket.recv(size - len(content))
            if not part:
                raise ConnectionError("closed without a word")
            content += part
        return content

    def close(self) -> None:
        self.socket.close()
