"""Keys and certificates of a throw-away federation, made with the commands that docs/deploy.md names.

Four separate things, as in a real one. TLS: who the SuperLink is. SuperNode keys: which machines may
connect to it. Identities and the roster: who the sites are for each other, whatever the SuperLink says.
A reviewer's key: which apps may run on the sites.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from flhe.errors import FlheError
from flhe.keys.roster.roster import Roster
from flhe.keys.roster.signed_roster import SignedRoster
from flhe.wire.files import create
from flhe_app.processes import script
from flhe_app.shelf import add_signature, trusted_entities
from flhe_lab.rehearsal.wiretap import Tls


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A SuperNode's key for its SuperLink, as OpenSSH writes them."""

    private: Path  # File
    public: Path  # File
    scalar: bytes  # The secret number itself, 48 bytes, big-endian

    def __repr__(self) -> str:
        return f"NodeKey({self.private.name})"


@dataclass(frozen=True, slots=True)
class Trust:
    """All of it."""

    tls: Tls  # The SuperLink's certificate
    node_keys: dict[str, NodeKey]  # Of each site's SuperNode
    roster_file: Path  # The roster, signed by all sites
    roster: Roster  # The same
    shelf: Path  # Directory of the signed app
    reviewers: Path  # What SuperNodes' --trusted-entities reads

    def doctor(self, node_config: str, port: int) -> None:
        """Have `flhe doctor` check a node; FlheError for what it finds wrong."""
        superlink = ("--superlink", f"127.0.0.1:{port}")
        authority = ("--root-certificates", str(self.tls.authority))
        _flhe("doctor", "--node-config", node_config, *superlink, *authority)


def provide(scratch: Path, homes: Mapping[str, Path], schemes: Sequence[str], app: Path) -> Trust:
    """Make everything in the directory `scratch`.

    Raises FlheError: a command failed.

    `scratch` is empty; `homes` is where each site's state directory will be; the roster allows
    `schemes`; a reviewer signs the Flower app in the directory `app`.
    """
    requests = {name: scratch / f"{name}.site" for name in homes}
    roster = scratch / "roster"
    next(iter(homes.values())).parent.mkdir(mode=0o700)
    for name, home in homes.items():
        _flhe("keygen", "--home", str(home), "--name", name, "--out", str(requests[name]))
    listed = [word for path in requests.values() for word in ("--site", str(path))]
    listed += [word for scheme in schemes for word in ("--scheme", scheme)]
    # None may conspire with the server, or three sites could not spare one.
    _flhe("roster", "new", "--out", str(roster), *listed, "--collusion", "0")
    found = SignedRoster.from_bytes(roster.read_bytes()).roster
    for home in homes.values():
        agreed = ("--roster-hash", found.hash.hex())
        _flhe("roster", "sign", str(roster), "--home", str(home), *agreed)
    _flhe("roster", "check", str(roster), "--roster-hash", found.hash.hex())
    keys = {name: node_key(scratch / f"{name}.key") for name in homes}
    shelf, reviewers = _shelf(scratch, app)
    return Trust(tls(scratch), keys, roster, found, shelf, reviewers)


def _shelf(scratch: Path, app: Path) -> tuple[Path, Path]:
    """The app, signed by a reviewer whom all sites trust; and the file that says so."""
    from flwr.cli.build import build_fab_from_disk

    shelf, reviewers = scratch / "shelf", scratch / "reviewers.yaml"
    shelf.mkdir(mode=0o700)
    fab, reviewer = shelf / "app.fab", Ed25519PrivateKey.generate()
    fab.write_bytes(build_fab_from_disk(app))
    add_signature(fab, reviewer, int(time.time()))
    reviewers.write_text(json.dumps(trusted_entities([reviewer.public_key()])), encoding="utf-8")
    return shelf, reviewers


def _flhe(*words: str) -> None:
    """Run a command as an administrator types it; FlheError with what it says where it fails."""
    command = [script("flhe"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise FlheError(f"`flhe {words[0]}` ended with {done.returncode}: {said}")


def tls(directory: Path) -> Tls:
    """Make an authority and a server certificate for 127.0.0.1, valid for a day.

    The authority's own key is forgotten: it signs this one certificate.
    """
    authority_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = _certificate("flhe loopback authority", authority_key, authority_key, None)
    server = _certificate("flhe loopback SuperLink", key, authority_key, "127.0.0.1")
    found = Tls(directory / "ca.crt", directory / "server.pem", directory / "server.key")
    create(found.authority, authority.public_bytes(Encoding.PEM))
    create(found.certificate, server.public_bytes(Encoding.PEM))
    create(found.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return found


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    authority: ec.EllipticCurvePrivateKey,
    address: str | None,
) -> x509.Certificate:
    """Certificate of `name`; that of an authority where there is no address."""
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "flhe loopback authority")])
    signs, public = address is None, key.public_key()
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    usage |= {"digital_signature": not signs, "key_cert_sign": signs, "crl_sign": signs}
    extensions: list[tuple[x509.ExtensionType, bool]] = [
        (x509.BasicConstraints(ca=signs, path_length=0 if signs else None), True),
        (x509.KeyUsage(**usage), True),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
    ]
    if address is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        purpose = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        extensions += [(names, False), (purpose, False)]
    serial, day = x509.random_serial_number(), datetime.timedelta(days=1)  # clocks differ
    builder = x509.CertificateBuilder(issuer, subject, public, serial, now - day, now + day)
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority, SHA256())


def node_key(path: Path) -> NodeKey:
    """Make a SuperNode's key (ECDSA, P-384): `path`, and `path` with .pub behind it."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = path.with_name(f"{path.name}.pub")
    create(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    create(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return NodeKey(path, public, key.private_numbers().private_value.to_bytes(48, "big"))
