"""Sealing a model for the group: one fresh key a box.

    K     = HKDF(K_G, "models" | run_id | roster_hash | epoch id)
    box   = magic | be32(length of head) | head | chunk_0 | chunk_1 | ...
    head  = CBOR {epoch, run_id, roster_hash, round, rank, salt, chunk_bytes}
    key   = HKDF(K, "seal" | run_id | roster_hash | round | sender rank | salt)
    chunk = AES-256-GCM(key, nonce = be88(index) | last, AAD = everything before chunk_0)

A site may keep K when all else of an epoch is erased. K does not reveal K_G. So a holder of K, even
with all traffic, reads models only: no update, no sum, no key of a scheme.

`salt` is 32 fresh random bytes, so a key seals one box and a counting nonce never repeats under it.
Members share K, so counters of their own would collide. The last chunk has last = 1 in its nonce: a
box cut short, reordered or extended does not open.

Source: docs/protocol.md; RFC 5869 (HKDF); NIST SP 800-38D (GCM); the chunking is STREAM of Hoang et
al., CRYPTO 2015, Sec. 7.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from flhe.errors import AuthenticationError, ProtocolError
from flhe.keys.agreement.states import Epoch
from flhe.math.buffers import let_go
from flhe.wire.derive import hkdf
from flhe.wire.fields import SECRET, U32, U64, Hash, size, within
from flhe.wire.files import Buffer
from flhe.wire.record import Form, Record, frame, unframe
from flhe.wire.secret import Random

FAMILY = b"flhe-seal/"
MAGIC = FAMILY + b"3\n"
CHUNK = 64 << 20
"""Plaintext bytes a chunk; GCM allows 64 GiB under one nonce."""
MAX_HEAD = 512
"""Maximum length of an encoded head, bytes."""
TAG = 16

_Act = Callable[[bytes, Buffer, bytes], bytes]
"""(nonce, chunk, AAD) -> the encrypted or decrypted chunk."""


@dataclass(frozen=True, slots=True)
class ModelKey(Record):
    """Key to the sealed models of one epoch: its id, run, roster and key, which is secret."""

    FORM = Form("model key", MAX_HEAD, "flhe-model-key", 1)

    epoch: Annotated[bytes, size(16)]
    run_id: U64
    roster_hash: Hash
    key: Annotated[Hash, SECRET] = field(repr=False)

    @classmethod
    def of(cls, epoch: Epoch) -> ModelKey:
        """Return the key of an epoch's models."""
        run_id, roster_hash = epoch.run_id, epoch.roster.hash
        key = hkdf(epoch.group_key, "models", run_id, roster_hash, epoch.id)
        return cls(epoch.id, run_id, roster_hash, key)


@dataclass(frozen=True, slots=True)
class Head(Record):
    """The clear head of a box; `rank` is its sealer's, in the epoch."""

    FORM = Form("sealed box", MAX_HEAD)

    epoch: Annotated[bytes, size(16)]
    run_id: U64
    roster_hash: Hash
    round: U32
    rank: U32
    salt: Hash
    chunk_bytes: Annotated[int, within(1, CHUNK)]


def seal(
    key: ModelKey,
    round_: int,
    rank: int,
    plaintext: Buffer | Iterable[Buffer],
    random: Random = secrets.token_bytes,
    *,
    chunk_bytes: int = CHUNK,
) -> Iterator[bytes]:
    """Seal the model of a round, in one buffer or many, for all holders of `key`.

    The box comes chunk by chunk. Buffers must keep their content until it is complete. Raises
    ProtocolError for a source that gives no salt of 32 bytes: a repeated salt would repeat key and
    nonces.
    """
    head = Head(key.epoch, key.run_id, key.roster_hash, round_, rank, random(32), chunk_bytes)
    aad, pieces = frame(head, MAGIC), _Pieces(plaintext)
    chunks = _chunks(_cipher(key, head).encrypt, aad, pieces, chunk_bytes)
    return itertools.chain([aad], chunks)


