"""Powers modulo p^2 with one exponent: many at once, in lanes where the processor can.

Fixed windows of WINDOW bits, the same steps whatever the base. In lanes, a number is x + p y, so a
fault in y changes nothing modulo p, and Fermat, by which callers verify powers, does not show it.
Therefore powers are verified here: their product must be the power of the product of the bases,
which GMP raises by other means. One such power costs as much as eight in lanes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flhe.coding.pack import run_all
from flhe.errors import FaultError
from flhe.math import LANES
from flhe.math.bigint import Big, gmpy
from flhe.schemes.batchcrypt import lanes
from flhe.schemes.batchcrypt.lanes import Lanes

WINDOW = 5
FEW = 6
"""With fewer powers, the one that verifies them costs more than lanes save."""
GROUPS = 2
"""Groups of LANES that a task takes: its slots are used again."""
CHUNK = 16
"""Powers that one task of GMP's takes at most: short enough for threads to end together."""

_BASE, _ACC, _ONE = 1, 1 << WINDOW, (1 << WINDOW) + 1


def fault() -> FaultError:
    """What to raise for a result that failed its verification; the text has no number in it.

    Who sees what came out of one good half and one faulty half, modulo p and modulo q, knows a factor
    of n: its difference from the right result is a multiple of the good prime (Boneh, DeMillo, Lipton,
    "On the importance of checking cryptographic protocols for faults", EUROCRYPT 1997).
    """
    return FaultError(
        "arithmetic fault: a result under the secret key failed its verification and was withheld; "
        "an input that is no ciphertext, or this machine's memory or processor, is at fault"
    )


def fits(p: int, count: int) -> bool:
    """Whether `count` numbers modulo p^2 are computed in lanes."""
    return count >= FEW and p.bit_length() >= lanes.SHORTEST and lanes.available()


def powmod_all(bases: Sequence[Big], exponent: int, p: int, threads: int = 1) -> list[Big]:
    """base^exponent mod p^2 of each, in order, in [0, p^2).

    Raises FaultError: powers that were computed in lanes failed their verification: none is returned.
    Those of GMP are the caller's to verify.

    Bases are coprime to p, an odd prime; the exponent is at least 1. Threads let go of Python's lock
    but for conversions, some percent.
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
    """The program that raises slot _BASE to the exponent, at least 1, into slot _ACC.

    Slot 0 holds 1, slot _ONE what takes a number out of Montgomery's form. Slots 2 to 2^WINDOW - 1
    get the powers of the base that windows need.
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
