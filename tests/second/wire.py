"""What a second implementation of a scheme is made of: messages, words of a key stream, packed bits.

It knows the protocol and nothing of the library. The parts that older tests have written a second time
(CBOR, HKDF, supports, packed bits, polynomials) are taken from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tests.coding.test_pack import reference as packed
from tests.coding.test_support_vectors import cbor, digest
from tests.math.test_permutation_vectors import context

__all__ = ["Book", "Clear", "Wire", "header", "packed", "residues_in", "total_of", "unpacked"]

VERSION = 2
COLUMNS = 256


@dataclass(frozen=True)
class Clear:
    """What one sender encrypts.

    Parameters
    ----------
    values, extras : list of int
        Signed integers.
    coords : list of int, optional
        Which coordinates the values are of; None for all of them.
    """

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
        return [sum(column) for column in zip(*(c.lanes for c in clears), strict=True)]
    places: dict[int, int] = {}
    for clear in clears:
        assert clear.coords is not None
        for d, value in zip(clear.coords, clear.values, strict=True):
            places[d] = places.get(d, 0) + value
    extras = [sum(column) for column in zip(*(c.extras for c in clears), strict=True)]
    return [places[d] for d in sorted(places)] + extras


@dataclass(frozen=True)
class Wire:
    """A ciphertext as it travels, but for its header.

    Parameters
    ----------
    senders : tuple of int
        Ranks, ascending.
    length : int
        Values in it, extras included.
    data : bytes
        The ciphertext.
    supports : tuple of bytes
        Coordinates of each sender, coded; empty where all sent all of them.
    """

    senders: tuple[int, ...]
    length: int
    data: bytes
    supports: tuple[bytes, ...] = ()

    @property
    def body(self) -> bytes:
        """Ciphertext and supports."""
        return self.data + b"".join(self.supports)


class Book(Protocol):
    """One scheme, as it stands in the book: a cohort, a slot and its keys."""

    def header(self, wire: Wire) -> bytes:
        """Everything but the ciphertext."""

    def seal(self, rank: int, clear: Clear) -> Wire:
        """One sender's ciphertext."""

    def add(self, parts: Sequence[Wire]) -> Wire:
        """Their sum, as it travels."""

    def open(self, wire: Wire) -> list[int]:
        """What is in a sum; ValueError where it is none."""


def header(
    scheme: str, mode: str, slot: dict[str, Any], wire: Wire, floats: int | None = None
) -> bytes:
    """The header of a message; `floats` are the coordinates that supports are taken from."""
    told = [[floats, len(data), digest(data, floats or 0)] for data in wire.supports]
    return cbor([VERSION, scheme, mode, context(slot), list(wire.senders), wire.length, told])


def residues_in(data: bytes, length: int, bits: int) -> list[int]:
    """`unpacked`, and ValueError where a bit behind the last field is not zero."""
    if int.from_bytes(data[-1:], "little") >> 8 - -length * bits % 8:
        raise ValueError("the last byte has bits that are of no field")
    return unpacked(data, length, bits)


def unpacked(data: bytes, length: int, bits: int) -> list[int]:
    """Fields of `bits` bits, 0 to 2**bits - 1, out of `packed`."""
    word = 32 if bits <= 32 else 64
    block, size = word * COLUMNS, word // 8
    fields: list[int] = []
    for at in range(0, length // block * block, block):
        whole = data[at * bits // 8 : (at + block) * bits // 8]
        words = [int.from_bytes(whole[i : i + size], "little") for i in range(0, len(whole), size)]
        columns = [
            sum(w << (word * k) for k, w in enumerate(words[column::COLUMNS]))
            for column in range(COLUMNS)
        ]
        fields += [
            columns[i % COLUMNS] >> (bits * (i // COLUMNS)) & (1 << bits) - 1 for i in range(block)
        ]
    rest = int.from_bytes(data[len(fields) * bits // 8 :], "little")
    return fields + [rest >> (bits * i) & (1 << bits) - 1 for i in range(length - len(fields))]
