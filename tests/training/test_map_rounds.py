"""The round for the map, member by member: what is refused, and what the mask is part of."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.quantize import Quantize
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.errors import ProtocolError
from flhe.schemes.sealed import Sealed
from flhe.training.model import Model
from flhe.training.optimizer import Optimizer
from flhe.training.sensitivity import map_of
from flhe.training.session import Session
from flhe.training.terms import Terms
from tests.training import rounds
from tests.training.rounds import Round, contributed

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


def encoded(session: Session) -> Plain:
    model = start()
    found = map_of(session.terms.select, session.layout, own(session.epoch.rank))
    draft = session.draft_map(model, found, 1)
    state = session.terms.codec.recall(model.layout, {})
    slot = session.sum(model, 1, 0).slot
    return session.encode_draft(draft, model, state, slot)[0]


def part(session: Session, plain: Plain | None = None) -> Sealed:
    model = start()
    plain = encoded(session) if plain is None else plain
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
    plain = encoded(played.first)
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
