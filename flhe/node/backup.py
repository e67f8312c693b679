"""Backup: a site's identity and the keys of its sealed models, under a passphrase.

    key  = scrypt(passphrase, salt, N = 2**17, r = 8, p = 1)
    file = CBOR {v, kind, salt, box},   box = ChaCha20-Poly1305(key, CBOR {seed, models})

A restored backup must never encrypt or unmask a second time. The original may have used its keys
since, and a backup outlives keys that every node has erased. So a backup keeps only each epoch's
model key (`flhe/keys/seal.py`), from which no other key follows. The file and its passphrase
together give the site's identity and all models that its group has sealed.

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
"""Version 1 kept group keys, which decrypt more than models."""
KIND = "flhe-backup"
MAX_FILE = 1 << 20
"""Maximum file size in bytes: the keys of some 5000 epochs."""
COST = 1 << 17
"""scrypt's N: with r = 8, 128 MiB and some 0.4 s a guess. The version fixes it, because a file that
named its own cost could demand any amount of memory.
"""
LEAST = 12
"""Minimum length of a passphrase in characters."""
VARIED = 6
"""Minimum number of distinct characters."""
ARCHIVE = "archive"
"""Directory of restored model keys in a state directory, one file for each epoch id."""


@dataclass(frozen=True, slots=True)
class _File(Record):
    FORM = Form(
        "backup",
        MAX_FILE,
        KIND,
        VERSION,
        origin="no file of `flhe keys backup`",
        advice="make a new backup of the state directory, and destroy this file",
    )

    salt: Annotated[bytes, size(16)]
    box: bytes


@dataclass(frozen=True, slots=True)
class Backup(Record):
    """Contents of a backup: a site's identity, and the keys of the models sealed in its epochs."""

    FORM = Form("backup", MAX_FILE)

    seed: Annotated[Hash, SECRET]
    models: tuple[ModelKey, ...]

    @property
    def identity(self) -> Identity:
        """The site's identity."""
        return Identity(self.seed)

    def seal(self, passphrase: str, random: Random = secrets.token_bytes) -> bytes:
        """Encrypt it under a passphrase; two files may share one.

        Raises ConfigError: the passphrase has fewer than LEAST characters, or too few distinct
        ones.
        """
        if len(passphrase) < LEAST or len(set(passphrase)) < VARIED:
            raise ConfigError(
                f"the passphrase must have {LEAST} characters or more, {VARIED} of them different: "
                "choose five random words"
            )
        salt = random(16)
        cipher = ChaCha20Poly1305(_key(passphrase, salt))
        # A fixed nonce is safe: the salt is fresh, so this key encrypts only this text.
        box = cipher.encrypt(bytes(12), self.to_bytes(), _bound(salt))
        data = _File(salt, box).to_bytes()
        if len(data) > MAX_FILE:
            raise ConfigError(
                f"a backup has at most {MAX_FILE} bytes, this one has {len(data)}, of keys of too "
                f"many epochs: delete {ARCHIVE} in the state directory once no model needs it"
            )
        return data

    @classmethod
    def unseal(cls, data: bytes, passphrase: str) -> Backup:
        """Decrypt a backup.

        Raises ProtocolError: not a backup, or of another version; AuthenticationError: another
        passphrase, or an altered file.
        """
        file = _File.from_bytes(data)
        cipher = ChaCha20Poly1305(_key(passphrase, file.salt))
        try:
            plain = cipher.decrypt(bytes(12), file.box, _bound(file.salt))
        except InvalidTag:
            raise AuthenticationError(
                "the backup does not open: the passphrase is wrong, or the file was changed"
            ) from None
        return cls.from_bytes(plain)


def _key(passphrase: str, salt: bytes) -> bytes:
    # Normalize the passphrase: keyboards differ in how they compose an accent.
    typed = unicodedata.normalize("NFC", passphrase).encode(errors="surrogatepass")
    return Scrypt(salt=salt, length=32, n=COST, r=8, p=1).derive(typed)


def _bound(salt: bytes) -> bytes:
    return dumps([PREFIX + "backup", VERSION, salt])
