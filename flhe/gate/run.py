"""`flhe gate`: check the settings, then serve until a signal ends the process."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flhe.errors import ConfigError
from flhe.gate import certificate
from flhe.gate.delivery import Delivery
from flhe.gate.ledger import Ledger
from flhe.gate.policy import GatePolicy
from flhe.gate.proxy import Gate, GateServer
from flhe.gate.requests import Caller
from flhe.gate.spool import Spool
from flhe.gate.upstream import Upstream
from flhe.node.store import Store


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a gate: its directory, its policy, its two sides.

    `superlink` is HOST:PORT, and `root_certificates` verify it. `supernode` is the SuperNode's public
    key as PEM, and `keys` the directory of the gate's own certificate.
    """

    home: Path
    policy: GatePolicy
    superlink: str
    root_certificates: Path
    supernode: bytes
    keys: Path
    listen: str
    anywhere: bool = False


@contextmanager
def listening(settings: Settings) -> Iterator[GateServer]:
    """Give a gate's server, which listens; ConfigError, StoreError: settings that cannot be used."""
    host, port = _listen(settings.listen, settings.anywhere)
    upstream = Upstream(settings.superlink, settings.root_certificates)
    context = certificate.server_context(settings.keys)
    store = Store(settings.home)
    with store.lock(timeout=5.0, name="gate-lock"):
        delivery = Delivery(settings.policy, Ledger(store), upstream, store)
        gate = Gate(delivery, Caller(settings.supernode), Spool(store.root / "spool"))
        try:
            server = GateServer((host, port), gate, context)
        except OSError as error:
            raise ConfigError(
                f"--listen {settings.listen}: cannot be opened ({error.strerror}); name a free port"
            ) from None
        with server:
            yield server


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
