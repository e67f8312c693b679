"""Backup: a site's identity, and what opens its sealed models, under a passphrase.

    key  = scrypt(passphrase, salt, N = 2**17, r = 8, p = 1)
    file = CBOR {v, kind, salt, box},   box = ChaCha20-Poly1305(key, CBOR {seed, epochs})

What comes back must never encrypt, nor open a sum a second time: nobody can tell how far the
original has gone since. So of an epoch only the group key is kept, which opens models that were
sealed for the group. The keys of pairs are replaced by random bytes, the scheme's own are left
out, and the store keeps what is restored apart from the epochs that a node works with. Whoever
has the file and its passphrase is this site, and reads what its group has sealed: keep both as
the state directory itself.

Source: RFC 7914 (scrypt), RFC 8439; docs/architecture.md.
"""

from __future__ import annotations

import secrets
import unicodedata
from dataclasses import dataclass, field, replace

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from flhe.errors import AuthenticationError, ConfigError, ProtocolError
from flhe.keys.canonical import dumps, loads, record
from flhe.keys.derive import PREFIX
from flhe.keys.epoch import Epoch
from flhe.keys.identity import Identity, Random, Secret

VERSION = 1
KIND = "flhe-backup"
MAX_FILE = 64 << 20
"""Longest file, bytes; an epoch of 1024 members takes some 200 KiB."""
COST = 1 << 17
"""scrypt's N: with r = 8, 128 MiB and some 0.4 s a guess. It belongs to the version, because a file
that names its own cost could ask for any amount of memory."""
LEAST = 12
"""Characters that a passphrase must have."""
ARCHIVE = "archive"
"""Directory within a state directory, and laid out like one, where restored epochs are."""


@dataclass(frozen=True, slots=True)
class Backup:
    """What is kept of a site.

    Parameters
    ----------
    identity : Identity
        Who it is.
    epochs : tuple of Epoch
        Whose models it can open; see `for_opening`.
    """

    identity: Identity = field(repr=False)
    epochs: tuple[Epoch, ...] = field(default=(), repr=False)

    def seal(self, passphrase: str, random: Random = secrets.token_bytes) -> bytes:
        """Encrypt it under a passphrase, another one in each file or the same.

        Raises ConfigError for a passphrase of fewer than LEAST characters.
        """
        if len(passphrase) < LEAST:
            raise ConfigError(
                f"the passphrase must have {LEAST} characters or more: five random words are a good one"
            )
        epochs = [for_opening(epoch, random).to_bytes() for epoch in self.epochs]
        plain = dumps({"seed": bytes(self.identity.seed), "epochs": epochs})
        salt = random(16)
        cipher = ChaCha20Poly1305(_key(passphrase, salt))
        # A fixed nonce is safe: the salt is fresh, so this key encrypts this one text and no other.
        box = cipher.encrypt(bytes(12), plain, _bound(salt))
        data = dumps({"v": VERSION, "kind": KIND, "salt": salt, "box": box})
        if len(data) > MAX_FILE:
            raise ConfigError(
                f"the backup has {len(data)} bytes, at most {MAX_FILE} fit: it holds too many epochs, "
                "destroy those of federations that are over"
            )
        return data

    @classmethod
    def unseal(cls, data: bytes, passphrase: str) -> Backup:
        """Decrypt a backup.

        Raises ProtocolError for what is none, or of another version; AuthenticationError for another
        passphrase, or a file that was changed: nothing tells which.
        """
        stored = loads(data, MAX_FILE, "backup")
        if type(stored) is not dict or stored.get("kind") != KIND:
            raise ProtocolError("backup: this is no file of `flhe keys backup`")
        body = record(stored, "backup", {"v": int, "kind": str, "salt": bytes, "box": bytes})
        if body["v"] != VERSION:
            raise ProtocolError(f"backup: version {body['v']}, this flhe reads {VERSION}")
        if len(body["salt"]) != 16:
            raise ProtocolError("backup: a salt is 16 bytes")
        cipher = ChaCha20Poly1305(_key(passphrase, body["salt"]))
        try:
            plain = cipher.decrypt(bytes(12), body["box"], _bound(body["salt"]))
        except InvalidTag:
            raise AuthenticationError(
                "the backup does not open: another passphrase, or the file was changed"
            ) from None
        inside = record(loads(plain, MAX_FILE, "backup"), "backup", {"seed": bytes, "epochs": list})
        if not all(type(epoch) is bytes for epoch in inside["epochs"]):
            raise ProtocolError("backup: an epoch is a byte string")
        return cls(
            Identity.from_seed(inside["seed"]), tuple(map(Epoch.from_bytes, inside["epochs"]))
        )


def for_opening(epoch: Epoch, random: Random = secrets.token_bytes) -> Epoch:
    """Return an epoch that opens sealed models and knows nothing else that is secret."""
    return replace(
        epoch,
        pair_keys=tuple(Secret(random(32)) if key else Secret() for key in epoch.pair_keys),
        scheme_public=b"",
        scheme_secret=b"",
    )


def _key(passphrase: str, salt: bytes) -> bytes:
    # One spelling of what is typed: keyboards differ in how they write an accent.
    typed = unicodedata.normalize("NFC", passphrase).encode(errors="surrogatepass")
    return Scrypt(salt=salt, length=32, n=COST, r=8, p=1).derive(typed)


def _bound(salt: bytes) -> bytes:
    return dumps([PREFIX + "backup", VERSION, salt])
