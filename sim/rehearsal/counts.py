"""Example counts in traffic: a number is short, so where it stands has to say that it is one.

Forms of LONG bytes or more are searched for anywhere: 2^-40 a place. Any four bytes stand somewhere in
megabytes of ciphertext, so those are numbers only

in a record of Flower's    a value that equals the count, a number in a message of ours (CBOR), or four
                           bytes in a byte string of SHORT bytes at most
in another call's body     behind the head of a protobuf field, as varint, fixed32 or float
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from flhe.errors import FlheError
from flhe.schemes.seal_format import varint
from flhe.wire import canonical

LONG, LEAST = 5, 4
SHORT = 16
_MESSAGE = 1 << 20
_FIELDS = range(1, 16)
_FIXED32 = 5
"""Wire type of protobuf; a varint's is 0."""


def forms(count: int) -> Mapping[str, bytes]:
    """How a count may be written: as text, in records, in headers, as a float or an integer.

    Those of fewer than LEAST bytes are left out: chance would make them.
    """
    found = {
        "text": str(count).encode(),
        "record": varint(count << 1),  # zigzag: Flower's integers are sint64
        "varint": varint(count),
        "header": canonical.dumps(count),
        "float": np.array(count, "<f8").tobytes(),
        "big-endian float": np.array(count, ">f8").tobytes(),
        "short float": np.array(count, "<f4").tobytes(),
        "big-endian short float": np.array(count, ">f4").tobytes(),
    }
    for size in (4, 8):
        if count >> (8 * size) == 0:
            found[f"integer of {size} bytes"] = count.to_bytes(size, "little")
            found[f"big-endian integer of {size} bytes"] = count.to_bytes(size, "big")
    return {name: form for name, form in found.items() if len(form) >= LEAST}


def anywhere(data: bytes, count: int) -> int:
    """How often a count stands in any bytes, in one of its long forms."""
    return sum(data.count(form) for form in set(forms(count).values()) if len(form) >= LONG)


def in_body(data: bytes, count: int) -> int:
    """How often it is a field of the protobuf messages in `data`."""
    heads = ((field << 3, varint(count)) for field in _FIELDS)
    fixed = (np.array(count, kind).tobytes() for kind in ("<u4", "<f4"))
    short = [((field << 3) | _FIXED32, form) for form in fixed for field in _FIELDS]
    return sum(data.count(bytes([head]) + form) for head, form in (*heads, *short))


def in_values(values: Iterable[object], count: int) -> int:
    """How often it stands among a record's values, and in the messages that those are."""
    short = [form for form in forms(count).values() if len(form) < LONG]
    found = 0
    for value in _leaves(values):
        if isinstance(value, bytes):
            found += len(value) <= SHORT and any(form in value for form in short)
        elif isinstance(value, int | float):
            found += bool(np.float32(value) == np.float32(count))
    return found


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, str):
        return
    if isinstance(value, dict):
        yield from _leaves(value.values())
    elif isinstance(value, bytes):
        yield value
        try:
            said = canonical.loads(value, _MESSAGE, "message")
        except FlheError:
            return
        yield from _leaves(said)
    elif isinstance(value, Iterable):
        for each in value:
            yield from _leaves(each)
    else:
        yield value
