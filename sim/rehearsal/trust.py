"""A throw-away federation, made by the commands of docs/deploy.md, as its people type them.

Four separate things, as in a real one. TLS: who the SuperLink is. SuperNode keys: which machines may
connect to it. Identities and the roster: who the sites are for each other, whatever the SuperLink says.
A reviewer's key: which apps may run on the sites.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from flhe.errors import FlheError
from flhe.keys.roster.roster import Roster
from flhe.provision.federation.published import Published
from flhe.provision.site.layout import Layout
from flhe.provision.site.start import options
from flhe.wire.files import create
from flhe_app.processes import script
from flhe_app.superlink import Value, pairs
from flhe_lab.rehearsal.wiretap import Tls

NAME = "rehearsal"
"""The federation's name."""


@dataclass(frozen=True, slots=True)
class Trust:
    """What the coordinator and the sites have."""

    desk: Path  # The coordinator's directory
    sites: dict[str, Path]  # Each site's directory
    tls: Tls  # The SuperLink's certificate
    superlink: list[str]  # Options of the SuperLink, without its address
    register: dict[str, list[str]]  # Words of `flwr` that register each SuperNode
    shelf: Path  # Directory of the signed app

    @property
    def roster(self) -> Roster:
        """The roster that the sites have joined."""
        return Published.read(self.desk / f"{NAME}.flhe").roster

    def scalar(self, site: str) -> bytes:
        """The secret number of a site's SuperNode key, 48 bytes, big-endian."""
        key = load_ssh_private_key((self.sites[site] / "node.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key.private_numbers().private_value.to_bytes(48, "big")

    def gate(self, site: str, at: str) -> list[str]:
        """The command that starts a site's gate, which listens at HOST:PORT."""
        where = ("--dir", f"{self.sites[site]}", "--listen", at)
        return [script("flhe"), "gate", NAME, *where]

    def start(self, site: str, gate: str, port: int) -> list[str]:
        """The command that starts a site's SuperNode."""
        where = ("--dir", f"{self.sites[site]}", "--gate", gate, "--port", f"{port}")
        return [script("flhe"), "site", "start", NAME, *where]

    def supernode(self, site: str, superlink: str, port: int) -> list[str]:
        """The command of a SuperNode without a gate, which no site has: it speaks to the SuperLink."""
        layout = Layout.of(NAME, self.sites[site])
        words = {**options(layout, superlink, port), "--root-certificates": layout.authority}
        return [script("flower-supernode"), *(f"{word}" for pair in words.items() for word in pair)]


def provide(
    scratch: Path,
    homes: Mapping[str, Path],
    schemes: Sequence[str],
    app: Path,
    port: int,
    settings: Callable[[str], Mapping[str, Value]],
) -> Trust:
    """Set up a coordinator and its sites in the directory `scratch`, by commands alone.

    `homes` has each site's state directory, `port` is the SuperLink's as sites reach it. The roster
    allows `schemes`; a reviewer signs the Flower app in the directory `app`; each site adds its
    `settings` to its node config.

    Raises FlheError: a command failed.
    """
    desk, sites = scratch / "desk", {name: scratch / name for name in homes}
    next(iter(homes.values())).parent.mkdir(mode=0o700)
    shelf, reviewer = _shelf(scratch, app)

    def init(name: str) -> Path:
        where = ("--dir", f"{sites[name]}", "--home", f"{homes[name]}")
        return Path(_flhe("site", "init", NAME, "--name", name, *where, "--yes")["card"])

    # None may conspire with the server, or three sites could not spare one.
    words = ("--address", f"127.0.0.1:{port}", "--reviewer", f"{reviewer}", "--collusion", "0")
    listed = [word for scheme in schemes for word in ("--scheme", scheme)]
    with ThreadPoolExecutor(len(sites)) as pool:
        cards = list(pool.map(init, sites))
        _flhe("federation", "new", NAME, "--dir", f"{desk}", *words, *listed)
        _flhe("federation", "add", f"{desk}", *map(str, cards), "--yes")
        published = _flhe("federation", "publish", f"{desk}")
        agreed = ("--terms", published["terms"])
        join = ("site", "join", published["file"], *agreed, "--dir")
        list(pool.map(lambda directory: _flhe(*join, f"{directory}"), sites.values()))
    for name, directory in sites.items():
        with (directory / "node.toml").open("a", encoding="utf-8") as file:
            file.write(pairs(settings(name), "\n") + "\n")
    found = Tls(*(desk / "tls" / name for name in ("ca.crt", "superlink.pem", "superlink.key")))
    register = {
        name: shlex.split(line)[1:] for name, line in zip(sites, published["register"], strict=True)
    }
    superlink: list[str] = published["superlink"]
    # Without its address: the relay has that, and the SuperLink another port.
    bare = superlink[superlink.index("--port") + 2 :]
    return Trust(desk, sites, found, bare, register, shelf)


def _shelf(scratch: Path, app: Path) -> tuple[Path, Path]:
    """The app, built and signed by a reviewer; and the reviewer's public key."""
    shelf, key, made = scratch / "shelf", scratch / "reviewer", Ed25519PrivateKey.generate()
    shelf.mkdir(mode=0o700)
    create(key, made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    create(key.with_suffix(".pub"), public)
    _run([script("flwr"), "build", "--app", f"{app}"], shelf)
    (fab,) = shelf.glob("*.fab")
    _flhe("shelf", "sign", f"{fab}", "--key", f"{key}")
    return shelf, key.with_suffix(".pub")


def _flhe(*words: str) -> dict[str, Any]:
    """Run a command as an administrator types it, and return its JSON."""
    found: dict[str, Any] = json.loads(_run([script("flhe"), *words, "--json"]))
    return found


def _run(command: Iterable[str], where: Path | None = None) -> str:
    """Run a command; FlheError with what it says where it fails."""
    words = [*command]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=where)  # noqa: S603
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        name = " ".join((Path(words[0]).name, *words[1:3]))
        raise FlheError(f"`{name}` ended with {done.returncode}: {said}")
    return done.stdout
