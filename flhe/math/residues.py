"""Random n-th residues, what hides a Paillier plaintext, for those who know p and q.

    u = h^(n a) mod n^2,   a uniform, of ceil(|n| / 2) bits                       (DJN 2010, Sec. 4.2)

is computed modulo p^2 and modulo q^2 and joined (CRT). h is fixed, so a table for each prime has,
for every window i of w bits of the exponent and every digit d, the entry h^(n d 2^(w i)) mod p^2: a
residue is one product over the windows (Brickell, Gordon, McCurley, Wilson, 1992). An entry is kept
as alpha (1 + p s), with alpha the entry modulo p and s modulo p. Since (1 + p s)(1 + p t) is 1 + p
(s + t) modulo p^2,

    product of entries = (product of alphas) (1 + p sum of s)   mod p^2:

the running product, as long as p^2, meets numbers of half its length, and the s are only added.
That is ours; we know of no earlier use of it.

Nothing leaves unverified: who knows the right result and a faulty one that is right modulo one
prime has factored n. The residues u_j of one `draw` are multiplied together, after they are joined,
modulo p^2 and modulo q^2, and must give h^(n sum of a_j), raised anew without a table. So any fault
is seen, in a table too, that does not cancel in the product; and what h^n itself must be is shown
by Fermat.

Table look-ups depend on the exponent, which is secret: as everywhere in GMP, the machine must not
be shared with those who can time its caches.

Source: Damgård, Jurik, Nielsen (2010); Boneh, DeMillo, Lipton (1997) for faults.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError
from flhe.math.bigint import Big, gmpy
from flhe.math.crt import Join, check_primes, fault

Random = Callable[[int], bytes]

MAX_TABLE_BYTES = 1 << 26
"""What both primes' tables may take, 64 MiB."""
MAX_WINDOW = 12

_BUILD = 4
"""Time of making a table entry, in that of one step of a product; measured at 2048 and 3072 bits."""
_POWER = 2
"""Time of one bit of GMP's power, likewise."""
_OBJECT = 40
"""Bytes of an mpz and its place in a list, without its digits."""


def exponent_bits(n: int) -> int:
    """Bits of the exponent a: ceil(|n| / 2)."""
    return (n.bit_length() + 1) // 2


