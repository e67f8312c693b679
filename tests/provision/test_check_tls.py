"""Doctor's check of TLS: certificates of a SuperLink that serve, expire, or are for somebody else."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flhe.gate import certificate
from flhe.provision.check_tls import check_tls
from flhe.provision.federation import tls
from flhe.provision.federation.tls import TlsFiles


def certified(folder: Path, days: int, after: int = 0, ip: str = "127.0.0.1") -> TlsFiles:
    """Of an authority and a server, made as if today were so many days later."""
    then = datetime.now(UTC) + timedelta(after)
    clock = SimpleNamespace(now=lambda _: then)
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        later = SimpleNamespace(datetime=clock, UTC=UTC, timedelta=timedelta)
        patch.setattr(certificate, "datetime", later)
        patch.setattr(tls, "LOOPBACK", ip)
        return tls.make(folder, "hospital-a", ip, days)


@pytest.fixture
def serve() -> Iterator[Any]:
    """A TLS server with a certificate, or one that answers in clear; its address."""
    sockets = []

    def start(server: TlsFiles | None) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        sockets.append(listener)

        def answer() -> None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            if server is not None:
                context.load_cert_chain(server.certificate, server.key)
            try:
                plain, _ = listener.accept()
                with plain:
                    if server is None:
                        plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    else:
                        context.wrap_socket(plain, server_side=True).close()
            except OSError:  # the client has hung up, as it should
                return

        threading.Thread(target=answer, daemon=True).start()
        return f"127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in sockets:
        listener.close()


@pytest.mark.parametrize(
    ("how", "level", "says"),
    [
        ({"days": 90}, "ok", "89 days left"),
        ({"days": 9}, "warn", "8 days left"),
        ({"days": 8, "after": -9}, "fail", "has expired"),
        ({"days": 90, "after": 4}, "fail", "not valid yet"),
        ({"days": 90, "ip": "127.0.0.9"}, "fail", "is not for 127.0.0.1"),
    ],
)
def test_tls(serve: Any, tmp_path: Path, how: dict[str, Any], level: str, says: str) -> None:
    server = certified(tmp_path / "pki", **how)
    check = check_tls(serve(server), server.authority)
    assert (check.level, says in check.says) == (level, True), check


def test_tls_that_is_none(serve: Any, tmp_path: Path) -> None:
    roots = certified(tmp_path / "pki", days=90).authority
    stranger = certified(tmp_path / "other", days=90)
    assert "cannot be verified" in check_tls(serve(stranger), roots).says
    assert "answers without TLS" in check_tls(serve(None), roots).says
    closed = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{closed.getsockname()[1]}"
    closed.close()
    assert "cannot be reached" in check_tls(address, roots).says
    assert "not HOST:PORT" in check_tls("hospital-a", roots).says
    assert "cannot be read as certificates" in check_tls(address, tmp_path / "none").says