def unseal(key: ModelKey, data: Buffer | Sequence[Buffer]) -> tuple[Head, Iterator[bytes]]:
    """Open a box, in one buffer or in pieces cut anywhere: its head, and the plaintext in chunks.

    The first chunk is opened before this returns, so the head is authentic then. Each chunk is
    authentic too, and in its place; none is kept. **Only the end proves that the box is whole.** If
    a later part was cut, extended or changed, the iterator raises AuthenticationError after valid
    chunks. Those must not be used: write them to a temporary file and rename it (`Store.write`
    does). Buffers must keep their content until then.

    Raises ProtocolError for bytes that are not a box, or a box of another epoch, run or roster than
    the key's (the field is named); AuthenticationError for a box that was changed in any way or
    sealed under another key.
    """
    pieces = _Pieces(data)
    aad, head = _split(pieces)
    for name in ("epoch", "run_id", "roster_hash"):
        if getattr(head, name) != getattr(key, name):
            raise ProtocolError(f"sealed box: field {name} is not what is expected here")
    chunks = _chunks(_cipher(key, head).decrypt, aad, pieces, head.chunk_bytes + TAG)
    # An exhausted iterator keeps no chunk; a list would.
    return head, itertools.chain(iter([next(chunks)]), chunks)


def unsealed(key: ModelKey, data: Buffer | Sequence[Buffer]) -> tuple[Head, bytearray]:
    """Return the head and the whole plaintext of a box, the one copy beside it; raises as `unseal`."""
    head, chunks = unseal(key, data)
    plain, at = bytearray(_Pieces(data).left), 0  # a box is longer than what is in it
    for chunk in chunks:
        plain[at : at + len(chunk)] = chunk
        at += len(chunk)
    del plain[at:]
    return head, plain


def peek(data: Buffer | Sequence[Buffer]) -> Head:
    """Return the unverified head of a box: to find the key, never for decisions."""
    return _split(_Pieces(data))[1]


def _split(pieces: _Pieces) -> tuple[bytes, Head]:
    """Take everything before the first chunk; return it, and its head."""
    start = bytes(pieces.take(len(MAGIC) + 4))
    if start.startswith(FAMILY) and not start.startswith(MAGIC):
        raise ProtocolError(
            "sealed box: of another version of flhe, which alone can open it; this one reads version 3"
        )
    length = int.from_bytes(start[len(MAGIC) :], "big")
    start += bytes(pieces.take(min(length, MAX_HEAD)))
    return start, unframe(Head, start, MAGIC)[0]


def _cipher(key: ModelKey, head: Head) -> AESGCM:
    bound = head.run_id, head.roster_hash, head.round, head.rank, head.salt
    return AESGCM(hkdf(key.key, "seal", *bound))


def _chunks(act: _Act, aad: bytes, pieces: _Pieces, size: int) -> Iterator[bytes]:
    """Encrypt or decrypt chunks of `size` bytes; keep none of them."""
    for index in itertools.count():
        last = pieces.left <= size
        try:
            yield act(index.to_bytes(11, "big") + bytes([last]), pieces.take(size), aad)
        except InvalidTag:
            raise AuthenticationError(
                "sealed box: it was changed on the way, cut short, or sealed in another epoch"
            ) from None
        if last:
            return


class _Pieces:
    """A cursor over one buffer or several; `left` is the number of remaining bytes.

    Data within one buffer is returned as a view; data across a border is copied.
    """

    def __init__(self, data: Buffer | Iterable[Buffer]) -> None:
        buffers = [data] if isinstance(data, Buffer) else data
        views = (memoryview(buffer).cast("B") for buffer in buffers)
        self._views = [view for view in views if len(view)]
        self._index = 0  # of the piece that is next
        self._at = 0  # within it
        self.left = sum(len(view) for view in self._views)

    def take(self, count: int) -> Buffer:
        """Return the next `count` bytes, or as many as are left."""
        count = min(count, self.left)
        self.left -= count
        parts: list[memoryview] = []
        while count:
            view = self._views[self._index]
            part = view[self._at : self._at + count]
            parts.append(part)
            count -= len(part)
            self._at += len(part)
            if self._at == len(view):
                let_go(np.frombuffer(view, np.uint8))
                self._index, self._at = self._index + 1, 0
        return parts[0] if len(parts) == 1 else b"".join(parts)
