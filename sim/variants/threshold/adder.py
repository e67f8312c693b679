"""ThresholdRlwe: learning with errors over a ring, one public key, and t of N parties to open a sum.

    a public,   b = sum of b_i,   b_i = p e_i - a s_i         in Z_q[x] / (x^n + 1)
    (c0, c1) = (u b + p e' + m,   u a + p e'')                for each block of n coefficients
    c0 + c1 s = p (u e + e'' s + e') + m                      s = sum of s_i, e = sum of e_i

Anybody encrypts under (a, b), for any set of senders; sums of ciphertexts are ciphertexts of sums,
exact integers. Nobody holds s: each party has a Shamir share of it (`keys`), and t of them open a sum
together (`opening`). With one CKKS key that all clients hold, one client and the server open every
update; here it takes t parties.

Senders are taken to encrypt as they are told, and the server to add up what it was sent;
docs/threshold.md says what happens else, and what stopping that would take.

Source: FedML-HE, Sec. 2.2 and Fig. 12 (threshold keys); Asharov et al., EUROCRYPT 2012 (a joint public
key, flooding); Brakerski, Gentry and Vaikuntanathan, ITCS 2012 (p e below the plaintext); slots:
`flhe.coding.coefficients`, as ESAFL packs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.limbs import LimbPacking
from flhe.errors import ConfigError
from flhe.math.prg import FieldElements
from flhe.math.ring import Elements, PrimeRing
from flhe.schemes.base import Adder, Opener, Sealer, Secrets, Spends
from flhe.schemes.esafl.rlwe import Rlwe
from flhe.schemes.esafl.scheme import ESHE
from flhe.schemes.presets import called
from flhe.schemes.sealed import Sealed
from flhe.wire import canonical
from flhe.wire.derive import hkdf
from flhe.wire.secret import Random
from flhe_lab.variants.threshold.scheme import ThresholdCkks
from flhe_lab.variants.threshold.sizes import ALLOWANCE, Flooded, sizes_for

NAME = ThresholdCkks.name
DEFAULT_RING = "rns-8192"

CHECKS = 8
"""Zeros that follow the values: what was opened with a wrong key, or other answers, has none there. The
modulus is hardly larger than noise, so noise alone would tell that for long vectors only."""


@dataclass(frozen=True, slots=True)
class ThresholdRlwe(Adder):
    """Public parameters."""

    cohort: int  # N, parties that hold shares, and senders of a sum at most; 2 or more
    threshold: int  # t, parties that open a sum together, 2 to N. Fewer learn nothing.
    bits: int = 16  # Bits of one encoded value, sign included, 2 to 32
    ring: str = DEFAULT_RING  # As in `flhe.schemes.esafl.scheme`; one limb of 64 bits is too small
    key_id: bytes = b""  # `PublicKey.key_id`, 32 bytes; empty before there is one
    scheme: ThresholdCkks = field(default=ThresholdCkks(), repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 2 <= self.threshold <= self.cohort:
            raise ConfigError(
                f"ThresholdRlwe(cohort={self.cohort}, threshold={self.threshold}): the threshold must "
                "be 2 to the cohort; with 1, each party alone opens everything"
            )
        if not 2 <= self.bits <= 32:
            raise ConfigError(f"ThresholdRlwe(bits={self.bits}): bits must be 2 to 32")
        if len(self.key_id) not in (0, 32):
            raise ConfigError("ThresholdRlwe(key_id=...): 32 bytes, as `PublicKey.key_id` has them")
        _ = self.sizes  # refuses what does not fit

    @property
    def sizes(self) -> Rlwe:
        """Ring, moduli and slots."""
        preset = called(self.ring, "ring", "ESHE", ESHE)
        return sizes_for(preset, self.cohort, self.threshold, self.bits)

    @property
    def slots(self) -> Flooded:
        """Slots, and how large noise is."""
        slots = self.sizes.slots
        assert isinstance(slots, Flooded)
        return slots

    @property
    def rings(self) -> tuple[PrimeRing, ...]:
        """One ring for each limb."""
        return self.sizes.rings

    @property
    def limbs(self) -> LimbPacking:
        """How residues travel."""
        return self.sizes.limbs

    def parameters(self) -> dict[str, Any]:
        """Public parameters, for hashing into the layout."""
        slots = self.slots
        return {
            "name": NAME,
            "cohort": self.cohort,
            "threshold": self.threshold,
            "bits": self.bits,
            "ring": self.ring,
            "moduli": list(slots.moduli),
            "per": slots.per,
            "smudging": slots.smudging,
            "key": self.key_id,
        }

    def counts(self, length: int) -> tuple[int, int]:
        """Elements a limb of c0, and of c1: of the last block c0 has only what holds something."""
        count, n = self.slots.count(length + CHECKS), self.sizes.n
        return count, -(-count // n) * n

    def nbytes(self, length: int) -> int:
        """Bytes of a ciphertext of `length` values."""
        return sum(map(self.limbs.nbytes, self.counts(length)))

    def halves(self, sealed: Sealed) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The bytes of c0 and of c1, views."""
        at = self.limbs.nbytes(self.counts(sealed.length)[0])
        return sealed.data[:at], sealed.data[at:]

    def check(self, sealed: Sealed) -> None:
        """Refuse what is no ciphertext of this scheme, a residue that is not below its modulus."""
        Adder.check(self, sealed)
        for half, count in zip(self.halves(sealed), self.counts(sealed.length), strict=True):
            self.limbs.check(half, count)

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        halves = zip(self.halves(total), self.halves(part), self.counts(part.length), strict=True)
        for own, other, count in halves:
            self.limbs.add(own, other, count, self.rings)
        return total.data

    # --- the key, and what a member does with its share ---

    def draw(self, rank: int, common: bytes, random: Random) -> tuple[bytes, bytes]:
        """A member's part of the key, encoded, and the COMMIT."""
        from flhe_lab.variants.threshold import keys

        drawn, commitment = keys.begin(self, rank, common, random)
        return drawn.to_bytes(), commitment

    def reveal(self, drawn: bytes, commitments: Sequence[bytes]) -> list[bytes]:
        """What each rank alone may see: the public part goes with it."""
        from flhe_lab.variants.threshold import keys

        boxes = keys.reveal(self, keys.read(keys.Drawn, self, drawn), commitments)
        return [box.to_bytes() for box in boxes]

    def finish(
        self, drawn: bytes, commitments: Sequence[bytes], boxes: Sequence[bytes]
    ) -> tuple[bytes, bytes]:
        """The member's key, encoded, and the public key's id."""
        from flhe_lab.variants.threshold import keys

        found = [keys.read(keys.Box, self, box) for box in boxes]
        key = keys.finish(self, keys.read(keys.Drawn, self, drawn), commitments, found)
        return key.to_bytes(), key.public.key_id

    def openers(self, senders: Sequence[int]) -> tuple[int, ...]:
        """T: the first t of the senders; of fewer, the first of the others too."""
        others = (rank for rank in range(self.cohort) if rank not in senders)
        return tuple(sorted([*senders, *others][: self.threshold]))

    def partial_bytes(self, length: int) -> int:
        """As long as c0."""
        return self.limbs.nbytes(self.counts(length)[0])

    def spends(self, length: int) -> Spends:
        """Coefficients of c0, of `ALLOWANCE`."""
        return Spends(self.counts(length)[0], ALLOWANCE)

    def partial(self, secrets: Secrets, total: Sealed) -> bytes:
        """This member's partial decryption; its noise is a function of c1 and T."""
        from flhe_lab.variants.threshold import keys, opening

        chosen = self.openers(total.senders)
        if secrets.rank not in chosen:
            return b""
        key = keys.read(keys.ThresholdKey, self, secrets.needed())
        return opening.Party(self, key).partial(total, chosen)

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> Sealer:
        """The sealer: it takes the public key out of what the member holds."""
        from flhe_lab.variants.threshold import keys
        from flhe_lab.variants.threshold.sealer import ThresholdSealer

        key = keys.read(keys.ThresholdKey, self, secrets.needed())
        return ThresholdSealer(self, key.public, secrets.rank)

    def opener(
        self, secrets: Secrets, released: Mapping[int, bytes] | None = None, *, threads: int = 1
    ) -> Opener:
        """The opener of what T released."""
        from flhe_lab.variants.threshold.opening import TogetherOpener

        return TogetherOpener(self, released or {})


