"""Identity of a site: created once, and its public key in a file."""

from __future__ import annotations

from pathlib import Path

from flhe.answer import Answer
from flhe.errors import ConfigError, config_errors
from flhe.keys.identity import Identity
from flhe.keys.roster import fingerprint
from flhe.keys.roster.enrolment import MAX_FILE, Enrolment
from flhe.keys.roster.roster import Member
from flhe.node.store import Store
from flhe.provision import public_files

IDENTITY = "identity.key"


def enrol(home: Path, name: str, out: Path | None) -> Answer:
    """Create a site's identity, unless it has one, and the file with its public key.

    `home` is created if missing, 0700; the default file is NAME.site. Raises ConfigError,
    StoreError: an invalid member name, a directory that is open to others, or an existing file.
    """
    Member(name, Identity(bytes(32)).public)  # first refuse a name that no roster takes
    path = out or Path(f"{name}.site")
    made = not (home / IDENTITY).exists()
    request = Enrolment.make(name, _store(home).identity())
    data = request.to_bytes()  # a repeated request has the same bytes
    if not (path.is_file() and public_files.read(path, MAX_FILE, "--out") == data):
        public_files.replace(public_files.check_new(path), data)
    public = request.member.public
    key = f"{home} has an identity already, which {name} keeps."
    if made:
        key = f"A new identity for {name} is in {home}."
    text = f"""{key}

{fingerprint.shown("key", public)}

{path} has the public key; it holds no secret.
Back the identity up: flhe keys backup --home {home} --out {name}.backup"""
    words = " ".join(fingerprint.lines(public))
    known = {"name": name, "key": public, "words": words, "home": home, "request": path}
    return Answer({**known, "new": made}, text)


def has_identity(home: Path) -> bool:
    """Return whether a directory is a node's state directory."""
    return (home / IDENTITY).is_file()


def existing(home: Path) -> Identity:
    """Return the identity in a state directory; it is never created here.

    Raises ConfigError: there is none; StoreError: it is damaged, of another user, or open to
    others.
    """
    if not has_identity(home):
        raise ConfigError(
            f"--home {home}: no identity in it; make one with: flhe keygen --home {home} --name NAME"
        )
    return _store(home).identity()


def _store(home: Path) -> Store:
    with config_errors(f"--home {home}"):
        return Store(home)
