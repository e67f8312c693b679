"""Noise in a session: on what it should be, once an update, within the thresholds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.errors import ProtocolError, RangeError
from flhe.schemes.base import Scheme
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.flashe.scheme import Flashe
from flhe.training.draft import Draft
from flhe.training.model import Model
from flhe.training.sensitivity import map_of
from flhe.training.session import Session
from flhe.training.terms import Terms
from tests.training.rounds import contributed, group

SIZE, LEVELS = 20_000, 2**15 - 1
SCALE = 0.02
SOME = Select(0.25, "random")


def model() -> Model:
    zeros = np.zeros(SIZE // 2, np.float32)
    return Model.initial({"a": zeros, "b": zeros})


def session(
    noise: Laplace | None, select: Select = SOME, scheme: Scheme | None = None, **coding: Any
) -> Session:
    codec = update_codec(**{"weighted": False, "clip": {"a": 1.0, "b": 2.0}, **coding})
    terms = Terms(scheme or Flashe(), codec, noise=noise, select=select, metrics=())
    return Session(group(3)[0], terms, model().layout)


def change(value: float = 0.25) -> dict[str, NDArray[Any]]:
    half = np.full(SIZE // 2, value, np.float32)
    return {"a": half, "b": np.nextafter(half, np.float32(1))}  # no tied weights


def drafted(one: Session, value: float = 0.25) -> Draft:
    return one.draft(model(), change(value), 1, {}, 1, None)


def encoded(one: Session, draft: Draft | None = None, attempt: int = 0) -> NDArray[np.float64]:
    """An update in its own units, as it is encoded."""
    start, draft = model(), drafted(one) if draft is None else draft
    state = one.terms.codec.recall(start.layout, {})
    slot = one.sum(start, 1, attempt).slot
    plain, _ = one.encode_draft(draft, start, state, slot)
    alphas = np.repeat([1.0, 2.0], SIZE // 2)
    return plain.values.astype(np.float64) / LEVELS * alphas


def test_noise_bounds_what_a_client_weighs() -> None:
    """It is made for a weight of max_examples: beyond it, a value would stand out of the noise."""
    one = session(Laplace(SCALE, "all"), Select(), weighted=True, max_examples=100)
    same = [one.draft(model(), change(), n, {}, 1, None).extras.tolist() for n in (100, 101)]
    assert same[0] == same[1]


def test_noise_is_on_what_travels_in_clear() -> None:
    one = session(Laplace(SCALE))
    mask = one.mask(model()).coords
    off = encoded(one) - 0.25
    step = 2 / LEVELS
    assert np.abs(off[mask]).max() <= step
    clear = np.delete(off, mask)
    assert clear.size == 15_000
    assert abs(clear.mean()) < 6 * SCALE * 1.5 / clear.size**0.5
    assert np.abs(clear).mean() == pytest.approx(SCALE, rel=0.04)
    assert clear.std() == pytest.approx(SCALE * 2**0.5, rel=0.05)
    everywhere = encoded(session(Laplace(SCALE, "all"))) - 0.25
    assert np.abs(everywhere).mean() == pytest.approx(SCALE, rel=0.04)


def test_every_update_has_noise_of_its_own_which_it_keeps() -> None:
    """A draft is what is sent, however often: noise that was drawn anew could be averaged away."""
    one = session(Laplace(SCALE), scheme=Esafl(keys="joint"))
    draft, other = drafted(one), drafted(one)
    assert np.mean(np.abs(draft.values - other.values) < 1e-4) < 0.26  # a quarter has none
    assert np.abs(draft.values - np.float32(0.25)).max() > SCALE
    again = [encoded(one, draft, attempt) * LEVELS for attempt in range(2)]
    assert np.abs(again[0] - again[1]).max() <= 2  # the rounding alone, where alpha is 2


def test_what_training_put_beyond_the_thresholds_is_cut_and_told_nobody_but_the_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refusal would tell the server that more than half of the update is that large."""
    for scheme in (None, Esafl(keys="joint")):
        one = session(Laplace(SCALE), scheme=scheme)
        draft = drafted(one, 2.5)
        values = draft.values if scheme else encoded(one, draft)
        mask = one.mask(model()).coords
        low, high = mask[mask < SIZE // 2], mask[mask >= SIZE // 2]
        assert np.allclose(values[low], 1.0)
        assert np.allclose(values[high], 2.0)
        assert "clipped" in caplog.text
        caplog.clear()
    with pytest.raises(RangeError, match="NaN"):
        drafted(session(Laplace(SCALE)), float("nan"))


def test_noise_is_for_drafts_alone() -> None:
    """Encoded in one go, an update would have fresh noise in every attempt."""
    for select in (SOME, Select()):
        one = session(Laplace(SCALE, "all"), select)
        assert one.staged(model())
        with pytest.raises(ProtocolError, match="draft"):
            one.encode(model(), change(), 1, {})


def test_a_map_has_no_noise() -> None:
    """It is encrypted as a whole, and a mask of noise would select nothing of use."""
    one = session(Laplace(SCALE, "all"), Select(0.25))
    start = model()
    assert one.maps(start)
    own = np.linspace(0, 1, SIZE, dtype=np.float32)
    found = {"a": own[: SIZE // 2], "b": own[SIZE // 2 :]}
    values = map_of(one.terms.select, one.layout, found)
    draft, of = one.draft_map(start, values, 1), one.sum(start, 1, 0)
    state = one.terms.codec.recall(start.layout, {})
    plain, _ = one.encode_draft(draft, start, state, of.slot)
    assert np.abs(plain.values - values * LEVELS).max() <= 1.01
    assert contributed(one, of, plain).scheme == one.sums.whole.name
