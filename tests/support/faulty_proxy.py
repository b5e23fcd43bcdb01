"""A network that fails: TCP proxies that cut, freeze or slow down what passes through them."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

#: Bytes that are passed on at once.
PIECE = 1 << 16


class FaultyProxy:
    """Forwards connections to a port, as long as it is told to.

    Parameters
    ----------
    port, target
        Ports of the loopback interface: where it listens, and where it forwards to.

    Attributes
    ----------
    rate
        Bytes per second in each direction; None without a limit.
    frozen
        Whether nothing passes, although connections stay open.
    idle_limit
        Seconds without a byte after which a connection is cut, as load balancers do; None without a limit.
    passed, connections
        Bytes that have passed so far, and how many connections there were.
    """

    def __init__(self, port: int, target: int) -> None:
        self._port, self._target = port, target
        self.rate: float | None = None
        self.frozen = False
        self.idle_limit: float | None = None
        self.passed = self.connections = 0
        self._cut = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._forward, "127.0.0.1", port))

    def _do(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result()

    def cut(self) -> None:
        """Break all connections, and accept none until `heal`."""
        self._cut = True
        self._do(self._close_all())

    def heal(self) -> None:
        """Pass everything on again."""
        self._cut = self.frozen = False
        self.rate = None

    async def _close_all(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        self.connections += 1
        watch = asyncio.create_task(self._cut_when_idle(writer, back))
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer))
        watch.cancel()
        self._writers -= {writer, back}

    async def _cut_when_idle(self, *writers: asyncio.StreamWriter) -> None:
        before, idle = self.passed, 0.0
        while self.idle_limit is not None:
            await asyncio.sleep(self.idle_limit / 20)
            idle = idle + self.idle_limit / 20 if self.passed == before else 0.0
            before = self.passed
            if idle >= self.idle_limit:
                for writer in writers:
                    writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while content := await reader.read(PIECE):
                while self.frozen:
                    await asyncio.sleep(0.02)
                if self.rate is not None:
                    await asyncio.sleep(len(content) / self.rate)
                writer.write(content)
                self.passed += len(content)
                await writer.drain()
            writer.write_eof()
        except (OSError, RuntimeError):
            writer.transport.abort()

    def close(self) -> None:
        """Break all connections, and stop listening."""
        self.cut()
        self._loop.call_soon_threadsafe(self._server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
