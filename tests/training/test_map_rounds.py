"""The round for the map, member by member: what is refused, and what the mask is part of."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.extras import CHECK
from flhe.coding.quantize import Quantize
from flhe.coding.select import Select
from flhe.errors import ProtocolError
from flhe.schemes.sealed import Sealed
from flhe.training.model import Model
from flhe.training.optimizer import ServerOptimizer
from flhe.training.session import Session
from flhe.training.terms import Terms
from tests.training.test_session import group, ignore

TERMS = Terms(select=Select(0.25), weighted=False, metrics=())
SIZE = 40


def start() -> Model:
    return Model.initial(
        {
            "w": np.zeros((4, 8), np.float32),
            "bn.running_mean": np.zeros(8, np.float32),
            "steps": np.array(3, np.int64),
        }
    )


def sessions(terms: Terms = TERMS) -> list[Session]:
    return [Session(epoch, terms, start().layout) for epoch in group(3)]


def own(rank: int) -> dict[str, NDArray[Any]]:
    """Sensitivities that rise along the array, on a scale of the member's own."""
    rising = np.arange(32, dtype=np.float32).reshape(4, 8)
    return {"w": rising * 10**rank, "bn.running_mean": np.zeros(8, np.float32)}


def encoded(session: Session, model: Model, found: dict[str, NDArray[Any]]) -> Plain:
    draft = session.draft_map(model, session.map_of(found), 1)
    state = session.terms.codec().recall(model.layout, {})
    slot = session.slot(model, 1, 0)
    return session.encode_draft(draft, model, state, slot, session.digest(model))[0]


def part(session: Session, model: Model, plain: Plain | None = None) -> Sealed:
    if plain is None:
        plain = encoded(session, model, own(session.epoch.rank))
    return session.seal(session.sealer(model), plain, session.slot(model, 1, 0), ignore)


def total(parts: list[Sealed], session: Session) -> Sealed:
    out: Sealed | None = None
    for one in parts:
        out = session.whole.add(out, one)
    assert out is not None
    return out


def test_all_come_to_the_same_mask_and_nothing_else_moves() -> None:
    members, model = sessions(), start()
    summed = total([part(s, model) for s in members], members[0])
    after = [s.open(model, summed, ignore)[0] for s in members]
    assert len({b"".join(m.chunks()) for m in after}) == 1
    (first, *_) = after
    assert first.mask is not None
    assert first.mask.coords.tolist() == list(range(22, 32))
    assert (first.round, first.steps) == (1, 0)
    assert all(np.array_equal(first.masters[n], a) for n, a in model.masters.items())
    assert first.moments == {}
    assert members[0].digest(first) != members[0].digest(dataclasses.replace(first, mask=None))


def test_arrays_that_the_map_does_not_name_are_encrypted_first() -> None:
    """Running statistics come from the data as directly as anything."""
    session = sessions()[0]
    found = {"w": own(0)["w"]}
    values = session.map_of(found)
    assert np.array_equal(values[32:], np.ones(8, np.float32))
    assert values[:32].min() == -1
    frozen = {**found, "base.weight": np.zeros(99, np.float32)}
    assert np.array_equal(session.map_of(frozen), values)
    for bad in ({"base.weight": np.ones(99, np.float32)}, {"base": np.zeros(3)}, {"steps": [1]}):
        with pytest.raises(ProtocolError):
            session.map_of({**(found if "base" not in bad else {}), **bad})


def forged(session: Session, model: Model, change: Any) -> Plain:
    plain = encoded(session, model, own(0))
    extras = plain.extras.copy()
    values = plain.values.copy()
    change(values, extras)
    return plain._replace(values=values, extras=extras)


def _another_check(values: Any, extras: Any) -> None:
    limbs = Quantize(16).limbs
    extras[CHECK * limbs] = (extras[CHECK * limbs] + 1) % 100


def _no_contribution(values: Any, extras: Any) -> None:
    extras[0] = 0


def _weight_of_two(values: Any, extras: Any) -> None:
    extras[Quantize(16).limbs] = 2


@pytest.mark.parametrize("change", [_another_check, _no_contribution, _weight_of_two])
def test_a_map_that_does_not_say_what_it_should_is_refused(change: Any) -> None:
    members, model = sessions(), start()
    parts = [part(members[0], model, forged(members[0], model, change))]
    parts += [part(s, model) for s in members[1:]]
    with pytest.raises(ProtocolError):
        members[1].open(model, total(parts, members[0]), ignore)


def test_a_sum_that_nobody_reaches_is_refused() -> None:
    """Under FLASHE whoever relays a sum can add to it, and it is seen."""
    members, model = sessions(), start()
    summed = total([part(s, model) for s in members], members[0])
    packing: Any = members[0].whole.packing  # type: ignore[attr-defined]
    shift = np.zeros(summed.length, packing.signed)
    shift[0] = -20_000
    more = packing.pack(shift, np.zeros(shift.size, packing.lane))
    data = summed.data.copy()
    packing.add(data, more, summed.length)
    with pytest.raises(ProtocolError, match="not that of what"):
        members[1].open(model, dataclasses.replace(summed, data=data), ignore)


def test_maps_and_updates_are_not_taken_for_each_other() -> None:
    members, model = sessions(), start()
    summed = total([part(s, model) for s in members], members[0])
    chosen = members[0].open(model, summed, ignore)[0]
    assert not members[0].maps(chosen)
    assert members[0].scheme_of(model).name != members[0].scheme_of(chosen).name
    with pytest.raises(ProtocolError):
        members[0].open(chosen, summed, ignore)
    longer = dataclasses.replace(summed, scheme=members[0].scheme.name)
    with pytest.raises(ProtocolError):
        members[0].open(model, longer, ignore)


@pytest.mark.parametrize("select", [Select(0.25), Select(0.25, "random")])
def test_server_optimizers_count_rounds_of_training(select: Select) -> None:
    """FedAdam's first step is number 1, whether or not a map came before it."""
    optimizer = ServerOptimizer("fedadam")
    members = sessions(dataclasses.replace(TERMS, select=select, optimizer=optimizer))
    plain = sessions(dataclasses.replace(TERMS, select=Select(), optimizer=optimizer))
    model, number = start(), 1
    if select.mapped:
        summed = total([part(s, model) for s in members], members[0])
        model, number = members[0].open(model, summed, ignore)[0], 2
    moved = {n: a + np.asarray(1, a.dtype) for n, a in start().arrays().items()}

    def step(group_of: list[Session], before: Model, round_: int) -> Model:
        out: Sealed | None = None
        for s in group_of:
            encoded = s.encode(before, moved, 1, {}, s.digest(before))
            one = s.seal(s.sealer(before), encoded, s.slot(before, round_, 0), ignore)
            out = s.scheme.add(out, one)
        assert out is not None
        return group_of[0].open(before, group_of[0].scheme.close(out), ignore)[0]

    ours, theirs = step(members, model, number), step(plain, start(), 1)
    for name, array in theirs.masters.items():
        assert np.array_equal(ours.masters[name], array), name
    assert ours.steps == theirs.steps == 1
