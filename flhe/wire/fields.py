"""Annotations of a record's fields: bounds, secrets, and other types."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


@dataclass(frozen=True, slots=True)
class Rule:
    """A bound: `ok` checks a value, `needs` describes a valid one."""

    needs: str
    ok: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class As:
    """Another type: its encoder and decoder, and its description.

    `read` raises ValueError for invalid input. Input that `write` would write otherwise is refused.
    With `refuses`, its ConfigErrors are passed on: they say why a well-formed value cannot work.
    """

    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    needs: str
    refuses: bool = False


SECRET = object()
"""Marks bytes that are hidden in repr and str."""


def size(*sizes: int) -> Rule:
    """Return a rule for bytes of one of these lengths."""
    most = max(sizes)
    return Rule(f"{most} bytes" + ", or none" * (0 in sizes), lambda value: len(value) in sizes)


def within(least: int, most: int, what: str = "an integer") -> Rule:
    """Return a rule for a number from `least` to `most`."""
    return Rule(f"{what}, {least} to {most}", lambda value: least <= value <= most)


def bits(count: int) -> Rule:
    """Return a rule for an integer of `count` bits, without a sign."""
    return Rule(f"an unsigned {count}-bit integer", lambda value: 0 <= value < 1 << count)


def at_most(count: int, what: str) -> Rule:
    """Return a rule for at most `count` bytes, characters or items."""
    return Rule(f"at most {count} {what}", lambda value: len(value) <= count)


def matching(pattern: str, needs: str) -> Rule:
    """Return a rule for text that fully matches `pattern`."""
    compiled = re.compile(pattern)
    return Rule(needs, lambda value: compiled.fullmatch(value) is not None)


def ascending(what: str) -> Rule:
    """Return a rule for items that ascend, each once."""
    return Rule(f"{what} that ascend, each once", lambda value: list(value) == sorted(set(value)))


def array(dtype: DTypeLike) -> As:
    """Return a type of flat, non-empty arrays: little-endian, read in the machine's byte order."""
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
