"""Powers of a fixed base by tables, in both forms that `paillier_tricks` compares; unverified.

    base^a = product over windows i of entry[i][digit i of a],   entry[i][d] = base^(d 2^(w i))

with base = h^n modulo p^2. Whole entries are as long as p^2. Those of half length are alpha, s < p with
entry = alpha (1 + p s) modulo p^2; see `flhe.math.residues`, which is what encrypts and verifies.

Source: Brickell, Gordon, McCurley, Wilson (EUROCRYPT 1992).
"""

from __future__ import annotations

from flhe.math.bigint import Big, gmpy


class FixedBase:
    """Tables for one prime.

    Parameters
    ----------
    p, n, h : int
        The prime, the modulus, the base.
    width : int
        w, bits of a window.
    bits : int
        Bits of an exponent.
    half : bool
        Whether entries are of half length.
    """

    def __init__(self, p: Big, n: Big, h: Big, width: int, bits: int, *, half: bool) -> None:
        g = gmpy()
        self._p, self._square, self._width, self._half = p, p * p, width, half
        base = g.powmod(h, n, self._square)
        self._rows = []
        for _ in range(-(-bits // width)):
            row = [g.mpz(1)]
            for _ in range((1 << width) - 1):
                row.append(row[-1] * base % self._square)
            base = row[-1] * base % self._square
            self._rows.append([self._split(x) for x in row] if half else row)

    def _split(self, x: Big) -> tuple[Big, Big]:
        high, low = divmod(x, self._p)
        return low, high * gmpy().invert(low, self._p) % self._p

    def power(self, exponent: int) -> Big:
        """base^exponent modulo p^2."""
        square, mask = self._square, (1 << self._width) - 1
        x, s = gmpy().mpz(1), 0
        for row in self._rows:
            entry = row[exponent & mask]
            exponent >>= self._width
            if self._half:
                x = x * entry[0] % square
                s += entry[1]
            else:
                x = x * entry % square
        return x * (1 + self._p * (s % self._p)) % square if self._half else x
