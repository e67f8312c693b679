"""Attacks on ESHE as printed: what the attacker of each has goes in, what he should not have comes out.

Source of what is attacked: `flhe_lab.papers.esafl`; of the attacks: docs/protocol.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.math.prg import FieldElements
from flhe.math.ring import PrimeRing, Q
from flhe.schemes.esafl.adder import EsaflSealer
from flhe.schemes.esafl.keys import draw_own
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.sealed import Sealed, Slot
from flhe.wire.derive import hkdf
from flhe_lab.papers.esafl import Poly, multiply, times_ones
from tests.rings import inverse as inverse_transform

SLOT = Slot(7, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))
NOTHING = np.empty(0, np.int64)


def key_from_low_bits(c: Poly, a: Poly, m: Poly, bits: int) -> tuple[Poly, int]:
    """s with a s = c - m modulo 2^bits, centered, and the bits that are left: p e has vanished there.

    Works for every `a` that is not next to zero. Modulo 2 the ring is local, with x + 1 in the maximal
    ideal; an `a` in it is x - 1 times another one, and (x - 1)(1 + x + ... + x^(n-1)) = -2.
    """
    rest = [x - y for x, y in zip(c, m, strict=True)]
    while sum(a) % 2 == 0 and bits:
        a, rest, bits = _halved(a, bits), _halved(rest, bits), bits - 1
    found = multiply(rest, inverse(a, bits)) if bits else [0] * len(c)
    return centered(found, 1 << bits), bits


def _halved(x: Poly, bits: int) -> Poly:
    """x / (x - 1) modulo 2^(bits - 1)."""
    return [-y // 2 % (1 << (bits - 1)) for y in times_ones(x)]


def inverse(a: Poly, bits: int) -> Poly:
    """1 / a modulo 2^bits and x^n + 1, for an odd a(1)."""
    n, mask = len(a), (1 << bits) - 1
    power, out = [x & 1 for x in a], [1] + [0] * (n - 1)
    # a^n = a(1) = 1 modulo 2: the inverse is a a^2 a^4 ... a^(n/2), and squaring moves coefficients.
    for _ in range(n.bit_length() - 1):
        out = [x & 1 for x in multiply(out, power)]
        squared = [0] * n
        for i, x in enumerate(power):
            squared[2 * i % n] ^= x
        power = squared
    known = 1
    while known < bits:
        known *= 2
        product = multiply([x & mask for x in a], out)
        product = [-x & mask for x in product]
        product[0] += 2
        out = [x & mask for x in multiply(out, product)]
    return out


def support_from_parity(c: Poly, a: Poly, m: Poly) -> NDArray[np.bool_]:
    """Where s is odd, or its complement, whichever is smaller: for an odd p and an even q.

    All coefficients of (1 + x + ... + x^(n-1)) e are as odd as e(1); so are they after division by `a`.
    """
    parity = [(x - y) & 1 for x, y in zip(c, m, strict=True)]
    odd = np.array(multiply(parity, inverse(a, 1))) % 2 == 1
    return odd if 2 * odd.sum() <= odd.size else ~odd


def difference_of_plaintexts(c1: Poly, c2: Poly, q: int, p: int) -> Poly:
    """[[c1 - c2]_q]_p: m1 - m2 modulo p where both have one `a` and one key."""
    differences = [x - y for x, y in zip(c1, c2, strict=True)]
    return [x % p for x in centered(differences, q)]


def split_keys(c: Poly, a: Poly, both: Poly, q: int, p: int, rows: int = 24) -> Poly | None:
    """s_j from s_j + s_k, which a third client knows, and s_j's ciphertext; None if none fits.

    Whatever m is, it is less than p: c / p is a s_j / p + e modulo q / p, to one unit. Where the sum of
    keys is 1 or -1 one of them has it, where it is 2 or -2 both have half: so all subsets are tried,
    half of the positions against the other half.
    """
    places, columns, target = _equations(c, a, both, q, p, rows)
    modulus, half = q / p, len(places) // 2
    left, right = _subset_sums(columns[:half], modulus), _subset_sums(columns[half:], modulus)
    # Sorted by one coefficient, partners lie next to each other.
    left = left[order := np.argsort(left[:, 0])]
    wide = 8.0  # more than an error and half a unit ever are
    for mine, sums in enumerate(right):
        missing = (target - sums) % modulus
        for shift in (-modulus, 0.0, modulus):
            low, high = np.searchsorted(left[:, 0], missing[0] + shift + np.array([-wide, wide]))
            off = (left[low:high] - missing + modulus / 2) % modulus - modulus / 2
            for hit in np.flatnonzero(np.abs(off).max(axis=1) <= wide):
                chosen = int(order[low + hit]) | mine << half
                return _chosen(both, places, [chosen >> k & 1 for k in range(len(places))])
    return None


def split_keys_by_lattice(
    c: Poly, a: Poly, both: Poly, q: int, p: int, rows: int = 140
) -> Poly | None:
    """The same for keys of full weight, 128 unknowns: a short vector, by Kannan's embedding."""
    from tests.schemes.reduction import reduce

    fine = 4  # parts of a unit, or rounding would add more than the error
    places, columns, target = _equations(c, a, both, q, p, rows)
    size, width = rows + len(places) + 1, round(1.2 * fine)
    basis = np.zeros((size, size))
    basis[:rows, :rows] = np.eye(rows) * (fine * q // p)
    basis[rows:-1, :rows] = np.rint(fine * columns)
    basis[rows:-1, rows:-1] = np.eye(len(places)) * 2 * width
    basis[-1, :rows] = -np.rint(fine * target)
    basis[-1, rows:] = -width
    reduce(basis)
    for row in basis:
        if np.all(np.abs(row[rows:]) == width):
            return _chosen(both, places, (row[rows:-1] * row[-1] < 0).astype(int).tolist())
    return None


def _equations(
    c: Poly, a: Poly, both: Poly, q: int, p: int, rows: int
) -> tuple[list[int], NDArray[np.float64], NDArray[np.float64]]:
    """Unknown places, what each adds to `rows` coefficients of c / p, and what they add up to."""
    certain = _chosen(both, [], [])
    known = multiply(a, certain)
    target = np.array([(x - y) % q / p for x, y in zip(c[:rows], known[:rows], strict=True)]) - 0.5
    places = [i for i, x in enumerate(both) if abs(x) == 1]
    columns = [[_shifted(a, i, r) * both[i] % q / p for r in range(rows)] for i in places]
    return places, np.array(columns).reshape(-1, rows), target


def _chosen(both: Poly, places: list[int], bits: list[int]) -> Poly:
    """The key whose coefficients at `places` are the sum's, where the bits say so."""
    out = [x // 2 if abs(x) == 2 else 0 for x in both]
    for bit, i in zip(bits, places, strict=True):
        out[i] = both[i] * bit
    return out


def _shifted(a: Poly, i: int, r: int) -> int:
    """Coefficient r of x^i a."""
    return a[r - i] if r >= i else -a[r - i]


def _subset_sums(columns: NDArray[np.float64], modulus: float) -> NDArray[np.float64]:
    """Sums of all subsets, modulo `modulus`, shape (2^count, rows); subset b at row b."""
    out = np.zeros((1, columns.shape[1]))
    for column in columns:
        out = np.concatenate([out, (out + column) % modulus])
    return out


def key_from_sums(larger: Poly, smaller: Poly) -> Poly:
    """s_i: a sum of keys with it less one without it."""
    return [x - y for x, y in zip(larger, smaller, strict=True)]


def centered(x: Sequence[int], modulus: int) -> Poly:
    """The representatives nearest to zero."""
    return [(y + modulus // 2) % modulus - modulus // 2 for y in x]


def agreement(found: Sequence[int], truth: Sequence[int]) -> float:
    """Share of coefficients that are right."""
    return sum(x == y for x, y in zip(found, truth, strict=True)) / len(truth)


# --- ours, as a curious member sees it ---


class Ours:
    """Three members of one epoch, with all that is secret, and `a`, which every member can compute."""

    n = 4096

    def __init__(self) -> None:
        self.scheme = Esafl(keys="joint").adder(3)
        self.owns = [draw_own(self.n) for _ in range(3)]
        self.total = np.sum(self.owns, axis=0, dtype=np.int32)
        self.group_key = secrets.token_bytes(32)
        self.slots = self.scheme.sizes.slots
        bound, length = self.scheme.space.bound, self.slots.per * (self.n + 50)
        rng = np.random.default_rng(4)  # test data only
        self.plain = [Plain(rng.integers(-bound, bound + 1, length), NOTHING) for _ in range(3)]

    def sealer(self, rank: int) -> EsaflSealer:
        return EsaflSealer(self.scheme, self.group_key, rank, self.owns[rank])

    def blocks(self, sealed: Sealed) -> list[Poly]:
        """Residues: a whole block, and 50 of a second one."""
        residues = sealed.data.view(np.uint64).tolist()
        return [residues[: self.n], residues[self.n :]]

    def a(self, block: int, slot: Slot = SLOT) -> Poly:
        key = hkdf(self.group_key, "eshe-a", *slot.context(), self.scheme.scheme.ring, 0)
        hat = FieldElements(key, Q).blocks(block, 1, self.n)[0]
        found: Poly = inverse_transform(PrimeRing(self.n), hat).tolist()
        return found

    def plaintext(self, rank: int, block: int) -> Poly:
        """m, as `flhe.coding.coefficients` has it."""
        rows = (self.plain[rank].values + self.slots.bound).reshape(-1, self.slots.per)
        rows = rows[self.n :] if block else rows[: self.n]
        return [sum(int(v) << k * self.slots.width for k, v in enumerate(row)) for row in rows]
