"""How the files of tests/vectors tell of the parts of schemes: rings, shares, codes, permutations."""

from __future__ import annotations

import math
from collections.abc import Generator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.pack import Packing
from flhe.coding.quantize import Quantize
from flhe.coding.support import Support
from flhe.math import field_kernels, prime_kernels, ring
from flhe.math.permutation import Permutation
from flhe.math.prg import FieldElements
from flhe.math.ring import PrimeRing
from flhe.math.shamir import Shamir
from flhe.schemes.sealed import Slot
from flhe.training.epoch_sums import bound_layout
from flhe.training.session import Session
from tests.reference.wire import Tape, context, hashed
from tests.rings import inverse, multiply
from tests.scripted import Given

Case = dict[str, Any]
Steps = Generator[str, None, Any]


def words(numbers: Any) -> list[str]:
    """Field elements as they stand in a file: hexadecimal."""
    return [f"{int(x):016x}" for x in numbers]


def read(numbers: list[str]) -> list[int]:
    return [int(x, 16) for x in numbers]


def array(numbers: Any) -> NDArray[np.uint64]:
    rows = [read(row) if isinstance(row, list) else int(row, 16) for row in numbers]
    return np.array(rows, np.uint64)


@numba.njit
def _round(x: Any, out: Any) -> None:
    for i in range(out.size):  # only compiled code can call it
        out[i] = field_kernels.nearest(x[i])


class RingKind:
    """Field, ring and masks: a method for each name of a case."""

    def library(self, case: Case) -> Case:
        made: Case = getattr(self, "_" + case["name"].replace(" ", "_"))(case)
        return made

    def _arithmetic(self, case: Case) -> Case:
        a, b = array(case["a"]), array(case["b"])
        made = {"sum": ring.add(a, b), "difference": ring.subtract(a, b)}
        made["product"] = np.empty_like(a)
        prime_kernels.times(a, b, b, None, made["product"])
        return {name: words(found) for name, found in made.items()}

    def _rounding(self, case: Case) -> Case:
        x = array(case["x"])
        made = np.empty(x.size, np.uint32)
        _round(x, made)
        return {"rounded": made.tolist()}

    def _values(self, case: Case) -> Case:
        return {"values": words(ring.evaluate(array(case["coefficients"])))}

    def _ring_product(self, case: Case) -> Case:
        on, a, b = PrimeRing(case["n"]), array(case["a"]), array(case["b"])
        told = {"a_hat": words(on.forward(a)), "product": words(multiply(on, a, b))}
        return told | {"b": words(inverse(on, array(case["b_hat"])))}

    def _elements(self, case: Case) -> Case:
        made, n, first = FieldElements(bytes.fromhex(case["key"])), case["n"], case["first"]
        blocks = made.blocks(first, len(case["blocks"]), n).tolist()
        assert blocks == [made.blocks(first + i, 1, n)[0].tolist() for i in range(len(blocks))]
        return {"blocks": [words(block) for block in blocks]}

    def _ring_masks(self, case: Case) -> Case:
        seed, made = array(case["seed"]), FieldElements(bytes.fromhex(case["key"]))
        on, rows = PrimeRing(seed.size), made.blocks(0, len(case["masks"]), seed.size)
        return {"masks": on.products(on.forward(seed), rows, rounded=True).tolist()}

    def steps(self, case: Case) -> Steps:
        x = array(case.get("x", []))
        if "n" in case:
            yield "ring"
            on: Any = PrimeRing(case["n"])
        else:
            on = ring
        yield case["at"]
        getattr(on, case["at"])(x)


class PermutationKind:
    """Shuffles and networks; an attempt's own."""

    def library(self, case: Case) -> Case:
        made = Permutation(bytes.fromhex(case["key"]), case["length"])
        if "slot" in case:
            member: Any = SimpleNamespace(
                epoch=SimpleNamespace(group_key=bytes.fromhex(case["group_key"])),
                terms=SimpleNamespace(codec=SimpleNamespace(hides=True)),
                layout=SimpleNamespace(floats=case["length"]),
            )
            assert Session.permutation(member, Slot(*context(case["slot"]))) == made
        coords, images = (np.array(case[name], np.uint32) for name in ("coords", "images"))
        assert made.inverse(images).tolist() == case["coords"]
        preimages = made.inverse(coords)
        assert np.array_equal(made.forward(preimages), coords)
        return {"images": made.forward(coords).tolist(), "preimages": preimages.tolist()}

    def steps(self, case: Case) -> Steps:
        yield "configure"
        made = Permutation(bytes.fromhex(case["key"]), case["length"])
        yield case["at"]
        getattr(made, case["at"])(np.array(case["coords"], np.uint32))


class ShamirKind:
    """Shares of field elements."""

    def library(self, case: Case) -> Case:
        scheme, secrets = self._scheme(case), array(case["secrets"])
        random = Tape(bytes.fromhex(case["random"]))
        shares = scheme.share(secrets, random)
        assert random.used == len(random.data)
        assert shares.shape[1] == scheme.width(secrets.size)
        for ranks in case["ranks"]:
            assert np.array_equal(scheme.combine(ranks, shares[ranks], secrets.size), secrets)
        return {"shares": [words(share) for share in shares]}

    def _scheme(self, case: Case) -> Shamir:
        return Shamir(case["members"], case["threshold"], case["privacy"])

    def steps(self, case: Case) -> Steps:
        yield "configure"
        scheme = self._scheme(case)
        yield case["at"]
        if case["at"] == "share":
            scheme.share(array(case["secrets"]))
        scheme.combine(case["ranks"], array(case["shares"]), case["count"])


