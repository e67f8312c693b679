"""A relay in front of a TLS server that writes down what passes, decrypted.

It has the server's own certificate and key, so clients take it for the server, and it speaks TLS to
the server itself. For each connection there are two files, `<number>.up` and `<number>.down`: what the
client said, and what it was told.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from flhe.errors import FlheError

END_S = 10.0
_CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a TLS server, PEM."""

    authority: Path  # Certificate of the authority that signed the server's
    certificate: Path  # The server's
    key: Path  # The server's private one

    def server_context(self) -> ssl.SSLContext:
        """What the server itself listens with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context

    def client_context(self) -> ssl.SSLContext:
        """What trusts that server and no other."""
        return ssl.create_default_context(cafile=str(self.authority))


@contextmanager
def wiretap(tls: Tls, port: int, directory: Path) -> Iterator[int]:
    """Relay to 127.0.0.1:`port`, writing into the new `directory`; gives the port that it listens on.

    Raises FlheError: it could not start.
    """
    directory.mkdir(mode=0o700)
    loop = asyncio.new_event_loop()
    relay = _Relay(tls, port, directory)
    started: list[int] = []
    ready = threading.Event()

    def work() -> None:
        asyncio.set_event_loop(loop)
        try:
            with suppress(OSError):
                started.append(loop.run_until_complete(relay.listen()))
        finally:
            ready.set()
        if started:
            loop.run_forever()
            loop.run_until_complete(relay.close())
        loop.close()

    thread = threading.Thread(target=work, name="wiretap", daemon=True)
    thread.start()
    ready.wait()  # however busy the machine is
    if not started:
        raise FlheError("the relay in front of the SuperLink could not start: is a port free?")
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_S)


class _Relay:
    def __init__(self, tls: Tls, port: int, directory: Path) -> None:
        self._tls, self._port, self._directory = tls, port, directory
        self._count = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> int:
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, ssl=self._tls.server_context()
        )
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._count += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._connect(self._directory / f"{self._count:05}", reader, writer)
        except (OSError, asyncio.CancelledError):  # a server that is not up, or the end of it all
            pass
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _connect(
        self, name: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        inner, outer = await asyncio.open_connection(
            "127.0.0.1", self._port, ssl=self._tls.client_context()
        )
        ways = [
            asyncio.ensure_future(_copy(reader, outer, name.with_suffix(".up"))),
            asyncio.ensure_future(_copy(inner, writer, name.with_suffix(".down"))),
        ]
        try:  # TLS knows no half of a connection: the end of one way is that of the other
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            outer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, file: Path) -> None:
    with file.open("xb", buffering=0) as copy, suppress(OSError):  # whoever is gone is gone
        while data := await reader.read(_CHUNK):
            copy.write(data)  # before it goes on: what arrived is on record
            writer.write(data)
            await writer.drain()
