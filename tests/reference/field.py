"""Rings of polynomials, a second time: Python's integers, values by even and odd halves.

A polynomial modulo x**n + 1 is drawn as its values at the odd powers of a root.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import gmpy2

from tests.reference.wire import little, little_read, word

Q = 2**64 - 2**32 + 1
P = 2**32


def nearest(x: int) -> int:
    """x p / q to the nearest whole number, modulo p; there are no ties, q is odd."""
    return (2 * x * P + Q) // (2 * Q) % P


# --- what is drawn ---


def drawn_again(key: bytes, j: int, n: int, q: int) -> list[int]:
    """Places of block j whose first word is no use."""
    return [i for i in range(n) if word(key, 0, j * n + i) % 2 ** (q - 1).bit_length() >= q]


@functools.lru_cache(maxsize=64)
def elements(key: bytes, j: int, n: int, q: int = Q) -> list[int]:
    """Block j of n residues: words cut to the bits of q; those that are too large drawn again."""
    size = 2 ** (q - 1).bit_length()
    again = (word(key, 1 + j, number) % size for number in itertools.count())
    first = [word(key, 0, j * n + i) % size for i in range(n)]
    return [x if x < q else next(y for y in again if y < q) for x in first]


def from_source(random: Callable[[int], bytes], count: int) -> list[int]:
    """Elements of eight bytes each; those that are no use are drawn again after all others."""
    out, todo = [0] * count, list(range(count))
    while todo:
        data = random(8 * len(todo))
        for i, place in enumerate(todo):
            out[place] = int.from_bytes(data[8 * i : 8 * i + 8], "little")
        todo = [place for place in todo if out[place] >= Q]
    return out


# --- polynomials and their values ---


@functools.cache
def primes(n: int, bits: int, count: int) -> list[int]:
    """The largest below 2**bits that are 1 modulo 2 n."""
    candidates = (2 * n * k + 1 for k in range((2**bits - 2) // (2 * n), 0, -1))
    return list(itertools.islice(filter(gmpy2.is_prime, candidates), count))


def root_of(order: int) -> int:
    """Of a power of two, modulo Q."""
    return pow(7, (Q - 1) // order, Q)


@functools.cache
def root(n: int, q: int = Q) -> int:
    """Of order 2 n: a power of the first number that has one. For Q that number is 7."""
    found = (pow(g, (q - 1) // (2 * n), q) for g in itertools.count(2))
    return next(w for w in found if pow(w, n, q) == q - 1)


@functools.cache
def least_root(n: int, q: int) -> int:
    """SEAL's psi: the least of order 2 n."""
    return min(odd_powers(root(n, q), q, n))


@functools.cache
def odd_powers(w: int, q: int, count: int) -> list[int]:
    return list(itertools.accumulate([w] + [w * w % q] * (count - 1), lambda x, y: x * y % q))


def at(polynomial: list[int], x: int, q: int = Q) -> int:
    """Its value."""
    return functools.reduce(lambda value, c: (value * x + c) % q, reversed(polynomial), 0)


def values_of(f: list[int], w: int, q: int) -> list[int]:
    """f(w), f(w**3), f(w**5), ...: f(x) is even(x * x) + x odd(x * x)."""
    if len(f) == 1:
        return f
    even, odd = (values_of(half, w * w % q, q) for half in (f[::2], f[1::2]))
    turned = [x * t for x, t in zip(odd, odd_powers(w, q, len(odd)), strict=True)]
    pairs = list(zip(even, turned, strict=True))
    return [(x + y) % q for x, y in pairs] + [(x - y) % q for x, y in pairs]


def _many_times(values: list[int], back: int, q: int) -> list[int]:
    """len(values) times the polynomial that has these values; `back` is 1 / w."""
    if len(values) == 1:
        return values
    half = len(values) // 2
    pairs = list(zip(values[:half], values[half:], strict=True))
    even = _many_times([(x + y) % q for x, y in pairs], back * back % q, q)
    turns = odd_powers(back, q, half)
    turned = [(x - y) * t % q for (x, y), t in zip(pairs, turns, strict=True)]
    odd = _many_times(turned, back * back % q, q)
    return [x for pair in zip(even, odd, strict=True) for x in pair]


def polynomial_of(values: list[int], w: int, q: int) -> list[int]:
    """The polynomial with `values_of` it."""
    scale = pow(len(values), -1, q)
    return [x * scale % q for x in _many_times(values, pow(w, -1, q), q)]


def ordered(values: list[int]) -> list[int]:
    """Place i holds the value at w**(2 r + 1), r being i with its bits reversed: by r."""
    bits = len(values).bit_length() - 1
    return [values[int(f"{r:0{bits}b}"[::-1] or "0", 2)] for r in range(len(values))]


@functools.lru_cache(maxsize=32)
def uniform(key: bytes, j: int, n: int, q: int = Q) -> list[int]:
    """a of block j, which is drawn as its values: its coefficients."""
    return polynomial_of(ordered(elements(key, j, n, q)), root(n, q), q)


def product(a: list[int], b: list[int], q: int) -> list[int]:
    """a b modulo x**n + 1 and q, of coefficients from 0 to q - 1: Kronecker's substitution."""
    n, nbytes = len(a), (2 * q.bit_length() + len(a).bit_length() + 7) // 8

    def joined(f: list[int]) -> int:
        return int.from_bytes(little(f, nbytes), "little")

    whole = int(gmpy2.mpz(joined(a)) * joined(b))
    c = little_read(whole.to_bytes(2 * n * nbytes, "little"), nbytes)
    return [(c[d] - c[d + n]) % q for d in range(n)]