STEPS = {
    "size": "are accepted",
    "bitmap": "the bitmap is not one of",
    "kind": "does not exist",
    "room": "more coordinates than it has room for",
    "code": "the code is cut short, runs on or leaves the layout",
    "shortest": "a longer encoding than its set needs",
}
"""What an encoding of a support is held against, in this order, and what the library says of it."""


class SupportKind:
    """Codes of sets of coordinates."""

    def library(self, case: Case) -> Case:
        written = Support.of(np.array(case["coords"], np.uint32), case["length"])
        again = Support.from_bytes(bytes.fromhex(case["data"]), case["length"])
        assert again == written
        assert again.coords.tolist() == case["coords"]
        for support in (written, again):
            assert support.count == len(case["coords"])
            assert support.digest().hex() == case["digest"]
        return {"data": written.data.hex()}

    def steps(self, case: Case) -> Steps:
        yield case["at"]
        Support.from_bytes(bytes.fromhex(case["data"]), case["length"])


def formula(length: int, bits: int) -> list[int]:
    """Signed values of `bits` bits that use all of them; for vectors too long to write down."""
    half = 1 << (bits - 1)
    return [(i * 0x9E3779B97F4A7C15 >> 7) % (1 << bits) - half for i in range(length)]


class PackKind:
    """Fields of any number of bits."""

    def library(self, case: Case) -> Case:
        packing, values = Packing(case["bits"]), self._values(case)
        none = np.zeros(len(values), packing.lane)
        data = packing.pack(np.array(values, packing.signed), none)
        told = {
            "packed": data.tobytes().hex(),
            "nbytes": data.size,
            "sha256": hashed(data.tobytes()),
        }
        out = np.empty(len(values), packing.signed)
        assert packing.unpack(data, none, out).tolist() == values
        if "plus" in case:
            packing.add(data, np.frombuffer(bytes.fromhex(case["plus"]), np.uint8), len(values))
            told["sum"] = data.tobytes().hex()
        return told

    def _values(self, case: Case) -> list[int]:
        values = case["values"]
        return formula(case["length"], case["bits"]) if isinstance(values, str) else values

    def steps(self, case: Case) -> Steps:
        yield "configure"
        packing = Packing(case["bits"])
        data = np.frombuffer(bytes.fromhex(case["packed"]), np.uint8).copy()
        yield case["at"]
        if case["at"] == "add":
            packing.add(data, np.frombuffer(bytes.fromhex(case["plus"]), np.uint8), case["length"])
        none = np.zeros(case["length"], packing.lane)
        packing.unpack(data, none, np.empty(case["length"], packing.signed))


def rounded(bits: int, x: list[float], draws: list[int] | None) -> list[int]:
    """floor(x * levels + u) in exact fractions; u is 1/2 and a hair where nothing is drawn."""
    levels = 2 ** (bits - 1) - 1
    draws = draws if draws is not None else [2**15] * len(x)
    return [
        math.floor(Fraction(float(np.float32(v))) * levels + Fraction(2 * k + 1, 2**17))
        for v, k in zip(x, draws, strict=True)
    ]


class QuantizeKind:
    """Values in steps, extras in digits."""

    def library(self, case: Case) -> Case:
        codec, told = self._codec(case), {}
        if "q" in case:
            told["q"] = self._encode(codec, case["x"], []).values.tolist()
        if "limbs" in case:
            limbs = self._encode(codec, [], case["extras"]).extras
            assert codec.join(limbs).tolist() == case["extras"]
            told["limbs"] = limbs.tolist()
        if "limbs_of_a_sum" in case:
            told["extras"] = codec.join(np.array(case["limbs_of_a_sum"])).tolist()
        if "sum" in case:
            told["decoded"] = [round(x, 12) for x in self._decode(codec, case)]
        return told

    def _codec(self, case: Case) -> Quantize:
        if (draws := case.get("u")) is None:
            return Quantize(case["bits"], "nearest")
        return Quantize(case["bits"], random=lambda: Given(draws))

    def _encode(self, codec: Quantize, x: list[float], extras: list[int]) -> Plain:
        plain = Plain(np.array(x, np.float32), np.array(extras, np.int64))
        return codec.encode(plain, State())[0]

    def _decode(self, codec: Quantize, case: Case) -> list[float]:
        plain = Plain(np.array(case["sum"], np.int32), np.empty(0, np.int64))
        decoded: list[float] = codec.decode(plain, range(case["senders"]), State())[
            0
        ].values.tolist()
        return decoded

    def steps(self, case: Case) -> Steps:
        yield "configure"
        codec = self._codec(case)
        yield case["at"]
        if case["at"] == "decode":
            self._decode(codec, case)
        self._encode(codec, case["x"], [])


class DerivedKind:
    """What a session binds to a round: layouts of rounds in two stages."""

    def library(self, case: Case) -> Case:
        bound = (bytes.fromhex(case[k]) for k in ("layout_hash", "sum_digest"))
        return {"becomes": bound_layout(case["name"], *bound).hex()}


PARTS: dict[str, Any] = {
    "ring": RingKind(),
    "permutation": PermutationKind(),
    "shamir": ShamirKind(),
    "support": SupportKind(),
    "pack": PackKind(),
    "quantize": QuantizeKind(),
}
"""File -> what it holds."""
