"""What a hostile sender or a bad disk makes of honest bytes; seeded, so each case can be had again.

Blind to the format: bits, bytes and slices. Aware of it: another CBOR tree with one value changed, an
encoding that says the same and is not canonical, a length that nobody has sent, a nest too deep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import cbor2

Tree = Any
"""Ints, bytes, str, bool, None, floats, and lists and dicts of them."""

EDGES = (
    0,
    1,
    -1,
    2,
    255,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -(2**64),
)
"""Where integers of one type or another end."""

DEPTH = 10_000
"""Levels of a nest that is too deep, beyond what Python's stack holds."""


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
        data = random.choice(_BLIND)(data, samples, random)
    return data


# --- blind ---

_Blind = Callable[[bytes, Sequence[bytes], Random], bytes]


def _place(data: bytes, random: Random) -> int:
    """A position, as often among the first bytes, where heads are, as anywhere."""
    end = len(data) if random.random() < 0.5 else min(len(data), 96)
    return random.randrange(end) if end else 0


def _flip(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    at = _place(data, random)
    return (
        data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :] if data else b"\0"
    )


def _set(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    at = _place(data, random)
    value = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
    return data[:at] + bytes([value]) + data[at + 1 :]


def _swap(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    out = bytearray(data)
    if out:
        a, b = _place(data, random), _place(data, random)
        out[a], out[b] = out[b], out[a]
    return bytes(out)


def _truncate(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _extend(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    return data + random.randbytes(random.choice((1, 2, 8, 300)))


def _double(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    at = _place(data, random)
    size = random.choice((1, 2, 8, 33, len(data)))
    return data[: at + size] + data[at:]


def _cut(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    at = _place(data, random)
    return data[:at] + data[at + random.choice((1, 2, 8, 33)) :]


def _splice(data: bytes, samples: Sequence[bytes], random: Random) -> bytes:
    other = random.choice(samples)
    at = random.randrange(min(len(data), len(other)) + 1)
    return data[:at] + other[at:]


def _huge(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    """A head that claims more than there is: a string, array or map of up to 2^64 - 1."""
    at, major = _place(data, random), random.choice((2, 3, 4, 5)) << 5
    width = random.choice((1, 2, 4, 8))
    info = {1: 24, 2: 25, 4: 26, 8: 27}[width]
    value = random.choice(
        (2 ** (8 * width) - 1, 2 ** (8 * width - 1), random.randrange(1 << 8 * width))
    )
    return data[:at] + bytes([major | info]) + value.to_bytes(width, "big") + data[at + 1 :]


def _integer(data: bytes, _: Sequence[bytes], random: Random) -> bytes:
    """Another integer where one may stand, of either byte order."""
    at, width = _place(data, random), random.choice((1, 2, 4, 8))
    value = random.choice(EDGES) % (1 << 8 * width)
    return data[:at] + value.to_bytes(width, random.choice(("big", "little"))) + data[at + width :]


_BLIND: tuple[_Blind, ...] = (
    _flip,
    _flip,
    _flip,
    _set,
    _swap,
    _truncate,
    _extend,
    _double,
    _cut,
    _splice,
    _huge,
    _integer,
)


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
    sloppy = random.random() < 0.2
    changed = tree if sloppy and random.random() < 0.5 else change(tree, random)
    try:
        return encode(changed, random if sloppy else None)
    except Exception:  # a mutant of a mutant may hold dates, patterns and whatever tags stand for
        return None


def change(tree: Tree, random: Random) -> Tree:
    """The same tree with one value changed, somewhere in it; inside of byte strings too."""
    if isinstance(tree, list | tuple) and tree and random.random() < 0.85:
        items = list(tree)
        at = random.randrange(len(items))
        match random.randrange(12):
            case 0:
                del items[at]
            case 1:
                items.insert(at, random.choice(items))
            case 2:
                random.shuffle(items)
            case 3:
                items.append(leaf(random))
            case _:
                items[at] = change(items[at], random)
        return items
    if isinstance(tree, dict) and tree and random.random() < 0.9:
        fields = dict(tree)
        name = random.choice(list(fields))
        match random.randrange(14):
            case 0:
                del fields[name]
            case 1:
                fields[random.choice(("", "w", "zz", str(name) + "x"))] = leaf(random)
            case 2:
                fields[name] = fields[random.choice(list(fields))]
            case _:
                fields[name] = change(fields[name], random)
        return fields
    return value(tree, random)


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
        return random.choice(_BLIND)(old, [old], random) if nested is None else nested
    if isinstance(old, str):
        more = (old + "x", old[:-1], old.upper(), "", "\0", "é" * 40, old.encode(), old * 50)
        return random.choice(more)
    return leaf(random)


def leaf(random: Random) -> Tree:
    """Anything."""
    nest: Tree = []
    for _ in range(random.choice((1, 15, 16, 17))):
        nest = [nest]
    anything = (
        0,
        -1,
        True,
        None,
        1.5,
        float("nan"),
        b"",
        "",
        bytes(32),
        "x" * 300,
        [],
        {},
        [[]],
        {"": 0},
        {1: 2},
        nest,
        [0] * 300,
        [None],
        [b"", 0, ""],
        random.choice(EDGES),
        random.randbytes(random.choice((1, 16, 32, 64))),
    )
    return random.choice(anything)


def encode(tree: Tree, random: Random | None = None) -> bytes:
    """CBOR of `tree`, canonical unless `random` takes liberties with heads, order, tags and streams."""
    if random is not None:
        return _sloppy(tree, random)
    try:
        return cbor2.dumps(tree, canonical=True)
    except Exception:  # integers beyond 64 bits
        return cbor2.dumps(str(tree)[:64])


def _sloppy(tree: Tree, random: Random) -> bytes:
    tag = bytes([0xC0 | random.randrange(24)]) if random.random() < 0.03 else b""
    if isinstance(tree, bool | float) or tree is None:
        out = cbor2.dumps(tree)
    elif isinstance(tree, int):
        small = -(1 << 64) <= tree < 1 << 64
        major, number = (0, tree) if tree >= 0 else (1, -1 - tree)
        out = _head(major, number, random) if small else cbor2.dumps(tree)
    elif isinstance(tree, bytes | str):
        major, raw = (2, tree) if isinstance(tree, bytes) else (3, tree.encode())
        out = _head(major, len(raw), random) + raw
        if random.random() < 0.05:
            out = bytes([major << 5 | 31]) + out + b"\xff"
    elif not isinstance(tree, list | tuple | dict):
        out = cbor2.dumps(tree)
    elif isinstance(tree, dict):
        pairs = [_sloppy(key, random) + _sloppy(item, random) for key, item in tree.items()]
        if pairs and random.random() < 0.1:
            pairs.append(random.choice(pairs))
        if random.random() < 0.3:
            random.shuffle(pairs)
        out = _head(5, len(pairs), random) + b"".join(pairs)
    else:
        body = b"".join(_sloppy(item, random) for item in tree)
        stream = random.random() < 0.05
        out = b"\x9f" + body + b"\xff" if stream else _head(4, len(tree), random) + body
    return tag + out


def _head(major: int, number: int, random: Random) -> bytes:
    """A head, now and then longer than it need be."""
    widths = [w for w in (0, 1, 2, 4, 8) if number < (24 if w == 0 else 1 << 8 * w)]
    width = widths[0] if random.random() < 0.8 else random.choice(widths)
    if width == 0:
        return bytes([major << 5 | number])
    info = {1: 24, 2: 25, 4: 26, 8: 27}[width]
    return bytes([major << 5 | info]) + number.to_bytes(width, "big")
