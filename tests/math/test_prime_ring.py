"""Rings over primes: against Python's integers, whole products by way of one long integer."""

from __future__ import annotations

import functools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.math import prime_kernels, prime_ring
from flhe.math.prime_ring import PrimeRing, is_prime, ntt_primes, root
from flhe.math.ring import Q, Ring
from flhe.math.ring_arrays import quotient
from tests.reference.field import at
from tests.reference.field import product as by_definition

TOY = PrimeRing(4, 1009)
WIDE = 144
"""Bits that hold a sum of 32768 products of 64-bit numbers."""

PRESETS = [(8192, 63, 3), (8192, 52, 4), (16384, 60, 7), (32768, 60, 8)]
"""Dimension, bits of a limb, limbs."""


def array(numbers: list[int]) -> NDArray[np.uint64]:
    return np.array(numbers, np.uint64)


def integers(n: int, limit: int, seed: int) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(limit) for _ in range(n)]


def product(a: list[int], b: list[int]) -> list[int]:
    """Over the integers modulo x**n + 1: put in x = 2**WIDE, multiply once, take them out again."""
    n = len(a)

    def packed(x: list[int]) -> int:
        return int.from_bytes(b"".join(c.to_bytes(WIDE // 8, "little") for c in x), "little")

    whole = (packed(a) * packed(b)).to_bytes(2 * n * WIDE // 8, "little")
    parts = [whole[i : i + WIDE // 8] for i in range(0, len(whole), WIDE // 8)]
    full = [int.from_bytes(part, "little") for part in parts]
    return [low - high for low, high in zip(full[:n], full[n:], strict=True)]


@functools.cache
def ring(n: int, bits: int) -> PrimeRing:
    return PrimeRing(n, ntt_primes(n, bits, 1)[0])


# --- primes and roots ---


def test_primes_are_the_largest_and_all_of_them() -> None:
    for n, bits in [(2, 8), (4, 10), (64, 14), (256, 20)]:
        candidates = range(2 * n + 1, 1 << bits, 2 * n)
        below = [q for q in candidates if all(q % d for d in range(2, math.isqrt(q) + 1))]
        assert ntt_primes(n, bits, len(below)) == tuple(below[::-1])
        with pytest.raises(ConfigError, match="take more bits"):
            ntt_primes(n, bits, len(below) + 1)


def test_primality_where_it_is_hard() -> None:
    sieve = [n for n in range(2, 3000) if all(n % d for d in range(2, math.isqrt(n) + 1))]
    assert [n for n in range(-3, 3000) if is_prime(n)] == sieve
    # Strong pseudoprimes to the first 4, 8 and 9 prime bases; Carmichael; squares and products.
    for composite in (3215031751, 341550071728321, 3825123056546413051):
        assert not is_prime(composite)
    for composite in (561, 1000003**2, 4294967291 * 4294967279):
        assert not is_prime(composite)
    for prime in (Q, 2**61 - 1, 2**63 - 25, 2**64 - 59):
        assert is_prime(prime)


def test_roots_are_primitive_and_the_first() -> None:
    assert root(1009, 1) == 1
    assert root(1009, 2) == 1008
    assert root(1009, 8) == next(
        w for g in range(2, 1009) if pow(w := pow(g, 126, 1009), 4, 1009) == 1008
    )
    for q, order in ((1009, 32), (1009, 3), (1009, 0), (1009, -2)):
        with pytest.raises(ConfigError, match="a power of two that divides"):
            root(q, order)
    with pytest.raises(ConfigError, match="q must be prime"):
        root(21, 4)


# --- arithmetic ---


@st.composite
def factors(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """A modulus, a canonical factor, and any 64-bit numbers."""
    q = draw(st.sampled_from([3, 5, 1009, 2**31 - 1, 2**62 + 1, 2**63 - 25, 2**63 - 1]))
    w = draw(st.one_of(st.sampled_from([0, 1, q - 1, q // 2]), st.integers(0, q - 1)))
    edges = st.sampled_from([0, 1, q - 1, q, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
    return (
        q,
        w,
        draw(st.lists(st.one_of(edges, st.integers(0, 2**64 - 1)), min_size=1, max_size=40)),
    )


@settings(deadline=None, max_examples=80)
@given(factors())
def test_kernels_are_those_of_integers(case: tuple[int, int, list[int]]) -> None:
    q, w, xs = case
    x, modulus = array(xs), np.uint64(q)
    out = np.empty_like(x)
    prime_kernels.scaled(x, np.uint64(w), quotient(w, q), modulus, out)
    assert out.tolist() == [v * w % q for v in xs]
    y = array([v % q for v in xs])
    prime_kernels.add(y, y[::-1].copy(), modulus, out)
    assert out.tolist() == [(a + b) % q for a, b in zip(xs, xs[::-1], strict=True)]
    prime_kernels.subtract(y, y[::-1].copy(), modulus, out)
    assert out.tolist() == [(a - b) % q for a, b in zip(xs, xs[::-1], strict=True)]
    unit = 2**64 % q
    inverse = np.uint64(pow(q, -1, 2**64))
    prime_kernels.quotients(y, modulus, np.uint64(unit), quotient(unit, q), inverse, out)
    assert out.tolist() == [v * 2**64 // q for v in y.tolist()]


@pytest.mark.parametrize("on", [TOY, ring(64, 63), Ring(64)], ids=str)
def test_sums_and_differences_of_any_shape(on: PrimeRing | Ring) -> None:
    x, y = (array([0, on.q - 1, *integers(118, on.q, s)]).reshape(3, 40) for s in (1, 2))
    pairs = list(zip(x.ravel().tolist(), y.ravel().tolist(), strict=True))
    assert on.add(x, y).ravel().tolist() == [(a + b) % on.q for a, b in pairs]
    assert on.subtract(x, y).ravel().tolist() == [(a - b) % on.q for a, b in pairs]
    assert np.array_equal(on.add(x.T, y.T), on.add(x, y).T)
    total = x.copy()
    on.add_into(total, y)
    assert np.array_equal(total, on.add(x, y))
    on.subtract_into(total, x)
    assert np.array_equal(total, y)
    for wrong in (y[:2], y.astype(np.int64), y.ravel()):
        for step in (on.add, on.subtract, on.add_into, on.subtract_into):
            with pytest.raises(ConfigError, match="one shape"):
                step(x, wrong)
    total.flags.writeable = False
    for wrong in (x.T, total):
        with pytest.raises(ConfigError, match="one piece"):
            on.add_into(wrong, wrong.copy())


# --- products ---


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([(2, 3), (2, 63), (4, 10), (8, 63), (64, 40)]),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_products_are_schoolbook(size: tuple[int, int], seed: int, extreme: bool) -> None:
    on = ring(*size)
    a = [on.q - 1] * on.n if extreme else integers(on.n, on.q, seed)
    s = integers(on.n, on.q, seed + 1)
    expected = by_definition(a, s, on.q)
    assert on.multiply(array(a), array(s)).tolist() == expected
    rows = array([a, s, a])
    made = on.products(on.forward(array(s)), on.forward(rows))
    assert made[0].tolist() == made[2].tolist() == expected
    assert made[1].tolist() == by_definition(s, s, on.q)


@pytest.mark.parametrize(("n", "bits", "count"), PRESETS)
def test_products_in_the_rings_of_presets(n: int, bits: int, count: int) -> None:
    """One product over the integers, reduced by each prime, against the transforms."""
    primes = ntt_primes(n, bits, count)
    a, s = integers(n, min(primes), 1), integers(n, min(primes), 2)
    expected = product(a, s)
    for q in primes:
        on = PrimeRing(n, q)
        out = np.empty((1, n), np.uint64)
        assert on.products(on.forward(array(s)), on.forward(array(a))[None], out) is out
        assert out[0].tolist() == [c % q for c in expected]


@pytest.mark.parametrize(("n", "bits"), [(128, 63), (256, 63), (8192, 63), (32768, 63)])
def test_extremes(n: int, bits: int) -> None:
    """(q - 1)**2 (1 + x + ...)**2 has coefficients 2 d + 2 - n; and monomials turn around."""
    on = ring(n, bits)
    most = np.full(n, on.q - 1, np.uint64)
    assert on.multiply(most, most).tolist() == [(2 * d + 2 - n) % on.q for d in range(n)]
    shift = np.zeros(n, np.uint64)
    shift[n - 1] = 1
    a = array(integers(n, on.q, 3))
    assert on.multiply(a, shift).tolist() == [*(on.q - a[1:]).tolist(), int(a[0])]


@pytest.mark.parametrize("n", [2, 16, 512, 4096])
def test_there_and_back(n: int) -> None:
    on = ring(n, 63)
    x = array(integers(3 * n, on.q, 5)).reshape(3, 1, n)
    x[1] = on.q - 1
    before = x.copy()
    assert np.array_equal(on.inverse(on.forward(x)), x)
    assert np.array_equal(on.forward(on.inverse(x)), x)
    assert np.array_equal(x, before)
    assert np.array_equal(on.inverse(x[::-2])[0], on.inverse(x[2]))


@pytest.mark.parametrize("n", [4, 64, 1024])
def test_a_transform_is_the_values_at_odd_powers(n: int) -> None:
    on, bits = ring(n, 50), n.bit_length() - 1
    x = integers(n, on.q, 6)
    x_hat = on.forward(array(x)).tolist()
    for i in {*range(8), n // 2, n - 1} & set(range(n)):
        point = pow(root(on.q, 2 * n), 2 * int(f"{i:0{bits}b}"[::-1], 2) + 1, on.q)
        assert x_hat[i] == at(x, point, on.q)


# --- refusals ---


@pytest.mark.parametrize(
    ("n", "q"),
    [
        (1, 5), (3, 7), (0, 5), (-4, 1009), (1 << 16, 2**61 - 1), (4, 1011), (4, 1013), (4, 1017),
        (4, 17 * 41), (2, 2), (2, 1), (2, 0), (4, Q), (64, 2**63 + 129),
    ],
)  # fmt: skip
def test_rings_that_are_refused(n: int, q: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        PrimeRing(n, q)


@pytest.mark.parametrize("wrong", [(3, 40, 1), (4, 64, 1), (4, 0, 1), (4, 20, 0), (1 << 16, 40, 1)])
def test_primes_that_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError):
        ntt_primes(*wrong)


@pytest.mark.parametrize("on", [PrimeRing(8, 17), Ring(8)], ids=str)
def test_arrays_that_are_refused(on: PrimeRing | Ring) -> None:
    x = array([1] * 8)
    rows = x.reshape(1, 8)
    for wrong in (x[:4], x.astype(np.int64), array([1] * 16)):
        for step in (on.forward, on.inverse):
            with pytest.raises(ConfigError):
                step(wrong)
        with pytest.raises(ConfigError):
            on.products(wrong, rows)
        with pytest.raises(ConfigError):
            on.products(x, wrong.reshape(1, -1))
    for out in (np.empty((2, 8), np.uint64), np.empty((1, 8), np.uint32)):
        with pytest.raises(ConfigError):
            on.products(x, rows, out)
    for wrong_s, wrong_a in ((x, x), (rows, rows)):
        with pytest.raises(ConfigError):
            on.products(wrong_s, wrong_a)


def test_a_ring_says_what_it_is() -> None:
    assert repr(TOY) == "PrimeRing(n=4, q=1009)"
    assert PrimeRing(4, 1009) == TOY
    assert prime_ring.MAX_DIMENSION == 32768
