"""Integers of thousands of bits: GMP, by gmpy2, loaded on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.packages import absent

Big = Any
"""An mpz; gmpy2 has no types that a checker could read without loading it."""


def gmpy() -> Any:
    """Return gmpy2; ConfigError with the install command if missing."""
    try:
        import gmpy2
    except ImportError:
        raise absent("gmpy2") from None
    return gmpy2


def to_rows(numbers: Iterable[Big], width: int, count: int) -> NDArray[np.uint8]:
    """Write `count` numbers below 256**width, little-endian, shape (count, width)."""
    data = bytearray().join(number.to_bytes(width, "little") for number in numbers)
    return np.frombuffer(data, np.uint8).reshape(count, width)


def from_rows(rows: NDArray[np.uint8]) -> list[Big]:
    """Invert `to_rows`: rows of little-endian bytes, shape (count, width)."""
    read = gmpy().mpz.from_bytes
    width = rows.shape[1]
    data = rows.tobytes()
    return [read(data[at : at + width], "little") for at in range(0, len(data), width)]


def random_prime(bits: int, random: Callable[[int], bytes]) -> int:
    """Return a random prime of `bits` bits, its two highest bits set; drawn as Blum primes are."""
    while True:
        candidate = _drawn(bits, random) | 3 << (bits - 2) | 1
        if gmpy().is_prime(candidate, PRIME_TESTS):
            return candidate


def random_blum_prime(bits: int, random: Callable[[int], bytes], order: int = 1) -> int:
    """Return a random prime of `bits` bits that is 3 modulo 4, its two highest bits set.

    It is 1 modulo `order`, which is odd. Candidates are drawn afresh, never counted up from one: all
    such primes are equally likely.
    """
    is_prime = gmpy().is_prime
    least, step = 3 << (bits - 2), 2 * order
    spare = (1 << (bits - 2)) // step  # candidates: 1 + step k, k odd, from `least` on
    first = -(-least // step) | 1
    while True:
        k = first + 2 * (_drawn(spare.bit_length() + 64, random) % (spare // 2))
        candidate = 1 + step * k
        if is_prime(candidate, PRIME_TESTS):
            return candidate


def _drawn(bits: int, random: Callable[[int], bytes]) -> int:
    return int.from_bytes(random((bits + 7) // 8), "big") & ((1 << bits) - 1)


PRIME_TESTS = 40
"""Rounds of GMP's test: Baillie-PSW, of which no composite number is known to pass it, and 16 of
Miller-Rabin's."""
