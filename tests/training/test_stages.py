"""Rounds of several stages: drafts, supports, and the sum that thresholds are fitted on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from flhe.coding.base import COUNT
from flhe.coding.quantize import Quantize
from flhe.errors import ProtocolError, QuorumError
from flhe.sums.secure_sum import SecureSum
from flhe.training.kind import MEAN_SQUARES, mean_squares_part
from flhe.training.model import Model
from flhe.training.session import Session
from tests.training.rounds import KINDS, Staged, contributed, encoded, group, stage

MASKINGS = [("single", ""), ("adaptive", "double"), ("adaptive", "single")]
CASES = [(kind, "double", "") for kind in KINDS]
CASES += [(kind, *how) for kind in ("sparse", "dense, exchange") for how in MASKINGS]


@pytest.mark.parametrize(("kind", "masking", "mode"), CASES)
def test_all_members_open_one_model_of_a_staged_round(kind: str, masking: Any, mode: str) -> None:
    played = stage(4, kind, masking, mode=mode)
    total = played.total(0, 1, 3)
    assert bool(total.supports) == played.first.terms.codec.sparse
    opened = played.opened_by_all(total)
    sent = np.zeros((3, played.model.layout.floats))
    for row, rank in zip(sent, (0, 1, 3), strict=True):
        draft = played.drafts[rank]
        row[slice(None) if draft.coords is None else draft.coords] = draft.values
    mean = np.delete(sent.mean(axis=0), [14])  # a variance, which may not become negative
    moved = [
        np.ravel(opened.masters[name].astype(np.float64) - played.model.masters[name])
        for name in ("w", "half", "empty")
    ]
    atol = 1e-2 if "history" in kind else 5e-3
    np.testing.assert_allclose(np.concatenate(moved), mean, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
def test_staged_rounds_go_on_from_what_was_remembered(kind: str) -> None:
    """A model off the disk, with its memory, opens the next round as the others do."""
    played = stage(3, kind)
    first = played.open()
    stored = Model.from_bytes(encoded(first))
    assert encoded(stored) == encoded(first)
    remembers = {n for n, word in (("clip", "history"), ("topk", "sparse")) if word in kind}
    assert {name.split(".")[0] for name in first.memory} == remembers
    again = Staged(played.sessions, first, 2, [draft.residual for draft in played.drafts])
    assert (again.mean_squares is not None) == ("exchange" in kind)
    total, digest = again.total(0, 1), played.first.digest(stored)
    alike = again.open(total, 2, stored, digest=digest)
    assert encoded(alike) == encoded(again.open(total))
    if first.memory:
        with pytest.raises(ProtocolError):
            again.open(total, 2, dataclasses.replace(first, memory={}))


# --- the sum of mean squares ---


def test_a_sum_of_mean_squares_is_checked_as_any_other() -> None:
    played = stage(3, "sparse, exchange")
    with pytest.raises(QuorumError, match="none of fewer than 2"):
        played.fit(played.squares[0])
    for other, says in ((None, "missing"), (played.total(), "belongs to another")):
        with pytest.raises(ProtocolError, match=says):
            played.fit(other)


def test_mean_squares_of_a_member_that_lies() -> None:
    """Of its count; its tags are right."""
    played = stage(3, "sparse, exchange")
    liar, model = played.first, played.model
    quantize = Quantize(liar.terms.bits)
    plain = mean_squares_part(liar.terms, model, played.drafts[0])
    told = quantize.join(plain.extras.astype(np.int64))
    told[COUNT] += 1
    lie = plain._replace(extras=quantize.split(told))
    part = contributed(liar, liar.sum(model, 1, 0, kind=MEAN_SQUARES), lie)
    with pytest.raises(ProtocolError, match="one part from each"):
        played.fit(played.sum_of([part, *played.squares[1:]]))


def test_mean_squares_that_no_senders_could_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    played = stage(3, "sparse, exchange")
    honest = SecureSum.open
    monkeypatch.setattr(
        SecureSum, "open", lambda *told, **how: honest(*told, **how) + 3 * 32767 + 1
    )
    with pytest.raises(ProtocolError, match="holds values that 3 senders cannot reach"):
        played.fit(played.mean_squares)


def test_updates_clipped_otherwise_do_not_add_up() -> None:
    """The sum that thresholds were fitted on is in the slot."""
    one = stage(4, "sparse, exchange")
    other = stage(4, "sparse, exchange", rangers=(0, 1, 2))
    assert one.slot != other.slot
    with pytest.raises(ProtocolError, match="slot"):
        one.sum_of([*one.parts[:2], other.parts[2]])
    for squares in (other.mean_squares, None):
        with pytest.raises(ProtocolError):
            one.open(one.total(0, 1, 2), fitted_on=squares)


# --- supports ---


@pytest.mark.parametrize("masking", ["double", "single"])
def test_two_supports_swapped_are_refused(masking: Any) -> None:
    rng = np.random.default_rng(7)
    apart = [np.float32(1 / 32) * rng.permutation(15).astype(np.float32) for _ in range(3)]
    played = stage(3, "sparse, in the clear", masking, residuals=apart)
    total = played.total()
    assert len(set(total.supports)) == 3
    assert played.open(total).round == 1
    for order in ((1, 0, 2), (0, 2, 1), (2, 0, 1)):
        lie = dataclasses.replace(total, supports=tuple(total.supports[i] for i in order))
        with pytest.raises(ProtocolError, match="refused"):
            played.open(lie)


def test_the_order_of_coordinates_is_a_secret_of_the_attempt() -> None:
    played = stage(3, "sparse")
    model, coords = played.model, np.arange(15, dtype=np.uint32)
    slots = [played.first.sum(model, r, a).slot for r, a in ((1, 0), (1, 1), (2, 0))]
    orders = set()
    for slot in slots:
        seen = {bytes(s.permutation(slot).forward(coords)) for s in played.sessions}  # type: ignore[union-attr]
        assert len(seen) == 1  # one for all members
        orders |= seen
    other = dataclasses.replace(group()[0], group_key=bytes(32))
    session = Session(other, played.first.terms, model.layout)
    orders.add(bytes(session.permutation(slots[0]).forward(coords)))  # type: ignore[union-attr]
    assert len(orders) == 4
    for kind in ("sparse, in the clear", "dense, history"):
        assert stage(3, kind).first.permutation(slots[0]) is None
