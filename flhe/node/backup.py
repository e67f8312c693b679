"""Backup: a site's identity, and what opens its sealed models, under a passphrase.

    key  = scrypt(passphrase, salt, N = 2**17, r = 8, p = 1)
    file = CBOR {v, kind, salt, box},   box = ChaCha20-Poly1305(key, CBOR {seed, models})

What comes back must never encrypt, nor open a sum a second time: nobody can tell how far the original
has gone since, and a backup outlives keys that every node has erased. So of an epoch only the key of
its models is kept (`flhe/keys/seal.py`), from which nothing else follows. Whoever has the file and its
passphrase is this site, and reads the models that its group has sealed.

Source: RFC 7914 (scrypt), RFC 8439; docs/protocol.md.
"""

from __future__ import annotations

import secrets
import unicodedata
from dataclasses import dataclass
from typing import Annotated

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from flhe.errors import AuthenticationError, ConfigError
from flhe.keys.identity import Identity
from flhe.keys.seal import ModelKey
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX
from flhe.wire.fields import SECRET, Hash, size
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

VERSION = 2
"""Version 1 kept group keys, which open more than models."""
KIND = "flhe-backup"
MAX_FILE = 1 << 20
"""Longest file, bytes: the keys of some 5000 epochs."""
COST = 1 << 17
"""scrypt's N: with r = 8, 128 MiB and some 0.4 s a guess. It belongs to the version, because a file
that names its own cost could ask for any amount of memory."""
LEAST = 12
"""Characters that a passphrase must have."""
VARIED = 6
"""How many of them must differ."""
ARCHIVE = "archive"
"""Directory within a state directory where restored keys of models are, each under its epoch's id."""


@dataclass(frozen=True, slots=True)
class _File(Record):
    FORM = Form(
        "backup",
        MAX_FILE,
        KIND,
        VERSION,
        origin="no file of `flhe keys backup`",
        advice="make another one of the state directory, and destroy this file",
    )

    salt: Annotated[bytes, size(16)]
    box: bytes


@dataclass(frozen=True, slots=True)
class Backup(Record):
    """What is kept of a site: who it is, and what opens the models that were sealed in its epochs."""

    FORM = Form("backup", MAX_FILE)

    seed: Annotated[Hash, SECRET]
    models: tuple[ModelKey, ...]

    @property
    def identity(self) -> Identity:
        """Who the site is."""
        return Identity(self.seed)

    def seal(self, passphrase: str, random: Random = secrets.token_bytes) -> bytes:
        """Encrypt it under a passphrase, another one in each file or the same.

        Raises ConfigError for a passphrase of fewer than LEAST characters, or of a few that repeat.
        """
        if len(passphrase) < LEAST or len(set(passphrase)) < VARIED:
            raise ConfigError(
                f"the passphrase must have {LEAST} characters or more, {VARIED} of them different: "
                "five random words are a good one"
            )
        salt = random(16)
        cipher = ChaCha20Poly1305(_key(passphrase, salt))
        # A fixed nonce is safe: the salt is fresh, so this key encrypts this one text and no other.
        box = cipher.encrypt(bytes(12), self.to_bytes(), _bound(salt))
        data = _File(salt, box).to_bytes()
        if len(data) > MAX_FILE:
            raise ConfigError(
                f"the backup has {len(data)} bytes, at most {MAX_FILE} fit: it holds the keys of too "
                f"many epochs, delete {ARCHIVE} in the state directory once no model needs them"
            )
        return data

    @classmethod
    def unseal(cls, data: bytes, passphrase: str) -> Backup:
        """Decrypt a backup.

        Raises ProtocolError for what is none, or of another version; AuthenticationError for another
        passphrase, or a file that was changed.
        """
        file = _File.from_bytes(data)
        cipher = ChaCha20Poly1305(_key(passphrase, file.salt))
        try:
            plain = cipher.decrypt(bytes(12), file.box, _bound(file.salt))
        except InvalidTag:
            raise AuthenticationError(
                "the backup does not open: another passphrase, or the file was changed"
            ) from None
        return cls.from_bytes(plain)


def _key(passphrase: str, salt: bytes) -> bytes:
    # One spelling of what is typed: keyboards differ in how they write an accent.
    typed = unicodedata.normalize("NFC", passphrase).encode(errors="surrogatepass")
    return Scrypt(salt=salt, length=32, n=COST, r=8, p=1).derive(typed)


def _bound(salt: bytes) -> bytes:
    return dumps([PREFIX + "backup", VERSION, salt])
