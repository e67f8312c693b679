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
from flhe.provision.federation.reviewers import MAX_KEY, read_public
from flhe.wire import files


def found(root: Path, terms: Terms, reviewers: Sequence[Path]) -> Answer:
    """Make the directory of a new federation.

    Raises ConfigError: the directory exists, a reviewer's key cannot be read, or the terms cannot be.
    """
    terms.check()
    if os.path.lexists(root):
        raise ConfigError(f"{root} exists already, and is not overwritten: name another directory")
    keys = {path: read_public(path) for path in reviewers}  # before anything is written
    with files.private_umask():
        root.parent.mkdir(parents=True, exist_ok=True)
        files.make_private(root)
        office = Office(root)
        public = Store(root / "state").identity().public
        for path in keys:
            name = path.name if path.suffix == ".pub" else f"{path.name}.pub"
            data = public_files.read(path, MAX_KEY, "the reviewer's key")
            files.create(office.folder("reviewers") / name, data, f"{root}")
        host = terms.address.rpartition(":")[0].strip("[]")
        tls.make(office.folder("tls"), terms.name, host)
        files.replace(office.settings, [terms.to_toml().encode()])
    text = f"""{root} holds the federation {terms.name}.
TLS: an authority of its own and a certificate for {terms.address}, valid for {tls.DAYS} days. The
authority's private key is not kept. For your organisation's, replace the files in {root}/tls.

{fingerprint.shown("coordinator's key", public)}

Sites send you their cards: flhe federation add {root} SITE.card ...
Bounds of the roster are in {office.settings}. Back the directory up; {root}/state is its key."""
    words = " ".join(fingerprint.lines(public))
    return Answer({"name": terms.name, "directory": root, "key": public, "words": words}, text)
