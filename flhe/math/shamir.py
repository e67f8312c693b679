"""Shamir: secrets shared among members, several secrets in one polynomial.

A polynomial over the Goldilocks field has `threshold` coefficients: the secrets, lowest first, then
`privacy` others. The member of rank i gets its value at w**i, w a root of unity of order 2**k. The
dealer draws `privacy` shares; with the secrets they determine the polynomial, hence all the others.
One transform shares it among all members. `threshold` shares determine the polynomial. `privacy` of
them reveal nothing: the points are distinct and not zero, so any values there fit any secrets, and
uniform ones at some ranks are uniform at all others. Sums of shares are shares of the sums.

Source: Shamir, 1979; several secrets: Franklin and Yung, 1992; wrong shares: Massey, 1969.
"""

from __future__ import annotations

import secrets as system
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flhe.errors import ConfigError, ProtocolError, QuorumError, SharesError
from flhe.math import ring
from flhe.math.prg import random_elements
from flhe.math.ring import Elements, Q, root
from flhe.wire.secret import Random


@dataclass(frozen=True, slots=True)
class Shamir:
    """Sharing among `members`, at most 2**16: `threshold` shares give the secrets.

    `privacy` shares reveal nothing, at least 1. `threshold - privacy` secrets share a polynomial;
    with `threshold - 1` this is Shamir's own scheme, one secret each, at 0.
    """

    members: int
    threshold: int
    privacy: int

    def __post_init__(self) -> None:
        if not 1 <= self.privacy < self.threshold <= self.members <= ring.MAX_POINTS:
            raise ConfigError(
                f"Shamir(members={self.members}, threshold={self.threshold}, "
                f"privacy={self.privacy}): needs 1 <= privacy < threshold <= members <= "
                f"{ring.MAX_POINTS}"
            )

    @property
    def packing(self) -> int:
        """Secrets in a polynomial."""
        return self.threshold - self.privacy

    @property
    def points(self) -> int:
        """Order of w: the least power of two not below `members`."""
        return 1 << (self.members - 1).bit_length()

    def width(self, count: int) -> int:
        """Return the number of polynomials for `count` secrets: elements in a share."""
        return -(-count // self.packing)

    def share(
        self,
        secrets: Elements,
        random: Random = system.token_bytes,
        *,
        given: Mapping[int, Elements] | None = None,
    ) -> Elements:
        """Return shares of all members, uint64 (members, width), of `secrets`, uint64 (count,).

        `given` has the shares of `privacy` ranks, uint64 (width,): uniform, and secret to others
        than those members. By default they are drawn.

        Raises RangeError: secrets that are not field elements; ConfigError: another number of given
        shares.
        """
        ring.check(secrets)
        width = self.width(secrets.size)
        padded = np.zeros(width * self.packing, np.uint64)
        padded[: secrets.size] = secrets
        coefficients = np.zeros((width, self.points), np.uint64)
        coefficients[:, : self.packing] = padded.reshape(width, self.packing)
        if given is None:
            drawn = random_elements(self.privacy * width, random).reshape(self.privacy, width)
            given = dict(enumerate(drawn))
        if len(given) != self.privacy:
            raise ConfigError(f"Shamir: {len(given)} given shares, {self.privacy} are needed")
        coefficients[:, self.packing : self.threshold] = self._rest(
            coefficients[:, : self.packing], list(given), np.stack(list(given.values()))
        )
        return np.ascontiguousarray(ring.evaluate(coefficients)[:, : self.members].T)

    def _rest(self, secrets: Elements, ranks: Sequence[int], values: Elements) -> Elements:
        """Return the coefficients behind the secrets, uint64 (width, privacy), for given shares."""
        from flhe.math import shamir_kernels

        powers, at = ring.powers(root(Q, self.points), self.points), np.array(ranks, np.int64)
        inverses = powers[-at % self.points]
        known = powers[np.outer(np.arange(self.packing), at) % self.points]
        left = ring.subtract(np.ascontiguousarray(values.T), _product(secrets, known))
        # What is left of the values is x**packing times the polynomial that is sought.
        matrix, before = np.empty((self.privacy, self.privacy), np.uint64), np.zeros_like(inverses)
        scales = powers[-(at * self.packing) % self.points]
        shamir_kernels.completion(*_weights(powers[at]), inverses, before, scales, matrix)
        return _product(left, np.ascontiguousarray(matrix.T))

    def combine(self, ranks: Sequence[int], shares: Elements, count: int) -> Elements:
        """Return the `count` secrets, uint64 (count,), of shares uint64 (len(ranks), width(count)).

        More than `threshold` shares are checked against each other. One random combination of all
        polynomials, unpredictable to senders, must be a polynomial of that degree. A wrong share
        passes once in Q.

        Raises QuorumError: fewer shares than the threshold; ProtocolError: shares of another shape,
        or that are not field elements; ranks beyond the members or repeated; shares that do not fit
        together, with too many wrong to identify; SharesError: names the wrong shares, if at most
        half as many are wrong as there are shares beyond the threshold.
        """
        from flhe.math import shamir_kernels

        self._check(ranks, shares, count)
        powers = ring.powers(root(Q, self.points), self.points)
        at = np.array(ranks, np.int64)
        points, inverses = powers[at], powers[-at % self.points]
        if len(ranks) > self.threshold:
            self._fit(ranks, points, inverses, shares)
        matrix = np.empty((self.packing, self.threshold), np.uint64)
        before = np.zeros(self.threshold, np.uint64)
        shamir_kernels.lagrange(
            *_weights(points[: self.threshold]), inverses[: self.threshold], before, matrix
        )
        coefficients = _product(matrix, shares[: self.threshold])
        return coefficients.T.reshape(-1)[:count].copy()

    def _check(self, ranks: Sequence[int], shares: Elements, count: int) -> None:
        if len(set(ranks)) != len(ranks):
            raise ProtocolError("shares: a rank comes twice")
        if any(not 0 <= rank < self.members for rank in ranks):
            raise ProtocolError(f"shares: a rank is not one of {self.members} members")
        if len(ranks) < self.threshold:
            raise QuorumError(f"{len(ranks)} shares, {self.threshold} are needed")
        if shares.shape != (len(ranks), self.width(count)):
            raise ProtocolError(
                f"shares: got {shares.shape}, not {(len(ranks), self.width(count))}"
            )
        beyond = np.flatnonzero((shares >= Q).any(axis=1)).tolist()
        if beyond:
            names = ", ".join(str(ranks[i]) for i in beyond)
            raise ProtocolError(f"shares of ranks {names} are no field elements")

    def _fit(
        self, ranks: Sequence[int], points: Elements, inverses: Elements, shares: Elements
    ) -> None:
        """Raise ProtocolError unless all shares are values of polynomials of degree < threshold."""
        from flhe.math import prime_kernels, shamir_kernels

        values = _product(shares, random_elements(shares.shape[1])[:, np.newaxis])[:, 0]
        _, weights = _weights(points)
        terms, syndromes = np.empty_like(weights), np.empty(len(ranks) - self.threshold, np.uint64)
        prime_kernels.times(values, weights, weights, None, terms)
        shamir_kernels.syndromes(points, terms, syndromes)
        if not syndromes.any():
            return
        wrong = _misfits(inverses.tolist(), syndromes.tolist())
        if wrong is None:
            raise ProtocolError("shares disagree, and too many are wrong to tell whose")
        found = tuple(sorted(ranks[i] for i in wrong))
        names = ", ".join(map(str, found))
        raise SharesError(f"shares of ranks {names} do not fit the others", found)


def _product(a: Elements, b: Elements) -> Elements:
    from flhe.math import shamir_kernels

    out = np.empty((a.shape[0], b.shape[1]), np.uint64)
    shamir_kernels.product(np.ascontiguousarray(a), np.ascontiguousarray(b), out)
    return out


def _weights(points: Elements) -> tuple[Elements, Elements]:
    """Return the coefficients of V, the product of (x - point), and 1 / V' at all points."""
    from flhe.math import shamir_kernels

    vanishing, out = np.empty(points.size + 1, np.uint64), np.empty(points.size, np.uint64)
    shamir_kernels.vanishing(points, vanishing)
    shamir_kernels.derivative(points, vanishing, out)
    inverses = (pow(value, -1, Q) for value in out.tolist())
    return vanishing, np.fromiter(inverses, np.uint64, points.size)


def _misfits(inverses: list[int], syndromes: list[int]) -> list[int] | None:
    """Return the indices of wrong values, by their points' inverses; None if they are too many.

    At most half as many as there are syndromes can be found. Each wrong value adds a geometric
    series to the syndromes, with its point as the ratio. So their shortest recurrence vanishes at
    the inverses of those points (Berlekamp-Massey).
    """
    recurrence, before, length, shift, last = [1], [1], 0, 1, 1
    for n in range(len(syndromes)):
        off = sum(c * syndromes[n - i] for i, c in enumerate(recurrence)) % Q
        if off:
            factor, longer = off * pow(last, -1, Q), list(recurrence)
            longer += [0] * (len(before) + shift - len(longer))
            for i, c in enumerate(before, shift):
                longer[i] = (longer[i] - factor * c) % Q
            if 2 * length <= n:
                before, last, length, shift = recurrence, off, n + 1 - length, 0
            recurrence = longer
        shift += 1
    wrong = [i for i, inverse in enumerate(inverses) if _value(recurrence, inverse) == 0]
    return wrong if len(wrong) == length and 2 * length <= len(syndromes) else None


def _value(polynomial: list[int], x: int) -> int:
    out = 0
    for c in reversed(polynomial):
        out = (out * x + c) % Q
    return out
