"""`flhe gate`: check the settings, then serve until a signal ends the process."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from flhe.errors import ConfigError
from flhe.gate.certificate import NAME, server_context
from flhe.gate.delivery import Delivery
from flhe.gate.ledger import Ledger
from flhe.gate.policy import MAX_BYTES, GatePolicy
from flhe.gate.proxy import Gate, GateServer
from flhe.gate.requests import Caller
from flhe.gate.spool import Spool
from flhe.gate.upstream import Upstream
from flhe.keys.roster.enrolment import Enrolment
from flhe.node.policy import METRICS
from flhe.node.store import Store

LISTEN = "127.0.0.1:9093"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a gate; see `flhe gate --help`."""

    home: Path
    site: Path
    superlink: str
    root_certificates: Path | None
    supernode_key: Path | None = None
    listen: str = LISTEN
    metrics: tuple[str, ...] = METRICS
    max_bytes: int = MAX_BYTES
    plain: bool = False
    anywhere: bool = False


def serve(settings: Settings, say: Callable[[str], None]) -> None:
    """Serve; raises ConfigError, StoreError: settings or files that cannot be used."""
    host, port = _listen(settings.listen, settings.anywhere)
    policy = GatePolicy(_site(settings.site), settings.metrics, settings.max_bytes)
    caller = Caller(None if settings.supernode_key is None else _key(settings.supernode_key))
    upstream = Upstream(settings.superlink, settings.root_certificates)
    store = Store(settings.home)
    with store.lock(timeout=5.0, name="gate-lock"):
        context = None if settings.plain else server_context(store.root, host)
        delivery = Delivery(policy, Ledger(store), upstream, store)
        gate = Gate(delivery, caller, Spool(store.root / "spool"))
        try:
            server = GateServer((host, port), gate, context)
        except OSError as error:
            raise ConfigError(
                f"--listen {settings.listen}: cannot be opened ({error.strerror}); name a free port"
            ) from None
        with server:
            at = f"{host}:{server.server_address[1]}"
            trust = "--insecure" if settings.plain else f"--root-certificates {store.root / NAME}"
            say(f"The gate listens on {at}: flower-supernode --superlink {at} {trust}")
            server.serve_forever()


def _listen(address: str, anywhere: bool) -> tuple[str, int]:
    host, divider, port = address.rpartition(":")
    host = host.strip("[]")
    if not divider or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"--listen must be ADDRESS:PORT, got {address!r}")
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        raise ConfigError(f"--listen must begin with an IP address, got {host!r}") from None
    if not loopback and not anywhere:
        raise ConfigError(
            f"--listen {address}: other machines could reach it. Use 127.0.0.1, or --anywhere where "
            "a network of the site's own connects SuperNode and gate"
        )
    return host, int(port)


def _site(path: Path) -> bytes:
    try:
        return Enrolment.from_bytes(path.read_bytes()).member.public
    except OSError as error:
        raise ConfigError(f"--site {path}: cannot be read ({error.strerror})") from None


def _key(path: Path) -> bytes:
    try:
        key = load_ssh_public_key(path.read_bytes())
    except (OSError, ValueError):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(
            f"--supernode-key {path}: must be the .pub file that ssh-keygen -t ecdsa wrote"
        )
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
