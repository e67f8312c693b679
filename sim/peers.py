"""What a user would pick instead: TenSEAL's CKKS, on the same vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flhe.errors import ConfigError
from flhe.sim.contenders import Contender, Kind, Setting, Timed, Vector, worst

SLOTS = 4096
"""Values in one ciphertext of ring dimension 8192."""

MODULI = ((60, 40, 40), (60, 60))


class TensealCkks:
    """CKKS by TenSEAL, ring dimension 8192, scale 2**40: 4096 values a ciphertext.

    All clients upload one and the same ciphertext: encrypting ten of them would take minutes and show
    nothing more, since adding costs the same whatever is inside.
    """

    kind: Kind = "peer"
    max_repeats = 5

    def __init__(
        self, setting: Setting, updates: Sequence[Vector], moduli: tuple[int, ...]
    ) -> None:
        ts = _tenseal()
        self.name = f"tenseal-ckks-8192-{'-'.join(map(str, moduli))}"
        self.note = (
            f"TenSEAL {ts.__version__}, {-(-setting.values // SLOTS)} ciphertexts, every client "
            f"uploads client 0's; at most {self.max_repeats} repeats"
        )
        self._context = ts.context(
            ts.SCHEME_TYPE.CKKS,
            poly_modulus_degree=2 * SLOTS,
            coeff_mod_bit_sizes=list(moduli),
            n_threads=setting.threads,
        )
        self._context.global_scale = 2**40
        self._ckks: Any = ts.ckks_vector
        self._update = updates[0]
        self._count = len(setting.survivors)
        self._part = self._encrypt()
        self.upload_bytes: int | None = sum(len(c.serialize()) for c in self._part)
        self._total = [c.copy() for c in self._part]
        for _ in range(self._count - 1):
            self._add(self._total)
        running = [c.copy() for c in self._part]

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


def peers(setting: Setting, updates: Sequence[Vector]) -> list[Contender]:
    """All peers of this version."""
    return [TensealCkks(setting, updates, moduli) for moduli in MODULI]


def _tenseal() -> Any:
    try:
        import tenseal
    except ImportError:
        raise ConfigError(
            "--peers needs TenSEAL, the [ckks] extra: `uv sync --all-extras` in a checkout, "
            "`pip install 'flhe[ckks]'` elsewhere"
        ) from None
    return tenseal
