"""Identity of a site: created once, rotated if needed, and requested for a roster."""

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


def _report(request: Enrolment, path: Path, home: Path, *, made: bool) -> Answer:
    """Return the request in `path` and the key in `home`, with the next steps.

    `made` says whether the key is new. Nothing of it is secret.
    """
    public, name = request.member.public, request.member.name
    key = f"{home} has an identity already, which {name} keeps."
    if made:
        key = f"A new identity for {name} is in {home}."
    then = f"flhe roster new --out ROSTER --site {path} --site ... --scheme ..."
    if request.replaces:
        then = f"flhe roster replace ROSTER --site {path} --out NEW"
    words = fingerprint.lines(public)
    told = "".join(f"     {line}\n" for line in words)
    text = f"""{key}

key  {public.hex()}
{told}
1. Send {path} to the roster's collector; it holds no secret.
2. The collector calls you. Read out the words above, and check that they see the same. They then type:
   {then}
3. Back the identity up. Without it the site needs a new one, and all sites need a new roster:
   flhe keys backup --home {home} --out {name}.backup"""
    data = {"name": name, "key": public, "words": " ".join(words), "home": home, "request": path}
    return Answer(data | {"new": made}, text)


def enrol(home: Path, name: str, out: Path | None) -> Answer:
    """Create a site's identity, unless it has one, and its request.

    `home` is created if missing, 0700; the request's default file is NAME.site. Raises ConfigError,
    StoreError: an invalid member name, a directory that is open to others, or an existing file.
    """
    path = _path(name, out)
    made = not (home / IDENTITY).exists()
    request = Enrolment.make(name, _store(home).identity())
    data = request.to_bytes()  # a repeated request has the same bytes
    if not (path.is_file() and public_files.read(path, MAX_FILE, "--out") == data):
        public_files.write_new(path, data)
    return _report(request, path, home, made=made)


def rotate(home: Path, new_home: Path, name: str, out: Path | None) -> Answer:
    """Create an identity in `new_home`, and a request to replace the one in `home`.

    The old directory stays unchanged: its keys are in use until all sites have pinned the new
    roster.

    Raises ConfigError, StoreError: as `enrol`; there is no identity in `home`, or one in
    `new_home`.
    """
    path = _path(name, out)
    public_files.check_new(path)
    old = existing(home)
    if new_home.exists():
        raise ConfigError(f"--new-home {new_home}: it exists already, name a new directory")
    request = Enrolment.make(name, _store(new_home).identity(), old)
    public_files.write_new(path, request.to_bytes())
    return _report(request, path, new_home, made=True)


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


def read_request(path: Path) -> Enrolment:
    """Read a request to be listed; errors of `Enrolment.from_bytes`, and ConfigError."""
    return Enrolment.from_bytes(public_files.read(path, MAX_FILE, "--site"))


def _path(name: str, out: Path | None) -> Path:
    # First refuse a name that no roster takes. Any public key serves here.
    Member(name, Identity(bytes(32)).public)
    return out or Path(f"{name}.site")


def _store(home: Path) -> Store:
    with config_errors(f"--home {home}"):
        return Store(home)
