"""What a user would pick instead, on the same vector: TenSEAL's CKKS and BFV, python-paillier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flhe.errors import ConfigError
from flhe.packages import install_hint
from flhe.sim.contenders import Contender, Kind, Setting, Timed, Vector, worst

SLOTS = 4096
"""Values in one ciphertext of ring dimension 8192."""

MODULI = ((60, 40, 40), (60, 60))

SCALE = 40
"""Bits of CKKS's scale, as FLASHE and TenSEAL's examples have it."""

BFV_SLOTS = 4096
"""Values in one BFV ciphertext, and its ring dimension."""

BFV_MODULI = (36, 36, 37)
"""SEAL's own for this dimension."""

BFV_NOISE_BITS = 14
"""Room for the noise of one ciphertext of this dimension."""

BITS = 16
"""Bits of a value under BFV, sign included."""


class TensealCkks:
    """CKKS by TenSEAL, ring dimension 8192: 4096 values a ciphertext.

    Without `moduli` it takes SEAL's own for the dimension, 218 bits, as FLASHE's peer does (Sec. 5.4).
    The scale is 2**`scale`; 2**40 is theirs too.

    All clients upload one and the same ciphertext: encrypting ten of them would take minutes and show
    nothing more, since adding costs the same whatever is inside.
    """

    kind: Kind = "peer"
    max_repeats = 5

    def __init__(
        self,
        setting: Setting,
        updates: Sequence[Vector],
        moduli: tuple[int, ...],
        scale: int = SCALE,
    ) -> None:
        ts = _tenseal()
        self.name = f"tenseal-ckks-8192-{'-'.join(map(str, moduli)) or 'default'}"
        if scale != SCALE:
            self.name += f", scale 2^{scale}"
        self.note = (
            f"TenSEAL {ts.__version__}, {-(-setting.values // SLOTS)} ciphertexts, every client "
            f"uploads client 0's; at most {self.max_repeats} repeats"
        )
        self._context = ts.context(
            ts.SCHEME_TYPE.CKKS,
            poly_modulus_degree=2 * SLOTS,
            coeff_mod_bit_sizes=list(moduli),  # none: SEAL's own
            n_threads=setting.threads,
        )
        self._context.global_scale = 2**scale
        self._ckks: Any = ts.ckks_vector
        self._update = updates[0]
        self._count = len(setting.survivors)
        self._part = self._encrypt()
        self.upload_bytes: int | None = sum(len(c.serialize()) for c in self._part)
        self._total = _copies(self._context, self._part)
        for _ in range(self._count - 1):
            self._add(self._total)
        running = _copies(self._context, self._part)

        self.mean: Vector = np.empty(0, np.float32)
        self.encrypt: Timed = self._encrypt
        self.add: Timed = lambda: self._add(running)
        self.decrypt: Timed = self._decrypt

    def _encrypt(self) -> list[Any]:
        x = self._update
        return [self._ckks(self._context, x[at : at + SLOTS]) for at in range(0, x.size, SLOTS)]

    def _add(self, totals: list[Any]) -> None:
        for total, part in zip(totals, self._part, strict=True):
            total.add_(part)

    def _decrypt(self) -> None:
        values = np.concatenate([np.array(c.decrypt(), np.float64) for c in self._total])
        self.mean = (values / self._count).astype(np.float32)

    def max_error(self) -> float:
        """Against the update itself, which is the mean here."""
        return worst(self.mean, [self._update])


