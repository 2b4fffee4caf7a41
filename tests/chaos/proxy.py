"""A TCP proxy on loopback between workers and service: what crosses it can be slowed, cut, or refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

_CHUNK = 16 * 1024


class Proxy:
    """Runs in a thread of its own. `delay` (seconds) and `rate` (bytes a second, 0: no limit) hold each way."""

    def __init__(self, target: str) -> None:
        self.delay = 0.0
        self.rate = 0.0
        self._target = target.rsplit(":", 1)
        self._port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.open()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def open(self) -> None:
        """Listens, at the same port every time."""
        self._do(self._open())

    def shut(self) -> None:
        """Closes the port and cuts every connection."""
        self._do(self._shut())

    def cut(self) -> None:
        """Cuts every connection; the port stays open."""
        self._do(self._cut())

    def close(self) -> None:
        self.shut()
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, backlog=256)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _shut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _end(self) -> None:
        mine = asyncio.current_task()
        others = [task for task in asyncio.all_tasks() if task is not mine]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _cut(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._target)
        except OSError:
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(there_writer)
        await asyncio.gather(self._pump(reader, there_writer), self._pump(there_reader, writer))
        for each in (writer, there_writer):
            self._writers.discard(each)
            each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self.delay or self.rate:
                    await asyncio.sleep(self.delay + (len(data) / self.rate if self.rate else 0.0))
                writer.write(data)
                await writer.drain()
        # Either end gone is both gone: nobody half-closes on purpose here.
        writer.transport.abort()
