"""Rings over primes and the Goldilocks field, against Python's integers."""

from __future__ import annotations

import functools
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe.errors import ConfigError, RangeError
from flhe.math import goldilocks_kernels, prime_kernels
from flhe.math import ring as field
from flhe.math.ring import PrimeRing, Q, is_prime, ntt_primes, quotient, quotients, root
from tests.reference.field import at
from tests.reference.field import product as by_definition
from tests.rings import multiply


def array(numbers: list[int]) -> NDArray[np.uint64]:
    return np.array(numbers, np.uint64)


def integers(n: int, limit: int, seed: int) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(limit) for _ in range(n)]


@functools.cache
def ring(n: int, bits: int) -> PrimeRing:
    return PrimeRing(n, ntt_primes(n, bits, 1)[0])


every_ring = pytest.mark.parametrize("on", [ring(8, 40), ring(64, 63), PrimeRing(64)], ids=str)

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
    strong = (3215031751, 341550071728321, 3825123056546413051)
    assert not any(map(is_prime, (*strong, 561, 1000003**2, 4294967291 * 4294967279)))
    assert all(map(is_prime, (Q, 2**61 - 1, 2**63 - 25, 2**64 - 59)))


def test_roots_are_primitive_and_the_first() -> None:
    for q, bits in ((1009, 4), (Q, 32)):
        for k in range(1, bits + 1):
            assert pow(root(q, 1 << k), 1 << (k - 1), q) == q - 1
    assert root(1009, 1) == root(Q, 1) == 1
    assert root(1009, 8) == next(
        w for g in range(2, 1009) if pow(w := pow(g, 126, 1009), 4, 1009) == 1008
    )


# --- arithmetic ---


