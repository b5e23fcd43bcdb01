"""One connection: bytes in and out over TLS at the same time, by one thread that waits for neither alone.

What is read and written is decided by two generators. The reading one yields memory to fill, or None to pause, so that
the sender is slowed down by TCP itself; the writing one yields bytes to send, or None if there is nothing now. Both are
continued when something may have changed.
"""

import os
import select
import ssl
import time
from collections.abc import Callable, Generator

#: Bytes of one call to TLS, and calls in one direction before the other one has its turn.
PIECE, TURN = 1 << 20, 64
#: Seconds without a byte after which a neighbour is taken for lost: it sends a ping much more often.
SILENCE = 120.0
#: Seconds after which the generators are continued although nothing happened.
TICK = 1.0

Reading = Generator[memoryview | None, None, None]
Writing = Generator[memoryview | None, None, None]


class Lost(Exception):
    """The connection has ended, and why."""


class Bell:
    """Wakes a thread that waits for a socket."""

    def __init__(self) -> None:
        self.receiver, self._sender = os.pipe()
        for end in (self.receiver, self._sender):
            os.set_blocking(end, False)

    def ring(self) -> None:
        """Wake the thread, now or the next time that it would wait."""
        try:
            os.write(self._sender, b"!")
        except (BlockingIOError, OSError):
            return  # it rings already

    def silence(self) -> None:
        """Forget all rings so far."""
        try:
            while os.read(self.receiver, 4096):
                pass
        except BlockingIOError:
            return

    def close(self) -> None:
        """Free both ends."""
        os.close(self.receiver)
        os.close(self._sender)


def converse(sock: ssl.SSLSocket, bell: Bell, reading: Reading, writing: Writing, ends: Callable[[], bool]) -> None:
    """Exchange bytes until `ends()`, or until the connection breaks, which raises `Lost`.

    What the generators raise is raised.
    """
    sock.setblocking(False)
    poll = select.poll()
    poll.register(bell.receiver, select.POLLIN)
    poll.register(sock, 0)
    wanted, free = next(reading), None
    heard = time.monotonic()
    while not ends():
        moved = False
        try:
            sending = True
            for _ in range(TURN):
                if not free:
                    free = next(writing)
                if not free:
                    break
                count = sock.send(free[:PIECE])
                free, moved = free[count:], True
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sending = False
        except OSError as error:
            raise Lost(_reason(error)) from None
        try:
            for _ in range(TURN):
                if wanted is None:
                    wanted = next(reading)
                if wanted is None:
                    heard = time.monotonic()  # not listening
                    break
                count = sock.recv_into(wanted[:PIECE])
                if not count:
                    raise Lost("closed by the other end")
                wanted, moved, heard = wanted[count:], True, time.monotonic()
                if not wanted:
                    wanted = next(reading)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except StopIteration:
            return
        except OSError as error:
            raise Lost(_reason(error)) from None
        if moved:
            continue
        if time.monotonic() - heard > SILENCE:
            raise Lost(f"silent for {SILENCE:g} s")
        poll.modify(sock, (select.POLLOUT if free and not sending else 0) | (select.POLLIN if wanted else 0))
        for descriptor, _ in poll.poll(TICK * 1000):
            if descriptor == bell.receiver:
                bell.silence()


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or type(error).__name__).replace("_", " ").lower()
    return (error.strerror or str(error) or type(error).__name__).lower()
