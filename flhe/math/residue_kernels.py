"""Compiled loops over packed residues, of 33 to 63 bits: add modulo q, find those not below q.

Residues lie in whole blocks of 64-bit words, and the others in a bit string, as `kernels` describes.
A block is read row by row, and the sums are written where the residues of the total were. So nothing
is unpacked to memory, and one instruction works on many columns.

Sums of two residues fit a word, since q < 2**63. A residue less q wraps around, and so has its top
bit set: checks need no comparison, which AVX2 lacks for unsigned words.
"""

from __future__ import annotations

import numpy as np

from flhe.math import COLUMNS, kernels
from flhe.math.field_kernels import njit, wide
from flhe.math.prime_kernels import lesser

_ONE = np.uint64(1)


@njit
def _straddling(low, high, down, up, mask):
    """Return a residue that begins in one word and ends in the next of its column."""
    return np.uint64(np.uint64(np.uint64(low >> down) | np.uint64(high << up)) & mask)


@njit
def add(total, part, bits, q):
    """Add the residues of `part` to those of `total`, modulo q; words of whole blocks."""
    wide()
    mask = np.uint64(np.uint64(_ONE << np.uint64(bits)) - _ONE)
    carry = np.empty(COLUMNS, np.uint64)
    for at in range(0, total.size, bits * COLUMNS):
        ours = total[at : at + bits * COLUMNS].reshape(bits, COLUMNS)
        theirs = part[at : at + bits * COLUMNS].reshape(bits, COLUMNS)
        carry[:] = np.uint64(0)
        for r in range(64):
            k, shift = (r * bits) // 64, (r * bits) % 64
            down, up = np.uint64(shift), np.uint64(64 - shift)
            a, b = ours[k], theirs[k]
            if shift + bits < 64:
                for c in range(COLUMNS):
                    x = np.uint64(np.uint64(a[c] >> down) & mask)
                    y = np.uint64(np.uint64(b[c] >> down) & mask)
                    z = lesser(np.uint64(x + y), q)
                    carry[c] = np.uint64(carry[c] | np.uint64(z << down))
            else:
                # The last residue ends with its word: what it takes of "the next" is masked away.
                following = min(k + 1, bits - 1)
                a_next, b_next = ours[following], theirs[following]
                for c in range(COLUMNS):
                    x = _straddling(a[c], a_next[c], down, up, mask)
                    y = _straddling(b[c], b_next[c], down, up, mask)
                    z = lesser(np.uint64(x + y), q)
                    a[c] = np.uint64(carry[c] | np.uint64(z << down))
                    carry[c] = np.uint64(z >> up)


@njit
def below(data, bits, q):
    """Return whether all residues are below q; words of whole blocks."""
    wide()
    mask = np.uint64(np.uint64(_ONE << np.uint64(bits)) - _ONE)
    wrapped = np.int64(-1)  # a residue less q wraps: its top bit is set
    for at in range(0, data.size, bits * COLUMNS):
        words = data[at : at + bits * COLUMNS].reshape(bits, COLUMNS)
        for r in range(64):
            k, shift = (r * bits) // 64, (r * bits) % 64
            down, up = np.uint64(shift), np.uint64(64 - shift)
            word, following = words[k], words[min(k + 1, bits - 1)]
            if shift + bits < 64:
                for c in range(COLUMNS):
                    x = np.uint64(np.uint64(word[c] >> down) & mask)
                    wrapped &= np.int64(np.uint64(x - q))
            else:
                for c in range(COLUMNS):
                    x = _straddling(word[c], following[c], down, up, mask)
                    wrapped &= np.int64(np.uint64(x - q))
    return wrapped < 0


@njit
def add_rest(total, part, count, bits, q):
    """Do what `add` does to a bit string of `count` residues; bytes."""
    mask = np.uint64(np.uint64(_ONE << np.uint64(bits)) - _ONE)
    ours, theirs, at = kernels.padded(total), kernels.padded(part), np.uint64(0)
    done, held, filled = np.uint64(0), np.uint64(0), np.uint64(0)
    for _ in range(count):
        x = np.uint64(kernels.bits_from(ours, at) & mask)
        y = np.uint64(kernels.bits_from(theirs, at) & mask)
        z = lesser(np.uint64(x + y), q)
        done, held, filled = kernels.append(z, bits, total, done, held, filled)
        at += np.uint64(bits)
    kernels.finish(total, done, held)


@njit
def rest_below(data, count, bits, q):
    """Do what `below` does for a bit string of `count` residues; bytes."""
    mask = np.uint64(np.uint64(_ONE << np.uint64(bits)) - _ONE)
    wrapped, at, held = np.int64(-1), np.uint64(0), kernels.padded(data)
    for _ in range(count):
        x = np.uint64(kernels.bits_from(held, at) & mask)
        wrapped &= np.int64(np.uint64(x - q))
        at += np.uint64(bits)
    return wrapped < 0


@njit
def words_below(words, q):
    """Return whether all 64-bit words are below q."""
    wide()
    most = np.uint64(0)
    for i in range(words.size):
        most = max(most, words[i])
    return most < q
