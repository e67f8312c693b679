"""Quantize: its formula, its vectors, its limbs, its refusals."""

from __future__ import annotations

import json
import math
import pathlib
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from flhe import errors
from flhe.coding.base import Plain, State
from flhe.coding.flatten import Layout
from flhe.coding.quantize import EXTRA_BITS, Quantize
from flhe.coding.spaces import Integers, Reals
from flhe.math.prg import PIECE, SecureRounding

FILE = pathlib.Path(__file__).parents[1] / "vectors/quantize.json"
NONE = np.empty(0, np.int64)
ANYTHING = Layout(())


class Given:
    """Rounding values that are written down."""

    def __init__(self, draws: list[int]) -> None:
        self._draws = draws

    def next(self, count: int) -> NDArray[np.uint16]:
        taken, self._draws = self._draws[:count], self._draws[count:]
        return np.array(taken, np.uint16)


def encode(codec: Quantize, x: list[float], extras: list[int] | None = None) -> Plain:
    plain = Plain(np.array(x, np.float32), np.array(extras or [], np.int64))
    return codec.encode(plain, State())[0]


def reference(bits: int, x: list[float], draws: list[int] | None) -> list[int]:
    """floor(x * levels + u) in exact fractions; u is 1/2 and a hair where nothing is drawn."""
    levels = 2 ** (bits - 1) - 1
    draws = draws if draws is not None else [2**15] * len(x)
    return [
        math.floor(Fraction(float(np.float32(v))) * levels + Fraction(2 * k + 1, 2**17))
        for v, k in zip(x, draws, strict=True)
    ]


