"""Contenders of FLASHE's tables alone: lattices with a value a ciphertext, and a tenth in clear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flhe.coding.support import Support
from flhe.schemes.seal_blocks import tenseal
from flhe.schemes.sparse import covered
from flhe.sim.contenders import Kind, Setting, Timed, Vector, worst
from flhe.sim.peers import BITS, plain_modulus
from flhe.sim.tables.marked import Mark

SAMPLE = 16
"""Ciphertexts that are measured."""

SHARE = 0.1
"""Of the values of an update, in a sparse one."""


class TensealValues:
    """One value a ciphertext by TenSEAL: sampled, since an update takes gigabytes.

    Parameters
    ----------
    setting, updates
        As for every contender.
    bfv : bool
        BFV, n = 4096, the shortest ring that TenSEAL takes with sums of 16-bit integers; else CKKS as
        in FLASHE, Sec. 5.4: n = 8192, SEAL's own moduli, scale 2^40.
    """

    kind: Kind = "peer"
    max_repeats = 5
    bytes_mark: Mark = "sampled"

    def __init__(self, setting: Setting, updates: Sequence[Vector], *, bfv: bool) -> None:
        ts = tenseal()
        self.name = f"tenseal-{'bfv-4096' if bfv else 'ckks-8192'} a value"
        count = min(SAMPLE, setting.values)
        picked = np.linspace(0, setting.values - 1, count).astype(np.intp)
        self.projection = setting.values / count
        self.note = f"TenSEAL {ts.__version__}, projected from {count} ciphertexts, one a value"
        self._levels = (1 << (BITS - 1)) - 1 if bfv else 1
        self._own = updates[0][picked]
        if bfv:
            modulus = plain_modulus(2 * setting.cohort * self._levels, 2 * 4096)
            kind, numbers = ts.SCHEME_TYPE.BFV, {"plain_modulus": modulus}
        else:
            kind, numbers = ts.SCHEME_TYPE.CKKS, {}
        degree = 4096 if bfv else 8192
        context = ts.context(
            kind,
            poly_modulus_degree=degree,
            coeff_mod_bit_sizes=[],  # SEAL's own
            n_threads=setting.threads,
            **numbers,
        )
        if not bfv:
            context.global_scale = 2**40
        vector: Any = ts.bfv_vector if bfv else ts.ckks_vector

        def encrypt() -> list[Any]:
            scaled = self._own.astype(np.float64) * self._levels
            taken = np.rint(scaled).astype(np.int64).tolist() if bfv else scaled.tolist()
            return [vector(context, [x]) for x in taken]

        part = encrypt()
        size = sum(len(c.serialize()) for c in part)
        self.upload_bytes: int | None = round(size * self.projection)
        total = part
        for _ in range(len(setting.survivors) - 1):  # every client uploads client 0's
            total = [a + b for a, b in zip(total, part, strict=True)]
        running = [a + b for a, b in zip(part, part, strict=True)]
        self.mean: Vector = np.empty(0, np.float32)

        def decrypt() -> None:
            sums = np.array([c.decrypt()[0] for c in total], np.float64)
            self.mean = (sums / (self._levels * len(setting.survivors))).astype(np.float32)

        self.encrypt: Timed = encrypt
        self.add: Timed = lambda: [a.add_(b) for a, b in zip(running, part, strict=True)]
        self.decrypt: Timed = decrypt

    def max_error(self) -> float:
        """Of the sample, against client 0's values, which are the mean here."""
        return worst(self.mean, [self._own])


class PlainTenth:
    """The largest tenth of each update in clear: float32 values, and which they are."""

    kind: Kind = "scheme"
    max_repeats = 1_000_000

    def __init__(self, setting: Setting, updates: Sequence[Vector]) -> None:
        self.name, self.note = "plain top 10%", "values in float32, and a coded support"
        self._values = setting.values
        sent = [self._selected(updates[j]) for j in setting.survivors]
        self.sent, self.support_bytes = sent[0][1].size, len(sent[0][0].data)
        """Values of one upload, and bytes that say which they are."""
        self.upload_bytes: int | None = 4 * self.sent + self.support_bytes
        total = np.zeros(setting.values, np.float32)
        for support, values in sent:
            total[support.coords] += values
        told = Support.of(covered([support for support, _ in sent]), setting.values)
        self.union = told.count
        """Coordinates that somebody sent."""
        exact = np.zeros(setting.values, np.float64)
        for support, values in sent:
            exact[support.coords] += values
        self._exact = exact / len(sent)
        running, (other, values) = np.zeros_like(total), sent[1]
        self.sum_support_bytes = len(told.data)
        self.sum_bytes = 4 * self.union + self.sum_support_bytes
        summed = total[told.coords]
        self.mean: Vector = np.empty(0, np.float32)

        def add() -> None:
            coords = Support.from_bytes(other.data, setting.values).coords
            running[coords] += values

        def decrypt() -> None:
            mean = np.zeros(setting.values, np.float32)
            coords = Support.from_bytes(told.data, setting.values).coords
            mean[coords] = summed / np.float32(len(sent))
            self.mean = mean

        self.encrypt: Timed = lambda: self._selected(updates[0])
        self.add: Timed = add
        self.decrypt: Timed = decrypt

    def _selected(self, update: Vector) -> tuple[Support, Vector]:
        count = max(round(SHARE * self._values), 1)
        largest = np.argpartition(np.abs(update), self._values - count)[-count:]
        coords = np.sort(largest).astype(np.uint32)
        return Support.of(coords, self._values), update[coords]

    def max_error(self) -> float:
        """Against the float64 mean of what was sent."""
        return float(np.abs(self.mean - self._exact).max())
