"""Powers modulo p^2, in lanes and by GMP: exact, verified, and in order."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from typing import Any

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.errors import FaultError
from flhe.math import LANES
from flhe.schemes.batchcrypt import lanes, powers
from flhe.schemes.batchcrypt.lanes import Lanes
from flhe.schemes.batchcrypt.powers import powmod_all, steps
from tests.patience import PATIENCE_S

needs_lanes = pytest.mark.skipif(not lanes.available(), reason="no AVX-512 IFMA")


def next_prime(number: int) -> int:
    return int(gmpy2.next_prime(number))


MODULI = {
    "3": 3,
    "293": 293,
    "limbs of ones, one block": 2**127 - 1,
    "the longest in one block": next_prime(2**514 - 10_000),
    "the shortest in two": 2**521 - 1,
    "limbs of zeros": next_prime(2**1023),
    "limbs of ones, two blocks": next_prime(2**1024 - 10_000),
    "limbs of ones, three": 2**1279 - 1,
    "of 3072 bits": next_prime(secrets.randbits(1536) | 3 << 1534),
    "limbs of ones, five": 2**2203 - 1,
}
EACH_PRIME = pytest.mark.parametrize("p", MODULI.values(), ids=MODULI)


def halves_of(slot: Any, limbs: int) -> list[tuple[int, int]]:
    """x and y of each lane, by the definition."""
    words = slot.reshape(2, limbs, LANES).tolist()
    return [
        tuple(sum(half[k][lane] << 52 * k for k in range(limbs)) for half in words)  # type: ignore[misc]
        for lane in range(LANES)
    ]


def write(slot: Any, numbers: list[tuple[int, int]], limbs: int) -> None:
    out = slot.reshape(2, limbs, LANES)
    for lane, number in enumerate(numbers):
        for half in (0, 1):
            for k in range(limbs):
                out[half, k, lane] = number[half] >> 52 * k & (1 << 52) - 1


@needs_lanes
@EACH_PRIME
def test_products_are_exact_for_all_that_it_may_hold(p: int) -> None:
    """x and y below 2 p, the bounds among them; and what comes out is below 2 p again, limb by limb."""
    arithmetic = Lanes(p)
    limbs = arithmetic.limbs
    inverse = pow(1 << 52 * limbs, -1, p * p)
    slots = arithmetic.slots(4)
    program = np.array([(3, 1, 2), (0, 1, 1), (2, 2, 1), (1, 1, 1)], np.int64)
    bounds = [0, 1, p - 1, p, p + 1, 2 * p - 1, (1 << p.bit_length()) - 1 & ~1]
    for trial in range(40):

        def pick(trial: int = trial) -> int:
            if secrets.randbelow(3) or trial == 0:
                return min(secrets.choice(bounds), 2 * p - 1)
            return secrets.randbelow(2 * p)

        a = [(pick(), pick()) for _ in range(LANES)]
        b = [(pick(), pick()) for _ in range(LANES)]
        a[0] = b[0] = (2 * p - 1, 2 * p - 1)
        write(slots[1], a, limbs)
        write(slots[2], b, limbs)
        arithmetic.run(program, slots)
        assert int(slots.max()) < 1 << 52
        value = [[x + p * y for x, y in side] for side in (a, b)]
        both = [x * y * inverse % p**2 for x, y in zip(*value, strict=True)]
        square = [x * x * inverse % p**2 for x in value[0]]
        for slot, expected in ((3, both), (2, both), (0, square), (1, square)):
            got = halves_of(slots[slot], limbs)
            assert [(x + p * y) % p**2 for x, y in got] == expected
            assert all(0 <= half < 2 * p for number in got for half in number)


def interpreted(program: list[list[int]], base: int, modulus: int) -> int:
    """A program, on plain numbers: what leaves Montgomery's form multiplies by 1."""
    slots = {0: 1, 1: base, powers._ONE: 1}
    for to, a, b in program:
        slots[to] = slots[a] * slots[b] % modulus
    return slots[powers._ACC]