@st.composite
def factors(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """A modulus, a canonical factor, and any 64-bit numbers."""
    q = draw(st.sampled_from([3, 5, 1009, 2**31 - 1, 2**62 + 1, 2**63 - 25, 2**63 - 1]))
    w = draw(st.sampled_from([0, 1, q - 1, q // 2]) | st.integers(0, q - 1))
    edges = st.sampled_from([0, 1, q - 1, q, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
    return q, w, draw(st.lists(edges | st.integers(0, 2**64 - 1), min_size=1, max_size=40))


@settings(deadline=None, max_examples=80)
@given(factors())
def test_kernels_are_those_of_integers(case: tuple[int, int, list[int]]) -> None:
    q, w, xs = case
    x, modulus = array(xs), np.uint64(q)
    out = np.empty_like(x)
    prime_kernels.scaled(x, np.uint64(w), quotient(w, q), modulus, out)
    assert out.tolist() == [v * w % q for v in xs]
    assert quotients(array([v % q for v in xs]), modulus).tolist() == [
        v % q * 2**64 // q for v in xs
    ]


@every_ring
def test_sums_and_differences_of_any_shape(on: PrimeRing) -> None:
    x, y = (array([0, on.q - 1, *integers(118, on.q, s)]).reshape(3, 40) for s in (1, 2))
    pairs = list(zip(x.ravel().tolist(), y.ravel().tolist(), strict=True))
    assert on.add(x, y).ravel().tolist() == [(a + b) % on.q for a, b in pairs]
    assert on.subtract(x, y).ravel().tolist() == [(a - b) % on.q for a, b in pairs]
    assert np.array_equal(on.add(x.T, y.T), on.add(x, y).T)
    total = x.copy()
    assert on.add(total, y, total) is total
    assert np.array_equal(total, on.add(x, y))
    assert np.array_equal(on.subtract(total, x, total), y)
    for wrong in (y[:2], y.astype(np.int64), y.ravel()):
        for step in (on.add, on.subtract):
            with pytest.raises(ConfigError, match="one shape"):
                step(x, wrong)
    total.flags.writeable = False
    for wrong in (x.T, total):
        with pytest.raises(ConfigError, match="contiguous"):
            on.add(wrong, wrong.copy(), wrong)


# --- products ---


@pytest.mark.parametrize(
    ("n", "bits"),
    [
        (2, 3),
        (2, 63),
        (4, 10),
        (64, 40),
        (1024, 63),
        *((n, 64) for n in (2, 4, 8, 16, 32, 256, 1024)),
    ],
)
def test_products_are_schoolbook(n: int, bits: int) -> None:
    """64 bits: the Goldilocks field."""
    on = PrimeRing(n) if bits == 64 else ring(n, bits)
    a, s, most = integers(n, on.q, 1), integers(n, on.q, 2), [on.q - 1] * n
    for x, y in ((a, s), (most, s), (most, most)):
        expected = by_definition(x, y, on.q)
        assert multiply(on, array(x), array(y)).tolist() == expected
        rows, out = array([x, y, x]), np.empty((3, n), np.uint64)
        assert on.products(on.forward(array(y)), on.forward(rows), out) is out
        assert out[0].tolist() == out[2].tolist() == expected
        assert out[1].tolist() == by_definition(y, y, on.q)


TOP, E = 1 << 63, (1 << 32) - 1
"""The bit that kernels of the Goldilocks field flip, and 2**64 modulo Q."""


def test_words_at_the_borders_of_the_goldilocks_field() -> None:
    """Random elements reach its corrections once in 2**32."""
    places = (0, E, E + 1, 1 << 48, Q // 2, TOP, Q - E, Q, (1 << 64) - 1)
    words = sorted({(place + by) % (1 << 64) for place in places for by in range(-2, 3)})

    def kernel(name: str, *given: int) -> int:
        return int(getattr(goldilocks_kernels, name)(*map(np.uint64, given)))

    for x in words:
        assert kernel("_turned", x, E) == (x << 48) % Q
        for y in (word for word in words if word < Q):
            assert kernel("_mul", x, y, E) == x * y % Q
            assert (kernel("_plus", x ^ TOP, y) ^ TOP) % Q == (x + y) % Q
            assert (kernel("_minus", x ^ TOP, y) ^ TOP) % Q == (x - y) % Q
            if x < Q:
                assert kernel("_sum", x, y) == (x + y) % Q
            for top in (0, 1, E):
                more = y & E
                whole = x + (more << 64) + (top << 96)
                assert kernel("_reduced", x, more, top, E) == whole % Q


@pytest.mark.parametrize(
    "on", [ring(128, 63), ring(32768, 63), ring(8192, 52), PrimeRing(8192)], ids=str
)
def test_extremes(on: PrimeRing) -> None:
    """(q - 1)**2 (1 + x + ...)**2 has coefficients 2 d + 2 - n; and monomials turn around."""
    n = on.n
    most = np.full(n, on.q - 1, np.uint64)
    assert multiply(on, most, most).tolist() == [(2 * d + 2 - n) % on.q for d in range(n)]
    shift = np.zeros(n, np.uint64)
    shift[n - 1] = 1
    a = array(integers(n, on.q, 3))
    assert multiply(on, a, shift).tolist() == [*(on.q - a[1:]).tolist(), int(a[0])]


# --- refusals ---


@pytest.mark.parametrize(
    ("n", "q"),
    [
        (1, 5), (3, 7), (0, 5), (-4, 1009), (1 << 16, 2**61 - 1), (4, 1011), (4, 1013), (4, 1017),
        (4, 17 * 41), (2, 2), (2, 1), (2, 0), (64, 2**63 + 129),
    ],
)  # fmt: skip
def test_rings_that_are_refused(n: int, q: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        PrimeRing(n, q)


@every_ring
def test_arrays_that_are_refused(on: PrimeRing) -> None:
    x = array([1] * on.n)
    rows = x[None]
    for wrong in (x[:4], x.astype(np.int64), array([1] * 2 * on.n)):
        for step in (on.forward, lambda w: on.products(w, rows)):
            with pytest.raises(ConfigError, match="takes uint64"):
                step(wrong)
    for rounded, right, wrong_type in ((False, np.uint64, np.uint32), (True, np.uint32, np.uint64)):
        says = "only the Goldilocks" if rounded and on.q != Q else "takes uint64"
        outs = (np.empty((2, on.n), right), np.empty((1, on.n), wrong_type))
        wrongs = *((x, rows, out) for out in outs), (x, x), (rows, rows), (x, rows[:, :4])
        for args in wrongs:
            with pytest.raises(ConfigError, match=says):
                on.products(*args, rounded=rounded)


# --- the Goldilocks field ---


# --- transforms ---


@pytest.mark.parametrize("n", [1, 2, 4, 8, 128, 1024, 2**16])
def test_evaluate_is_in_natural_order(n: int) -> None:
    x = integers(2 * n, Q, 7)
    values = field.evaluate(array(x).reshape(2, n))
    w = root(Q, n)
    for row, made in zip((x[:n], x[n:]), values.tolist(), strict=True):
        for i in {0, 1, 2, 3, n // 2, n - 1} & set(range(n)):
            assert made[i] == at(row, pow(w, i, Q))


def test_field_arrays_that_are_refused() -> None:
    with pytest.raises(ConfigError, match="must be a power of two up to"):
        field.evaluate(np.zeros(1 << 17, np.uint64))
    with pytest.raises(RangeError, match="are uint64"):
        field.check(np.ones(8, np.int64))
