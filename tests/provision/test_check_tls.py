"""Doctor's check of TLS: certificates of a SuperLink that serve, expire, or are for somebody else."""

from __future__ import annotations

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flhe.gate import certificate
from flhe.provision.check_tls import check_tls
from flhe.provision.checks import Check
from flhe.provision.federation import tls
from flhe.provision.federation.tls import TlsFiles
from tests.gate.superlink import superlink


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


def checked(server: TlsFiles, roots: Path) -> Check:
    """What a server with a certificate is found to be."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    with superlink(context) as link:
        return check_tls(f"127.0.0.1:{link.port}", roots)


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
def test_tls(tmp_path: Path, how: dict[str, Any], level: str, says: str) -> None:
    server = certified(tmp_path / "pki", **how)
    check = checked(server, server.authority)
    assert (check.level, says in check.says) == (level, True), check


def test_tls_that_is_none(tmp_path: Path) -> None:
    roots = certified(tmp_path / "pki", days=90).authority
    assert "cannot be verified" in checked(certified(tmp_path / "other", days=90), roots).says
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"

        def answer() -> None:
            with listening.accept()[0] as plain:
                plain.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        assert "answers without TLS" in check_tls(address, roots).says
        answering.join()
    assert "cannot be reached" in check_tls(address, roots).says
    assert "not HOST:PORT" in check_tls("hospital-a", roots).says
    assert "cannot be read as certificates" in check_tls(address, tmp_path / "none").says
