"""How two neighbours get a connection on which each knows who the other is: TLS 1.3, certificates at both ends.

One end of an edge listens and the other dials. Each verifies that the other's certificate was signed by the authority
of the federation, is valid now, has the name of that neighbour, and was not revoked. There is no other mode. Whatever
fails is reported precisely: by the end that refuses, and by the end that was refused.
"""

import hashlib
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from depositum.federation.agreement import member_of, server_name
from depositum.federation.member_folder import AUTHORITY, CERTIFICATE, KEY, MemberFolder
from depositum.peers.frames import Refused
from depositum.peers.secure_connection import SecureConnection

#: Seconds for a connection and its handshake.
HANDSHAKE = 15.0
#: How many connections may be shaking hands at once, in all and from one address.
STRANGERS, OF_ONE_ADDRESS = 64, 16
#: Seconds between two attempts to dial: the first, and the longest.
FIRST_RETRY, LAST_RETRY = 0.1, 10.0

#: What a failed handshake means, by what OpenSSL calls it: for the end that dials.
_ALERTS = {
    "TLSV1_ALERT_UNKNOWN_CA": "it does not accept this member's certificate: signed by another authority",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it requires a certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it does not accept this member's certificate: expired, or not yet valid there",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "it does not accept this member's certificate: revoked",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept this member's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not speak TLS 1.3",
    "WRONG_VERSION_NUMBER": "what answers there does not speak TLS",
    "RECORD_LAYER_FAILURE": "what answers there does not speak TLS",
    "HTTP_REQUEST": "it speaks plain HTTP",
    "UNEXPECTED_EOF_WHILE_READING": "the connection was closed during the handshake",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "no certificate",
    "UNSUPPORTED_PROTOCOL": "no TLS 1.3",
    "NO_SHARED_CIPHER": "no cipher in common",
}


class Identity:
    """Who this member is, and how it recognises its neighbours."""

    def __init__(self, folder: MemberFolder) -> None:
        self.name, self._agreement = folder.name, folder.agreement
        self._files = [str(folder.path / file) for file in (CERTIFICATE, KEY, AUTHORITY)]
        self._listening, self._dialling = self._context(ssl.PROTOCOL_TLS_SERVER), self._context(ssl.PROTOCOL_TLS_CLIENT)

    def _context(self, protocol: int) -> ssl.SSLContext:
        certificate, key, authority = self._files
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(authority)
        if protocol == ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0  # a session that is resumed would not be verified again
        return context

    def greet(self, sock: socket.socket) -> tuple[str, SecureConnection]:
        """The neighbour that has connected, after a handshake; anyone else is refused."""
        secured = SecureConnection(sock, self._listening, None)
        try:
            secured.shake_hands(HANDSHAKE)
        except OSError as error:
            raise Refused(describe(error)) from None
        name = self._verified_name(secured)
        if name not in self._agreement.names:
            raise Refused(f"{name!r} is not a member")
        if name not in self._agreement.neighbours(self.name):
            raise Refused(f"{name!r} is a member, but not a neighbour of {self.name!r}")
        return name, secured

    def dial(self, name: str, address: tuple[str, int]) -> SecureConnection:
        """A connection to a neighbour, whose name is verified whatever its address."""
        try:
            plain = socket.create_connection(address, timeout=HANDSHAKE)
        except OSError as error:
            raise Refused(f"{_place(address)} cannot be reached: {describe(error)}") from None
        keep_alive(plain)
        secured = SecureConnection(plain, self._dialling, server_name(self._agreement.name, name))
        try:
            secured.shake_hands(HANDSHAKE)
            self._verified_name(secured)
        except (OSError, Refused) as error:
            plain.close()
            reason = describe(error) if isinstance(error, OSError) else str(error)
            raise Refused(f"{_place(address)}: {reason}") from None
        return secured

    def _verified_name(self, secured: SecureConnection) -> str:
        """The member that a verified certificate is of, unless it was revoked."""
        content = secured.certificate()
        found = [member_of(name, self._agreement.name) for name in secured.names()]
        if content is None or len(found) != 1 or found[0] is None:
            raise Refused("its certificate is not of a member")
        if hashlib.sha256(content).hexdigest() in self._agreement.revoked:
            raise Refused(f"the certificate of {found[0]!r} was revoked")
        return found[0]


