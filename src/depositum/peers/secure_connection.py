"""TLS over a plain socket, with the encryption in memory.

`ssl.SSLSocket` calls the system for every record of 16 KiB, when reading even twice, which costs more than AES. Here
records are encrypted and decrypted in memory, and many of them travel in one call.
"""

import socket
import ssl
import time
from contextlib import suppress
from typing import Any

#: Bytes of one call to the system, and so about what a connection takes of memory in each direction.
PIECE = 1 << 18


class SecureConnection:
    """A connection that is encrypted from its handshake on.

    Parameters
    ----------
    sock
        The connected socket.
    context
        The certificates, and what is demanded of the other end.
    server_name
        The name that the other end must have; None at the end that listens.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )
        self._received = memoryview(b"")
        self._sealed = memoryview(b"")

    def fileno(self) -> int:
        """The socket's file descriptor, to wait for."""
        return self._socket.fileno()

    def shake_hands(self, seconds: float) -> None:
        """Have each end verify the other; an `OSError` if they do not accept each other, or not in time."""
        end = time.monotonic() + seconds
        while True:
            try:
                self._tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._send_until(end)
                self._set_timeout(end)
                if content := self._socket.recv(1 << 14):
                    self._incoming.write(content)
                else:
                    self._incoming.write_eof()
            except ssl.SSLError:
                with suppress(OSError):  # it tells the other end why
                    self._send_until(end)
                raise
        self._send_until(end)
        self._socket.setblocking(False)
        self._received = memoryview(bytearray(PIECE))

    def certificate(self) -> bytes | None:
        """The verified certificate of the other end, as DER."""
        return self._tls.getpeercert(binary_form=True)

    def names(self) -> list[str]:
        """The domain names in it."""
        found = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        return [str(entry[1]) for entry in found if entry[0] == "DNS"]

    # Without waiting

    def flush(self) -> bool:
        """Send what is encrypted, as far as the network takes it now; return whether nothing is left."""
        while self._sealed or self._outgoing.pending:
            if not self._sealed:
                self._sealed = memoryview(self._outgoing.read())
            try:
                self._sealed = self._sealed[self._socket.send(self._sealed) :]
            except BlockingIOError:
                return False
        return True

    def seal(self, content: memoryview) -> int:
        """Encrypt some of these bytes for `flush`; return how many."""
        return self._tls.write(content[:PIECE])

    def receive_into(self, memory: memoryview) -> int:
        """Fill memory with what has arrived and return its length, 0 at the end; `BlockingIOError` if nothing has."""
        done = 0
        while done < len(memory):
            try:
                count = self._decrypt_into(memory[done:])
            except ssl.SSLWantReadError:
                if done:
                    break
                count = self._socket.recv_into(self._received)
                self._incoming.write(self._received[:count])
                if not count:
                    break
                continue
            if not count:
                break
            done += count
        return done

    def _decrypt_into(self, memory: memoryview) -> int:
        read: Any = self._tls.read  # with a buffer, it returns a number
        return int(read(len(memory), memory))

    # At the end

    def part(self, last: bytes, seconds: float) -> None:
        """Send the last bytes, and wait for the other end to close."""
        end = time.monotonic() + seconds
        with suppress(OSError):
            if last:
                self._send_until(end)
                self._tls.write(last)
                self._send_until(end)
            self._socket.shutdown(socket.SHUT_WR)
            self._set_timeout(end)
            while self._socket.recv_into(self._received):
                self._set_timeout(end)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _send_until(self, end: float) -> None:
        while self._sealed or self._outgoing.pending:
            self._set_timeout(end)
            self.flush()

    def _set_timeout(self, end: float) -> None:
        seconds = end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        self._socket.settimeout(seconds)
