"""Powers modulo p^2 with one exponent: many at once, in lanes if the processor supports them.

The windows have a fixed WINDOW bits, so the steps do not depend on the base. In lanes, a number is
x + p y. A fault in y changes nothing modulo p, so the callers' check by Fermat misses it. Powers
are therefore verified here: their product must equal the power of the product of the bases, which
GMP computes by other means. One such power costs as much as eight in lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flhe.errors import FaultError
from flhe.math import LANES
from flhe.math.bigint import Big, gmpy
from flhe.math.threads import run_all
from flhe.schemes.batchcrypt import lanes
from flhe.schemes.batchcrypt.lanes import Lanes

WINDOW = 5
FEW = 6
"""Below this count the verifying power costs more than lanes save."""
GROUPS = 2
"""Groups of LANES in one task, which reuses its slots."""
CHUNK = 16
"""Maximum number of powers in one of GMP's tasks: short enough for threads to end together."""

_BASE, _ACC, _ONE = 1, 1 << WINDOW, (1 << WINDOW) + 1


def fault() -> FaultError:
    """Return the error for a result that failed its verification; its text holds no number.

    A result with one correct and one faulty half, modulo p and q, reveals a factor of n. Its
    difference from the right result is a multiple of the correct half's prime (Boneh, DeMillo,
    Lipton, "On the importance of checking cryptographic protocols for faults", EUROCRYPT 1997).
    """
    return FaultError(
        "arithmetic fault: a result under the secret key failed its verification and was withheld; "
        "an input that is no ciphertext, or this machine's memory or processor, is at fault"
    )


def fits(p: int, count: int) -> bool:
    """Return whether `count` numbers modulo p^2 are computed in lanes."""
    return count >= FEW and p.bit_length() >= lanes.SHORTEST and lanes.available()


def powmod_all(bases: Sequence[Big], exponent: int, p: int, threads: int = 1) -> list[Big]:
    """Return base^exponent mod p^2 of each, in order, in [0, p^2).

    Raises FaultError and returns none if powers from lanes fail their verification. The caller
    verifies GMP's powers.

    Bases are coprime to p, an odd prime; the exponent is at least 1. Threads hold Python's lock
    only for conversions, a few percent of the time.
    """
    g = gmpy()
    p, exponent = g.mpz(p), g.mpz(exponent)
    square = p * p
    numbers = [g.mpz(base) % square for base in bases]
    if not fits(p, len(numbers)):
        size = min(CHUNK, -(-len(numbers) // max(1, threads)) or 1)
        tasks = [
            functools.partial(g.powmod_base_list, numbers[at : at + size], exponent, square)
            for at in range(0, len(numbers), size)
        ]
        return [power for part in run_all(tasks, threads) for power in part]
    return _in_lanes(numbers, exponent, p, threads)


def _in_lanes(numbers: list[Big], exponent: Big, p: Big, threads: int) -> list[Big]:
    g = gmpy()
    square = p * p
    shared, program = Lanes(p), steps(exponent)

    def power(at: int) -> list[Big]:
        slots = shared.slots(_ONE + 1)
        shared.put(slots[0], [g.mpz(1)] * LANES)
        shared.put_one(slots[_ONE])
        out: list[Big] = []
        for first in range(at, min(at + size, len(numbers)), LANES):
            group = numbers[first : first + LANES]
            shared.put(slots[_BASE], group)
            shared.run(program, slots)
            out += shared.get(slots[_ACC], len(group))
        return out

    groups = -(-len(numbers) // LANES)
    size = LANES * min(GROUPS, -(-groups // max(1, threads)))
    before = after = g.mpz(1)
    for number in numbers:
        before = before * number % square
    tasks = [functools.partial(power, at) for at in range(0, len(numbers), size)]
    check = functools.partial(g.powmod_base_list, [before], exponent, square)
    (expected,), *parts = run_all([check, *tasks], threads)
    powers = [done for part in parts for done in part]
    for done in powers:
        after = after * done % square
    # A product that is 0 modulo p would verify nothing.
    if not after % p or after != expected:
        raise fault()
    return powers


def steps(exponent: int) -> NDArray[np.int64]:
    """Return the program that raises slot _BASE to the exponent, at least 1, into slot _ACC.

    Slot 0 holds 1, slot _ONE the factor that takes a number out of Montgomery's form. Slots 2 to
    2^WINDOW - 1 get the powers of the base that windows need.
    """
    rows = [(d, d // 2, d // 2) if d % 2 == 0 else (d, d - 1, _BASE) for d in range(2, _ACC)]
    windows = -(-exponent.bit_length() // WINDOW)
    digits = [int(exponent >> (WINDOW * i)) % _ACC for i in range(windows)]
    rows.append((_ACC, 0, digits.pop()))
    while digits:
        rows += [(_ACC, _ACC, _ACC)] * WINDOW
        rows.append((_ACC, _ACC, digits.pop()))
    rows.append((_ACC, _ACC, _ONE))
    return np.array(rows, np.int64)
