"""Random n-th residues, which hide a Paillier plaintext, computed with p and q.

    u = h^(n a) mod n^2,   a uniform, of ceil(|n| / 2) bits    (DJN 2010, Sec. 4.2)

is computed modulo p^2 and modulo q^2, over tables of powers, and joined (CRT). In the subgroup variant
the base is h_s (`flhe.schemes.batchcrypt.keys`), of the orders a_p modulo p^2 and a_q modulo q^2, and a
is uniform below a_p a_q: it is drawn with SURPLUS bits more, and taken modulo each order.

For every window i of w bits of an exponent and every digit d, the table has base^(d 2^(w i)): a
power is one product over the windows (Brickell, Gordon, McCurley, Wilson, 1992). There are two
tables:

- `GmpTable` keeps an entry as alpha (1 + p s), alpha the entry modulo p and s modulo p. Since
  (1 + p s)(1 + p t) is 1 + p (s + t) modulo p^2,

      product of entries = (product of alphas) (1 + p sum of s)   mod p^2:

  the running product, as long as p^2, meets numbers of half its length, and the s are only added.
- `LaneTable` makes eight products at once (`flhe.schemes.batchcrypt.power_kernels`), each lane with
  its own entries.

The entry that is read depends on the exponent, which is secret: run nothing on the machine that
could time its caches.

All results are verified; `fault` gives the reason. The joined residues u_j of one `draw` are
multiplied together, modulo p^2 and modulo q^2. The product must equal the power of the base for the
sum of the a_j, computed anew without a table. This detects every fault, in a table too, that does not
cancel in the product. The order of the base is checked too, by Fermat if it is p - 1.

Source: Damgård, Jurik, Nielsen, "A generalization of Paillier's public-key system with applications
to electronic voting" (2010).
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flhe.math import LANES
from flhe.math.bigint import Big, gmpy, to_rows
from flhe.math.prg import drawn
from flhe.math.threads import run_all
from flhe.schemes.batchcrypt import lanes
from flhe.schemes.batchcrypt.crt import Join
from flhe.schemes.batchcrypt.lanes import Lanes
from flhe.schemes.batchcrypt.powers import fault
from flhe.wire.secret import Random

MAX_TABLE_BYTES = 1 << 25
"""Maximum size of the table of one prime, 32 MiB."""
MAX_WINDOW = 12
SURPLUS = 128
"""Bits drawn beyond those of a_p a_q: exponents are uniform but for odds of 2^-128."""

_OBJECT = 40
"""Bytes of an mpz and its place in a list, without its digits."""
_GMP_COSTS, _LANE_COSTS = (4.0, 2.0), (1.2, 6.0)
"""Measured time of making an entry, and of a bit of GMP's power, in steps of a product."""

Digits = NDArray[np.uint8]
"""Exponents, little-endian bytes, shape (count, bytes)."""