def window(n: int, count: int) -> int:
    """Bits of a window with which `count` residues cost least; 0: no table, it would not pay."""
    bits = exponent_bits(n)
    entry = 2 * ((n.bit_length() + 15) // 16 + _OBJECT)  # alpha and s, each half of n long
    costs = {0: _POWER * bits * count}
    for w in range(1, MAX_WINDOW + 1):
        windows = -(-bits // w)
        if 2 * windows * entry << w <= MAX_TABLE_BYTES:
            costs[w] = windows * (_BUILD * 2**w + count)
    return min(costs, key=costs.__getitem__)


class _Table:
    """Powers of h^n modulo p^2, of one prime.

    Parameters
    ----------
    p, n, h : mpz
        The prime, the modulus, the base.
    width : int
        w, bits of a window; 0 for no table.
    bits : int
        Bits of an exponent.
    """

    __slots__ = ("_alphas", "_base", "_p", "_square", "_sums")

    def __init__(self, p: Big, n: Big, h: Big, width: int, bits: int) -> None:
        g = gmpy()
        self._p, self._square = p, p * p
        self._base = u = g.powmod(h, n, self._square)
        if g.powmod(u, p - 1, self._square) != 1 or u % p != g.powmod(h % p, n % (p - 1), p):
            raise fault()
        self._alphas: list[list[Big]] = []
        self._sums: list[list[Big]] = []
        for _ in range(-(-bits // width) if width else 0):
            u = self._add_row(u, 1 << width)

    def _add_row(self, u: Big, size: int) -> Big:
        """Add the entries u^0, ..., u^(size-1); gives u^size, with which the next row starts."""
        p, square = self._p, self._square
        one = gmpy().mpz(1)
        entry, back, back_step = one, one, gmpy().invert(u, p)
        alphas, sums = [], []
        for _ in range(size):
            y, alpha = divmod(entry, p)
            alphas.append(alpha)
            sums.append(y * back % p)
            entry = entry * u % square
            back = back * back_step % p  # alpha^-1 modulo p, without an inversion for each
        self._alphas.append(alphas)
        self._sums.append(sums)
        return entry

    def product(self, digits: list[int]) -> Big:
        """h^(n a) mod p^2, a given by its digits, lowest first: one an int in [0, 2^w) a window."""
        p, square = self._p, self._square
        x, s = gmpy().mpz(1), 0
        for alphas, sums, d in zip(self._alphas, self._sums, digits, strict=True):
            x = x * alphas[d] % square
            s += sums[d]
        return x * (1 + p * (s % p)) % square

    def power(self, a: int) -> Big:
        """The same without a table."""
        return gmpy().powmod(self._base, a, self._square)

    def verify(self, residues: list[Big], total: int) -> None:
        """Raise FaultError unless the product of the residues is h^(n total), modulo p^2."""
        square = self._square
        product = gmpy().mpz(1)
        for u in residues:
            product = product * (u % square) % square
        if product != self.power(total):
            raise fault()


class Residues:
    """Draws random n-th residues.

    Parameters
    ----------
    p, q : int
        The primes, secret.
    h : int
        DJN's base, in (0, n), coprime to n.
    count : int
        How many will be drawn, about: the tables' size is chosen by it.
    random : Random, optional
        Where exponents come from.

    Raises
    ------
    ConfigError
        p and q that are even or share a factor, an h out of range, gmpy2 not installed.
    FaultError
        A fault while a table was made.
    """

    __slots__ = ("_bits", "_join", "_random", "_tables", "_width", "n")

    def __init__(
        self, p: int, q: int, h: int, count: int, random: Random = secrets.token_bytes
    ) -> None:
        check_primes(p, q, "Residues")
        g = gmpy()
        p, q, h = g.mpz(p), g.mpz(q), g.mpz(h)
        n = p * q
        if not 0 < h < n or g.gcd(h, n) != 1:
            raise ConfigError("Residues: h must lie within n and be coprime to it")
        self.n = n
        self._random = random
        self._bits = exponent_bits(n)
        self._width = window(n, count)
        self._tables = [_Table(a, n, h, self._width, self._bits) for a in (p, q)]
        self._join = Join(p * p, q * q)

    def __repr__(self) -> str:
        return f"Residues(<{self.n.bit_length()} bits>)"

    def draw(self, count: int) -> list[Big]:
        """Draw `count` independent residues, each in (0, n^2); their products are verified.

        An exponent is ceil(bits / 8) bytes of `random`, little-endian, its spare high bits dropped.
        The verification costs two powers a call, so draw many at a time.

        Raises
        ------
        ConfigError
            A random source that gives another number of bytes than it was asked for.
        FaultError
            The residues did not pass: none is returned.
        """
        if count <= 0:
            return []
        size = (self._bits + 7) // 8
        data = self._random(count * size)
        if len(data) != count * size:
            raise ConfigError(
                f"the random source gave {len(data)} bytes, {count * size} were asked for"
            )
        rows = np.frombuffer(data, np.uint8).reshape(count, size).copy()
        rows[:, -1] &= 0xFF >> (-self._bits % 8)
        exponents = [int.from_bytes(row.tobytes(), "little") for row in rows]
        by_p, by_q = self._tables
        if self._width:
            halves: Iterator[tuple[Big, Big]] = (
                (by_p.product(d), by_q.product(d)) for d in _digits(rows, self._bits, self._width)
            )
        else:
            halves = ((by_p.power(a), by_q.power(a)) for a in exponents)
        residues = [self._join(x, y) for x, y in halves]
        for table in self._tables:
            table.verify(residues, sum(exponents))
        return residues


def _digits(rows: NDArray[np.uint8], bits: int, width: int) -> Iterator[list[int]]:
    """Digits of `width` bits of numbers in rows of little-endian bytes, lowest first."""
    windows = -(-bits // width)
    weights = 1 << np.arange(width)
    for row in rows:
        ones = np.zeros(windows * width, np.int64)
        ones[:bits] = np.unpackbits(row, bitorder="little")[:bits]
        yield (ones.reshape(windows, width) @ weights).tolist()


def draw(
    p: int, q: int, h: int, count: int, workers: int = 0, random: Random | None = None
) -> list[Big]:
    """Draw `count` residues, on child processes where that pays.

    Parameters
    ----------
    p, q, h, count
        As for `Residues`.
    workers : int
        Child processes that compute at low priority while this one goes on; 0: this process.
    random : Random, optional
        Where exponents come from; given, all is done in this process. Children draw from `secrets`.

    Raises
    ------
    ConfigError, FaultError
        As from `Residues`; FlheError also where a child stops or takes far too long.
    """
    from flhe.math import residue_pool

    if random is not None or workers <= 0 or count < residue_pool.SMALL:
        return Residues(p, q, h, count, random or secrets.token_bytes).draw(count)
    return residue_pool.draw(p, q, h, count, workers)
