"""Sealing bytes for the group: one fresh key a box.

    box   = magic | be32(length of head) | head | chunk_0 | chunk_1 | ...
    head  = CBOR {header, salt, chunk_bytes}
    key   = HKDF(K_G, "seal" | stage | round | attempt | sender rank | salt | run_id | roster_hash)
    chunk = AES-256-GCM(key, nonce = be88(index) | last, AAD = everything before chunk_0)

Nothing is ever sealed under K_G itself. `salt` is 32 fresh random bytes, so a key seals one box and
a nonce that only counts never repeats under it; members share K_G, counters of their own would
collide. The last chunk has last = 1 in its nonce: a box cut short, reordered or extended does not
open.

Source: NIST SP 800-38D (GCM); the chunking is STREAM of Hoang et al., CRYPTO 2015, Sec. 7.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from flhe.errors import AuthenticationError, ConfigError, ProtocolError
from flhe.keys.canonical import dumps, loads, record
from flhe.keys.derive import hkdf
from flhe.keys.identity import Random

MAGIC = b"flhe-seal/1\n"
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

Buffer = bytes | bytearray | memoryview


def seal(
    group_key: bytes,
    header: Mapping[str, Any],
    plaintext: Buffer | Iterable[Buffer],
    random: Random = secrets.token_bytes,
    *,
    chunk_bytes: int = CHUNK,
) -> bytes:
    """Seal `plaintext`, in one buffer or many, for everyone who has `group_key` (32 bytes).

    `header` is public and bound: it has the fields of `BOUND` and any others that canonical CBOR
    can carry. Raises ConfigError for a header without them, or a chunk size beyond 64 MiB.
    """
    return b"".join(seal_stream(group_key, header, plaintext, random, chunk_bytes=chunk_bytes))


def seal_stream(
    group_key: bytes,
    header: Mapping[str, Any],
    plaintext: Buffer | Iterable[Buffer],
    random: Random = secrets.token_bytes,
    *,
    chunk_bytes: int = CHUNK,
) -> Iterator[bytes]:
    """Seal like `seal`, giving the box piece by piece; holds two chunks in memory.

    A buffer must keep its content until the box is complete.
    """
    if not 1 <= chunk_bytes <= CHUNK:
        raise ConfigError(f"seal(chunk_bytes={chunk_bytes}): must be 1 to {CHUNK}")
    try:
        _check(header)
    except ProtocolError as error:
        raise ConfigError(str(error)) from None
    salt = random(32)
    if len(salt) != 32:  # a short one might repeat, and with it key and nonces
        raise ConfigError("seal: the random source gave a salt of another length than 32")
    head = dumps({"header": dict(header), "salt": salt, "chunk_bytes": chunk_bytes})
    if len(head) > MAX_HEAD:
        raise ConfigError(f"seal: the header takes {len(head)} bytes, at most {MAX_HEAD} fit")
    return _encrypt(group_key, head, plaintext, chunk_bytes)


def unseal(
    group_key: bytes, data: Buffer, expect: Mapping[str, int | str | bytes] | None = None
) -> tuple[dict[str, Any], bytes]:
    """Open a box; returns its header and the plaintext.

    `expect` lists header fields with the one value that is accepted; a box that opens is by *some*
    member, about what its header says, so a caller states what it waits for.

    Raises ProtocolError for bytes that are no box or a field that differs from `expect` (it is
    named), AuthenticationError for a box that was changed in any way or sealed under another key.
    """
    aad, head = _split(data)
    header, size = head["header"], head["chunk_bytes"] + TAG
    for name, value in (expect or {}).items():
        if name not in header or header[name] != value or type(header[name]) is not type(value):
            raise ProtocolError(f"sealed box: header field {name} is not what is expected here")
    cipher = AESGCM(_key(group_key, header, head["salt"]))
    body = memoryview(data)[len(aad) :]
    count = max(1, -(-len(body) // size))
    try:
        parts = [
            cipher.decrypt(_nonce(i, i == count - 1), body[i * size : (i + 1) * size], aad)
            for i in range(count)
        ]
    except InvalidTag:
        raise AuthenticationError(
            "sealed box: it was changed on the way, cut short, or sealed in another epoch"
        ) from None
    return header, parts[0] if count == 1 else b"".join(parts)


def peek(data: Buffer) -> dict[str, Any]:
    """Return the header of a box, unverified: for finding the key, never for deciding anything."""
    header: dict[str, Any] = _split(data)[1]["header"]
    return header


def _split(data: Buffer) -> tuple[bytes, dict[str, Any]]:
    """Return everything before the first chunk, and the head in it."""
    start = len(MAGIC) + 4
    if bytes(data[: len(MAGIC)]) != MAGIC or len(data) < start:
        raise ProtocolError("sealed box: it does not start like one")
    length = int.from_bytes(data[len(MAGIC) : start], "big")
    if length > min(MAX_HEAD, len(data) - start):
        raise ProtocolError("sealed box: the head is longer than it may be")
    aad = bytes(data[: start + length])
    kinds = {"header": dict, "salt": bytes, "chunk_bytes": int}
    head = record(loads(aad[start:], MAX_HEAD, "sealed box"), "sealed box", kinds)
    if len(head["salt"]) != 32 or not 1 <= head["chunk_bytes"] <= CHUNK:
        raise ProtocolError("sealed box: salt or chunk size out of bounds")
    _check(head["header"])
    return aad, head


def _check(header: Mapping[str, Any]) -> None:
    """Raise ProtocolError unless `header` has the fields of BOUND."""
    for name, kind in BOUND.items():
        if type(header.get(name)) is not kind:
            raise ProtocolError(f"sealed box: header field {name} must be {kind.__name__}")


def _key(group_key: bytes, header: Mapping[str, Any], salt: bytes) -> bytes:
    if len(group_key) != 32:
        raise ConfigError("seal: the group key must be 32 bytes")
    h = header
    return hkdf(
        group_key,
        "seal",
        h["stage"],
        h["round"],
        h["attempt"],
        h["rank"],
        salt,
        h["run_id"],
        h["roster_hash"],
    )


def _nonce(index: int, last: bool) -> bytes:
    return index.to_bytes(11, "big") + bytes([last])


def _encrypt(
    group_key: bytes, head: bytes, plaintext: Buffer | Iterable[Buffer], size: int
) -> Iterator[bytes]:
    aad = MAGIC + len(head).to_bytes(4, "big") + head
    fields = loads(head, MAX_HEAD, "sealed box")
    cipher = AESGCM(_key(group_key, fields["header"], fields["salt"]))
    yield aad
    index = 0
    held = None  # one chunk is held back until we know whether it is the last
    for chunk in _rechunk(plaintext, size):
        if held is not None:
            yield cipher.encrypt(_nonce(index, False), held, aad)
            index += 1
        held = chunk
    yield cipher.encrypt(_nonce(index, True), b"" if held is None else held, aad)


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
