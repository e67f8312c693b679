"""The relay passes bytes unchanged and writes them down; what it wrote is taken apart again."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from cryptography import x509
from flwr.app import Array
from flwr.app.message import array as flower_array
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import ProtocolError
from flhe.provision.federation import tls as made
from flhe_lab.rehearsal import wire
from flhe_lab.rehearsal.wiretap import Tls, wiretap
from tests.patience import PATIENCE_S
from tests.sim.rehearsal.captured import objects, ok, write_calls


def tls(directory: Path) -> Tls:
    found = made.make(directory, "flhe loopback", "127.0.0.1", days=1)
    return Tls(found.authority, found.certificate, found.key)


@contextmanager
def echo(certificate: Tls) -> Iterator[int]:
    """A TLS server that answers each connection with what it got, backwards."""
    listener = socket.create_server(("127.0.0.1", 0))
    context = certificate.server_context()

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            with context.wrap_socket(plain, server_side=True) as peer:
                peer.sendall(peer.recv(1 << 16)[::-1])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE_S)


def ask(port: int, context: ssl.SSLContext, said: bytes) -> bytes:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as peer,
    ):
        peer.sendall(said)
        heard = b""
        while piece := peer.recv(1 << 16):
            heard += piece
        return heard


def test_what_passes_is_unchanged_and_on_record(tmp_path: Path) -> None:
    certificate = tls(tmp_path)
    with (
        echo(certificate) as server,
        wiretap(certificate, server, tmp_path / "captured") as relay,
    ):
        for said in (b"one secret", b"another one"):
            assert ask(relay, certificate.client_context(), said) == said[::-1]
        (tmp_path / "other").mkdir()
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(relay, tls(tmp_path / "other").client_context(), b"hello")
    streams = {path.name: path.read_bytes() for path in (tmp_path / "captured").iterdir()}
    assert streams == {
        "00001.up": b"one secret",
        "00001.down": b"terces eno",
        "00002.up": b"another one",
        "00002.down": b"eno rehtona",
    }


def test_a_server_that_is_down_is_the_end_of_a_connection(tmp_path: Path) -> None:
    certificate = tls(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = int(nobody.getsockname()[1])
    with wiretap(certificate, port, tmp_path / "captured") as relay:
        heard = b""
        with suppress(OSError):
            heard = ask(relay, certificate.client_context(), b"hello")
        assert heard == b""


def test_certificates_are_what_strict_clients_take(tmp_path: Path) -> None:
    certificate = tls(tmp_path)
    context = certificate.client_context()
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    with echo(certificate) as server:
        assert ask(server, context, b"strict") == b"tcirts"
    for path in (certificate.key, certificate.certificate):
        assert path.stat().st_mode & 0o077 == 0
    authority = x509.load_pem_x509_certificate(certificate.authority.read_bytes())
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


# --- what it wrote is taken apart without losing a byte, and an array is whole again ---

BODIES = st.lists(st.tuples(st.binary(max_size=300), st.booleans()), max_size=4)


def chunked(body: bytes, step: int = 7) -> bytes:
    pieces = [body[i : i + step] for i in range(0, len(body), step)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in [*pieces, b""])
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + framed


@settings(max_examples=200, deadline=None)
@given(BODIES, st.integers(0, 40))
def test_bodies_come_out_as_they_went_in(bodies: list[tuple[bytes, bool]], cut: int) -> None:
    streams = [chunked(body) if pieces else ok(body) for body, pieces in bodies]
    whole = b"".join(streams)
    assert [part.body for part in wire.parse(whole)] == [body for body, _ in bodies]
    left = [part.body for part in wire.parse(whole[: max(len(whole) - cut, 0)])]
    assert left == [body for body, _ in bodies][: len(left)]
    if cut and bodies:
        assert len(left) < len(bodies)


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(ProtocolError, match=r"no HTTP/1\.1"):
        list(wire.parse(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
    packed = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(ProtocolError, match="compressed"):
        list(wire.parse(packed))


def test_an_array_is_joined_over_the_borders_of_its_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_array, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 1000)
    values = np.random.default_rng(5).standard_normal(2000).astype(np.float32)
    values[500:750] = values[250:500]  # equal chunks travel once
    values[:250] = values[250:500]
    sent = objects(Array(values))
    half = {name: sent[name] for name in list(sent)[::2]}
    write_calls(tmp_path, half, {name: sent[name] for name in sent if name not in half})
    (connection,) = wire.read(tmp_path)
    assert len(connection.requests) == len(connection.responses) == len(sent)
    pushed, pulled = wire.objects([connection])
    assert {**pushed, **pulled} == sent
    ((_, data),) = wire.arrays({**pushed, **pulled})
    assert values.tobytes() in data
    assert values.tobytes() not in connection.up + connection.down
    assert list(wire.arrays(pushed)) == []  # chunks are missing
