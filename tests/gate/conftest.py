"""Replies are recorded once for all tests of the gate; and a gate before a fake SuperLink."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from flhe.gate import certificate
from flhe.gate.run import Settings, listening
from flhe.provision.federation import tls
from tests.gate.replies import Recorded, record
from tests.gate.superlink import KEYS, SuperLink, superlink


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """A site that has answered every stage."""
    return record(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tls.TlsFiles:
    """A SuperLink's certificate, the authority that verifies it, and beside them a gate's own."""
    made = tls.make(tmp_path_factory.mktemp("tls"), "test", "127.0.0.1", days=1)
    certificate.make(made.directory)
    return made


@pytest.fixture
def link(keys: tls.TlsFiles) -> Iterator[SuperLink]:
    """A SuperLink; its `roots` verify the gate too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.certificate, keys.key)
    with superlink(context) as made:
        made.roots = (keys.directory / certificate.NAME).read_bytes() + keys.authority.read_bytes()
        yield made


@pytest.fixture
def settings(tmp_path: Path, site: Recorded, link: SuperLink, keys: tls.TlsFiles) -> Settings:
    """Those of a gate before that SuperLink."""
    home, at = tmp_path / "gate", f"127.0.0.1:{link.port}"
    own = public_key_to_bytes(KEYS[1])
    return Settings(home, site.policy, at, keys.authority, own, keys.directory, "127.0.0.1:0")


@pytest.fixture
def up(settings: Settings) -> Iterator[int]:
    """The port of that gate, which serves."""
    with listening(settings) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()