def common_hats(scheme: ThresholdRlwe, crs: bytes) -> tuple[Elements, ...]:
    """Transforms of `a`, uint64 (n,) for each limb, out of 32 public bytes that nobody chose alone."""
    return tuple(
        FieldElements(hkdf(crs, "threshold-a", scheme.ring, limb), ring.q).blocks(0, 1, ring.n)[0]
        for limb, ring in enumerate(scheme.rings)
    )


@dataclass(frozen=True, slots=True, eq=False)
class PublicKey:
    """What everybody encrypts under."""

    crs: bytes  # What `a` is expanded from, 32 bytes
    b: Elements = field(repr=False)  # p e - a s, shape (limbs, n)

    @property
    def key_id(self) -> bytes:
        """SHA-256 of both, 32 bytes: `ThresholdRlwe.key_id`."""
        data = canonical.dumps(["flhe/v1/threshold-key", self.crs, self.b.astype("<u8").tobytes()])
        return hashlib.sha256(data).digest()

    def check(self, scheme: ThresholdRlwe) -> None:
        """Refuse a key that is not the one of these parameters; ConfigError."""
        if self.b.shape != (len(scheme.rings), scheme.sizes.n) or self.key_id != scheme.key_id:
            raise ConfigError(
                f"{NAME}: the public key is not the one that the parameters name; make them with "
                "dataclasses.replace(scheme, key_id=key.key_id)"
            )
