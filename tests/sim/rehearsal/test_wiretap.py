"""The relay: bytes pass unchanged, and what was said is on record; TLS on both sides."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509

from flhe.provision.federation import tls as made
from flhe_lab.rehearsal.wiretap import Tls, wiretap
from tests.patience import PATIENCE_S


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
    streams = {path.name: path.read_bytes() for path in (tmp_path / "captured").iterdir()}
    assert streams == {
        "00001.up": b"one secret",
        "00001.down": b"terces eno",
        "00002.up": b"another one",
        "00002.down": b"eno rehtona",
    }


def test_who_trusts_another_authority_does_not_connect(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    certificate, other = tls(tmp_path / "one"), tls(tmp_path / "other")
    with echo(certificate) as server, wiretap(certificate, server, tmp_path / "captured") as relay:
        with pytest.raises(ssl.SSLCertVerificationError):
            ask(relay, other.client_context(), b"hello")
        assert ask(relay, certificate.client_context(), b"hello") == b"olleh"


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
