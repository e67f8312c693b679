"""Random n-th residues, what hides a Paillier plaintext, for those who know p and q.

    u = h^(n a) mod n^2,   a uniform, of ceil(|n| / 2) bits    (DJN 2010, Sec. 4.2)

is computed modulo p^2 and modulo q^2, over tables of powers (`flhe.schemes.batchcrypt.fixed_base`),
and joined (CRT).

Nothing leaves unverified (`fault` says why). The residues u_j of one `draw` are
multiplied together, after they are joined, modulo p^2 and modulo q^2, and must give h^(n sum of
a_j), raised anew without a table. So any fault is seen, in a table too, that does not cancel in the
product; and what h^n itself must be is shown by Fermat.

Source: Damgård, Jurik, Nielsen, "A generalization of Paillier's public-key system with applications
to electronic voting" (2010).
"""

from __future__ import annotations

import secrets

import numpy as np

from flhe.math.bigint import Big, gmpy
from flhe.math.prg import drawn
from flhe.schemes.batchcrypt import lanes
from flhe.schemes.batchcrypt.crt import Join
from flhe.schemes.batchcrypt.fixed_base import Digits, GmpTable, LaneTable, window
from flhe.schemes.batchcrypt.powers import fault
from flhe.wire.secret import Random


def in_lanes(p: int, q: int) -> bool:
    """Whether residues are drawn in lanes here, so on threads, without Python's lock."""
    return min(p, q).bit_length() >= lanes.SHORTEST and lanes.available()


class _Half:
    """Powers of h^n modulo the square of one prime: about `count`, exponents of `bits` bits."""

    __slots__ = ("_base", "_p", "_square", "_table")

    def __init__(self, p: Big, n: Big, h: Big, bits: int, count: int, by_lanes: bool) -> None:
        g = gmpy()
        self._p, self._square = p, p * p
        self._base = base = g.powmod(h, n, self._square)
        # Of the numbers that are h^n modulo p, one has an order that divides p - 1.
        if g.powmod(base, p - 1, self._square) != 1 or base % p != g.powmod(h, n % (p - 1), p):
            raise fault()
        self._table: GmpTable | LaneTable | None = None
        if width := window(p, bits, count, by_lanes):
            kind = LaneTable if by_lanes else GmpTable
            self._table = kind(p, base, width, bits)

    def powers(self, rows: Digits, threads: int) -> list[Big]:
        """h^(n a) mod p^2, a given as little-endian bytes; not verified."""
        if self._table is not None:
            return self._table.powers(rows, threads)
        return [self._power(a) for a in _exponents(rows)]

    def _power(self, a: int) -> Big:
        return gmpy().powmod_base_list([self._base], a, self._square)[0]

    def verify(self, residues: list[Big], total: int) -> None:
        """Raise FaultError unless the product of the residues is h^(n total), modulo p^2."""
        square = self._square
        product = gmpy().mpz(1)
        for u in residues:
            product = product * (u % square) % square
        if product != self._power(total):
            raise fault()


class Residues:
    """Draws random n-th residues.

    Raises FaultError: a fault while the base was made, or p and q that are no primes.

    p, q and h, DJN's base, are those of a `SecretKey`. The size of tables is chosen by `count`, how
    many will be drawn, about. Threads are for lanes.
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
    ) -> None:
        g = gmpy()
        p, q, h = g.mpz(p), g.mpz(q), g.mpz(h)
        n = p * q
        self.n = n
        self._random, self._threads = random, threads
        self._bits = (n.bit_length() + 1) // 2
        by_lanes = in_lanes(p, q)
        self._halves = [_Half(a, n, h, self._bits, count, by_lanes) for a in (p, q)]
        self._join = Join(p * p, q * q)

    def __repr__(self) -> str:
        return f"Residues(<{self.n.bit_length()} bits>)"

    def draw(self, count: int) -> list[Big]:
        """Draw `count` independent residues, each in (0, n^2); their product is verified.

        An exponent is ceil(bits / 8) bytes of `random`, little-endian, its spare high bits dropped.
        The verification costs two powers a call, so draw many at a time.

        Raises ConfigError: a random source that gives another number of bytes than it was asked for;
        FaultError: the residues did not pass: none is returned.
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
