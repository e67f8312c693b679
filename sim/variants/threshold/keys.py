"""A key that nobody has: each party draws a part of it, and holds a share of the whole.

    COMMIT   i -> all   H(crs | i | b_i)                  b_i = p e_i - a s_i
    REVEAL   i -> j     b_i                               checked against COMMIT
                        f_i(j + 1), r_ij                  for j alone: to be sealed by the caller

    b = sum of b_i,   S_j = sum of f_i(j + 1),   k_ij = HKDF(r_ij | r_ji)

f_i is a polynomial of degree t - 1 over Z_q, for each coefficient of s_i = f_i(0), so S_j is a value of
the sum of all: t values give s = sum of s_i, fewer give nothing. q is a product of primes above the
number of parties; polynomials are drawn, and points inverted, modulo each of them.

Without COMMIT, the last one to speak could choose b_i as a key of its own less all others', and
would open everything alone. k_ij blinds partial decryptions (`opening`).

A state asked twice answers the same. After `finish` nobody needs s_i and f_i: forget the states. Wrong
shares make sums that do not open; nothing here tells whose they are.

Source: Shamir, 1979; Asharov et al., EUROCRYPT 2012 (joint keys); Mouchet et al., J. Cryptology 2023
(shares of a sum of keys).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, ProtocolError
from flhe.math.prg import FieldElements
from flhe.math.ring import Elements, lifted, scaled
from flhe.math.sampling import draw
from flhe.schemes.esafl.keys import check_own, draw_own
from flhe.schemes.sealed import check_senders
from flhe.wire import canonical
from flhe.wire.derive import hkdf
from flhe.wire.fields import SECRET, Hash, array
from flhe.wire.record import Form, Record
from flhe.wire.secret import Random, Secret
from flhe_lab.variants.threshold.adder import PublicKey, ThresholdRlwe, common_hats
from flhe_lab.variants.threshold.sharing import shares

MAX_BYTES = 1 << 20
"""Longest encoding: of a key in the ring of 8192 coefficients, some 400 KB."""

_Words = Annotated[NDArray[np.uint64], array(np.uint64)]
_Small = Annotated[NDArray[np.int8], array(np.int8)]
_Secret = Annotated[Hash, SECRET]


@dataclass(frozen=True, slots=True, eq=False)
class Box(Record):
    """What one party has for another."""

    FORM = Form("share of a threshold key", MAX_BYTES, row=True)

    b: _Words = field(repr=False)  # b_i, shape (limbs, n)
    share: _Words = field(repr=False)  # f_i(j + 1), shape (limbs, n)
    seed: _Secret  # r_ij


@dataclass(frozen=True, slots=True, eq=False)
class Drawn(Record):
    """One party before the others' commitments are known; secret, to be forgotten in the end."""

    FORM = Form("part of a threshold key", MAX_BYTES, "threshold-part", 1, row=True)

    rank: int  # Its rank
    crs: Hash  # What `a` is expanded from
    own: _Small = field(repr=False)  # s_i, shape (n,)
    b: _Words = field(repr=False)  # b_i, shape (limbs, n)
    key: _Secret  # What f_i and r_ij are derived from


@dataclass(frozen=True, slots=True, eq=False)
class ThresholdKey(Record):
    """What a party holds."""

    FORM = Form("threshold key", MAX_BYTES, "threshold-key", 1, row=True)

    rank: int  # Its rank
    share: _Words = field(repr=False)  # S_j, shape (limbs, n)
    pairs: tuple[Annotated[bytes, SECRET], ...] = field(repr=False)
    """k_jk by rank, 32 bytes each; empty for itself."""
    crs: Hash  # Of the joint public key
    b: _Words = field(repr=False)  # The same
    noise: _Secret  # What the noise of its answers is derived from

    @property
    def public(self) -> PublicKey:
        """The joint public key."""
        return PublicKey(self.crs, self.b)


Kept = TypeVar("Kept", Box, Drawn, ThresholdKey)


def read(kind: type[Kept], scheme: ThresholdRlwe, data: bytes) -> Kept:
    """Inverse of `to_bytes`; ProtocolError for anything else, a residue that is too large too."""
    kept = kind.from_bytes(data)
    moduli, n, rows = scheme.slots.moduli, scheme.sizes.n, {}
    for name in {"b", "share"}.intersection(each.name for each in fields(kept)):
        flat = getattr(kept, name)
        if flat.size != len(moduli) * n:
            raise ProtocolError(
                f"threshold key: {flat.size} residues, {len(moduli)} times {n} are needed"
            )
        rows[name] = flat.reshape(len(moduli), n)
        if any(int(row.max()) >= q for row, q in zip(rows[name], moduli, strict=True)):
            raise ProtocolError("threshold key: a residue that is not below its modulus")
    return replace(kept, **rows)


