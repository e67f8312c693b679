"""Rounds in which gradients are sent: every member steps with its own optimizer, all alike."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flhe.coding.update import update_codec
from flhe.errors import FlheError, NotFiniteError, ProtocolError, ReplyError
from flhe.training.model import Model
from flhe.training.optimizer import Optimizer
from flhe.training.terms import Terms
from tests.training.rounds import Round, arrays, encoded, part, sessions, start

TERMS = Terms(
    codec=update_codec(bits=24, max_examples=30),
    metrics=(),
    optimizer=Optimizer("adam", lr=0.1),
)
def gradients(rank: int, round_: int = 1, steps: int = 11) -> dict[str, NDArray[Any]]:
    """What a member computes from a batch; the variance has no gradient."""
    rng = np.random.default_rng([rank, round_])
    return {
        "w": rng.uniform(-0.5, 0.5, (3, 4)).astype(np.float32),
        "half": np.array([0.5, -0.25], np.float16),
        "bn.running_var": np.zeros(1, np.float32),
        "steps": np.array(steps, np.int64),
        "empty": np.empty((0, 2), np.float32),
    }


def mean(round_: int, *ranks: int) -> NDArray[np.float64]:
    """Mean gradient of `w`, of 10 examples at the first member, 20 at the second."""
    weights = [rank + 1 for rank in ranks]
    return np.average([gradients(r, round_)["w"].astype(float) for r in ranks], 0, weights)


def play(terms: Terms, model: Model | None = None, round_: int = 1) -> Round:
    model = model or start()
    steps, members = int(model.masters["steps"]) + 1, sessions(terms)
    parts = [
        part(s, model, gradients(rank, round_, steps), 10 * (rank + 1), round_)
        for rank, s in enumerate(members)
    ]
    return Round(members, model, parts)


def test_rounds_give_what_torch_gives_and_void_ones_are_no_steps() -> None:
    """The other rules are compared with torch's in test_gradient_optimizers."""
    weights = torch.nn.Parameter(torch.from_numpy(arrays()["w"].astype(np.float64)))
    theirs = torch.optim.Adam([weights], lr=0.1)
    model = start()
    for steps, round_ in enumerate((1, 2, 5, 6, 40), 1):
        senders = (0, 2) if round_ == 5 else (0, 1, 2)
        played = play(TERMS, model, round_)
        joined = Model.from_bytes(encoded(model))  # who comes late goes on to the same bits
        total = played.total(*senders)
        model = played.open(total, rank=1)
        assert encoded(played.open(total, 2, joined)) == encoded(model)
        for lost in ({"moments": {}}, {"steps": 0}) if steps > 1 else ():
            with pytest.raises(ProtocolError, match="or other weights"):
                played.open(total, 2, dataclasses.replace(joined, **lost))  # type: ignore[arg-type]
        assert (model.round, model.steps) == (round_, steps)
        weights.grad = torch.from_numpy(mean(round_, *senders))
        theirs.step()
    assert model.masters["w"] == pytest.approx(weights.detach().numpy(), abs=1e-5)


GOOD = gradients(0)
BAD: dict[str, tuple[dict[str, NDArray[Any]], type[FlheError], str]] = {
    "nan": (GOOD | {"w": np.full((3, 4), np.nan, np.float32)}, NotFiniteError, "NaN or infinity"),
    "infinity": (GOOD | {"w": np.full((3, 4), -np.inf, np.float32)}, NotFiniteError, "NaN or inf"),
    "another type": (GOOD | {"w": np.zeros((3, 4))}, ReplyError, "'w' of .* is float64"),
    "a layer less": ({"w": GOOD["w"]}, ReplyError, "lacks array 'half'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_gradient_that_is_refused(name: str) -> None:
    sent, error, message = BAD[name]
    session = sessions(TERMS)[0]
    with pytest.raises(error, match=message):
        session.encode(start(), sent, 10, {})
    with pytest.raises(error, match=message):
        session.draft(start(), sent, 10, {}, 1, None)
