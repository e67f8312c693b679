"""Session: rounds of a whole group in one process, and the order in which a round may go wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from flhe.coding.chain import chain
from flhe.coding.clip import Clip
from flhe.coding.extras import Totals
from flhe.coding.quantize import NearestRounding, Quantize
from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.coding.update import update_codec
from flhe.coding.weigh import Weigh
from flhe.errors import ExamplesError, FlheError, NotFiniteError, ProtocolError, ReplyError
from flhe.math.ring import Elements, Q
from flhe.schemes.sash.adder import SashAdder
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed
from flhe.training.model import Model
from flhe.training.optimizer import Optimizer
from flhe.training.session import Session
from flhe.training.terms import Terms
from flhe.training.update import ServerReader, finite, served
from tests.training.rounds import (
    RUN,
    TERMS,
    OneOpening,
    Round,
    arrays,
    drifted,
    encoded,
    group,
    ignore,
    part,
    play,
    sessions,
    start,
    trained,
    with_slot,
)

SOME = np.array([0, 3], np.uint32)


# --- a round that works ---


@pytest.mark.parametrize("optimizer", [Optimizer("fedadam", eta=0.5), Optimizer("adam", lr=0.5)])
def test_moments_are_the_same_everywhere_and_go_on(optimizer: Optimizer) -> None:
    terms = dataclasses.replace(TERMS, optimizer=optimizer)
    first = play(3, terms).opened_by_all()
    assert tuple(first.moments) == optimizer.moments
    assert all(moment.any() for moment in first.moments.values())
    again = play(3, terms, model=first, round_=2)
    stored = Model.from_bytes(encoded(first))
    assert encoded(again.open(rank=2, model=stored)) == encoded(again.open(rank=1))
    lost = dataclasses.replace(first, moments={})  # the same arrays and another memory
    with pytest.raises(ProtocolError, match="or other weights"):
        again.open(rank=2, model=lost)
    after, anew = again.open().moments, play(3, terms, model=lost, round_=2).open().moments
    for name, moment in first.moments.items():
        assert np.abs(after[name] - anew[name]).max() > np.abs(moment).max() / 2


def test_steps_in_another_order_open_to_the_same_mean() -> None:
    """Three steps one by one decode in float64, and an optimizer takes float32."""
    apart = chain(Weigh(100), Clip(1.0), Quantize(16))
    for optimizer in (Optimizer(), Optimizer("fedadam")):
        usual, other = (
            play(3, dataclasses.replace(TERMS, codec=codec, optimizer=optimizer)).open()
            for codec in (TERMS.codec, apart)
        )
        for name, array in usual.masters.items():
            np.testing.assert_allclose(other.masters[name], array, atol=1e-2)
        assert other.masters["w"].dtype == np.float32


# --- what a model is known by ---


def test_a_digest_is_the_same_for_members_with_the_same_model() -> None:
    model, members = start(), sessions()
    [digest] = {session.digest(model) for session in members}
    assert len(digest) == 32
    changes: list[dict[str, Any]] = [
        {"round": 1},
        {"history": bytes(32)},
        {"moments": {"v": np.zeros(model.layout.floats, np.float32)}},
        {"memory": {"v": np.zeros(1)}},
        {"memory": {"v": np.full(1, 5e-324)}},
        {"mask": Support.of(SOME, model.layout.floats)},
    ]
    others = [drifted(model), *(dataclasses.replace(model, **change) for change in changes)]
    digests = {digest, *(members[0].digest(other) for other in others)}
    strange = dataclasses.replace(group()[0], group_key=bytes(32))  # nor without the key
    for epoch in (strange, group(number=2)[0]):
        digests.add(Session(epoch, TERMS, model.layout).digest(model))
    assert len(digests) == 3 + len(others)


# --- gradients ---

FLAT = {name: np.zeros_like(array) for name, array in arrays().items()}
NO_GRADIENTS: dict[str, tuple[dict[str, Any], type[FlheError], str]] = {
    "nan": (FLAT | {"w": np.full((3, 4), np.nan, np.float32)}, NotFiniteError, "NaN or infinity"),
    "another type": (FLAT | {"w": np.zeros((3, 4))}, ReplyError, "'w' of .* is float64"),
    "a layer less": ({"w": FLAT["w"]}, ReplyError, "has no array 'half'"),
}


@pytest.mark.parametrize("name", NO_GRADIENTS)
def test_a_gradient_that_is_refused(name: str) -> None:
    sent, error, message = NO_GRADIENTS[name]
    session = sessions(dataclasses.replace(TERMS, optimizer=Optimizer("adam")))[0]
    with pytest.raises(error, match=message):
        session.encode(start(), sent, 10, {})
    with pytest.raises(error, match=message):
        session.draft(start(), sent, 10, {}, 1, None)


def test_a_negative_count_of_examples_weighs_nothing() -> None:
    with pytest.raises(ExamplesError, match="no examples"):
        sessions()[0].weight(-1)


# --- before a sum is opened ---


def of(**change: Any) -> Callable[[Sealed], Sealed]:
    return lambda total: dataclasses.replace(total, **change)


def slot(**change: Any) -> Callable[[Sealed], Sealed]:
    return lambda total: with_slot(total, **change)


def another_epoch(total: Sealed) -> Sealed:
    later = sessions(number=2)
    return Round(later, start(), [part(s, start()) for s in later]).total()


SEEN: dict[str, tuple[Callable[[Sealed], Sealed], str]] = {
    "round 0": (slot(round=0), "round 0, this node's model is at round 0"),
    "another run": (slot(run_id=RUN + 1), "belongs to another"),
    "another epoch's keys": (another_epoch, "belongs to another"),
    "another history": (slot(history=bytes(32)), "another history"),
    "longer": (lambda t: dataclasses.replace(t, length=t.length + 1), "another length"),
    "scheme": (of(scheme="eshe"), "another scheme"),
    "stranger": (of(senders=(0, 1, 7)), "sender 7 is not in the cohort"),
    "cut short": (lambda t: dataclasses.replace(t, data=t.data[:-1]), "cut short or extended"),
    "mode": (of(mode="double"), "mode"),
    "supports": (of(supports=(Support.of(SOME, 15),) * 3), "sparse, or should be"),
    "longer supports": (of(supports=(Support.of(SOME, 16),) * 3), "of another model"),
}
"""What can be seen to be wrong; to be said before anything is recorded or decrypted."""


@pytest.mark.parametrize("name", SEEN)
def test_what_can_be_seen_to_be_wrong_does_not_spend_the_opening(name: str) -> None:
    """Else one damaged message would cost the round: the true sum is then 'another result'."""
    (change, message), played, record = SEEN[name], play(), OneOpening()
    before = encoded(played.model)
    with pytest.raises(ProtocolError, match=message):
        played.open(change(played.total()), record=record)
    assert (record.seen, encoded(played.model)) == ({}, before)
    assert played.open(record=record).round == 1


# --- where the server reads ---

SERVER = dataclasses.replace(TERMS, scheme=Sash(unmask="server"))


class Served(Round):
    """A round of a group, with the seeds that its members would release; the server opens it."""

    def __init__(self, terms: Terms, size: int) -> None:
        model = served(arrays(), 0)
        super().__init__(sessions(terms, size, model, collusion=size // 5), model, [])
        self.seeds: list[Elements] = []
        for rank, session in enumerate(self.sessions):
            told = {"loss": rank + 0.5, "patients": 3.0}
            plain = session.encode(model, trained(rank), 10 * (rank + 1), told)
            of, sealer = session.sum(model, 1, 0), session.sealer()
            self.parts.append(of.contribute(session.epoch, sealer, plain, ignore))
            self.seeds.append(cast(Any, sealer).take_seed(of.slot))

    def read(self, total: Sealed) -> tuple[Model, Totals]:
        """As the server does."""
        seeds = np.array([self.seeds[rank] for rank in total.senders], object)
        reader = ServerReader(self.first.terms, self.first.sums.adder)
        return reader.open(self.model, total, (seeds.sum(axis=0) % Q).astype(np.uint64))


def test_the_server_reads_what_a_member_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, where an optimizer keeps moments too."""
    monkeypatch.setattr(Quantize, "source", lambda _: NearestRounding())  # the same each time
    monkeypatch.setattr(Quantize, "offset", 0.0)
    senders, adam = (0, 1, 3, 4), Optimizer("fedadam")
    here = Served(dataclasses.replace(SERVER, optimizer=adam), 5)
    before = encoded(here.model)
    model, totals = here.read(here.total(*senders))
    assert encoded(here.model) == before  # a resumed server opens the sum again, from this model
    members = sessions(dataclasses.replace(TERMS, optimizer=adam), 5, here.model, collusion=1)
    parts = [part(s, here.model, examples=10 * (s.epoch.rank + 1)) for s in members]
    there = Round(members, here.model, parts)
    other, told = there.first.open(there.model, there.total(*senders), ignore)
    alike = dataclasses.replace(other, history=model.history, chain=())
    assert (encoded(alike), told) == (encoded(model), totals)
    weights = [10 * (rank + 1) for rank in senders]
    assert (totals.count, totals.weight) == (len(senders), sum(weights))
    loss = np.average([rank + 0.5 for rank in senders], weights=weights)
    assert totals.metrics["loss"] == pytest.approx(loss, abs=1e-3)


