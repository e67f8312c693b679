"""Compiled loops of selective encryption: a vector apart into two, and together again."""

from __future__ import annotations

from flhe.math.field_kernels import njit


@njit
def apart(values, coords, chosen, rest):
    """`values` at `coords` (ascending, in range) into `chosen`, the others into `rest`, in order."""
    start = 0
    at = 0
    for i in range(coords.size):
        stop = coords[i]
        for d in range(start, stop):
            rest[at] = values[d]
            at += 1
        chosen[i] = values[stop]
        start = stop + 1
    for d in range(start, values.size):
        rest[at] = values[d]
        at += 1


@njit
def together(chosen, rest, coords, values):
    """Inverse of `apart`, into `values`."""
    start = 0
    at = 0
    for i in range(coords.size):
        stop = coords[i]
        for d in range(start, stop):
            values[d] = rest[at]
            at += 1
        values[stop] = chosen[i]
        start = stop + 1
    for d in range(start, values.size):
        values[d] = rest[at]
        at += 1
