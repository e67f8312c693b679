"""Field, ring and masks, a second time: knows the definition and nothing of the library.

Integers modulo Q, polynomials multiplied term by term, transforms by putting in the roots, one AES
block at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from fractions import Fraction
from itertools import count

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import ECB

Q = 2**64 - 2**32 + 1
P = 2**32


@functools.lru_cache(maxsize=8)
def aes(key: bytes) -> Callable[[bytes], bytes]:
    """AES-256 of one block."""
    return Cipher(AES256(key), ECB()).encryptor().update


def word(key: bytes, stream: int, number: int) -> int:
    """A 64-bit word of a stream's key stream."""
    data = aes(key)(stream.to_bytes(8, "big") + (number // 2).to_bytes(8, "big"))
    return int.from_bytes(data[number % 2 * 8 :][:8], "little")


def elements(key: bytes, j: int, n: int) -> list[int]:
    """Block j of n field elements."""
    spare = (word(key, 1 + j, number) for number in count())
    block = [word(key, 0, j * n + i) for i in range(n)]
    return [x if x < Q else next(y for y in spare if y < Q) for x in block]


def nearest(x: int) -> int:
    """x p / q, rounded; there are no ties, q is odd."""
    return round(Fraction(x * P, Q)) % P


def product(a: list[int], b: list[int]) -> list[int]:
    """Modulo x**n + 1, term by term."""
    n = len(a)
    out = [0] * n
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            out[(i + j) % n] += x * y if i + j < n else -x * y
    return [c % Q for c in out]


def at(polynomial: list[int], x: int) -> int:
    """Its value."""
    value = 0
    for c in reversed(polynomial):
        value = (value * x + c) % Q
    return value


def root(order: int) -> int:
    return pow(7, (Q - 1) // order, Q)


def reverse(i: int, bits: int) -> int:
    """Its bits, from the other end."""
    return int(f"{i:0{bits}b}"[::-1], 2)


def transform(x: list[int]) -> list[int]:
    """Values at the odd powers of a root of order 2 n, bit-reversed."""
    n = len(x)
    bits = n.bit_length() - 1
    return [at(x, pow(root(2 * n), 2 * reverse(i, bits) + 1, Q)) for i in range(n)]


def back(x_hat: list[int]) -> list[int]:
    """The polynomial with those values: Fourier's sum."""
    n = len(x_hat)
    bits = n.bit_length() - 1
    points = [pow(root(2 * n), 2 * reverse(i, bits) + 1, Q) for i in range(n)]
    values = list(zip(x_hat, points, strict=True))
    return [sum(v * pow(point, -d, Q) for v, point in values) * pow(n, -1, Q) % Q for d in range(n)]


def words(numbers: list[int]) -> list[str]:
    """Field elements as they stand in the file: hexadecimal."""
    return [f"{x:016x}" for x in numbers]
