"""What stands beside the type of a record's field: bounds, secrets, and other types."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True, slots=True)
class Rule:
    """A bound: `ok` says whether a value is within, `needs` what is."""

    needs: str
    ok: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class As:
    """Another type: how it is written and read, and what it is called.

    `read` raises ValueError where it cannot. What `write` would write otherwise is not taken. With
    `refuses`, its ConfigErrors are passed on: they say why what is well written cannot work.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    needs: str
    refuses: bool = False


SECRET = object()
"""Bytes that do not show themselves."""


def size(*sizes: int) -> Rule:
    """Bytes of one of these lengths."""
    most = max(sizes)
    return Rule(f"{most} bytes" + ", or none" * (0 in sizes), lambda value: len(value) in sizes)


def within(least: int, most: int) -> Rule:
    """An integer from `least` to `most`."""
    return Rule(f"an integer, {least} to {most}", lambda value: least <= value <= most)


def bits(count: int) -> Rule:
    """An integer of `count` bits, without a sign."""
    return Rule(f"an unsigned {count}-bit integer", lambda value: 0 <= value < 1 << count)


def at_most(count: int, what: str) -> Rule:
    """`count` bytes, characters or items at most."""
    return Rule(f"at most {count} {what}", lambda value: len(value) <= count)


def matching(pattern: str, needs: str) -> Rule:
    """Text that the whole of `pattern` fits."""
    compiled = re.compile(pattern)
    return Rule(needs, lambda value: compiled.fullmatch(value) is not None)


def ascending(what: str) -> Rule:
    """Items that ascend, each once."""
    return Rule(f"{what} that ascend, each once", lambda value: list(value) == sorted(set(value)))


def array(dtype: DTypeLike) -> As:
    """A flat array of at least one number, little-endian; it is read in the machine's byte order."""
    own = np.dtype(dtype)
    little = own.newbyteorder("<")

    def write(value: NDArray[Any]) -> bytes:
        return value.astype(little).tobytes()

    def read(raw: bytes) -> NDArray[Any]:
        if not raw:
            raise ValueError("no numbers")
        return np.frombuffer(raw, little).astype(own, copy=False)

    return As(write, read, f"{own.name} numbers")


BIG = As(
    lambda number: number.to_bytes((number.bit_length() + 7) // 8, "big"),
    lambda data: int.from_bytes(data, "big"),
    "bytes of a number, the highest first, as few as can be",
)
"""A natural number of any length."""

Hash = Annotated[bytes, size(32)]
"""A SHA-256, or a public key."""
Signature = Annotated[bytes, size(64)]
U32 = Annotated[int, bits(32)]
U64 = Annotated[int, bits(64)]
