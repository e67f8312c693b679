"""`flhe federation new`: the coordinator's directory, key, settings and certificate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flhe.answer import Answer
from flhe.errors import ConfigError
from flhe.keys.roster import fingerprint
from flhe.node.store import Store
from flhe.provision import public_files
from flhe.provision.federation import tls
from flhe.provision.federation.office import Office, Terms
from flhe.provision.federation.reviewers import read_public
from flhe.wire import files

MAX_PEM = 1 << 16


def found(
    root: Path, terms: Terms, reviewers: Sequence[Path], own: tuple[Path, Path, Path] | None
) -> Answer:
    """Make the directory of a new federation.

    `own` are the files of the SuperLink's TLS: authority, certificate and private key. Without them
    an authority and a certificate are made. Raises ConfigError: the directory exists, a file cannot
    be read, or the terms cannot be.
    """
    terms.check()
    if os.path.lexists(root):
        raise ConfigError(f"{root} exists already, and is not overwritten: name another directory")
    keys = {path: read_public(path) for path in reviewers}  # before anything is written
    given = None if own is None else [public_files.read(path, MAX_PEM, "TLS") for path in own]
    with files.private_umask():
        root.parent.mkdir(parents=True, exist_ok=True)
        files.make_private(root)
        office = Office(root)
        public = Store(root / "state").identity().public
        for path in keys:
            name = path.name if path.suffix == ".pub" else f"{path.name}.pub"
            data = public_files.read(path, MAX_PEM, "the reviewer's key")
            files.create(office.folder("reviewers") / name, data, f"{root}")
        office.folder("tls")
        if given is None:
            host = terms.address.rpartition(":")[0].strip("[]")
            tls.make(office.tls.directory, terms.name, host)
        else:
            tls.keep(office.tls, *given)
        files.replace(office.settings, [terms.to_toml().encode()])
    made = "TLS: the files that you named, copied."
    if given is None:
        made = (
            f"TLS: an authority of this federation's own and a certificate for {terms.address}, "
            f"valid for {tls.DAYS} days. The authority's private key is not kept."
        )
    text = f"""{root} holds the federation {terms.name}.
{made}

{fingerprint.shown("coordinator's key", public)}

Sites send you their cards: flhe federation add {root} SITE.card ...
Bounds of the roster are in {office.settings}. Back the directory up; {root}/state is its key."""
    words = " ".join(fingerprint.lines(public))
    facts = {"name": terms.name, "directory": root, "key": public, "words": words}
    return Answer({**facts, "own_authority": given is None}, text)
