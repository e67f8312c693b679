"""Sealing bytes for the group: one fresh key a box.

    box   = magic | be32(length of head) | head | chunk_0 | chunk_1 | ...
    head  = CBOR {header, salt, chunk_bytes}
    key   = HKDF(K, "seal" | stage | round | attempt | sender rank | salt | run_id | roster_hash)
    chunk = AES-256-GCM(key, nonce = be88(index) | last, AAD = everything before chunk_0)

K is the group key, or for models the key derived from it for them (`agreement/model_key.py`), and seals
nothing itself. `salt` is 32 fresh random bytes, so a key seals one box and a nonce that only counts
never repeats under it; members share K, counters of their own would collide. The last chunk has
last = 1 in its nonce: a box cut short, reordered or extended does not open.

Source: NIST SP 800-38D (GCM); the chunking is STREAM of Hoang et al., CRYPTO 2015, Sec. 7.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from flhe.errors import AuthenticationError, ConfigError, ProtocolError
from flhe.keys.agreement.messages import Expected
from flhe.wire.chunk_reader import Buffer, ChunkReader
from flhe.wire.derive import hkdf
from flhe.wire.fields import As, Hash, within
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random

FAMILY = b"flhe-seal/"
MAGIC = FAMILY + b"2\n"
"""Version 1 sealed models under the group key."""
CHUNK = 64 << 20
"""Plaintext bytes a chunk; GCM allows 64 GiB under one nonce."""
MAX_HEAD = 1 << 16
"""Longest encoded head, bytes."""
TAG = 16

BOUND = {
    "run_id": int,
    "roster_hash": bytes,
    "stage": str,
    "round": int,
    "attempt": int,
    "rank": int,
}
"""Fields that every header has: they enter the key. `rank` is the sender's, in the epoch."""


def _check(header: object) -> dict[str, Any]:
    """The header, if it has the fields of BOUND; ProtocolError otherwise."""
    if not isinstance(header, Mapping):
        raise ProtocolError("sealed box: its header must be a map of named fields")
    for name, kind in BOUND.items():
        if type(header.get(name)) is not kind:
            raise ProtocolError(f"sealed box: header field {name} must be {kind.__name__}")
    return dict(header)


@dataclass(frozen=True, slots=True)
class _Head(Record):
    FORM = Form("sealed box", MAX_HEAD)

    header: Annotated[dict[str, Any], As(dict, _check, "a map of named fields")]
    salt: Hash
    chunk_bytes: Annotated[int, within(1, CHUNK)]


def seal(
    secret: bytes,
    header: Mapping[str, Any],
    plaintext: Buffer | Iterable[Buffer],
    random: Random = secrets.token_bytes,
) -> bytes:
    """Seal `plaintext`, in one buffer or many, for everyone who has `secret` (32 bytes).

    `header` is public and bound: it has the fields of `BOUND` and any others that canonical CBOR
    can carry. Raises ConfigError for a header without them.
    """
    return b"".join(seal_stream(secret, header, plaintext, random))


def seal_stream(
    secret: bytes,
    header: Mapping[str, Any],
    plaintext: Buffer | Iterable[Buffer],
    random: Random = secrets.token_bytes,
    *,
    chunk_bytes: int = CHUNK,
) -> Iterator[bytes]:
    """Seal like `seal`, giving the box piece by piece; holds two chunks in memory.

    A buffer must keep its content until the box is complete. Raises ConfigError as `seal`, and for
    chunks beyond 64 MiB.
    """
    if not 1 <= chunk_bytes <= CHUNK:
        raise ConfigError(f"seal(chunk_bytes={chunk_bytes}): must be 1 to {CHUNK}")
    try:
        bound = _check(header)
    except ProtocolError as error:
        raise ConfigError(str(error)) from None
    salt = random(32)
    if len(salt) != 32:  # a short one might repeat, and with it key and nonces
        raise ConfigError("seal: the random source gave a salt of another length than 32")
    head = _Head(bound, salt, chunk_bytes)
    encoded = head.to_bytes()
    if len(encoded) > MAX_HEAD:
        raise ConfigError(f"seal: the header takes {len(encoded)} bytes, at most {MAX_HEAD} fit")
    aad = MAGIC + len(encoded).to_bytes(4, "big") + encoded
    return _encrypt(AESGCM(_key(secret, head)), aad, plaintext, chunk_bytes)


def unseal(
    secret: bytes, data: Buffer | Sequence[Buffer], expect: Expected | None = None
) -> tuple[dict[str, Any], bytes]:
    """Open a box; returns its header and the plaintext.

    `data` is the box in one buffer, or in pieces cut anywhere. `expect` lists header fields with the
    one value that is accepted; a box that opens is by *some* member, about what its header says, so
    a caller states what it waits for.

    Raises ProtocolError for bytes that are no box or a field that differs from `expect` (it is
    named), AuthenticationError for a box that was changed in any way or sealed under another key.
    """
    header, chunks = unseal_stream(secret, data, expect)
    parts = list(chunks)
    return header, parts[0] if len(parts) == 1 else b"".join(parts)


