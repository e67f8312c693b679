"""Coefficients: against Python's integers, for all cohorts and widths; sums that nobody can send."""

from __future__ import annotations

import functools
import math
import random
from contextlib import nullcontext

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.coefficients import Coefficients, opens, slot_width
from flhe.errors import ConfigError, ProtocolError
from flhe.math.ring import Q, ntt_primes

MODULI = [
    (Q,),
    ntt_primes(4096, 52, 2),
    ntt_primes(8192, 63, 3),
    ntt_primes(8192, 52, 4)[::-1],
    ntt_primes(16384, 60, 7),
    ntt_primes(32768, 60, 8),
    (2**62 + 1, 1009, 2**63 - 25, 2**31 - 1, 7**20),
]
COHORTS = [2, 10, 16, 100, 1000]
DEVIATIONS = 8 * 4.53


@functools.cache
def most_slots(bound: int, cohort: int, moduli: tuple[int, ...]) -> int:
    per, q, width = 0, math.prod(moduli), slot_width(bound, cohort)
    while opens(q, (per + 1) * width, cohort):
        per += 1
    return per


def layout(bits: int, cohort: int, moduli: tuple[int, ...], per: int = 0) -> Coefficients:
    bound = (1 << (bits - 1)) - 1
    return Coefficients(bound, cohort, per or most_slots(bound, cohort, moduli), moduli)


def numbers(on: Coefficients, values: list[int], noise: list[int]) -> list[int]:
    """The law itself: p e + sum of (v_k + b) 2**(k width)."""
    out = []
    for j, e in enumerate(noise):
        part = values[j * on.per : (j + 1) * on.per]
        slots = sum((v + on.bound) << (on.width * k) for k, v in enumerate(part))
        out.append((e << on.log_p) + slots)
    return out


def residues(on: Coefficients, xs: list[int]) -> NDArray[np.uint64]:
    return np.array([[x % q for x in xs] for q in on.moduli], np.uint64)


# --- the law ---


@pytest.mark.parametrize("moduli", MODULI, ids=lambda m: f"{len(m)}x{m[0].bit_length()}")
@pytest.mark.parametrize("cohort", COHORTS)
@pytest.mark.parametrize("bits", [2, 16, 32])
def test_borders(bits: int, cohort: int, moduli: tuple[int, ...]) -> None:
    """All senders at +b or -b, and noise as large as it may be, either way."""
    on = layout(bits, cohort, moduli)
    length = 2 * on.per + 1
    count, most = on.count(length), on.noise_bound(cohort)
    for sign in (1, -1):
        one = numbers(on, [sign * on.bound] * length, [0] * count)
        for e in (most, -most, 0):
            total = [cohort * x + (e << on.log_p) for x in one]
            opened = on.lower(residues(on, total), length, cohort)
            assert opened.tolist() == [cohort * sign * on.bound] * length


# --- figures ---


def test_widths_and_bounds() -> None:
    """A slot is the narrowest that holds the sum."""
    for bits in range(2, 33, 5):
        for cohort in (2, 3, 17, 512, 1024):
            bound = (1 << (bits - 1)) - 1
            width = slot_width(bound, cohort)
            assert 1 << (width - 1) <= 2 * bound * cohort < 1 << width
            narrow = Coefficients(bound, cohort, 1, MODULI[2]).dtype == np.int32
            assert narrow == (cohort * bound < 2**31)
    on = layout(16, 1000, (Q,))
    assert [on.noise_bound(count) for count in (1, 2, 10, 100, 1000)] == [37, 52, 115, 363, 1147]
    for count in range(1, 1001):
        assert on.noise_bound(count) - 1 < DEVIATIONS * math.sqrt(count) <= on.noise_bound(count)


