"""The laws, for every codec that there is, and what does not fit together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from flhe.coding.base import Plain
from flhe.coding.chain import Chain, chain
from flhe.coding.clip import Clip
from flhe.coding.permute import Permute
from flhe.coding.quantize import Quantize
from flhe.coding.registry import CODECS
from flhe.coding.sparsify import TopK
from flhe.coding.weigh import Weigh
from flhe.errors import MisfitError
from flhe.schemes.base import fits
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.registry import SCHEMES
from flhe.schemes.sash.scheme import Sash
from tests import laws
from tests.laws import BOUNDS, LAYOUT, CodecCase, random_source, sums_decode

every_codec = pytest.mark.parametrize("case", laws.CODECS, ids=lambda case: case.id)
RNG_SEED = 11


@every_codec
@pytest.mark.parametrize("cohort", [1, 3, 10, 50])
def test_sums_decode_within_error(case: CodecCase, cohort: int) -> None:
    sums_decode(case, cohort, RNG_SEED)


@pytest.mark.parametrize("bits", [8, 16])
def test_decoding_in_the_place_of_the_sum(bits: int) -> None:
    codec = Chain((Clip(BOUNDS), Weigh(50), Quantize(bits)))
    state = codec.init(LAYOUT)
    x = np.random.default_rng(RNG_SEED).uniform(-0.9, 0.9, LAYOUT.floats).astype(np.float32)
    part, _ = codec.encode(Plain(x, np.array([1, 37], np.int64)), state)
    total = part._replace(values=part.values.astype(np.int32))
    apart, _ = codec.decode(total._replace(values=total.values.copy()), (0,), state)
    within, _ = codec.decode(total, (0,), state, reuse=True)
    assert np.array_equal(apart.values, within.values)
    assert np.shares_memory(within.values, total.values)
    wide = part._replace(values=part.values.astype(np.int64))
    assert np.array_equal(codec.decode(wide, (0,), state, reuse=True)[0].values, apart.values)


@every_codec
def test_encode_leaves_its_input_and_state_alone(case: CodecCase) -> None:
    codec = case.build(random_source(1, LAYOUT.floats))
    state = case.start(codec)
    x = np.full(LAYOUT.floats, 0.1, np.float32)
    extras = np.array([1, 1], np.int64)
    _, after = codec.encode(Plain(x, extras), state)
    assert (x == np.float32(0.1)).all()
    assert extras.tolist() == [1, 1]
    assert state == case.start(codec)
    assert after.shared == state.shared
    assert codec.sparse or after.local == state.local
    assert codec.lanes(2, LAYOUT) == codec.encode(Plain(x, extras), state)[0].extras.size


def test_rounding_is_not_part_of_what_members_must_share() -> None:
    assert Quantize(8).parameters() == Quantize(8, "nearest").parameters()
    names = [
        chain(Clip(a), Weigh(w), Quantize(b)).parameters() for a, w, b in ((1, 2, 3), (1, 2, 4))
    ]
    assert names[0] != names[1]


# --- what does not fit ---

CLIP, WEIGH, Q8, TOP = Clip(1.0), Weigh(50), Quantize(8), TopK(0.1)
MANY = Weigh(1 << 28)


MISFITS: dict[str, tuple[Callable[[], object], str]] = {
    "quantize without clip": (lambda: chain(Q8), r"put Clip\(\) before it"),
    "weigh without clip": (lambda: chain(WEIGH, Q8), r"put Clip\(\) before it"),
    "quantize twice": (lambda: chain(CLIP, Q8, Q8), "quantize only once"),
    "weigh after quantize": (lambda: chain(CLIP, Q8, WEIGH), "put it before Quantize"),
    "clip after quantize": (lambda: chain(CLIP, Q8, CLIP), "put it before Quantize"),
    "sparsify after clip": (lambda: chain(CLIP, TOP, Q8), "put it first"),
    "sparsify twice": (lambda: chain(TOP, TOP, CLIP, Q8), "put it first"),
    "permute before quantize": (lambda: chain(TOP, CLIP, Permute(), Q8), "put it last"),
    "permute what is dense": (lambda: chain(CLIP, Q8, Permute()), "put TopK first"),
    "fitted for no bits": (lambda: chain(Clip.history(), WEIGH), r"put Quantize\(bits\) behind it"),
    "weigh twice": (lambda: chain(CLIP, WEIGH, WEIGH, Q8), "[Ww]eigh"),
    "codec of more bits": (
        lambda: fits(chain(CLIP, Quantize(9)), Flashe().adder(5, 8), 5),
        "up to 127, the codec produces up to 255; give both the same bits",
    ),
    "codec of more bits than a sum has room for": (
        lambda: fits(chain(CLIP, Quantize(25)), Sash().adder(10), 10),
        "up to 8388607, the codec produces up to 16777215; give both the same bits",
    ),
    "cohort too large": (
        lambda: fits(chain(CLIP, Q8), Flashe().adder(5, 8), 6),
        "cohort of 6; build it with cohort=6",
    ),
    "reals into integers": (
        lambda: fits(chain(CLIP, WEIGH), Flashe().adder(5, 8), 5),
        r"end the chain with Quantize\(bits\)",
    ),
    "63 bits": (
        lambda: fits(chain(CLIP, MANY, Q8), Flashe().adder(16, 8), 16),
        "with 16 clients overflows 63 bits; at most 268435455 fit",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_misfits_are_refused_when_built_and_say_how_to_mend(name: str) -> None:
    build, mend = MISFITS[name]
    with pytest.raises(MisfitError, match=mend):
        build()


def test_what_fits() -> None:
    fits(chain(CLIP, WEIGH, Q8), Flashe().adder(5, 8), 5)
    fits(chain(CLIP, WEIGH, Q8), Flashe().adder(6, 9), 5)
    fits(chain(CLIP, WEIGH, Quantize(12)), Sash().adder(1000), 1000)
    fits(chain(CLIP, MANY, Q8), Flashe().adder(15, 8), 15)


def test_no_scheme_and_no_codec_is_left_out() -> None:
    for name in SCHEMES.names():
        assert any(case.id.startswith(name) for case in laws.FEW_SCHEMES)
    built = {codec.name for case in laws.CODECS for codec in case.build(random_source(1, 1)).codecs}
    # What clips by norm and adds noise has laws of its own: coding/test_discrete_gaussian.py.
    assert built | {"clip-norm", "discrete-gaussian"} >= set(CODECS.names())