class TensealBfv:
    """BFV by TenSEAL: as many integers of 16 bits a ciphertext as its ring dimension is, 4096.

    All clients upload client 0's ciphertexts, as for CKKS. The plain modulus is the smallest prime that
    gives batching and holds the sum of all clients' largest values.

    Parameters
    ----------
    setting, updates
        As for every contender.
    moduli : tuple of int, optional
        Bits of the coefficient moduli, the key's last; by default the shortest pair that leaves room
        for a sum and its noise; None for SEAL's own.
    dimension, modulus : int, optional
        Of the ring; of plaintexts, 0 for the smallest that there is room in.
    """

    kind: Kind = "peer"
    max_repeats = 5

    def __init__(
        self,
        setting: Setting,
        updates: Sequence[Vector],
        moduli: tuple[int, ...] | None = (),
        dimension: int = BFV_SLOTS,
        modulus: int = 0,
    ) -> None:
        ts = _tenseal()
        self._levels = (1 << (BITS - 1)) - 1
        self._slots = dimension
        most = 2 * setting.cohort * self._levels
        modulus = modulus or plain_modulus(most, 2 * dimension)
        if modulus <= most:
            raise ConfigError(
                f"plain modulus {modulus}: sums of --cohort {setting.cohort} exceed it"
            )
        if moduli == ():
            # The noise of a sum of one and the same ciphertext grows with the cohort.
            moduli = (modulus.bit_length() + setting.cohort.bit_length() + BFV_NOISE_BITS,) * 2
        self.name = f"tenseal-bfv-{dimension}-{'-'.join(map(str, moduli or ('default',)))}"
        self.note = (
            f"TenSEAL {ts.__version__}, {BITS} bits a value, plain modulus {modulus}, "
            f"{-(-setting.values // dimension)} ciphertexts, every client uploads client 0's; at most "
            f"{self.max_repeats} repeats"
        )
        self._context = ts.context(
            ts.SCHEME_TYPE.BFV,
            poly_modulus_degree=dimension,
            plain_modulus=modulus,
            coeff_mod_bit_sizes=list(moduli or ()),  # none: SEAL's own
            n_threads=setting.threads,
        )
        self._bfv: Any = ts.bfv_vector
        self._update = updates[0]
        self._count = len(setting.survivors)
        self._part = self._encrypt()
        self.upload_bytes: int | None = sum(len(c.serialize()) for c in self._part)
        self._total = _copies(self._context, self._part)
        for _ in range(self._count - 1):
            self._add(self._total)
        running = _copies(self._context, self._part)

        self.mean: Vector = np.empty(0, np.float32)
        self.encrypt: Timed = self._encrypt
        self.add: Timed = lambda: self._add(running)
        self.decrypt: Timed = self._decrypt

    def _encrypt(self) -> list[Any]:
        scaled = np.clip(self._update.astype(np.float64), -1, 1) * self._levels
        x = np.rint(scaled).astype(np.int64)
        return [
            self._bfv(self._context, x[at : at + self._slots])
            for at in range(0, x.size, self._slots)
        ]

    def _add(self, totals: list[Any]) -> None:
        for total, part in zip(totals, self._part, strict=True):
            total.add_(part)

    def _decrypt(self) -> None:
        sums = np.concatenate([np.array(c.decrypt(), np.int64) for c in self._total])
        self.mean = (sums / (self._levels * self._count)).astype(np.float32)

    def max_error(self) -> float:
        """Against the update itself, which is the mean here."""
        return worst(self.mean, [self._update])


SHORT_SCALE = 33
"""Bits of the shortest CKKS's scale: errors of a sum stay below a step of 16 bits."""


def shortest_ckks(setting: Setting, updates: Sequence[Vector]) -> TensealCkks:
    """CKKS without a level to spare: the data's modulus holds a sum of values below 1, and its sign."""
    return TensealCkks(setting, updates, shortest_moduli(setting.cohort), SHORT_SCALE)


def shortest_moduli(cohort: int) -> tuple[int, int]:
    """Bits of its two moduli; the second is the key's, as long as SEAL takes it."""
    return SHORT_SCALE + cohort.bit_length() + 1, 60


def paper_bfv(setting: Setting, updates: Sequence[Vector]) -> TensealBfv:
    """FLASHE's peer (Sec. 5.4): n = 8192, SEAL's own moduli, 218 bits, and its plain modulus."""
    return TensealBfv(setting, updates, None, 8192, 1_964_769_281)


def _copies(context: Any, vectors: Sequence[Any]) -> list[Any]:
    """Copies by way of bytes: TenSEAL's own `copy` takes a hundred times as long."""
    return [type(vector).load(context, vector.serialize()) for vector in vectors]


def plain_modulus(above: int, step: int) -> int:
    """Smallest prime above `above` that is 1 modulo `step`: BFV batches under such a modulus."""
    candidate = above // step * step + 1
    while True:
        candidate += step
        if all(candidate % divisor for divisor in range(2, math.isqrt(candidate) + 1)):
            return candidate


def peers(setting: Setting, updates: Sequence[Vector]) -> list[Contender]:
    """All peers of this version."""
    from flhe.sim.phe_peer import phe_peers

    return [
        *(TensealCkks(setting, updates, moduli) for moduli in MODULI),
        TensealBfv(setting, updates, BFV_MODULI),
        TensealBfv(setting, updates),
        *phe_peers(setting, updates),
    ]


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise ConfigError(
            f"TenSEAL is not installed; the [peers] extra brings it: {install_hint('peers')}"
        ) from None
    return tenseal