def digits(bits: int, extra: int) -> list[int]:
    """Signed digits in base 2**(bits - 1), least significant first."""
    count = -(-63 // (bits - 1))
    sign = -1 if extra < 0 else 1
    return [sign * (abs(extra) // 2 ** ((bits - 1) * k) % 2 ** (bits - 1)) for k in range(count)]


def vectors() -> list[dict[str, Any]]:
    """Every case of the file, from the formulas above."""
    values: list[tuple[int, list[float], list[int] | None]] = [
        (8, [0.0, 1.0, -1.0, 0.5, -0.25], None),
        (2, [1.0, -1.0, 0.25, -0.75], None),
        (16, [0.0, 1.0, -1.0, 0.3, -0.7, 2.0**-16], None),
        (32, [0.0, 1.0, -1.0, 0.5], None),
        (4, [0.0, 0.0, 1.0, 1.0, -1.0, -1.0], [0, 65535] * 3),
        (4, [0.3, 0.3, 0.3, -0.3, -0.3, -0.3], [0, 6553, 6555, 0, 58982, 58983]),
    ]
    cases: list[dict[str, Any]] = [
        {"bits": bits, "x": x, "u": u, "q": reference(bits, x, u)} for bits, x, u in values
    ]
    extras = [0, 1, -1, 5000, -(2**40), 2**63 - 1]
    cases += [
        {"bits": bits, "extras": extras, "limbs": [d for e in extras for d in digits(bits, e)]}
        for bits in (2, 9, 16, 32)
    ]
    limbs = [digits(8, e) for e in (100, -3, 2**62)]
    sums = [sum(column) for column in zip(*limbs, strict=True)]
    cases.append({"bits": 8, "limbs_of_a_sum": sums, "extras": [100 - 3 + 2**62]})
    cases += [
        {"bits": bits, "x": [0.0], "error": "ConfigError", "at": "configure"} for bits in (1, 33)
    ]
    cases += [
        {"bits": 8, "x": [x], "error": "RangeError", "at": "encode"}
        for x in ("nan", "inf", "-inf", 1.25, -1.25)
    ]
    cases += [
        {"bits": 8, "sum": [128], "senders": 1, "error": "ProtocolError", "at": "decode"},
        {"bits": 8, "sum": [-382], "senders": 3, "error": "ProtocolError", "at": "decode"},
        {"bits": 8, "sum": [381, -381], "senders": 3, "decoded": [3.0, -3.0]},
    ]
    return cases


def contents() -> dict[str, Any]:
    return {
        "version": 1,
        "made_by": "tests/coding/test_quantize.py, from exact fractions",
        "cases": vectors(),
    }


CASES = json.loads(FILE.read_text())["cases"] if FILE.exists() else []


def test_the_file_is_what_the_reference_writes() -> None:
    assert json.loads(FILE.read_text()) == contents()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_vector(case: dict[str, Any]) -> None:
    def configure() -> Quantize:
        if (draws := case.get("u")) is None:
            return Quantize(case["bits"], "nearest")
        return Quantize(case["bits"], random=lambda: Given(draws))

    def decode(codec: Quantize) -> list[float]:
        opened, _ = codec.decode(
            Plain(np.array(case["sum"], np.int32), NONE), range(case["senders"]), State()
        )
        return opened.values.tolist()

    if case.get("at") == "configure":
        with pytest.raises(getattr(errors, case["error"])):
            configure()
        return
    codec = configure()
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            decode(codec) if case["at"] == "decode" else encode(codec, case["x"])
    elif "q" in case:
        assert encode(codec, case["x"]).values.tolist() == case["q"]
    elif "limbs" in case:
        limbs = encode(codec, [], case["extras"]).extras
        assert limbs.tolist() == case["limbs"]
        assert codec.join(limbs).tolist() == case["extras"]
    elif "limbs_of_a_sum" in case:
        assert codec.join(np.array(case["limbs_of_a_sum"])).tolist() == case["extras"]
    else:
        assert decode(codec) == pytest.approx(case["decoded"])


@given(
    st.integers(2, 32),
    st.lists(st.tuples(st.floats(-1, 1, width=32), st.integers(0, 65535)), min_size=1, max_size=20),
)
def test_follows_the_formula(bits: int, lanes: list[tuple[float, int]]) -> None:
    x, draws = [v for v, _ in lanes], [k for _, k in lanes]
    codec = Quantize(bits, random=lambda: Given(draws))
    encoded = encode(codec, x).values
    exact = [Fraction(v) * codec.levels for v in x]
    assert encoded.dtype.kind == "i"
    for got, wanted, value in zip(encoded.tolist(), reference(bits, x, draws), exact, strict=True):
        # float64 holds the product up to 29 bits; beyond, a sum next to an integer may round to it.
        assert got == wanted or (bits > 29 and abs(got - value) <= 1 + Fraction(1, 2**17))
        assert abs(got) <= codec.levels


@pytest.mark.parametrize("bits", range(2, 33))
def test_zero_and_both_ends_are_exact_however_it_rounds(bits: int) -> None:
    levels = 2 ** (bits - 1) - 1
    for draw in (0, 1, 32767, 32768, 65535):
        codec = Quantize(bits, random=lambda draw=draw: Given([draw] * 3))
        assert encode(codec, [0.0, 1.0, -1.0]).values.tolist() == [0, levels, -levels]
    nearest = Quantize(bits, "nearest")
    assert encode(nearest, [0.0, 1.0, -1.0]).values.tolist() == [0, levels, -levels]


def test_nearest_stays_within_half_a_step() -> None:
    codec = Quantize(2, "nearest")
    x = np.float32(0.499995)
    error = abs(float(encode(codec, [x]).values[0]) - float(x))
    assert error <= codec.error(ANYTHING, 1)


@pytest.mark.parametrize("x", [0.3, -0.3, 0.01, 0.99])
@pytest.mark.parametrize("bits", [2, 4, 9])
def test_stochastic_rounding_is_unbiased(bits: int, x: float) -> None:
    size = 200_000
    draws = np.random.default_rng(1).integers(0, 65536, size).tolist()
    codec = Quantize(bits, random=lambda: Given(draws))
    mean = encode(codec, [x] * size).values.mean() * codec.step
    assert abs(mean - np.float32(x)) < 4 * codec.step / 2 / math.sqrt(size) + 2**-16 * codec.step


def test_two_encodings_draw_different_values() -> None:
    codec = Quantize(4)
    x = [0.3] * 1000
    assert encode(codec, x).values.tolist() != encode(codec, x).values.tolist()


def test_secure_rounding_is_uniform_and_does_not_repeat() -> None:
    source = SecureRounding()
    draws = np.concatenate([source.next(n).copy() for n in (1, 3, PIECE, PIECE - 1, 7)])
    assert draws.dtype == np.uint16
    counts = np.bincount(draws >> 12, minlength=16)
    assert abs(counts - draws.size / 16).max() < 6 * math.sqrt(draws.size / 16)
    pieces = draws.tobytes()
    blocks = {pieces[at : at + 16] for at in range(0, len(pieces) - 16, 16)}
    assert len(blocks) == len(range(0, len(pieces) - 16, 16)), "keystream repeats"
    assert draws[:1000].tolist() != SecureRounding().next(1000).tolist()


@given(
    st.integers(2, 32),
    st.lists(
        st.lists(st.integers(-(2**55), 2**55), min_size=3, max_size=3), min_size=1, max_size=50
    ),
)
def test_summed_limbs_recompose(bits: int, clients: list[list[int]]) -> None:
    codec = Quantize(bits)
    parts = [codec.split(np.array(extras, np.int64)) for extras in clients]
    assert all(np.abs(p.astype(np.int64)).max() <= codec.levels for p in parts)
    assert parts[0].size == codec.lanes(3, ANYTHING) == 3 * codec.limbs
    total = np.sum(parts, axis=0, dtype=np.int64)
    assert codec.join(total).tolist() == [sum(column) for column in zip(*clients, strict=True)]


def test_extras_beyond_63_bits_are_refused() -> None:
    codec = Quantize(32)
    most = np.array([codec.levels] * 3)
    with pytest.raises(errors.ProtocolError, match="63 bits"):
        codec.join(most)
    biggest = codec.split(np.array([2**EXTRA_BITS - 1], np.int64)).astype(np.int64)
    with pytest.raises(errors.ProtocolError, match="63 bits"):
        codec.join(biggest + codec.split(np.array([1], np.int64)))


@pytest.mark.parametrize("where", ["values", "extras"])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_sum_that_senders_cannot_reach_is_refused(where: str, sign: int) -> None:
    codec = Quantize(16)
    limbs = np.zeros(codec.limbs, np.int32)

    def decode(largest: int) -> None:
        values = np.array([0, 0], np.int32)
        extras = limbs.copy()
        (values if where == "values" else extras)[-1] = sign * largest
        codec.decode(Plain(values, extras), (0, 1, 2), State())

    decode(3 * codec.levels if where == "values" else 1)
    with pytest.raises(errors.ProtocolError, match="3 senders cannot reach"):
        decode(3 * codec.levels + 1)


def test_what_goes_before_and_after_it() -> None:
    assert Quantize(8).out(Reals(1.0)) == Integers(127)
    with pytest.raises(errors.MisfitError, match=r"put Clip\(\) before it"):
        Quantize(8).out(Reals(1.0000001))
    with pytest.raises(errors.MisfitError, match="quantize only once"):
        Quantize(8).out(Integers(1))
    with pytest.raises(errors.ConfigError, match="'stochastic' or 'nearest'"):
        Quantize(8, "down")  # type: ignore[arg-type]


if __name__ == "__main__":
    FILE.write_text(json.dumps(contents()).replace('{"bits"', '\n{"bits"') + "\n")