def test_a_sum_that_does_not_decode_leaves_no_half_a_model() -> None:
    """The counts inside are too large for two senders, whose seeds fit."""
    played = Served(SERVER, 3)
    total, before = played.total(0, 1), encoded(played.model)
    guard = cast(SashAdder, played.first.sums.adder).guard
    total.data.view("<u4")[played.model.layout.floats :] += np.uint32(1 << guard)  # every digit
    with pytest.raises(ProtocolError, match="refused"):
        played.read(total)
    assert encoded(played.model) == before


def test_what_is_told_of_a_model() -> None:
    assert served(arrays(), 7).history == served(arrays(), 0).history == start().history
    assert finite({"loss": 0.5, "accuracy": float("nan"), "f1": float("inf")}) == {"loss": 0.5}


# --- one weight under two names ---


@pytest.mark.parametrize(
    ("select", "refused"),
    [
        (Select(rule="layers:^in$"), True),
        (Select(0.5, "random"), True),
        (Select(rule="layers:^in$|^out$"), False),
        (Select(rule="layers:^mid$"), False),
        (Select(rule="layers:^in$", rest="drop"), True),
        (Select(rule="layers:^in$|^out$", rest="drop"), False),
        (Select(), False),
    ],
    ids=str,
)
def test_a_tied_weight_is_not_encrypted_as_one_and_clear_as_the_other(
    select: Select, refused: bool
) -> None:
    """Nor trained as one and unsent as the other, which would undo it."""
    values = np.linspace(-1, 1, 64, dtype=np.float32)
    before = {"in": values, "mid": values[:7] + 1, "out": values}
    after = {name: array * np.float32(1.1) for name, array in before.items()}
    model = Model.initial(before)
    codec = update_codec(bits=16, clip=1.0, weighted=False)
    terms = dataclasses.replace(TERMS, codec=codec, select=select)
    session = sessions(terms, model=model)[0]
    told = 10, {"loss": 1.0}
    if refused:
        with pytest.raises(ReplyError, match="'in' and 'out' change alike"):
            session.encode(model, after, *told)
        with pytest.raises(ReplyError, match="'in' and 'out' change alike"):
            session.draft(model, after, *told, 1, None)
        after["out"] *= 2
    session.encode(model, after, *told)
