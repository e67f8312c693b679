"""What the second implementations share: CBOR, keys, words of key streams, packed bits, messages.

They know the protocol and nothing of the library.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import cbor2
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

VERSION = 3
COLUMNS = 256

Item = int | bytes | str | list[Any] | dict[str, Any]


def cbor(item: Item) -> bytes:
    """Canonical CBOR of whole numbers, bytes, text, and lists and maps of them."""
    return cbor2.dumps(item, canonical=True)


# --- keys and their streams ---


def hkdf(secret: bytes, label: str, *context: Item) -> bytes:
    """32 bytes by HKDF-SHA256 without a salt: RFC 5869, Sec. 2.2 and 2.3."""
    info = cbor([f"flhe/v1/{label}", *context])
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\1", "sha256")


@functools.lru_cache(maxsize=8)
def _aes(key: bytes) -> Callable[[bytes], bytes]:
    return Cipher(AES256(key), ECB()).encryptor().update


def block(key: bytes, stream: int, number: int) -> bytes:
    """16 bytes of a stream's key stream: AES-256 of one block."""
    return _aes(key)(stream.to_bytes(8, "big") + number.to_bytes(8, "big"))


def word(key: bytes, stream: int, number: int) -> int:
    """A word of 64 bits of a key stream."""
    return int.from_bytes(block(key, stream, number // 2)[8 * (number % 2) :][:8], "little")


class Tape:
    """Bytes that stand for random ones, given out in order."""

    def __init__(self, data: bytes) -> None:
        self.data, self.used = data, 0

    def __call__(self, length: int) -> bytes:
        self.used += length
        assert self.used <= len(self.data)
        return self.data[self.used - length : self.used]


# --- rounds ---


def slot_fields(run_id: int, round_: int, attempt: int, *hashes: bytes) -> dict[str, Any]:
    """A slot as it stands in a file; hashes of the roster, epoch, layout and history."""
    roster_hash, epoch, layout_hash, history = (h.hex() for h in hashes)
    return {
        "run_id": run_id,
        "roster_hash": roster_hash,
        "epoch": epoch,
        "round": round_,
        "attempt": attempt,
        "layout_hash": layout_hash,
        "history": history,
    }


NEAR = slot_fields(7, 3, 0, bytes([1]) * 32, bytes([2]) * 16, bytes([4]) * 32, bytes([5]) * 32)


def context(fields: dict[str, Any]) -> list[Any]:
    """What keys of a slot are bound to, in order: its purpose too, where it is no update's."""
    hashes = {n: bytes.fromhex(v) for n, v in fields.items() if n != "purpose" and type(v) is str}
    return [hashes.get(name, value) for name, value in fields.items()]


# --- numbers in bytes ---


def numbers(count: int, bits: int, salt: int) -> list[int]:
    """Values that fill the space of `bits` bits, its ends first."""
    most = 2 ** (bits - 1) - 1
    spread = [((i + salt) * 0x9E3779B97F4A7C15 >> 11) % (2 * most + 1) - most for i in range(count)]
    return [most, -most, *spread][:count]


def hashed(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def little(values: Sequence[int], nbytes: int = 8) -> bytes:
    """So many bytes each, the lowest first."""
    return b"".join((x % 256**nbytes).to_bytes(nbytes, "little") for x in values)


def little_read(data: bytes, nbytes: int = 8) -> list[int]:
    return [int.from_bytes(data[i : i + nbytes], "little") for i in range(0, len(data), nbytes)]


def packed(values: Sequence[int], bits: int) -> bytes:
    """Fields of `bits` bits: whole blocks column by column, the rest as one string."""
    size = 32 if bits <= 32 else 64
    block_ = size * COLUMNS
    fields = [value % (1 << bits) for value in values]
    out = bytearray()
    whole = len(fields) // block_ * block_
    for at in range(0, whole, block_):
        words = [b""] * (bits * COLUMNS)
        for column in range(COLUMNS):
            fields_of_column = fields[at + column : at + block_ : COLUMNS]
            string = int("".join(f"{field:0{bits}b}" for field in reversed(fields_of_column)), 2)
            for k in range(bits):
                one = (string >> (k * size)) % (1 << size)
                words[k * COLUMNS + column] = one.to_bytes(size // 8, "little")
        out += b"".join(words)
    rest = fields[whole:]
    string = int("".join(f"{field:0{bits}b}" for field in reversed(rest)) or "0", 2)
    return bytes(out) + string.to_bytes((len(rest) * bits + 7) // 8, "little")


def unpacked(data: bytes, length: int, bits: int) -> list[int]:
    """Fields, 0 to 2**bits - 1, out of `packed`; ValueError where a bit behind the last is set."""
    if int.from_bytes(data[-1:], "little") >> 8 - -length * bits % 8:
        raise ValueError("the last byte has bits that are of no field")
    size = 32 if bits <= 32 else 64
    block_ = size * COLUMNS
    fields: list[int] = []
    for at in range(0, length // block_ * block_, block_):
        words = little_read(data[at * bits // 8 : (at + block_) * bits // 8], size // 8)
        columns = [
            sum(w << (size * k) for k, w in enumerate(words[column::COLUMNS]))
            for column in range(COLUMNS)
        ]
        fields += [
            columns[i % COLUMNS] >> (bits * (i // COLUMNS)) & (1 << bits) - 1 for i in range(block_)
        ]
    rest = int.from_bytes(data[len(fields) * bits // 8 :], "little")
    return fields + [rest >> (bits * i) & (1 << bits) - 1 for i in range(length - len(fields))]


def columns(vectors: Sequence[Sequence[int]], modulus: int = 0) -> list[int]:
    """Sums coordinate by coordinate, modulo a number where one is given."""
    sums = (sum(column) for column in zip(*vectors, strict=True))
    return [total % modulus for total in sums] if modulus else list(sums)


# --- messages ---


@dataclass(frozen=True)
class Clear:
    """What one sender encrypts: values of these coordinates, or of all, and extras."""

    values: list[int]
    extras: list[int]
    coords: list[int] | None = None

    @property
    def lanes(self) -> list[int]:
        """All of it, in the order of a ciphertext."""
        return self.values + self.extras


def total_of(clears: Sequence[Clear]) -> list[int]:
    """What the sum of these opens to: values of the coordinates that somebody sent, then extras."""
    if clears[0].coords is None:
        return columns([c.lanes for c in clears])
    places: dict[int, int] = {}
    for clear in clears:
        assert clear.coords is not None
        for d, value in zip(clear.coords, clear.values, strict=True):
            places[d] = places.get(d, 0) + value
    return [places[d] for d in sorted(places)] + columns([c.extras for c in clears])


@dataclass(frozen=True)
class Wire:
    """A ciphertext as it travels, but for its header; coordinates of each sender are coded."""

    senders: tuple[int, ...]
    length: int
    data: bytes
    supports: tuple[bytes, ...] = ()

    @property
    def body(self) -> bytes:
        """Ciphertext and supports."""
        return self.data + b"".join(self.supports)


def senders_of(parts: Sequence[Wire]) -> tuple[int, ...]:
    return tuple(sorted(s for part in parts for s in part.senders))


@dataclass(frozen=True, kw_only=True)
class Book:
    """One scheme, as it stands in the book, with everybody's keys.

    A subclass has `seal(rank, clear)`, `add(parts)`, which gives their sum as it travels, and
    `open(wire)`, what is in a sum, or a ValueError where it is none.

    Parameters
    ----------
    cohort, bits : int
        As for the library's scheme; a subclass has what else that takes.
    slot : dict
        The round, as it stands in a file.
    """

    name: ClassVar[str]
    """On the wire."""

    cohort: int
    bits: int = 16
    slot: dict[str, Any] = field(default_factory=lambda: NEAR)

    def derived(self, secret: bytes, label: str, *more: Item) -> bytes:
        """A key of the round."""
        return hkdf(secret, label, *context(self.slot), *more)

    def header(self, wire: Wire, mode: str = "", told: Sequence[Any] = ()) -> bytes:
        """Everything but the ciphertext; `told` is what it says of the supports."""
        bound, senders = context({"purpose": "update"} | self.slot), list(wire.senders)
        bound = [*bound[1:], bound[0]]
        return cbor([VERSION, self.name, mode, bound, senders, wire.length, list(told)])

    # --- what a file says besides ---

    def about(self, length: int) -> dict[str, Any]:
        """Of the scheme, for so many values."""
        return {}

    def of_part(self, rank: int, ranks: Sequence[int]) -> dict[str, Any]:
        """Of one of these senders."""
        return {}

    def of_sum(self, wire: Wire, long: bool) -> dict[str, Any]:
        """Of a sum; of a long one, hashes."""
        return {}

    def listed(self, values: list[int], long: bool) -> Any:
        """Numbers as they stand in a file."""
        return hashed(json.dumps(values).encode()) if long else values
