"""FedmlHeAdder: values as reals in the slots of CKKS, encrypted by TenSEAL under a shared key.

    (c0, c1) = (m + e - c1 s, c1)              TenSEAL's fresh ciphertext of one block, c1 uniform
    c = c0 + (c1 - a) s = m + e - a s          what travels: a is derived, so it need not
    sum of c + (sum of a) s = M + E            opened by TenSEAL; slots / scale, to the nearest integer

How vectors are cut, sent and opened is in `flhe.schemes.seal_adder`. Members share s: with the server,
any one of them reads single updates.

Values are integers on the codec's grid. The noise of a sum stays below a quarter of a step
(`flhe.schemes.fedml_he.sizes` proves it for the cohort), so rounding gives the sum exactly, on every
machine, and takes off the noise: nothing of what is opened depends on s or on an error, which is how
decrypted CKKS values otherwise give the key away (Li and Micciancio, EUROCRYPT 2021). A slot that lies
off the grid says that a sum is not its senders'.

Source: FedML-HE, Algorithm 1 and Sec. 2.3, without selection, which is the codec's; CKKS
(ASIACRYPT 2017); docs/protocol.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.schemes.fedml_he.dither import Dither
from flhe.schemes.fedml_he.sizes import CkksSizes
from flhe.schemes.seal_adder import SealAdder, SealOpener, SealSealer
from flhe.wire.secret import Random


@dataclass(slots=True)
class FedmlHeSealer(SealSealer):
    """One client's side; parameters as for `SealSealer`, and `random`: dither is drawn from it."""

    random: Random = field(default=secrets.token_bytes, kw_only=True, repr=False)

    def _joining(self) -> Callable[[NDArray[np.int64], int], NDArray[Any]]:
        """With dither, which makes roundings random."""
        sizes = self.adder.sizes
        dither = Dither.of(sizes, self.random)
        return lambda values, first: (
            sizes.digits.join(values) + dither.blocks(first, values.size // sizes.block)
        )


class FedmlHeOpener(SealOpener):
    """A reader's side; parameters as for `SealOpener`."""

    __slots__ = ()

    def _slots(self, opened: NDArray[Any], senders: int) -> tuple[NDArray[np.int64], bool]:
        """To the nearest integer, where the noise of so many explains the rest."""
        nearest = np.rint(opened)
        residual = np.abs(np.subtract(opened, nearest, out=opened)).max()
        return nearest.astype(np.int64), bool(residual <= self.adder.sizes.residual(senders))


@dataclass(frozen=True, slots=True)
class FedmlHeAdder(SealAdder):
    """Public parameters for a cohort, as for `SealAdder`."""

    MASKS = "ckks-a"
    SIZES, SEALER, OPENER = CkksSizes, FedmlHeSealer, FedmlHeOpener
