"""`flhe gate` and `flhe site gate`: settings of a gate, from files or from a site's directory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from flhe.answer import notes
from flhe.errors import ConfigError, ProtocolError
from flhe.gate.policy import GatePolicy
from flhe.gate.run import Settings, serve
from flhe.keys.roster.enrolment import Enrolment
from flhe.node.policy import Policy
from flhe.provision import node_key, public_files
from flhe.provision.check_tls import check_tls
from flhe.provision.federation.card import MAX_FILE, Card
from flhe.provision.flower_config import parse
from flhe.provision.site.layout import Layout, current_user
from flhe.provision.site.start import joined


def run(settings: Settings) -> None:
    """Serve, and say where; first what is wrong with the SuperLink's certificate, if anything."""
    say = partial(notes().print, markup=False, highlight=False, soft_wrap=True)
    if settings.root_certificates is not None:
        # The node's own checks see the gate's certificate, and never this one.
        check = check_tls(settings.superlink, settings.root_certificates)
        if check.level != "ok":
            say(f"SuperLink: {check.says}; {check.mend}")
    serve(settings, say)


def site_of(path: Path, key: Path | None) -> tuple[bytes, bytes | None]:
    """Return a site's public key and its SuperNode's, of a card, or of NAME.site and `key`.

    Raises ConfigError: a file that cannot be read; FlheError: of its format.
    """
    data = public_files.read(path, MAX_FILE, "--site")
    try:
        card = Card.from_bytes(data)
    except ProtocolError:
        return Enrolment.from_bytes(data).member.public, None if key is None else _key(key)
    return card.public, node_key.pem(card.node_key) if key is None else _key(key)


def of_layout(
    layout: Layout, home: Path | None, listen: str, most: int, *, anywhere: bool
) -> Settings:
    """Return the settings of the gate of a site, which has joined; ConfigError otherwise."""
    if layout.gate_user and current_user() != layout.gate_user:
        raise ConfigError(
            f"expected user {layout.gate_user}, got another one: sudo -u {layout.gate_user} flhe site "
            f"gate {layout.name}"
        )
    address, (_, card) = joined(layout).address, layout.card()
    node = Policy.of_node(parse(f"{layout.settings}"), run_id=0, node_id=0, simulated=False)
    policy = GatePolicy(card.public, node.metrics, most)
    key = node_key.pem(card.node_key)
    where = home or layout.gate_home
    return Settings(where, policy, address, layout.authority, key, listen, anywhere, layout.config)


def _key(path: Path) -> bytes:
    """Return the public key in a file as PEM; ConfigError for another kind of file."""
    try:
        key = load_ssh_public_key(public_files.read(path, 4096, "--supernode-key"))
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ConfigError(
            f"--supernode-key {path}: must be the .pub file that ssh-keygen -t ecdsa wrote"
        )
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
