"""Replies are recorded once for all tests of the gate; and a gate before a fake SuperLink."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from flwr.app import Message
from flwr.common.serde_utils import metadata_to_proto
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from flhe.gate import certificate
from flhe.gate.policy import GatePolicy
from flhe.gate.run import Settings, listening
from flhe.provision.federation import tls
from tests.gate.replies import Pushed, record
from tests.gate.superlink import KEYS, SuperLink, superlink

Seen = dict[str, tuple[Message, Message]]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the sites are."""
    return tmp_path_factory.mktemp("gate")


@pytest.fixture(scope="session")
def recorded(place: Path) -> tuple[GatePolicy, Seen]:
    """A gate's policy, and requests and replies by stage."""
    return record(place)


@pytest.fixture(scope="session")
def policy(recorded: tuple[GatePolicy, Seen]) -> GatePolicy:
    """The policy of that site's gate."""
    return recorded[0]


@pytest.fixture(scope="session")
def seen(recorded: tuple[GatePolicy, Seen]) -> Seen:
    """That site's messages."""
    return recorded[1]


@pytest.fixture(scope="session")
def pushed(seen: Seen) -> dict[str, Pushed]:
    """Its replies, as its SuperNode pushes them."""
    return {
        stage: Pushed.of(metadata_to_proto(asked.metadata), reply)
        for stage, (asked, reply) in seen.items()
    }


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
def settings(tmp_path: Path, policy: GatePolicy, link: SuperLink, keys: tls.TlsFiles) -> Settings:
    """Those of a gate before that SuperLink."""
    home, at = tmp_path / "gate", f"127.0.0.1:{link.port}"
    own = public_key_to_bytes(KEYS[1])
    return Settings(home, policy, at, keys.authority, own, keys.directory, "127.0.0.1:0")


@contextmanager
def serving(settings: Settings) -> Iterator[int]:
    """A gate that serves; its port."""
    with listening(settings) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


@pytest.fixture
def up(settings: Settings) -> Iterator[int]:
    """That gate's port."""
    with serving(settings) as port:
        yield port
