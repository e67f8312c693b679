"""Keys and certificates of a throw-away federation, made with the commands that docs/deploy.md names.

Four separate things, as in a real one. TLS: who the SuperLink is. SuperNode keys: which machines may
connect to it. Identities and the roster: who the sites are for each other, whatever the SuperLink says.
A reviewer's key: which apps may run on the sites.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from flhe.errors import FlheError
from flhe.keys.roster.roster import Roster
from flhe.keys.roster.signed_roster import SignedRoster
from flhe.provision import node_key as supernode
from flhe.provision.federation.reviewers import trusted_entities
from flhe.provision.federation.tls import make as make_tls
from flhe.wire.files import create
from flhe_app.processes import script
from flhe_app.shelf import add_signature
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
    """Make an authority and a server certificate for 127.0.0.1, valid for a day."""
    found = make_tls(directory, "flhe loopback", "127.0.0.1", days=1)
    return Tls(found.authority, found.certificate, found.key)


def node_key(path: Path) -> NodeKey:
    """Make a SuperNode's key: `path`, and `path` with .pub behind it."""
    key = supernode.make(path)
    public = path.with_name(f"{path.name}.pub")
    create(public, supernode.openssh(supernode.public_of(path)))
    return NodeKey(path, public, key.private_numbers().private_value.to_bytes(48, "big"))
