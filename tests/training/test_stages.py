"""Rounds of several stages: drafts, supports, and the sum that thresholds are fitted on."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import COUNT, Plain
from flhe.coding.quantize import Quantize
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.errors import ProtocolError
from flhe.schemes.sealed import Sealed
from flhe.sums.secure_sum import SecureSum
from flhe.training.kind import MEAN_SQUARES, mean_squares_part
from flhe.training.model import Model
from flhe.training.optimizer import Optimizer
from flhe.training.sensitivity import map_of
from flhe.training.session import Session
from flhe.training.terms import Terms
from tests.training import rounds
from tests.training.rounds import KINDS, Round, Staged, contributed, encoded, group, stage


@pytest.mark.parametrize("kind", KINDS)
def test_staged_rounds_go_on_from_what_was_remembered(kind: str) -> None:
    """A model off the disk, with its memory, opens the next round as the others do."""
    played = stage(3, kind)
    first = played.opened_by_all()
    sent = np.zeros((3, played.model.layout.floats))
    for row, draft in zip(sent, played.drafts, strict=True):
        row[slice(None) if draft.coords is None else draft.coords] = draft.values
    was = played.model.masters
    moved = [np.ravel(first.masters[name] - was[name]) for name in ("w", "half", "empty")]
    mean = np.delete(sent.mean(axis=0), [14])  # a variance, which may not become negative
    atol = 1e-2 if "history" in kind else 5e-3
    np.testing.assert_allclose(np.concatenate(moved), mean, rtol=0, atol=atol)
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


# --- the round for the map: what is refused, and what the mask is part of ---


TERMS = Terms(codec=update_codec(weighted=False), select=Select(0.25), metrics=())


def start() -> Model:
    return Model.initial(
        {
            "w": np.zeros((4, 8), np.float32),
            "bn.running_mean": np.zeros(8, np.float32),
            "steps": np.array(3, np.int64),
        }
    )


def sessions(terms: Terms = TERMS) -> list[Session]:
    return rounds.sessions(terms, model=start())


def own(rank: int) -> dict[str, NDArray[Any]]:
    """Sensitivities that rise along the array, on a scale of the member's own."""
    rising = np.arange(32, dtype=np.float32).reshape(4, 8)
    return {"w": rising * 10**rank, "bn.running_mean": np.zeros(8, np.float32)}


def encoded_map(session: Session) -> Plain:
    model = start()
    found = map_of(session.terms.select, session.layout, own(session.epoch.rank))
    draft = session.draft_map(model, found, 1)
    state = session.terms.codec.recall(model.layout, {})
    slot = session.sum(model, 1, 0).slot
    return session.encode_draft(draft, model, state, slot)[0]


def part(session: Session, plain: Plain | None = None) -> Sealed:
    model = start()
    plain = encoded_map(session) if plain is None else plain
    return contributed(session, session.sum(model, 1, 0), plain)


def mapped(terms: Terms = TERMS) -> Round:
    members = sessions(terms)
    return Round(members, start(), [part(session) for session in members])


def test_arrays_that_the_map_does_not_name_are_encrypted_first() -> None:
    """Running statistics come from the data as directly as anything."""
    session = sessions()[0]
    found = {"w": own(0)["w"]}
    values = map_of(session.terms.select, session.layout, found)
    assert np.array_equal(values[32:], np.ones(8, np.float32))
    assert values[:32].min() == -1
    frozen = {**found, "base.weight": np.zeros(99, np.float32)}
    assert np.array_equal(map_of(session.terms.select, session.layout, frozen), values)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (own(0) | {"base.weight": np.ones(99, np.float32)}, "the model has none of that name"),
        (own(0) | {"steps": [1]}, "the model has none of that name"),
        (own(0) | {"w": np.ones(3)}, r"'w' of shape \(3,\), the model has shape \(4, 8\)"),
        ({"base": np.zeros(3)}, "the map is empty"),
    ],
)
def test_a_map_of_another_model(found: Any, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        map_of(TERMS.select, start().layout, found)


LIMBS = Quantize(16).limbs


@pytest.mark.parametrize(("at", "lie"), [(0, 0), (LIMBS, 2)], ids=["count", "weight"])
def test_a_map_that_does_not_say_what_it_should_is_refused(at: int, lie: int) -> None:
    played = mapped()
    plain = encoded_map(played.first)
    extras = plain.extras.copy()
    assert extras[at] != lie
    extras[at] = lie
    liar = part(played.first, plain._replace(extras=extras))
    with pytest.raises(ProtocolError):
        played.open(played.sum_of([liar, *played.parts[1:]]), rank=1)


@pytest.mark.parametrize("select", [Select(0.25), Select(0.25, "random")])
def test_server_optimizers_count_rounds_of_training(select: Select) -> None:
    """FedAdam's first step is number 1, whether or not a map came before it."""
    terms = dataclasses.replace(TERMS, select=select, optimizer=Optimizer("fedadam"))
    model = mapped(terms).open() if select.mapped else start()
    moved = {n: a + np.asarray(1, a.dtype) for n, a in start().arrays().items()}

    def step(terms: Terms, before: Model, round_: int) -> Model:
        members = sessions(terms)
        parts = [rounds.part(s, before, moved, 1, round_) for s in members]
        return Round(members, before, parts).open()

    ours = step(terms, model, model.round + 1)
    theirs = step(dataclasses.replace(terms, select=Select()), start(), 1)
    for name, array in theirs.masters.items():
        assert np.array_equal(ours.masters[name], array), name
    assert ours.steps == theirs.steps == 1