def begin(
    scheme: ThresholdRlwe, rank: int, crs: bytes, random: Random = secrets.token_bytes
) -> tuple[Drawn, bytes]:
    """Draw s_i and e_i; returns the state to keep and the COMMIT, 32 bytes, for all.

    `scheme` is without a key's id; `crs` has 32 public bytes, such as a hash of a nonce of each party.
    """
    check_senders((rank,), scheme.cohort)
    if len(crs) != 32 or scheme.key_id:
        raise ConfigError(
            "threshold keys: takes a crs of 32 bytes, and parameters without a key_id"
        )
    own = draw_own(scheme.sizes.n, random)
    check_own(own)
    error, rows = draw(scheme.sizes.n, random), []
    for ring, a_hat in zip(scheme.rings, common_hats(scheme, crs), strict=True):
        product = ring.products(ring.forward(lifted(own, ring.q)), a_hat[np.newaxis])[0]
        noise = scaled(lifted(error, ring.q), 1 << scheme.slots.log_p, ring.q)
        rows.append(ring.subtract(noise, product))
    drawn = Drawn(rank, crs, own, np.array(rows), Secret(random(32)))
    return drawn, _commitment(crs, rank, drawn.b)


def reveal(scheme: ThresholdRlwe, drawn: Drawn, commitments: Sequence[bytes]) -> tuple[Box, ...]:
    """Once all have committed: what each rank alone may see; the same each time.

    Raises ProtocolError: not as many commitments as parties; the own one was changed.
    """
    if len(commitments) != scheme.cohort or any(len(c) != 32 for c in commitments):
        raise ProtocolError(
            f"threshold keys: {len(commitments)} commitments, all {scheme.cohort} parties must send "
            "one of 32 bytes: start over"
        )
    own = _commitment(drawn.crs, drawn.rank, drawn.b)
    if not hmac.compare_digest(commitments[drawn.rank], own):
        raise ProtocolError("threshold keys: own commitment was changed on the way: start over")
    moduli, n = scheme.slots.moduli, scheme.sizes.n
    terms = [
        [
            FieldElements(hkdf(drawn.key, "threshold-share", degree, limb), q).blocks(0, 1, n)[0]
            for limb, q in enumerate(moduli)
        ]
        for degree in range(1, scheme.threshold)
    ]
    values = shares([lifted(drawn.own, q) for q in moduli], moduli, scheme.cohort, terms)
    return tuple(Box(drawn.b, value, _seed(drawn, rank)) for rank, value in enumerate(values))


def finish(
    scheme: ThresholdRlwe, drawn: Drawn, commitments: Sequence[bytes], boxes: Sequence[Box]
) -> ThresholdKey:
    """The party's key, out of what everyone had for it, itself included.

    Raises ProtocolError: something is missing, or not what was committed to.

    `scheme`, `drawn` and `commitments` are as `reveal` had them; `boxes` by rank of the sender.
    """
    if len(boxes) != scheme.cohort:
        raise ProtocolError(
            f"threshold keys: shares of {len(boxes)} parties, all {scheme.cohort} must send theirs: "
            "start over"
        )
    b, share = (np.zeros((len(scheme.rings), scheme.sizes.n), np.uint64) for _ in range(2))
    pairs = []
    for rank, box in enumerate(boxes):
        told = _commitment(drawn.crs, rank, box.b)
        if not hmac.compare_digest(told, commitments[rank]):
            raise ProtocolError(
                f"threshold keys: the public part of rank {rank} is not the one that it committed to: "
                "start over"
            )
        for total, part in ((b, box.b), (share, box.share)):
            for limb, ring in enumerate(scheme.rings):
                ring.add(total[limb], part[limb], total[limb])
        if rank == drawn.rank:
            pairs.append(b"")
            continue
        # The lower rank's half first, so that both derive the same.
        (low, first), (high, second) = sorted([(drawn.rank, _seed(drawn, rank)), (rank, box.seed)])
        pairs.append(hkdf(first + second, "threshold-pair", drawn.crs, low, high))
    noise = hkdf(drawn.key, "threshold-noise", drawn.crs)
    return ThresholdKey(drawn.rank, share, tuple(pairs), drawn.crs, b, noise)


def _seed(drawn: Drawn, rank: int) -> Secret:
    """r_ij for the party of that rank."""
    return hkdf(drawn.key, "threshold-pair-seed", rank)


def _commitment(crs: bytes, rank: int, b: Elements) -> bytes:
    data = canonical.dumps(["flhe/v1/threshold-commit", crs, rank, b.astype("<u8").tobytes()])
    return hashlib.sha256(data).digest()