@pytest.mark.parametrize("cohort", [2, 3, 16, 999, 1000, 1024])
@pytest.mark.parametrize("log_p", [1, 20, 52, 200])
def test_the_condition_is_exact(cohort: int, log_p: int) -> None:
    """The least modulus that is enough, found by halving, is where the inequality turns."""
    p = 1 << log_p
    low, high = 4 * p, 4096 * p
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if opens(middle, log_p, cohort) else (middle, high)
    # q > 2 p (8 sigma sqrt(N) + 2), the root in integers: 8 sigma = 906 / 25
    for q, enough in ((high, True), (low, False)):
        assert (
            25 * (q - 4 * p) > 0 and (25 * (q - 4 * p)) ** 2 > (2 * p * 906) ** 2 * cohort
        ) == enough
    assert abs(high / p - 2 * (DEVIATIONS * math.sqrt(cohort) + 2)) < 1


# --- what no senders can add up to ---


@pytest.mark.parametrize("per", [0, 1, 2])
@pytest.mark.parametrize("moduli", MODULI, ids=lambda m: f"{len(m)}x{m[0].bit_length()}")
def test_sums_that_are_refused(moduli: tuple[int, ...], per: int) -> None:
    """In full coefficients, in those with room for noise of many words, and in pairs."""
    on = layout(8, 20, moduli, per)
    senders, length = 3, 3 * on.per
    count, most = on.count(length), on.noise_bound(senders)
    right = numbers(on, [0] * length, [0] * count)

    def lower(at: int, change: int, says: str = "", length: int = length) -> None:
        xs = list(right)
        xs[at] += change
        with pytest.raises(ProtocolError, match=says) if says else nullcontext():
            on.lower(residues(on, xs), length, senders)

    p, last = 1 << on.log_p, on.width * (on.per - 1)
    for e in (most, -most):
        lower(0, e * p)
    room = on.q // (2 * p)
    words = [e for e in (1 << 63, 1 << 64, 1 << 65, 1 << 128) if e < room]
    for e in (most + 1, -most - 1, 2 * most, room - 1, 2 - room, room // 3, *words):
        lower(1, e * p, f"noise beyond the {most} that 3 senders explain")
    most_in_slot = 2 * senders * on.bound - on.bound  # b is there already
    for k in {0, on.per - 1}:
        lower(2, most_in_slot << on.width * k)
        lower(2, (most_in_slot + 1) << on.width * k, "a slot beyond what 3 senders")
    if on.per > 1:
        lower(2, -on.bound << last, length=length - 1)
        for change in (0, 1 - on.bound << last):
            lower(2, change, "beyond the last value is not empty", length - 1)
    wrong = residues(on, [random.Random(j).randrange(on.q) for j in range(600)])
    with pytest.raises(ProtocolError, match="opened with another key, or altered"):
        on.lower(wrong, 600 * on.per, 20)
    for beyond in (0, -1, 21):
        with pytest.raises(ProtocolError, match="slots have room for 1 to 20"):
            on.lower(wrong, 600 * on.per, beyond)


# --- refusals ---


@pytest.mark.parametrize("moduli", [MODULI[0], MODULI[2]], ids=["one", "several"])
def test_arrays_that_are_refused(moduli: tuple[int, ...]) -> None:
    on = layout(8, 10, moduli, 2)
    values, noise = np.zeros(7, np.int32), np.zeros(4, np.int8)
    held = np.zeros((len(moduli), 4), np.uint64)
    on.lift(values, noise, held)
    for v, e, r in [
        *((wrong, noise, held) for wrong in (values.astype(np.uint32), values[None], values[:6])),
        (values, noise[:3], held),
        *((values, noise, wrong) for wrong in (held[:, :3], held.view(np.int64))),
        (values, noise, np.zeros((len(moduli), 8), np.uint64)[:, ::2]),
    ]:
        with pytest.raises(ConfigError, match="takes"):
            on.lift(v, e, r)
    for wrong, length in [(held, 5), (held, 9), (held.view(np.int64), 7), (held[0], 7)]:
        with pytest.raises(ConfigError, match="takes uint64"):
            on.lower(wrong, length, 1)