def window(p: int, bits: int, count: int, in_lanes: bool) -> int:
    """Return the window, in bits, with which `count` powers cost least; 0: a table would not pay.

    Exponents have `bits` bits; `in_lanes` selects the table.
    """
    if in_lanes:
        build, power = _LANE_COSTS
        if count < LANES:
            return 0
        entry = 16 * Lanes(p).limbs
    else:
        build, power = _GMP_COSTS
        entry = 2 * ((p.bit_length() + 7) // 8 + _OBJECT)
    costs = {0: power * bits * count}
    for w in range(1, MAX_WINDOW + 1):
        windows = -(-bits // w)
        if windows * entry << w <= MAX_TABLE_BYTES:
            costs[w] = windows * (build * 2**w + count)
    return min(costs, key=costs.__getitem__)


class GmpTable:
    """A table for GMP, which computes powers one by one and holds Python's lock throughout.

    The base lies in [0, p^2), coprime to p; `width` is the bits of a window, `bits` those of
    exponents.
    """

    __slots__ = ("_alphas", "_bits", "_p", "_square", "_sums", "_width")

    def __init__(self, p: Big, base: Big, width: int, bits: int) -> None:
        self._p, self._square, self._width, self._bits = p, p * p, width, bits
        self._alphas: list[list[Big]] = []
        self._sums: list[list[Big]] = []
        for _ in range(-(-bits // width)):
            base = self._add_row(base)

    def _add_row(self, base: Big) -> Big:
        """Add the entries base^0, ..., base^(2^w - 1); return base^(2^w), the next row's base."""
        p, square = self._p, self._square
        one = gmpy().mpz(1)
        entry, inverse, step = one, one, gmpy().invert(base, p)
        alphas, sums = [], []
        for _ in range(1 << self._width):
            y, alpha = divmod(entry, p)
            alphas.append(alpha)
            sums.append(y * inverse % p)
            entry = entry * base % square
            inverse = inverse * step % p  # alpha^-1 modulo p, without one inversion for each
        self._alphas.append(alphas)
        self._sums.append(sums)
        return entry

    def powers(self, exponents: Digits, threads: int) -> list[Big]:
        """Return base^exponent of each, in order, in [0, p^2), on one thread whatever `threads`."""
        return [self._product(d) for d in _digits(exponents, self._bits, self._width).tolist()]

    def _product(self, digits: list[int]) -> Big:
        p, square = self._p, self._square
        x, s = gmpy().mpz(1), 0
        for alphas, sums, d in zip(self._alphas, self._sums, digits, strict=True):
            x = x * alphas[d] % square
            s += sums[d]
        return x * (1 + p * (s % p)) % square


class LaneTable:
    """A table in lanes, which holds Python's lock only for conversions; else as `GmpTable`."""

    __slots__ = ("_bits", "_lanes", "_program", "_table", "_width")

    def __init__(self, p: Big, base: Big, width: int, bits: int) -> None:
        self._lanes, self._width, self._bits = Lanes(p), width, bits
        windows, entries = -(-bits // width), 1 << width
        bases, square = [base], p * p
        for _ in range(1, windows):
            bases.append(gmpy().powmod(bases[-1], entries, square))
        self._table = np.empty((windows, entries, 2 * self._lanes.limbs), np.uint64)
        slots = self._lanes.slots(entries)
        self._lanes.put(slots[0], [gmpy().mpz(1)] * LANES)
        rows = [(d, d // 2, d // 2) if d % 2 == 0 else (d, d - 1, 1) for d in range(2, entries)]
        program = np.array(rows, np.int64).reshape(-1, 3)
        for at in range(0, windows, LANES):  # eight windows at once
            part = self._table[at : at + LANES]
            self._lanes.put(slots[1], bases[at : at + LANES])
            self._lanes.run(program, slots)
            by_lane = slots.reshape(entries, -1, LANES).transpose(2, 0, 1)
            part[:] = by_lane[: len(part)]
        steps = [(_ACC, _ACC, -1 - i) for i in range(1, windows)]
        self._program = np.array([(_ACC, _START, -1), *steps, (_ACC, _ACC, _ONE)], np.int64)

    def powers(self, exponents: Digits, threads: int) -> list[Big]:
        """Return base^exponent of each, in order, in [0, p^2)."""
        size = max(LANES, len(exponents) // (4 * max(1, threads)) // LANES * LANES)

        def power(at: int) -> list[Big]:
            slots = self._lanes.slots(_ONE + 1)
            self._lanes.put(slots[_START], [gmpy().mpz(1)] * LANES)
            self._lanes.put_one(slots[_ONE])
            out: list[Big] = []
            for first in range(at, min(at + size, len(exponents)), LANES):
                group = exponents[first : min(first + LANES, at + size)]
                digits = np.zeros((len(self._table), LANES), np.int64)
                digits[:, : len(group)] = _digits(group, self._bits, self._width).T
                self._lanes.run(self._program, slots, self._table, digits)
                out += self._lanes.get(slots[_ACC], len(group))
            return out

        tasks = [functools.partial(power, at) for at in range(0, len(exponents), size)]
        return [power for part in run_all(tasks, threads) for power in part]


_ACC, _START, _ONE = 1, 2, 3  # slots; 0 takes the table's entries


def _digits(exponents: Digits, bits: int, width: int) -> NDArray[np.int64]:
    """Return digits of `width` bits, lowest first: int64 (count, windows)."""
    windows = -(-bits // width)
    ones = np.zeros((len(exponents), windows * width), np.int64)
    ones[:, :bits] = np.unpackbits(exponents, axis=1, bitorder="little")[:, :bits]
    digits: NDArray[np.int64] = ones.reshape(-1, windows, width) @ (1 << np.arange(width))
    return digits


def in_lanes(p: int, q: int) -> bool:
    """Return whether residues are drawn in lanes here: on threads, without Python's lock."""
    return min(p, q).bit_length() >= lanes.SHORTEST and lanes.available()


class _Half:
    """Powers of h^n modulo the square of one prime: about `count`, exponents of `bits` bits.

    With an `order`, the base is the power of h^n that has it, and exponents are taken modulo it.
    """

    __slots__ = ("_base", "_order", "_p", "_square", "_table")

    def __init__(
        self, p: Big, n: Big, h: Big, order: int, bits: int, count: int, by_lanes: bool
    ) -> None:
        g = gmpy()
        self._p, self._square, self._order = p, p * p, order
        up = n * ((p - 1) // order) if order else n
        self._base = base = g.powmod(h, up, self._square)
        # Among the numbers that are h^up modulo p, exactly one has an order that divides p - 1.
        power = g.powmod(base, order or p - 1, self._square)
        if power != 1 or base % p != g.powmod(h, up % (p - 1), p):
            raise fault()
        bits = order.bit_length() or bits
        self._table: GmpTable | LaneTable | None = None
        if width := window(p, bits, count, by_lanes):
            kind = LaneTable if by_lanes else GmpTable
            self._table = kind(p, base, width, bits)

    def powers(self, rows: Digits, threads: int) -> list[Big]:
        """Return base^a mod p^2, a given as little-endian bytes; not verified."""
        if self._order:
            width = (self._order.bit_length() + 7) // 8
            reduced = [a % self._order for a in _exponents(rows)]
            rows = to_rows(reduced, width, len(reduced))
        if self._table is not None:
            return self._table.powers(rows, threads)
        return [self._power(a) for a in _exponents(rows)]

    def _power(self, a: int) -> Big:
        return gmpy().powmod_base_list([self._base], a, self._square)[0]

    def verify(self, residues: list[Big], total: int) -> None:
        """Raise FaultError unless the product of the residues is base^total, modulo p^2."""
        square = self._square
        product = gmpy().mpz(1)
        for u in residues:
            product = product * (u % square) % square
        if product != self._power(total):
            raise fault()


class Residues:
    """Random n-th residues, drawn with p and q.

    Raises FaultError: a fault while the base was made, or p and q that are not prime.

    p, q, h, DJN's base, and `orders` are those of a `SecretKey`. `count`, the expected number of
    residues, sets the size of tables. Threads are for lanes.
    """

    __slots__ = ("_bits", "_halves", "_join", "_random", "_threads", "n")

    def __init__(
        self,
        p: int,
        q: int,
        h: int,
        count: int,
        random: Random = secrets.token_bytes,
        threads: int = 1,
        orders: Sequence[int] = (),
    ) -> None:
        g = gmpy()
        p, q, h = g.mpz(p), g.mpz(q), g.mpz(h)
        n = p * q
        self.n = n
        self._random, self._threads = random, threads
        bits = sum(order.bit_length() for order in orders)
        self._bits = bits + SURPLUS if orders else (n.bit_length() + 1) // 2
        both = zip((p, q), orders or (0, 0), strict=True)
        how = self._bits, count, in_lanes(p, q)
        self._halves = [_Half(a, n, h, order, *how) for a, order in both]
        self._join = Join(p * p, q * q)

    def draw(self, count: int) -> list[Big]:
        """Draw `count` independent residues, each in (0, n^2); their product is verified.

        An exponent is ceil(bits / 8) bytes of `random`, little-endian, without its spare high bits.
        The verification costs two powers a call, so draw many at a time.

        Raises ConfigError: a random source that gives another number of bytes than requested;
        FaultError, returning none: the residues failed their verification.
        """
        if count <= 0:
            return []
        size = (self._bits + 7) // 8
        rows = (
            np.frombuffer(drawn(self._random, count * size), np.uint8).reshape(count, size).copy()
        )
        rows[:, -1] &= 0xFF >> (-self._bits % 8)
        by_p, by_q = (half.powers(rows, self._threads) for half in self._halves)
        residues = [self._join(x, y) for x, y in zip(by_p, by_q, strict=True)]
        total = sum(_exponents(rows))
        for half in self._halves:
            half.verify(residues, total)
        return residues


def _exponents(rows: Digits) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in rows]
