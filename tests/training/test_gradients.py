"""Rounds in which gradients are sent: every member steps with its own optimizer, all alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flhe.errors import ProtocolError, RangeError, ReplyError
from flhe.schemes.sealed import Sealed
from flhe.training.client_optimizer import ClientOptimizer
from flhe.training.model import Model
from flhe.training.session import Session
from flhe.training.terms import Terms
from tests.training.test_session import Round, arrays, encoded, group, ignore

TERMS = Terms(
    bits=24,
    max_examples=30,
    metrics=(),
    optimizer=ClientOptimizer("adam", lr=0.1),
    sends="gradient",
)
STEP = 1 / 2**23
"""Of one quantized value, at the clipping threshold 1."""


def gradients(rank: int, round_: int = 1) -> dict[str, NDArray[Any]]:
    """What a member computes from a batch; the variance has no gradient."""
    rng = np.random.default_rng([rank, round_])
    return {
        "w": rng.uniform(-0.5, 0.5, (3, 4)).astype(np.float32),
        "half": np.array([0.5, -0.25], np.float16),
        "bn.running_var": np.zeros(1, np.float32),
        "steps": np.array(10 + round_, np.int64),
        "empty": np.empty((0, 2), np.float32),
    }


def count(rank: int) -> int:
    """Examples in a member's batch."""
    return 10 * (rank + 1)


def mean(round_: int, *ranks: int) -> NDArray[np.float64]:
    """Mean gradient of `w`."""
    weights = [count(rank) for rank in ranks]
    return np.average([gradients(r, round_)["w"].astype(float) for r in ranks], 0, weights)


def part(session: Session, model: Model, round_: int) -> Sealed:
    rank = session.epoch.rank
    sent = gradients(rank, round_)
    sent["steps"] = np.array(model.masters["steps"] + 1)
    plain = session.encode(model, sent, count(rank), {}, session.digest(model))
    return session.seal(session.sealer(), plain, session.slot(model, round_, 0), ignore)


def play(terms: Terms, model: Model | None = None, round_: int = 1) -> Round:
    model = model or Model.initial(arrays())
    sessions = [Session(epoch, terms, model.layout) for epoch in group(3)]
    return Round(sessions, model, [part(s, model, round_) for s in sessions])


def test_a_step_against_the_mean_gradient() -> None:
    terms = dataclasses.replace(TERMS, optimizer=ClientOptimizer("sgd", lr=0.5))
    played = play(terms)
    total = played.total(0, 1, 2)
    opened = [played.open(total, rank) for rank in range(3)]
    assert len({encoded(model) for model in opened}) == 1
    model = opened[0]
    assert (model.round, model.steps, model.moments) == (1, 1, {})
    assert model.masters["w"] == pytest.approx(arrays()["w"] - 0.5 * mean(1, 0, 1, 2), abs=3 * STEP)
    assert model.masters["half"] == pytest.approx([0.25, 0.375], abs=3 * STEP)
    assert model.masters["bn.running_var"] == arrays()["bn.running_var"]  # no gradient, no step
    assert model.masters["steps"] == 11  # an integer's change, as it was


@pytest.mark.parametrize(
    ("ours", "kind", "options"),
    [
        (ClientOptimizer("adam", lr=0.1), torch.optim.Adam, {"lr": 0.1}),
        (ClientOptimizer("rmsprop", lr=0.01), torch.optim.RMSprop, {"lr": 0.01}),
        (
            ClientOptimizer("sgd", lr=0.1, momentum=0.9),
            torch.optim.SGD,
            {"lr": 0.1, "momentum": 0.9},
        ),
    ],
    ids=["adam", "rmsprop", "sgd"],
)
def test_rounds_give_what_torch_gives_and_void_ones_are_no_steps(
    ours: ClientOptimizer, kind: Any, options: dict[str, float]
) -> None:
    terms = dataclasses.replace(TERMS, optimizer=ours)
    weights = torch.nn.Parameter(torch.from_numpy(arrays()["w"].astype(np.float64)))
    theirs = kind([weights], **options)
    model = Model.initial(arrays())
    rounds = (1, 2, 5, 6, 40)
    for steps, round_ in enumerate(rounds, 1):
        senders = (0, 2) if round_ == 5 else (0, 1, 2)
        played = play(terms, model, round_)
        total = played.total(*senders)
        model = played.open(total, rank=1)
        assert (model.round, model.steps) == (round_, steps)
        weights.grad = torch.from_numpy(mean(round_, *senders))
        theirs.step()
    assert model.masters["w"] == pytest.approx(weights.detach().numpy(), abs=1e-5)


def test_a_late_joiner_goes_on_to_the_same_bits() -> None:
    model = Model.initial(arrays())
    for round_ in (1, 3):
        played = play(TERMS, model, round_)
        model = played.open(played.total(0, 1, 2))
    joined = Model.from_bytes(encoded(model))
    played = play(TERMS, model, 4)
    total = played.total(0, 1, 2)
    assert encoded(played.open(total, 2, joined)) == encoded(played.open(total, 0))
    for lost in ({"moments": {}}, {"steps": 0}):  # an optimizer with another state
        with pytest.raises(ProtocolError, match="or other weights"):
            played.open(total, 2, dataclasses.replace(joined, **lost))


def test_a_draft_holds_the_gradient() -> None:
    model = Model.initial(arrays())
    session = Session(group(3)[0], TERMS, model.layout)
    draft = session.draft(model, gradients(0), 10, {}, 1, None)
    floats = [a.reshape(-1) for n, a in gradients(0).items() if n not in ("steps", "empty")]
    assert np.array_equal(draft.values, np.concatenate(floats).astype(np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_gradient_that_is_not_finite_is_refused(value: float) -> None:
    model = Model.initial(arrays())
    session = Session(group(3)[0], TERMS, model.layout)
    bad = gradients(0)
    bad["w"][1, 1] = value
    with pytest.raises(RangeError, match="NaN or infinity"):
        session.encode(model, bad, 10, {}, bytes(32))
    with pytest.raises(RangeError, match="NaN or infinity"):
        session.draft(model, bad, 10, {}, 1, None)


def test_gradients_of_another_model_are_refused() -> None:
    model = Model.initial(arrays())
    session = Session(group(3)[0], TERMS, model.layout)
    bad = gradients(0)
    bad["w"] = bad["w"].astype(np.float64)
    with pytest.raises(ReplyError, match="'w' of the app's reply is float64"):
        session.encode(model, bad, 10, {}, bytes(32))
    del bad["bn.running_var"]
    with pytest.raises(ReplyError, match=r"lacks array 'bn\.running_var'"):
        session.encode(model, bad, 10, {}, bytes(32))
