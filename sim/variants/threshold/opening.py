"""Opening a sum by t parties: each answers under noise, and what is combined is the sum alone.

    d_j = lambda_j(T) c1 S_j + p E_j + sum over k > j of Z_jk - sum over k < j of Z_kj     j, k in T
    c0 + sum over T of d_j = p (E + sum of E_j) + M

T is a set of exactly t parties that all of them know beforehand, lambda_j(T) the Lagrange coefficient
at 0 modulo q. E_j, uniform in [-B, B), hides E, which would give s: c1 s = p E + M - c0. It is a
function of c1 and T: asked again, a party tells the same. Z_jk, uniform under the pair's key, cancels
in the sum over T and in no other; it is bound to the ciphertext, its slot and T. docs/threshold.md
says what would be learned without them, or from other noise each time, and what nothing here stops.

Z_jk is there because lambda_j is a fraction modulo q and no small number. Whoever holds t - 1 shares
knows each S_j as an affine function of s, and without Z would see

    lambda_j(T) c1 S_j + p E_j = (v / w) (p E + M - c0) + p E_j + something known

of which w times, less what is known, is p (v E + w E_j): E modulo w.

An answer that is of another opening, or all wrong, is found: noise is beyond its bound, or the zeros
after the values are none. One that is wrong in few places may not be, nor may a sum: messages are to be
signed, as those of `flhe.keys` are.

Source: Asharov et al., EUROCRYPT 2012 (partial decryption, flooding); Boneh et al., CRYPTO 2018 (Shamir
shares of lattice keys); Mouchet et al., J. Cryptology 2023 (coefficients applied before noise); the
masks: Bonawitz et al., CCS 2017.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ProtocolError, QuorumError
from flhe.math.buffers import empty
from flhe.math.prg import FieldElements
from flhe.math.ring import Elements, PrimeRing, scaled
from flhe.schemes.base import Opener
from flhe.schemes.sealed import Sealed
from flhe.wire import canonical
from flhe.wire.derive import hkdf
from flhe_lab.variants.threshold.adder import CHECKS, NAME, ThresholdRlwe
from flhe_lab.variants.threshold.keys import ThresholdKey
from flhe_lab.variants.threshold.sharing import at_zero


def opening_name(total: Sealed, chosen: Sequence[int]) -> bytes:
    """SHA-256 that names one opening: ciphertext, slot, senders and T."""
    data = canonical.dumps(["flhe/v1/threshold-opening", total.digest(), list(chosen)])
    return hashlib.sha256(data).digest()


@dataclass(frozen=True, slots=True)
class Party:
    """One party's side of openings."""

    scheme: ThresholdRlwe  # Public parameters, with the key's id
    key: ThresholdKey = field(repr=False)  # What it holds: nothing that opens anything alone

    def __post_init__(self) -> None:
        self.key.public.check(self.scheme)

    def partial(self, total: Sealed, chosen: Sequence[int]) -> bytes:
        """Help to open `total` with the parties `chosen`: T, exactly t ranks, this one among them.

        Returns d_j, as c0 travels. Whoever has all t of them has the sum: seal them for those who may.

        Raises ProtocolError: no ciphertext of this scheme; a T that is none.
        """
        scheme = self.scheme
        scheme.check(total)
        check_chosen(scheme, chosen)
        if self.key.rank not in chosen:
            raise ProtocolError(f"{NAME}: party {self.key.rank} is not one of those who open")
        # By c1 alone: the answer is a function of it, and c0 is free for whoever asks to change.
        c1 = hashlib.sha256(scheme.halves(total)[1].tobytes()).digest()
        return self._answer(total, chosen, hkdf(self.key.noise, "threshold-flood", c1, *chosen))

    def _answer(self, total: Sealed, chosen: Sequence[int], noise_key: bytes) -> bytes:
        scheme, opening = self.scheme, opening_name(total, chosen)
        limbs, counts = scheme.limbs, scheme.counts(total.length)
        n, step, (_, c1) = scheme.sizes.n, scheme.sizes.step, scheme.halves(total)
        data = empty(limbs.nbytes(counts[0]), np.uint8)
        hats = [
            ring.forward(scaled(share, at_zero(self.key.rank, chosen, ring.q), ring.q))
            for ring, share in zip(scheme.rings, self.key.share, strict=True)
        ]
        # Uniform below 2 B, so in [-B, B) once B is taken off; the key is for this c1 and T alone.
        smudging = FieldElements(noise_key, 2 << scheme.slots.smudging)
        masks = [self._masks(opening, chosen, limb, r) for limb, r in enumerate(scheme.rings)]

        for at in range(0, counts[0], step):
            end = min(at + step, counts[0])
            first, blocks = at // n, -(-(end - at) // n)
            noise = smudging.blocks(first, blocks, n)
            for limb, ring in enumerate(scheme.rings):
                row = np.empty((blocks, n), np.uint64)
                limbs.read(c1, counts[1], limb, at, row.reshape(-1))
                row = ring.products(hats[limb], ring.forward(row))
                ring.add(row, self._flood(noise, ring), row)
                for sign, mask in masks[limb]:
                    fold = ring.add if sign > 0 else ring.subtract
                    fold(row, mask.blocks(first, blocks, n), row)
                limbs.write(row.reshape(-1)[: end - at], data, counts[0], limb, at)
        return data.tobytes()

    def _flood(self, noise: Elements, ring: PrimeRing) -> Elements:
        """Smudging: p E_j."""
        slots = self.scheme.slots
        centre = (1 << slots.smudging + slots.log_p) % ring.q
        flood = scaled(noise, 1 << slots.log_p, ring.q)
        return ring.subtract(flood, np.full(flood.shape, centre, np.uint64))

    def _masks(
        self, opening: bytes, chosen: Sequence[int], limb: int, ring: PrimeRing
    ) -> list[tuple[int, FieldElements]]:
        """Z_jk and its sign, for all others in T."""
        out = []
        for other in chosen:
            if other != self.key.rank:
                # Streams begin at 0: the key is for this opening and limb alone.
                key = hkdf(self.key.pairs[other], "threshold-mask", opening, limb)
                out.append((other - self.key.rank, FieldElements(key, ring.q)))
        return out