@settings(deadline=None)
@given(st.integers(1, 2**70) | st.integers(1, 70) | st.integers(1, 200).map(lambda k: 2**k - 1))
def test_the_program_is_a_power(exponent: int) -> None:
    program = steps(gmpy2.mpz(exponent)).tolist()
    assert interpreted(program, 3, 10**9 + 7) == pow(3, exponent, 10**9 + 7)
    table = 2**powers.WINDOW - 2
    bits = exponent.bit_length()
    assert len(program) <= table + bits + bits // powers.WINDOW + powers.WINDOW + 3


@pytest.fixture(params=["gmp", pytest.param("lanes", marks=needs_lanes)])
def by_lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    chosen = bool(request.param == "lanes")
    monkeypatch.setattr(lanes, "available", lambda: chosen)
    monkeypatch.setattr(lanes, "SHORTEST", 2)
    monkeypatch.setattr(powers, "FEW", 1)
    return chosen


def coprime(p: int) -> int:
    while True:
        number = secrets.randbelow(p * p)
        if number % p:
            return number


@EACH_PRIME
@pytest.mark.usefixtures("by_lanes")
def test_powers_are_those_of_python(p: int) -> None:
    bases = [1, p * p - 1, p + 1, p - 1, p * p - p + 1, *(coprime(p) for _ in range(5))]
    for exponent in (1, 33, p - 1):
        assert powmod_all(bases, exponent, p) == [pow(c, exponent, p * p) for c in bases]


@pytest.mark.usefixtures("by_lanes")
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 33, 100])
def test_order_and_threads(count: int, threads: int) -> None:
    p = MODULI["the shortest in two"]
    bases = [i + 2 for i in range(count)]
    expected = [pow(c, 10**9, p * p) for c in bases]
    assert powmod_all(bases, 10**9, p, threads) == expected


def test_which_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    long = MODULI["of 3072 bits"]
    asked = ((long, powers.FEW), (long, powers.FEW - 1), (2**127 - 1, 1000))
    for there, taken in ((True, [True, False, False]), (False, [False] * 3)):
        monkeypatch.setattr(lanes, "available", lambda there=there: there)
        assert [powers.fits(*one) for one in asked] == taken


@pytest.mark.parametrize(
    "setting", ["NUMBA_CPU_NAME=generic", "NUMBA_ENABLE_AVX=0", "NUMBA_DISABLE_JIT=1"]
)
def test_what_keeps_numba_from_it_is_respected(setting: str) -> None:
    """LLVM ends the process where it is to use instructions that it was told not to."""
    name, value = setting.split("=")
    code = (
        "from flhe.schemes.batchcrypt.powers import powmod_all\n"
        "from flhe.schemes.batchcrypt.lanes import available\n"
        "p = 2**521 - 1\n"
        "assert powmod_all(range(2, 40), 10**9, p) == [pow(x, 10**9, p * p) for x in range(2, 40)]\n"
        "assert not available()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, name: value},
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0


@needs_lanes
@pytest.mark.parametrize("half", [0, 1])
def test_a_fault_in_one_lane_is_noticed(half: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One in y, too, which no number modulo p shows."""
    p = next_prime(secrets.randbits(300) | 1 << 299)
    bases = [coprime(p) for _ in range(20)]
    run = Lanes.run
    for trial in range(100):
        calls = 0

        def faulty(self: Any, program: Any, slots: Any, trial: int = trial) -> None:
            nonlocal calls
            run(self, program, slots)
            if calls == trial % 2:
                slots[powers._ACC, half, trial % 48] ^= 1 << trial % 35
            calls += 1

        monkeypatch.setattr(Lanes, "run", faulty)
        with pytest.raises(FaultError):
            powmod_all(bases, p - 1, p)
        assert calls == 3


@needs_lanes
def test_a_multiple_of_p_hides_no_fault() -> None:
    p = next_prime(2**300)
    with pytest.raises(FaultError):
        powmod_all([*range(2, 20), 5 * p], p - 1, p)