def unseal_stream(
    secret: bytes, data: Buffer | Sequence[Buffer], expect: Expected | None = None
) -> tuple[dict[str, Any], Iterator[bytes]]:
    """Open a box like `unseal`, giving the plaintext chunk by chunk; keeps none of them.

    The first chunk is opened before this returns, so the header is authentic then. Each chunk that
    comes out is authentic too, and in its place. **That the box is whole is known only at the end**:
    where it was cut, extended, or changed further on, the iterator raises AuthenticationError after
    chunks that were fine, and those must not be used. So write them beside the place where they
    belong and rename (`Store.write_chunks` does: on an error the older file stays), and never act on
    a part of them.

    Buffers must keep their content until the iterator is at its end. Raises like `unseal`, for the
    head and the first chunk at once, for later chunks when their turn comes.
    """
    pieces = ChunkReader(data)
    aad, head = _split(pieces)
    header = head.header
    for name, value in (expect or {}).items():
        if name not in header or header[name] != value or type(header[name]) is not type(value):
            raise ProtocolError(f"sealed box: header field {name} is not what is expected here")
    cipher = AESGCM(_key(secret, head))
    chunks = _decrypt(cipher, aad, pieces, head.chunk_bytes + TAG)
    return header, _again([next(chunks)], chunks)


def peek(data: Buffer | Sequence[Buffer]) -> dict[str, Any]:
    """Return the header of a box, unverified: for finding the key, never for deciding anything."""
    return _split(ChunkReader(data))[1].header


def _split(pieces: ChunkReader) -> tuple[bytes, _Head]:
    """Take everything before the first chunk; returns it, and the head in it."""
    start = bytes(pieces.take(len(MAGIC) + 4))
    if start.startswith(FAMILY) and not start.startswith(MAGIC):
        raise ProtocolError(
            "sealed box: of another version of flhe, which alone can open it; this one reads version 2"
        )
    if len(start) < len(MAGIC) + 4 or not start.startswith(MAGIC):
        raise ProtocolError("sealed box: it does not start like one")
    length = int.from_bytes(start[len(MAGIC) :], "big")
    if length > min(MAX_HEAD, pieces.left):
        raise ProtocolError("sealed box: the head is longer than it may be")
    encoded = bytes(pieces.take(length))
    return start + encoded, _Head.from_bytes(encoded)


def _key(secret: bytes, head: _Head) -> bytes:
    if len(secret) != 32:
        raise ConfigError("seal: the key must be 32 bytes")
    run_id, roster_hash, *step = (head.header[name] for name in BOUND)
    return hkdf(secret, "seal", *step, head.salt, run_id, roster_hash)


def _nonce(index: int, last: bool) -> bytes:
    return index.to_bytes(11, "big") + bytes([last])


def _encrypt(
    cipher: AESGCM, aad: bytes, plaintext: Buffer | Iterable[Buffer], size: int
) -> Iterator[bytes]:
    yield aad
    index = 0
    held = None  # one chunk is held back until we know whether it is the last
    for chunk in _rechunk(plaintext, size):
        if held is not None:
            yield cipher.encrypt(_nonce(index, False), held, aad)
            index += 1
        held = chunk
    yield cipher.encrypt(_nonce(index, True), b"" if held is None else held, aad)


def _decrypt(cipher: AESGCM, aad: bytes, pieces: ChunkReader, size: int) -> Iterator[bytes]:
    """Open chunks of `size` bytes, tag included; keeps none of them."""
    for index in itertools.count():
        last = pieces.left <= size
        yield _open(cipher, _nonce(index, last), pieces.take(size), aad)
        if last:
            return


def _open(cipher: AESGCM, nonce: bytes, chunk: Buffer, aad: bytes) -> bytes:
    try:
        return cipher.decrypt(nonce, chunk, aad)
    except InvalidTag:
        raise AuthenticationError(
            "sealed box: it was changed on the way, cut short, or sealed in another epoch"
        ) from None


def _again(taken: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    """Give what was taken, without keeping it, then the rest."""
    yield taken.pop()
    yield from rest


def _rechunk(plaintext: Buffer | Iterable[Buffer], size: int) -> Iterator[Buffer]:
    """Cut buffers of any sizes into chunks of `size` bytes; the last may be shorter."""
    rest = bytearray()
    for buffer in [plaintext] if isinstance(plaintext, Buffer) else plaintext:
        view = memoryview(buffer).cast("B")
        if rest:
            take = size - len(rest)
            rest += view[:take]
            view = view[take:]
            if len(rest) < size:
                continue
            yield rest
            rest = bytearray()
        whole = len(view) - len(view) % size
        for at in range(0, whole, size):
            yield view[at : at + size]
        rest += view[whole:]
    if rest:
        yield rest