@dataclass(frozen=True, slots=True)
class TogetherOpener(Opener):
    """A reader's side of a release: partial decryptions by rank, and no secret."""

    scheme: ThresholdRlwe
    released: Mapping[int, bytes] = field(repr=False)

    def decrypt(self, total: Sealed) -> NDArray[Any]:
        """Open a closed sum; raises as `combine`."""
        return combine(self.scheme, total, self.scheme.openers(total.senders), self.released)


def check_chosen(scheme: ThresholdRlwe, chosen: Sequence[int]) -> None:
    """Refuse what is no set of parties to open a sum; ProtocolError."""
    ranks = all(type(rank) is int and 0 <= rank < scheme.cohort for rank in chosen)
    if not ranks or len(chosen) != scheme.threshold or list(chosen) != sorted(set(chosen)):
        raise ProtocolError(
            f"{NAME}: exactly {scheme.threshold} different parties of {scheme.cohort} open a sum"
        )


def combine(
    scheme: ThresholdRlwe, total: Sealed, chosen: Sequence[int], partials: Mapping[int, bytes]
) -> NDArray[Any]:
    """The sum: signed integers, shape (total.length,), int32 where the largest sum fits.

    Takes no secret: whoever has the answers of all of T, by rank, can.

    Raises QuorumError: an answer is missing. ProtocolError: an answer of a party outside T, or of
    another length; answers that do not fit together, or to the ciphertext.
    """
    scheme.check(total)
    check_chosen(scheme, chosen)
    if missing := sorted(set(chosen) - partials.keys()):
        names = ", ".join(map(str, missing))
        raise QuorumError(f"{NAME}: partial decryptions of parties {names} are missing")
    answers = [np.frombuffer(data, np.uint8) for data in partials.values()]
    count = scheme.counts(total.length)[0]
    if len(answers) > len(chosen) or any(a.size != scheme.limbs.nbytes(count) for a in answers):
        raise ProtocolError(
            f"{NAME}: partial decryptions of others than {list(chosen)}, or of another length"
        )
    for answer in answers:
        scheme.limbs.check(answer, count)
    slots, limbs = scheme.slots, scheme.limbs
    step, (c0, _) = scheme.sizes.step, scheme.halves(total)
    out = empty(total.length + CHECKS, slots.dtype)

    try:
        for at in range(0, count, step):
            end = min(at + step, count)
            ours = np.empty((len(scheme.rings), end - at), np.uint64)
            theirs = np.empty(end - at, np.uint64)
            for limb, ring in enumerate(scheme.rings):
                limbs.read(c0, count, limb, at, ours[limb])
                for answer in answers:
                    limbs.read(answer, count, limb, at, theirs)
                    ring.add(ours[limb], theirs, ours[limb])
            part = out[at * slots.per : end * slots.per]
            part[:] = slots.lower(ours, part.size, len(total.senders))
        if out[total.length :].any():
            raise ProtocolError("checks are not zero")
    except ProtocolError:
        raise ProtocolError(
            f"{NAME}: a partial decryption does not fit, or the sum was altered: what was opened is "
            "beyond what its senders and these parties explain; the round is refused"
        ) from None
    return out[: total.length]
