"""Many powers of one base modulo p^2 over a table of whole entries, by GMP; for comparison only.

    base^a = product over windows i of entry[i][digit i of a],   entry[i][d] = base^(d 2^(w i))

as Brickell, Gordon, McCurley, Wilson (EUROCRYPT 1992) have it. The tables that encrypt are those of
`flhe.math.fixed_base`: entries of half length, or lanes.
"""

from __future__ import annotations

from flhe.math.bigint import Big, gmpy
from flhe.math.fixed_base import Digits


class WholeTable:
    """A `Table` of `flhe.math.fixed_base`.

    Parameters
    ----------
    p, base : mpz
        The prime; the base, in [0, p^2).
    width : int
        w, bits of a window, at least 1.
    bits : int
        Bits of an exponent.
    """

    def __init__(self, p: Big, base: Big, width: int, bits: int) -> None:
        self._square, self._width = p * p, width
        self._rows: list[list[Big]] = []
        for _ in range(-(-bits // width)):
            row = [gmpy().mpz(1)]
            for _ in range((1 << width) - 1):
                row.append(row[-1] * base % self._square)
            base = row[-1] * base % self._square
            self._rows.append(row)

    def powers(self, exponents: Digits, threads: int) -> list[Big]:
        """base^exponent of each, in order, in [0, p^2); on one thread whatever `threads`."""
        return [self._product(int.from_bytes(row.tobytes(), "little")) for row in exponents]

    def _product(self, exponent: int) -> Big:
        square, width, mask = self._square, self._width, (1 << self._width) - 1
        x = gmpy().mpz(1)
        for row in self._rows:
            x = x * row[exponent & mask] % square
            exponent >>= width
        return x
