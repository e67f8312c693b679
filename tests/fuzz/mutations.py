"""What a hostile sender or a bad disk makes of honest bytes; seeded, so each case can be had again.

Blind to the format: bits, bytes and slices. Aware of it: another CBOR tree with one value changed, a
length that nobody has sent, a nest too deep.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import cbor2

Tree = Any
"""Ints, bytes, str, bool, None, floats, and lists and dicts of them."""

_BOUNDS = (2**31, 2**32, 2**63, 2**64)
EDGES = (0, 1, -1, 2, 255, *_BOUNDS[:-1], *(bound - 1 for bound in _BOUNDS), -(2**64))
"""Where integers of one type or another end."""

DEPTH = 10_000
"""Levels of a nest that is too deep, beyond what Python's stack holds."""

_LENGTH = {1: 24, 2: 25, 4: 26, 8: 27}
"""What a head in CBOR says of an integer of so many bytes behind it."""


def mutate(samples: Sequence[bytes], random: Random, head: int | None = None) -> bytes:
    """One mutant of one of `samples`.

    Parameters
    ----------
    samples : sequence of bytes
        Honest messages of one type.
    random : Random
        Source of all choices.
    head : int, optional
        Where a be32 length stands that a head in CBOR follows, and raw data after it; without it, all
        of a sample is taken for CBOR.
    """
    data = random.choice(samples)
    if random.random() < 0.5:
        tree_mutant = _in_tree(data, random, head)
        if tree_mutant is not None:
            return tree_mutant
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        data = blind(data, samples, random)
    return data


def blind(data: bytes, samples: Sequence[bytes], random: Random) -> bytes:
    """One change that knows nothing of formats; as often among the first bytes, where heads are."""
    at = random.randrange((len(data) if random.random() < 0.5 else min(len(data), 96)) + 1)
    before, here, rest = data[:at], (data[at:] or b"\0")[0], data[at + 1 :]
    size, width = random.choice((1, 2, 8, 33, len(data))), random.choice((1, 2, 4, 8))
    order: Any = random.choice(("big", "little"))
    match random.randrange(12):
        case 0 | 1 | 2:
            out = before + bytes([here ^ 1 << random.randrange(8)]) + rest
        case 3:
            out = before + random.choice((b"\0", b"\1", b"\x7f", b"\x80", b"\xff")) + rest
        case 4:
            out = before
        case 5:
            out = before + data[at + size :]
        case 6:  # a slice twice
            out = data[: at + size] + data[at:]
        case 7:  # two slices in each other's place
            other = at + 2 * size
            out = before + data[at + size : other] + data[at : at + size] + data[other:]
        case 8:
            out = data + random.randbytes(random.choice((1, 2, 8, 300)))
        case 9:
            out = before + random.choice(samples)[at:]
        case 10:  # a string, array or map that claims more than there is
            most = 1 << 8 * width
            claim = random.choice((most - 1, most // 2, random.randrange(most)))
            kind = bytes([random.choice((2, 3, 4, 5)) << 5 | _LENGTH[width]])
            out = before + kind + claim.to_bytes(width, "big") + rest
        case _:  # another integer where one may stand
            number = random.choice(EDGES) % (1 << 8 * width)
            out = before + number.to_bytes(width, order) + data[at + width :]
    return out


# --- aware of CBOR ---


def _in_tree(data: bytes, random: Random, head: int | None) -> bytes | None:
    """A mutant of the CBOR in `data`; None where there is none."""
    if head is None:
        return _of_tree(data, random)
    start = head + 4
    stop = start + int.from_bytes(data[head:start], "big")
    found = _of_tree(data[start:stop], random)
    if found is None:
        return None
    return data[:head] + len(found).to_bytes(4, "big") + found + data[stop:]


def _of_tree(data: bytes, random: Random) -> bytes | None:
    if random.random() < 0.02:
        return b"\x81" * random.choice((17, DEPTH)) + data
    try:
        tree = cbor2.loads(data)
        if cbor2.dumps(tree, canonical=True) != data or not isinstance(tree, list | dict):
            return None
    except Exception:
        return None
    try:
        return encode(change(tree, random))
    except Exception:  # a mutant of a mutant may hold dates, patterns and whatever tags stand for
        return None


def change(tree: Tree, random: Random) -> Tree:
    """The same tree with one value changed, somewhere in it; inside of byte strings too."""
    if not (isinstance(tree, list | tuple | dict) and tree and random.random() < 0.88):
        return value(tree, random)
    named = isinstance(tree, dict)
    items = list(tree.items() if named else enumerate(tree))
    at, other = random.randrange(len(items)), random.choice(items)
    name, old = items[at]
    match random.randrange(13):
        case 0:
            del items[at]
        case 1 if named:
            items[at] = (name, other[1])
        case 1:
            items.insert(at, other)
        case 2:
            random.shuffle(items)
        case 3:
            new = random.choice(("", "w", "zz", f"{name}x", f"{other[0]}"))
            items.append((new, random.choice((leaf(random), old))))
        case _:
            items[at] = (name, change(old, random))
    return dict(items) if named else [item for _, item in items]


def value(old: Tree, random: Random) -> Tree:
    """Another value in the place of one: near it, at an edge, or of another type."""
    if random.random() < 0.15:
        return leaf(random)
    if isinstance(old, bool):
        return random.choice((not old, int(old)))
    if isinstance(old, int):
        near = [old + 1, old - 1, -old, old ^ 1 << random.randrange(64), old * 2]
        return random.choice([*near, *EDGES, bool(old), float(old % 2**31)])
    if isinstance(old, bytes):
        nested = _of_tree(old, random) if random.random() < 0.6 else None
        return blind(old, [old], random) if nested is None else nested
    if isinstance(old, str):
        words = ("single", "adaptive", "../../etc", "", "\0", "é" * 40)
        more = (old + "x", old[:-1], old.upper(), old.encode(), old * 50)
        return random.choice((*words, *more))
    return leaf(random)


def leaf(random: Random) -> Tree:
    """Anything."""
    nest: Tree = []
    for _ in range(random.choice((1, 15, 16, 17))):
        nest = [nest]
    numbers = (0, -1, True, None, 1.5, float("nan"), float("inf"), random.choice(EDGES))
    texts = (b"", "", bytes(16), bytes(32), "x" * 300, random.randbytes(64))
    lists = ([], [[]], nest, [0] * 300, [None], [0.5], [b""], [b"", 0, ""])
    return random.choice((*numbers, *texts, *lists, {}, {"": 0}, {1: 2}))


def encode(tree: Tree) -> bytes:
    """Canonical CBOR of `tree`; what is not canonical is refused everywhere by one function."""
    try:
        return cbor2.dumps(tree, canonical=True)
    except Exception:  # integers beyond 64 bits
        return cbor2.dumps(str(tree)[:64])
