"""One connection: bytes in and out over TLS at the same time, by one thread that waits for neither alone.

What is read and written is decided by two generators. The reading one yields memory to fill, or None to pause, so that
the sender is slowed down by TCP itself; the writing one yields bytes to send, or None if there is nothing now. Both are
continued when something may have changed.
"""

import select
import socket
import ssl
import time
from collections.abc import Callable, Generator
from contextlib import suppress

from depositum.peers.secure_connection import SecureConnection

#: Pieces in one direction before the other one has its turn.
TURN = 8
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
        self.receiver, self._sender = socket.socketpair()
        for end in (self.receiver, self._sender):
            end.setblocking(False)

    def ring(self) -> None:
        """Wake the thread, now or the next time that it would wait."""
        with suppress(OSError):  # it rings already, or nobody waits any more
            self._sender.send(b"!")

    def silence(self) -> None:
        """Forget all rings so far."""
        with suppress(BlockingIOError):
            while self.receiver.recv(4096):
                pass

    def close(self) -> None:
        """Free both ends; it can be rung even then."""
        self.receiver.close()
        self._sender.close()


def converse(
    connection: SecureConnection, bell: Bell, reading: Reading, writing: Writing, ends: Callable[[], bool]
) -> None:
    """Exchange bytes until `ends()`, or until the connection breaks, which raises `Lost`.

    What the generators raise is raised.
    """
    poll = select.poll()
    poll.register(bell.receiver, select.POLLIN)
    poll.register(connection, 0)
    wanted, free = next(reading), None
    heard = time.monotonic()
    while not ends():
        moved = False
        try:
            for _ in range(TURN):
                sent = connection.flush()
                if not sent:
                    break
                if not free:
                    free = next(writing)
                if not free:
                    break
                free, moved = free[connection.seal(free) :], True
            for _ in range(TURN):
                if wanted is None:
                    wanted = next(reading)
                if wanted is None:
                    heard = time.monotonic()  # not listening
                    break
                count = connection.receive_into(wanted)
                if not count:
                    raise Lost("closed by the other end")
                wanted, moved, heard = wanted[count:], True, time.monotonic()
                if not wanted:
                    wanted = next(reading)
        except BlockingIOError:
            pass  # nothing has arrived
        except StopIteration:
            return
        except OSError as error:
            raise Lost(_reason(error)) from None
        if moved:
            continue
        if time.monotonic() - heard > SILENCE:
            raise Lost(f"silent for {SILENCE:g} s")
        poll.modify(connection, (0 if sent else select.POLLOUT) | (select.POLLIN if wanted else 0))
        for descriptor, event in poll.poll(TICK * 1000):
            if descriptor == bell.receiver.fileno():
                bell.silence()
            elif not wanted and event & (select.POLLERR | select.POLLHUP):
                raise Lost("reset by the other end")  # nothing is read now that would tell


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or type(error).__name__).replace("_", " ").lower()
    return (error.strerror or str(error) or type(error).__name__).lower()
