"""Example counts in traffic, in forms of LEAST bytes or more: 2^-40 a place by chance."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from flhe.schemes.seal_format import varint
from flhe.wire import canonical

LEAST = 5


def forms(count: int) -> Mapping[str, bytes]:
    """How a count may be written: as text, in records, in headers, as a float or an integer.

    Shorter ones are left out: any four bytes stand somewhere in megabytes of ciphertext.
    """
    found = {
        "text": str(count).encode(),
        "record": varint(count << 1),  # zigzag: Flower's integers are sint64
        "header": canonical.dumps(count),
        "float": np.array(count, "<f8").tobytes(),
        "big-endian float": np.array(count, ">f8").tobytes(),
        "integer": count.to_bytes(8, "little"),
        "big-endian integer": count.to_bytes(8, "big"),
    }
    return {name: form for name, form in found.items() if len(form) >= LEAST}


def anywhere(data: bytes, count: int) -> int:
    """How often a count stands in any bytes, in one of these forms."""
    return sum(data.count(form) for form in set(forms(count).values()))
