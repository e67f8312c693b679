"""A relay in front of a TLS server that writes down what passes, decrypted.

It has the server's own certificate and key, so clients take it for the server, and it speaks TLS to
the server itself. For each connection there are two files, `<number>.up` and `<number>.down`: what the
client said, and what it was told.
"""

from __future__ import annotations

import asyncio
import itertools
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
def wiretap(tls: Tls, port: int, directory: Path, listen: int = 0) -> Iterator[int]:
    """Relay to 127.0.0.1:`port`, writing into the new `directory`; gives the port that it listens on.

    `listen` is that port, 0 for a free one.

    Raises FlheError: it could not start.
    """
    directory.mkdir(mode=0o700)
    started: list[int] = []
    ready, loop, ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    numbers = itertools.count(1)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = directory / f"{next(numbers):05}"
        with suppress(OSError):  # a server that is not up
            context = tls.client_context()
            inner, outer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
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
        writer.close()

    async def relay() -> None:
        context = tls.server_context()
        server = await asyncio.start_server(accept, "127.0.0.1", listen, ssl=context)
        started.append(int(server.sockets[0].getsockname()[1]))
        ready.set()
        await ended.wait()
        server.close()

    def work() -> None:
        with suppress(OSError), asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(relay())  # which cancels all connections in the end
        ready.set()

    thread = threading.Thread(target=work, name="wiretap", daemon=True)
    thread.start()
    ready.wait()  # however busy the machine is
    if not started:
        raise FlheError("the relay in front of the SuperLink could not start: is a port free?")
    try:
        yield started[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(END_S)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, file: Path) -> None:
    with file.open("xb", buffering=0) as copy, suppress(OSError):  # whoever is gone is gone
        while data := await reader.read(_CHUNK):
            copy.write(data)  # before it goes on: what arrived is on record
            writer.write(data)
            await writer.drain()