class Listener:
    """The one port on which a member's neighbours reach it.

    Strangers shake hands in threads of their own, a few at once and with a time limit; more are turned away.

    Parameters
    ----------
    accept
        Takes over the connection of a neighbour.
    refuse
        Called with the address and the reason for each stranger.
    """

    def __init__(
        self,
        identity: Identity,
        address: tuple[str, int],
        accept: Callable[[str, SecureConnection], None],
        refuse: Callable[[str, str], None],
    ) -> None:
        self._identity, self._accept, self._refuse = identity, accept, refuse
        self._strangers: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._socket = _listening_socket(address)
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._listen, name=f"{identity.name} listens", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            try:
                connection, address = self._socket.accept()
            except OSError:
                if self._socket.fileno() < 0:
                    return
                time.sleep(0.1)  # too many open files, for instance
                continue
            with self._lock:
                welcome = self._strangers.total() < STRANGERS and self._strangers[address[0]] < OF_ONE_ADDRESS
                self._strangers[address[0]] += welcome
            if not welcome:
                connection.close()
                self._refuse(address[0], "too many connections at once that have not shown a certificate yet")
                continue
            threading.Thread(target=self._greet, args=(connection, address[0]), daemon=True).start()

    def _greet(self, connection: socket.socket, address: str) -> None:
        try:
            keep_alive(connection)
            name, secured = self._identity.greet(connection)
        except Refused as refused:
            self._refuse(address, str(refused))
            connection.close()
            return
        except OSError as error:
            self._refuse(address, describe(error))
            connection.close()
            return
        finally:
            with self._lock:
                self._strangers[address] -= 1
                self._strangers += Counter()  # forgets addresses without connections
        self._accept(name, secured)

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()
        self._thread.join(timeout=5)


def _listening_socket(address: tuple[str, int]) -> socket.socket:
    host, port = address
    local = host in ("localhost", "::1") or host.startswith("127.")
    if local:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
    return socket.create_server(("", port), backlog=128)


def keep_alive(sock: socket.socket) -> None:
    """Have TCP itself find out whether a host that is silent still exists, and send small frames without delay."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def describe(error: OSError) -> str:
    """Why a connection or a handshake failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _describe_verification(error)
    if isinstance(error, ssl.SSLError):
        return _ALERTS.get(error.reason or "", (error.reason or str(error)).replace("_", " ").lower())
    if isinstance(error, TimeoutError):
        return f"no answer within {HANDSHAKE:g} s"
    if isinstance(error, ConnectionRefusedError):
        return "refused: nothing listens there"
    if isinstance(error, socket.gaierror):
        return "the name of its host is not known"
    return (error.strerror or str(error) or type(error).__name__).lower()


def _describe_verification(error: ssl.SSLCertVerificationError) -> str:
    message = error.verify_message
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    if "not yet valid" in message:
        return f"its certificate is not yet valid; is the clock right here ({now})?"
    if "expired" in message:
        return f"its certificate has expired (it is {now} here)"
    if "Hostname mismatch" in message:
        return "its certificate is of another member or server"
    if any(part in message for part in ("self-signed", "self signed", "unable to get local issuer", "signature")):
        return "its certificate is signed by another authority"
    return f"its certificate is not accepted: {message}"


def _place(address: tuple[str, int]) -> str:
    return f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"


class Retries:
    """How long to wait before dialling again: longer each time, and never without end."""

    def __init__(self) -> None:
        self._next = FIRST_RETRY

    def succeeded(self) -> None:
        """Begin anew."""
        self._next = FIRST_RETRY

    def seconds(self) -> float:
        """Before the next attempt."""
        now, self._next = self._next, min(2 * self._next, LAST_RETRY)
        return now
