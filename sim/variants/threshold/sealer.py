"""ThresholdSealer: encrypts under the joint public key; holds no secret.

    (c0, c1) = (u b + p e' + m,   u a + p e'')

u, e' and e'' are fresh for each block: discrete Gaussians, as keys are.

Source: Lyubashevsky, Peikert and Regev, EUROCRYPT 2010; see `scheme`.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.math.buffers import empty
from flhe.math.ring import Elements, lifted, scaled
from flhe.math.sampling import fill
from flhe.schemes.base import Sealer
from flhe.schemes.sealed import Slot, check_senders
from flhe_lab.variants.threshold.adder import CHECKS, PublicKey, ThresholdRlwe, common_hats


@dataclass(slots=True)
class ThresholdSealer(Sealer):
    """One client's side: it needs no secret."""

    adder: ThresholdRlwe  # Public parameters, with the key's id
    public: PublicKey  # The joint public key
    rank: int  # This client's rank in the agreed member list; never a number from the server
    _hats: list[tuple[Elements, Elements]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_senders((self.rank,), self.adder.cohort)
        self.public.check(self.adder)
        b_hats = (r.forward(b) for r, b in zip(self.adder.rings, self.public.b, strict=True))
        a_hats = common_hats(self.adder, self.public.crs)
        self._hats = list(zip(b_hats, a_hats, strict=True))

    def _seal(
        self, plain: Plain, slot: Slot, ready: Any, mode: str, support: Support | None
    ) -> NDArray[np.uint8]:
        length = plain.values.size + plain.extras.size
        adder, values = self.adder, plain.values
        if plain.extras.size:
            values = np.concatenate([plain.values, plain.extras])
        data = empty(adder.nbytes(length), np.uint8)
        count, n = adder.counts(length)[0], adder.sizes.n
        # Streams of u, e' and e'': each has a fresh key of its own.
        keys = [secrets.token_bytes(32) for _ in range(3)]
        for at in range(0, count, adder.sizes.step):
            end = min(at + adder.sizes.step, count)
            whole = -(-(end - at) // n) * n
            u, e0, e1 = (np.empty(size, np.int8) for size in (whole, end - at, whole))
            for key, samples in zip(keys, (u, e0, e1), strict=True):
                fill(key, at, samples)
            self._write(data, values, at, end, u, e0, e1)
        return data

    def _write(
        self,
        data: NDArray[np.uint8],
        values: NDArray[Any],
        at: int,
        end: int,
        u: NDArray[np.int8],
        e0: NDArray[np.int8],
        e1: NDArray[np.int8],
    ) -> None:
        """Coefficients `at` to `end` of both halves."""
        adder = self.adder
        slots, limbs, n = adder.slots, adder.limbs, adder.sizes.n
        counts = adder.counts(values.size)
        halves = np.split(data, [limbs.nbytes(counts[0])])
        c0 = np.empty((len(adder.rings), end - at), np.uint64)
        for limb, (ring, (b_hat, a_hat)) in enumerate(zip(adder.rings, self._hats, strict=True)):
            u_hat = ring.forward(lifted(u, ring.q).reshape(-1, n))
            c0[limb] = ring.products(b_hat, u_hat).reshape(-1)[: end - at]
            c1 = ring.products(a_hat, u_hat).reshape(-1)
            ring.add(c1, scaled(lifted(e1, ring.q), 1 << slots.log_p, ring.q), c1)
            limbs.write(c1, halves[1], counts[1], limb, at)
        part = values[at * slots.per : end * slots.per]
        zeros = min(end * slots.per, values.size + CHECKS) - at * slots.per - part.size
        slots.lift(np.append(part, np.zeros(zeros, part.dtype)) if zeros else part, e0, c0)
        for limb, row in enumerate(c0):
            limbs.write(row, halves[0], counts[0], limb, at)
