"""Searching bytes for secrets: any eight bytes of one, anywhere, raw or in text (`writings`).

A secret is looked for by its windows of WINDOW bytes at every offset, so that a part of it counts as
well, and one that begins in the middle of something else. Windows are left out that have fewer than
DISTINCT values, or one value more than REPEATED times, because runs of zeros and small numbers are
everywhere: a key of small coefficients is not searched for. What is left stands in ciphertext by
chance with odds of 2^-64 a place and window, which is 2^-17 for 2^24 bytes and 2^23 windows. So secrets
must be random, and one window that is found is a leak: no count has to be reached. Keys, of KEY bytes
at most, are integers to some: they are looked for in both byte orders.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe_lab.rehearsal.writings import decoded

WINDOW = 8
DISTINCT, REPEATED = 4, 3
KEY = 64
_SIEVE_BITS = 26
_BETWEEN = bytes.fromhex("b1d5a3f74e92c86d")

Words = NDArray[np.uint64]


@dataclass(slots=True)
class Secrets:
    """What is looked for, by what it is."""

    kinds: dict[str, set[bytes]] = field(default_factory=dict)  # The secrets of each kind
    members: set[tuple[bytes, int, int]] = field(default_factory=set)
    """No secret: (identity, run, key agreement) of the members that there were, who all had keys."""

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


def windows(secret: bytes) -> Words:
    """Every WINDOW bytes of `secret`, as little-endian words, shape (len(secret) - WINDOW + 1,)."""
    count = len(secret) - WINDOW + 1
    if count < 1:
        return np.empty(0, np.uint64)
    data = np.frombuffer(secret, np.uint8)
    rows = np.lib.stride_tricks.sliding_window_view(data, WINDOW)
    return np.ascontiguousarray(rows).view("<u8").reshape(count).astype(np.uint64)


@dataclass(frozen=True, slots=True)
class Found:
    """A secret that is where it must not be."""

    kind: str  # What it is
    place: str  # Name of the bytes that hold it
    count: int  # Windows of secrets of that kind that are there


class Search:
    """Looks for all of some secrets at once."""

    def __init__(self, secrets: Secrets) -> None:
        self._kinds = list(secrets.kinds)
        words, kinds = [np.empty(0, np.uint64)], [np.empty(0, np.int16)]
        for number, kind in enumerate(self._kinds):
            for secret in secrets.kinds[kind]:
                for order in (1, -1) if len(secret) <= KEY else (1,):
                    words.append(_telling(windows(secret[::order])))
                    kinds.append(np.full(words[-1].size, number, np.int16))
        self._words, first = np.unique(np.concatenate(words), return_index=True)
        self._of = np.concatenate(kinds)[first]
        self._sieve = np.zeros(1 << _SIEVE_BITS, np.bool_)
        self._sieve[_low(self._words)] = True

    def seen(self, data: bytes) -> Words:
        """Windows of secrets that are in `data`, ascending, each once."""
        hits = [np.empty(0, np.uint64)]
        # Apart from each other: zeros between them would be those that floats begin with.
        for piece in (data, _BETWEEN.join(decoded(data))):
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


def _telling(words: Words) -> Words:
    """Those of DISTINCT byte values or more, none of them more than REPEATED times."""
    ordered = np.sort(words.astype("<u8").view(np.uint8).reshape(-1, WINDOW), axis=1)
    distinct = np.count_nonzero(np.diff(ordered, axis=1), axis=1) >= DISTINCT - 1
    repeated = (ordered[:, REPEATED:] == ordered[:, :-REPEATED]).any(axis=1)
    return np.compress(distinct & ~repeated, words)


def _low(words: Words) -> NDArray[np.int64]:
    return (words & np.uint64((1 << _SIEVE_BITS) - 1)).astype(np.int64)
