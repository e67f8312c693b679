"""Reviewers: the keys whose signature lets an app run on a SuperNode (`--trusted-entities`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from flhe.errors import ConfigError
from flhe.provision import public_files

MAX_KEY = 4096


def key_id(public: Ed25519PublicKey) -> str:
    """Return the id of a reviewer's key, as in signatures and --trusted-entities."""
    return "fpk_" + hashlib.sha256(public.public_bytes_raw()).hexdigest()[:32]


def file_of(publics: Iterable[bytes]) -> bytes:
    """Return a SuperNode's --trusted-entities: an OpenSSH key for each id; JSON is YAML too."""
    form = (Encoding.OpenSSH, PublicFormat.OpenSSH)
    keys = map(Ed25519PublicKey.from_public_bytes, publics)
    named = {key_id(key): key.public_bytes(*form).decode("ascii") for key in keys}
    return json.dumps(named, indent=2).encode() + b"\n"


def read_public(path: Path) -> Ed25519PublicKey:
    """Read a reviewer's public key: Ed25519, of OpenSSH; ConfigError for another file."""
    data = public_files.read(path, MAX_KEY, "the reviewer's key")
    with suppress(ValueError, UnsupportedAlgorithm):
        key = load_ssh_public_key(data)
        if isinstance(key, Ed25519PublicKey):
            return key
    raise ConfigError(
        f"{path}: not an Ed25519 public key of OpenSSH; `ssh-keygen -t ed25519` makes one, NAME.pub"
    )
