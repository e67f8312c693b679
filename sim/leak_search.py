"""Searching bytes for secrets: any eight bytes of one, anywhere, raw or written in hex or base64.

A secret is looked for by its windows of WINDOW bytes at every offset, so that a part of it counts as
well, and one that begins in the middle of something else. Secrets must be random: eight bytes that
happen to stand elsewhere would count. Windows of fewer than DISTINCT values are left out, because runs
of zeros and small numbers are everywhere: a key of small coefficients is not searched for. What is in
text is decoded first, wherever text of an alphabet is long enough.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError

WINDOW = 8
DISTINCT = 4
_HEX = re.compile(rb"[0-9A-Fa-f]{16,}")
_BASE64 = re.compile(rb"[0-9A-Za-z+/_-]{11,}")  # what WINDOW bytes take at least
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_SIEVE_BITS = 24

Words = NDArray[np.uint64]


@dataclass(slots=True)
class Secrets:
    """What is looked for, by what it is.

    Attributes
    ----------
    kinds : dict of str to set of bytes
        The secrets of each kind.
    """

    kinds: dict[str, set[bytes]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(f'{kind}: {len(of)}' for kind, of in self.kinds.items())})"

    def add(self, kind: str, *secrets: bytes) -> None:
        """Add secrets of one kind; empty ones are none. ConfigError for one that is too short."""
        found = self.kinds.setdefault(kind, set())
        for secret in secrets:
            if 0 < len(secret) < WINDOW:
                raise ConfigError(
                    f"a secret of {len(secret)} bytes ({kind}): {WINDOW} or more differ from chance"
                )
            if secret:
                found.add(bytes(secret))

    def counts(self) -> dict[str, int]:
        """How many there are of each kind."""
        return {kind: len(found) for kind, found in self.kinds.items()}


def windows(secret: bytes) -> Words:
    """Every WINDOW bytes of `secret`, as little-endian words, shape (len(secret) - WINDOW + 1,)."""
    count = len(secret) - WINDOW + 1
    if count < 1:
        return np.empty(0, np.uint64)
    data = np.frombuffer(secret, np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(data, WINDOW)
    return np.ascontiguousarray(rows).view("<u8").reshape(count).astype(np.uint64)


def decoded(data: bytes) -> Iterator[bytes]:
    """What the text in `data` may stand for, decoded: hex and base64, at every alignment."""
    for match in _HEX.finditer(data):
        text = match[0]
        for start in (0, 1):
            part = text[start : len(text) - (len(text) - start) % 2]
            yield binascii.unhexlify(part)
    for match in _BASE64.finditer(data):
        text = match[0].translate(_URL_SAFE)
        for start in range(4):
            part = text[start:]
            yield base64.b64decode(part + b"A" * (-len(part) % 4))  # its last letters count as well


@dataclass(frozen=True, slots=True)
class Found:
    """A secret that is where it must not be.

    Parameters
    ----------
    kind : str
        What it is.
    place : str
        Name of the bytes that hold it.
    count : int
        Windows of secrets of that kind that are there.
    """

    kind: str
    place: str
    count: int


class Search:
    """Looks for all of some secrets at once.

    Parameters
    ----------
    secrets : Secrets
        What is looked for.
    """

    def __init__(self, secrets: Secrets) -> None:
        self._kinds = list(secrets.kinds)
        words, kinds = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for number, kind in enumerate(self._kinds):
            for secret in secrets.kinds[kind]:
                words.append(_telling(windows(secret)))
                kinds.append(np.full(words[-1].size, number))
        self._words, first = np.unique(np.concatenate(words), return_index=True)
        self._of = np.concatenate(kinds)[first]
        self._sieve = np.zeros(1 << _SIEVE_BITS, np.bool_)
        self._sieve[_low(self._words)] = True

    def seen(self, data: bytes) -> Words:
        """Windows of secrets that are in `data`, ascending, each once."""
        hits = [np.empty(0, np.uint64)]
        for piece in (data, *_joined(decoded(data))):
            for start in range(min(WINDOW, max(len(piece) - WINDOW + 1, 0))):
                count = (len(piece) - start) // WINDOW
                here = np.frombuffer(piece, "<u8", count, start)
                likely = here[self._sieve[_low(here)]]
                at = np.searchsorted(self._words, likely)
                at[at == self._words.size] = 0
                hits.append(likely[self._words[at] == likely] if self._words.size else likely[:0])
        return np.unique(np.concatenate(hits))

    def find(self, places: Iterable[tuple[str, bytes]]) -> list[Found]:
        """Where secrets are, by kind and place; nothing for none."""
        found = []
        for place, data in places:
            of = self._of[np.searchsorted(self._words, self.seen(data))]
            for number, count in zip(*np.unique(of, return_counts=True), strict=True):
                found.append(Found(self._kinds[int(number)], place, int(count)))
        return found


def share_seen(whole: bytes, places: Iterable[bytes]) -> float:
    """Share of the windows of `whole` that are somewhere in `places`: 1.0 if all of it is there."""
    secrets = Secrets()
    secrets.add("control", whole)
    search = Search(secrets)
    there = np.unique(np.concatenate([np.empty(0, np.uint64), *map(search.seen, places)]))
    return there.size / np.unique(_telling(windows(whole))).size


def forms_of_number(number: int) -> Mapping[str, bytes]:
    """How a number may be written on the wire: as text, in Flower's records, as a float or integer.

    Those of fewer than four bytes are left out: chance would make them.
    """
    zigzag = number << 1
    varint = bytearray()
    while zigzag >> 7:
        varint.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    varint.append(zigzag)
    forms = {
        "text": str(number).encode(),
        "record": bytes(varint),
        "integer": number.to_bytes(8, "little"),
        "big-endian integer": number.to_bytes(8, "big"),
        "float": np.float64(number).tobytes(),
    }
    return {name: form for name, form in forms.items() if len(form) > 4}


def _telling(words: Words) -> Words:
    """Those of DISTINCT byte values or more."""
    ordered = np.sort(words.astype("<u8").view(np.uint8).reshape(-1, WINDOW), axis=1)
    telling: NDArray[np.bool_] = np.count_nonzero(np.diff(ordered, axis=1), axis=1) >= DISTINCT - 1
    return np.compress(telling, words)


def _low(words: Words) -> NDArray[np.int64]:
    return (words & np.uint64((1 << _SIEVE_BITS) - 1)).astype(np.int64)


def _joined(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces as one, apart: no window of two of them can be one of a secret's by plan."""
    joined = (b"\x00" * WINDOW).join(pieces)
    if joined:
        yield joined
