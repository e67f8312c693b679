"""A key that nobody has: each party draws a part of it, and holds a share of the whole.

    COMMIT   i -> all   H(crs | i | b_i)                  b_i = p e_i - a s_i
    REVEAL   i -> all   b_i                               checked against COMMIT
             i -> j     f_i(j + 1), r_ij                  for j alone: to be sealed by the caller

    b = sum of b_i,   S_j = sum of f_i(j + 1),   k_ij = HKDF(r_ij | r_ji)

f_i is a polynomial of degree t - 1 over Z_q, for each coefficient of s_i = f_i(0), so S_j is a value of
the sum of all: t values give s = sum of s_i, fewer give nothing. q is a product of primes above the
number of parties; polynomials are drawn, and points inverted, modulo each of them.

Without COMMIT, the last one to speak could choose b_i as a key of its own less all others', and
would open everything alone. k_ij blinds partial decryptions (`flhe.schemes.threshold_opening`).

Steps are pure functions; a state asked twice answers the same. After `finish` nobody needs s_i and
f_i: forget the states. Wrong shares make sums that do not open; nothing here tells whose they are.

Source: Shamir, 1979; Asharov et al., EUROCRYPT 2012 (joint keys); Mouchet et al., J. Cryptology 2023
(shares of a sum of keys).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from flhe.coding.limb_packing import Residues
from flhe.errors import ConfigError, ProtocolError
from flhe.keys import canonical
from flhe.keys.derive import hkdf
from flhe.keys.identity import Random, Secret
from flhe.math.prg import AesCtr, FieldElements
from flhe.math.prime_sharing import scaled, shares
from flhe.math.sampling import Gaussian
from flhe.schemes.eshe_keys import Own, check_own, draw_own
from flhe.schemes.rlwe import lifted
from flhe.schemes.threshold import PublicKey, ThresholdRlwe, common_hats
from flhe.sealed import check_senders

VERSION = 1
MAX_BYTES = 8 << 20
"""Longest encoded key: 4 MiB at dimension 32768 with 8 limbs."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One party before the others' commitments are known; secret, to be forgotten in the end.

    Parameters
    ----------
    rank : int
        Its rank.
    crs : bytes
        What `a` is expanded from.
    own : NDArray[int8]
        s_i, shape (n,).
    b : NDArray[uint64]
        b_i, shape (limbs, n).
    key : bytes
        What f_i and r_ij are derived from, 32 bytes.
    """

    rank: int
    crs: bytes
    own: Own = field(repr=False)
    b: Residues = field(repr=False)
    key: Secret = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False)
class Revealed:
    """One party that has seen all commitments.

    Parameters
    ----------
    drawn : Drawn
        What it drew.
    commitments : tuple of bytes
        Everyone's, by rank.
    """

    drawn: Drawn
    commitments: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ThresholdKey:
    """What a party holds.

    Parameters
    ----------
    rank : int
        Its rank.
    share : NDArray[uint64]
        S_j, shape (limbs, n).
    pairs : tuple of bytes
        k_jk by rank, 32 bytes each; empty for itself.
    public : PublicKey
        The joint public key.
    """

    rank: int
    share: Residues = field(repr=False)
    pairs: tuple[bytes, ...] = field(repr=False)
    public: PublicKey

    def to_bytes(self) -> bytes:
        """Encode; the bytes are secret."""
        share, b = (x.astype("<u8").tobytes() for x in (self.share, self.public.b))
        limbs, pairs = len(self.share), [bytes(pair) for pair in self.pairs]
        return canonical.dumps(
            [VERSION, "threshold-key", self.rank, limbs, pairs, share, self.public.crs, b]
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ThresholdKey:
        """Inverse of `to_bytes`; ProtocolError for anything else."""
        match canonical.loads(data, MAX_BYTES, "threshold key"):
            case [
                version,
                "threshold-key",
                rank,
                limbs,
                list(pairs),
                bytes(share),
                bytes(crs),
                bytes(b),
            ] if (
                all(type(number) is int for number in (version, rank, limbs))
                and (version, len(b)) == (VERSION, len(share))
                and limbs > 0
                and share
                and len(share) % (8 * limbs) == 0
                and all(type(p) is bytes and len(p) in (0, 32) for p in pairs)
            ):
                rows = [np.frombuffer(x, "<u8").astype(np.uint64) for x in (share, b)]
                own, joint = (row.reshape(limbs, -1) for row in rows)
                return cls(rank, own, tuple(map(Secret, pairs)), PublicKey(crs, joint))
        raise ProtocolError("threshold key: malformed, or of another version of flhe")


def begin(
    scheme: ThresholdRlwe, rank: int, crs: bytes, random: Random = secrets.token_bytes
) -> tuple[Drawn, bytes]:
    """Draw s_i and e_i; returns the state to keep and the COMMIT, 32 bytes, for all.

    Parameters
    ----------
    scheme : ThresholdRlwe
        Parameters without a key's id.
    rank : int
        Own rank.
    crs : bytes
        32 public bytes which nobody chose alone, such as a hash of a nonce of each party.
    """
    check_senders((rank,), scheme.cohort)
    if len(crs) != 32 or scheme.key_id:
        raise ConfigError(
            "threshold keys: takes a crs of 32 bytes, and parameters without a key_id"
        )
    own = draw_own(scheme.sizes.n, random)
    check_own(own)
    error, rows = Gaussian().draw(scheme.sizes.n, random), []
    for ring, a_hat in zip(scheme.rings, common_hats(scheme, crs, AesCtr()), strict=True):
        product = ring.products(ring.forward(lifted(own, ring.q)), a_hat[np.newaxis])[0]
        noise = scaled(lifted(error, ring.q), 1 << scheme.slots.log_p, ring.q)
        rows.append(ring.subtract(noise, product))
    key = random(32)
    if len(key) != 32:
        raise ConfigError(f"the random source gave {len(key)} bytes, 32 were asked for")
    drawn = Drawn(rank, crs, own, np.array(rows), Secret(key))
    return drawn, _commitment(crs, rank, _packed(scheme, drawn.b))


def reveal(
    scheme: ThresholdRlwe, drawn: Drawn, commitments: Sequence[bytes]
) -> tuple[Revealed, bytes, tuple[bytes, ...]]:
    """Once all have committed: the state to keep, b_i for all, and what each rank alone may see.

    Raises
    ------
    ProtocolError
        Not as many commitments as parties; the own one was changed.
    """
    if len(commitments) != scheme.cohort or any(len(c) != 32 for c in commitments):
        raise ProtocolError(
            f"threshold keys: {len(commitments)} commitments, all {scheme.cohort} parties must send "
            "one of 32 bytes: start over"
        )
    b = _packed(scheme, drawn.b)
    if not hmac.compare_digest(commitments[drawn.rank], _commitment(drawn.crs, drawn.rank, b)):
        raise ProtocolError("threshold keys: own commitment was changed on the way: start over")
    moduli, n, prg = scheme.slots.moduli, scheme.sizes.n, AesCtr()
    terms = [
        [
            FieldElements(prg, hkdf(drawn.key, "threshold-share", degree, limb), q).block(0, n)
            for limb, q in enumerate(moduli)
        ]
        for degree in range(1, scheme.threshold)
    ]
    values = shares([lifted(drawn.own, q) for q in moduli], moduli, scheme.cohort, terms)
    boxes = tuple(
        canonical.dumps([VERSION, _packed(scheme, value), bytes(_seed(drawn, rank))])
        for rank, value in enumerate(values)
    )
    return Revealed(drawn, tuple(commitments)), b, boxes


def finish(
    scheme: ThresholdRlwe, state: Revealed, publics: Sequence[bytes], boxes: Sequence[bytes]
) -> ThresholdKey:
    """The party's key, out of everyone's b_i and of what everyone had for it, own ones included.

    Parameters
    ----------
    scheme, state
        As `reveal` had and gave them.
    publics, boxes : sequence of bytes
        By rank of the sender.

    Raises
    ------
    ProtocolError
        Something is missing, malformed, or not what was committed to.
    """
    drawn, sizes = state.drawn, scheme.sizes
    if len(publics) != scheme.cohort or len(boxes) != scheme.cohort:
        raise ProtocolError(
            f"threshold keys: {len(publics)} public parts and {len(boxes)} shares, all "
            f"{scheme.cohort} parties must send both: start over"
        )
    b, share = (np.zeros((len(scheme.rings), sizes.n), np.uint64) for _ in range(2))
    pairs = []
    for rank, (public, box) in enumerate(zip(publics, boxes, strict=True)):
        told = _commitment(drawn.crs, rank, public)
        if not hmac.compare_digest(told, state.commitments[rank]):
            raise ProtocolError(
                f"threshold keys: the public part of rank {rank} is not the one that it committed to: "
                "start over"
            )
        value, seed = _opened(scheme, box, rank)
        for total, part in ((b, _unpacked(scheme, public, rank)), (share, value)):
            for limb, ring in enumerate(scheme.rings):
                ring.add_into(total[limb], part[limb])
        if rank == drawn.rank:
            pairs.append(b"")
            continue
        # The lower rank's half first, so that both derive the same.
        (low, first), (high, second) = sorted([(drawn.rank, _seed(drawn, rank)), (rank, seed)])
        pairs.append(hkdf(first + second, "threshold-pair", drawn.crs, low, high))
    return ThresholdKey(drawn.rank, share, tuple(pairs), PublicKey(drawn.crs, b))


def _seed(drawn: Drawn, rank: int) -> Secret:
    """r_ij for the party of that rank."""
    return hkdf(drawn.key, "threshold-pair-seed", rank)


def _commitment(crs: bytes, rank: int, b: bytes) -> bytes:
    return hashlib.sha256(canonical.dumps(["flhe/v1/threshold-commit", crs, rank, b])).digest()


def _packed(scheme: ThresholdRlwe, residues: Residues) -> bytes:
    """One polynomial, (limbs, n), as it travels."""
    limbs, n = scheme.limbs, scheme.sizes.n
    data = np.empty(limbs.nbytes(n), np.uint8)
    for limb, row in enumerate(residues):
        limbs.write(row, data, n, limb, 0)
    return data.tobytes()


def _unpacked(scheme: ThresholdRlwe, data: bytes, rank: int) -> Residues:
    limbs, n = scheme.limbs, scheme.sizes.n
    if len(data) != limbs.nbytes(n):
        raise ProtocolError(f"threshold keys: a polynomial of rank {rank} has another length")
    held, out = np.frombuffer(data, np.uint8), np.empty((len(scheme.rings), n), np.uint64)
    try:
        limbs.check(held, n)
    except ProtocolError as error:
        raise ProtocolError(f"threshold keys: from rank {rank}, {error}") from None
    for limb in range(len(scheme.rings)):
        limbs.read(held, n, limb, 0, out[limb])
    return out


def _opened(scheme: ThresholdRlwe, box: bytes, rank: int) -> tuple[Residues, bytes]:
    """Share and seed that the party of that rank had for us."""
    match canonical.loads(box, scheme.limbs.nbytes(scheme.sizes.n) + 256, "threshold share"):
        case [int(version), bytes(value), bytes(seed)] if (
            type(version) is int and version == VERSION and len(seed) == 32
        ):
            return _unpacked(scheme, value, rank), seed
    raise ProtocolError(f"threshold keys: the share of rank {rank} is malformed")
