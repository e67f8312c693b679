"""Residues on the wire: limb after limb, each packed by itself, and checked before they are used."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.limb_packing import PIECE, LimbPacking
from flhe.errors import ConfigError, ProtocolError


def packed(limbs: LimbPacking, rows: NDArray[np.uint64]) -> NDArray[np.uint8]:
    count = rows.shape[1]
    data = np.zeros(limbs.nbytes(count), np.uint8)
    for limb, at, end in limbs.pieces(count):
        limbs.write(rows[limb, at:end].copy(), data, count, limb, at)
    return data


@pytest.mark.parametrize("place", [0, PIECE - 1, PIECE, 2 * PIECE + 4])
def test_a_residue_beyond_its_modulus_is_found(place: int) -> None:
    moduli = ((1 << 60) - 1, (1 << 60) - 5)
    limbs, count = LimbPacking(60, moduli), 2 * PIECE + 5
    rows = np.zeros((2, count), np.uint64)
    rows[1, place] = moduli[1] - 1
    limbs.check(packed(limbs, rows), count)
    rows[1, place] = moduli[1]
    with pytest.raises(ProtocolError, match="not below its modulus"):
        limbs.check(packed(limbs, rows), count)


@pytest.mark.parametrize("limb", [0, 1])
def test_spare_bits_must_be_zero(limb: int) -> None:
    limbs = LimbPacking(61, ((1 << 61) - 1, (1 << 61) - 31))
    data = packed(limbs, np.ones((2, 3), np.uint64))
    limbs.check(data, 3)
    for bit in range(3 * 61 % 8, 8):  # those below are of the last residue itself
        changed = data.copy()
        changed[(limb + 1) * data.size // 2 - 1] ^= 1 << bit
        with pytest.raises(ProtocolError, match="bits after the last residue"):
            limbs.check(changed, 3)


@pytest.mark.parametrize(
    ("bits", "moduli"), [(32, (7,)), (65, (7,)), (40, ()), (40, (1 << 40,))], ids=str
)
def test_what_cannot_be_is_refused(bits: int, moduli: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="LimbPacking"):
        LimbPacking(bits, moduli)
