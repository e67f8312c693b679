"""Quantize: its formula, its vectors, its limbs, its refusals."""

from __future__ import annotations

import itertools
import math
import secrets
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe import errors
from flhe.coding.base import Plain, State
from flhe.coding.chain import Chain
from flhe.coding.clip import Clip
from flhe.coding.extras import Extras
from flhe.coding.flatten import Entry, Layout
from flhe.coding.quantize import EXTRA_BITS, Quantize
from flhe.coding.weigh import Weigh
from flhe.math import prg
from flhe.math.keystream import OpenSsl, Stream
from flhe.math.prg import PIECE, SecureRounding
from tests.math.keystreams import KINDS
from tests.reference.part_formats import rounded as reference
from tests.scripted import Given

ANYTHING = Layout(())


def encode(codec: Quantize, x: list[float], extras: list[int] | None = None) -> Plain:
    plain = Plain(np.array(x, np.float32), np.array(extras or [], np.int64))
    return codec.encode(plain, State())[0]


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


def test_secure_rounding_is_uniform_and_does_not_repeat() -> None:
    source = SecureRounding()
    draws = np.concatenate([source.next(n).copy() for n in (1, 3, PIECE, PIECE - 1, 7)])
    assert draws.dtype == np.uint16
    counts = np.bincount(draws >> 12, minlength=16)
    assert abs(counts - draws.size / 16).max() < 6 * math.sqrt(draws.size / 16)
    pieces, starts = draws.tobytes(), range(0, 2 * draws.size - 16, 16)
    assert len({pieces[at : at + 16] for at in starts}) == len(starts), "keystream repeats"
    assert draws[:1000].tolist() != SecureRounding().next(1000).tolist()
    one, other = (encode(Quantize(4), [0.3] * 1000).values.tolist() for _ in range(2))
    assert one != other


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [2, 16, 17])
def test_a_kernel_rounds_as_the_stream_says(
    kind: type[OpenSsl], bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run of one threshold begins with a block of stream 0, in layers and pieces of all sizes."""
    key, sizes = bytes(range(32)), (7, 2049, PIECE + 5, 1, 4096, 130)
    monkeypatch.setattr(secrets, "token_bytes", lambda _: key)
    monkeypatch.setattr(prg, "keystream", kind)
    edges = [0, *itertools.accumulate(sizes)]
    cuts = sorted({*edges, *range(0, edges[-1], PIECE)})
    draws, block = np.empty(0, np.uint16), 0
    for start, stop in itertools.pairwise(cuts):
        held = np.empty(2 * (stop - start) + 16, np.uint8)
        Stream(key, 0, block).into(held, 2 * (stop - start))
        draws = np.append(draws, held[: 2 * (stop - start)].view(np.uint16))
        block += -(-2 * (stop - start) // 16)
    layout = Layout(tuple(Entry(f"{i}", (n,), "float32") for i, n in enumerate(sizes)))
    thresholds = Clip({f"{i}": 0.5 + i for i in range(len(sizes))})
    x = np.random.default_rng(5).standard_normal(edges[-1], np.float32)
    wanted, got = (
        Chain((thresholds, Weigh(5), Quantize(bits, random=source)), fuse=fuse)
        for source, fuse in ((lambda: Given(draws), False), (prg.SecureRounding, True))
    )
    plain = Plain(x, Extras().encode(3, {}, []))
    one, other = (c.encode(plain, c.init(layout))[0].values for c in (wanted, got))
    assert np.array_equal(one, other)


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
    biggest = codec.split(np.array([2**EXTRA_BITS - 1], np.int64)).astype(np.int64)
    assert codec.join(biggest).tolist() == [2**EXTRA_BITS - 1]
    with pytest.raises(errors.ProtocolError, match="63 bits"):
        codec.join(biggest + codec.split(np.array([1], np.int64)))


@pytest.mark.parametrize("where", ["values", "extras"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("fuse", [True, False])
def test_a_sum_that_senders_cannot_reach_is_refused(where: str, sign: int, fuse: bool) -> None:
    quantize = Quantize(16)
    codec = Chain((Clip(1.0), Weigh(50), quantize), fuse=fuse)
    state = codec.init(Layout((Entry("w", (2,), "float32"),)))

    def decode(largest: int) -> None:
        extras = quantize.split(np.array([3, 30], np.int64)).astype(np.int32)
        total = Plain(np.zeros(2, np.int32), extras)
        getattr(total, where)[-1] = sign * largest
        codec.decode(total, (0, 1, 2), state)

    decode(3 * quantize.levels if where == "values" else 0)
    with pytest.raises(errors.ProtocolError, match="3 senders cannot reach"):
        decode(3 * quantize.levels + 1)
