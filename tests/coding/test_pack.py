"""Packing: held to big integers, for every width and on both sides of a border; limb after limb."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe import errors
from flhe.coding.limbs import PIECE, LimbPacking
from flhe.coding.pack import Packing
from flhe.math.ring import PrimeRing, Q, ntt_primes
from tests.math.keystreams import KINDS
from tests.reference.part_formats import formula
from tests.reference.wire import packed as reference


def array(values: list[int], bits: int) -> NDArray[Any]:
    return np.array(values, Packing(bits).signed)


def no_mask(length: int, bits: int) -> NDArray[Any]:
    return np.zeros(length, Packing(bits).lane)


def unpacked(data: NDArray[np.uint8], length: int, bits: int) -> list[int]:
    packing = Packing(bits)
    out = np.empty(length, packing.signed)
    return packing.unpack(data, no_mask(length, bits), out).tolist()


@pytest.mark.parametrize("bits", range(1, 65))
def test_packs_unpacks_and_adds_like_big_integers(bits: int) -> None:
    packing = Packing(bits)
    some = bits in (1, 20, 33, 64)
    for length in (0, 1, packing.block - 1, packing.block, packing.block + 1)[0 if some else 4 :]:
        ours = formula(length, bits)
        data = packing.pack(array(ours, bits), no_mask(length, bits))
        assert data.tobytes() == reference(ours, bits)
        assert data.size == packing.nbytes(length) == (length * bits + 7) // 8
        assert unpacked(data, length, bits) == ours

        theirs = formula(length + 5, bits)[5:]
        ones = [-1] * length  # plus one: the authors' packed addition carries into the neighbour
        for part, other in ((theirs, ours), (ones, [1] * length)):
            total = packing.pack(array(other, bits), no_mask(length, bits))
            packed = packing.pack(array(part, bits), no_mask(length, bits))
            kept = packed.copy()
            packing.add(total, packed, length)
            sums = [a + b for a, b in zip(other, part, strict=True)]
            assert total.tobytes() == reference(sums, bits)
            assert np.array_equal(packed, kept)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [1, 20, 32, 33, 64])
def test_streams_mask_like_an_array_of_their_lanes(kind: Any, bits: int) -> None:
    packing, terms = Packing(bits), ((3, 5), (4,))
    start, stream = packing.block, kind(bytes(range(32)))
    for length in (7, packing.block, 2 * packing.block + 7):
        values = array(formula(length, bits), bits)
        lanes = np.empty(start + length + 4, packing.lane)
        stream.into(lanes, start + length, 0, terms)
        data = packing.pack(values, lanes[start:-4])
        sealed = np.empty_like(data)
        packing.seal(values, stream, terms, start, sealed)
        assert np.array_equal(sealed, data)
        opened = np.empty(length, packing.signed)
        packing.open(data, stream, terms[::-1], start, opened)
        assert np.array_equal(opened, values)
        with pytest.raises(errors.ProtocolError, match="take"):
            packing.open(data[:-1], stream, terms, start, opened)


@pytest.mark.parametrize(
    ("bad", "length", "says"),
    [
        *((bytes(n), 10, f"{n} bytes, 10 values .* take 25") for n in (24, 26)),
        # Two ciphertexts of the same values would have two digests; 9 values are 22.5 bytes.
        (bytes(22) + b"\x10", 9, "bits after the last value"),
    ],
)
def test_data_that_is_no_such_vector_is_refused(bad: bytes, length: int, says: str) -> None:
    packing, data = Packing(20), np.frombuffer(bad, np.uint8)
    good = np.zeros(packing.nbytes(length), np.uint8)
    for refused in (
        lambda: unpacked(data, length, 20),
        lambda: packing.add(data, good, length),
        lambda: packing.add(good, data, length),
    ):
        with pytest.raises(errors.ProtocolError, match=says):
            refused()


# --- limb after limb ---


def residues(limbs: LimbPacking, rows: NDArray[np.uint64]) -> NDArray[np.uint8]:
    count = rows.shape[1]
    data = np.zeros(limbs.nbytes(count), np.uint8)
    for limb, at, end in limbs.pieces(count):
        limbs.write(rows[limb, at:end].copy(), data, count, limb, at)
    return data


@pytest.mark.parametrize("bits", range(33, 65))
@pytest.mark.parametrize("count", [1, 5, PIECE, 2 * PIECE + 13])
def test_limbs_are_added_modulo_their_moduli(bits: int, count: int) -> None:
    moduli = (Q,) if bits == 64 else ntt_primes(2, bits, 2)
    limbs, rings = LimbPacking(bits, moduli), [PrimeRing(2, q) for q in moduli]
    rng = np.random.default_rng(bits)
    x, y = (np.stack([rng.integers(0, q, count, np.uint64) for q in moduli]) for _ in range(2))
    for limb, q in enumerate(moduli):
        x[limb, -1] = y[limb, -1] = q - 1
        x[limb, 0], y[limb, 0] = (q - 1, 1) if count > 1 else (q - 1, q - 1)
    total, kept = residues(limbs, x), residues(limbs, y)
    part = np.empty(kept.size + 1, np.uint8)[1:]  # as what is received may lie
    part[:] = kept
    limbs.add(total, part, count, rings)
    exact = (x.astype(object) + y) % np.array(moduli, object)[:, None]
    assert total.tobytes() == residues(limbs, exact.astype(np.uint64)).tobytes()
    assert part.tobytes() == kept.tobytes()
    limbs.check(total, count)


@pytest.mark.parametrize("place", [0, PIECE - 1, PIECE, 2 * PIECE + 4])
def test_a_residue_beyond_its_modulus_is_found(place: int) -> None:
    moduli = ((1 << 60) - 1, (1 << 60) - 5)
    limbs, count = LimbPacking(60, moduli), 2 * PIECE + 5
    rows = np.zeros((2, count), np.uint64)
    rows[1, place] = moduli[1] - 1
    limbs.check(residues(limbs, rows), count)
    rows[1, place] = moduli[1]
    with pytest.raises(errors.ProtocolError, match="not below its modulus"):
        limbs.check(residues(limbs, rows), count)


@pytest.mark.parametrize("limb", [0, 1])
def test_spare_bits_must_be_zero(limb: int) -> None:
    limbs = LimbPacking(61, ((1 << 61) - 1, (1 << 61) - 31))
    data = residues(limbs, np.ones((2, 3), np.uint64))
    limbs.check(data, 3)
    for bit in range(3 * 61 % 8, 8):  # those below are of the last residue itself
        changed = data.copy()
        changed[(limb + 1) * data.size // 2 - 1] ^= 1 << bit
        with pytest.raises(errors.ProtocolError, match="bits after the last residue"):
            limbs.check(changed, 3)
