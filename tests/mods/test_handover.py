"""Handing a model on: sealed by one member, opened by another; and the first model of all."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message

from flhe.coding.support import Support
from flhe.keys import seal
from flhe.keys.seal import ModelKey
from flhe.mods import records
from flhe.training.chain import Link
from flhe.training.model import Model
from flhe.wire import canonical
from tests.mods.harness import (
    RUN,
    SECRET,
    Group,
    Site,
    answer,
    arrays,
    private,
    refused,
    sealed,
    update,
    wire,
)
from tests.training.rounds import drifted


def hand(group: Group, site: Site, box: ArrayRecord, stage: str = "sync", **fields: Any) -> Message:
    kind = "evaluate" if stage == "evaluate" else "train"
    return group.ask(site, stage, kind, extra={records.BOX: box}, **fields)


def box_of(group: Group, site: Site, **fields: Any) -> ArrayRecord:
    return group.box(site, **fields)[records.BOX]


# --- a checkpoint brings a member to where the others are ---


STATES: dict[str, Callable[[Site, bytes], None]] = {
    "without": lambda site, before: (site.run / "model").unlink(),
    "behind": lambda site, before: site.put(before),
    "drifted": lambda site, before: site.put(drifted(site.model)),
    "damaged": lambda site, before: site.put(site.model_file[:-8]),
}


@pytest.mark.parametrize(
    ("name", "stage"),
    [("without", "round"), ("behind", "evaluate"), ("drifted", "checkpoint"), ("damaged", "sync")],
)
def test_a_checkpoint_brings_any_member_to_the_same_bits(
    four: Group, name: str, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, late = four.sites[0], four.sites[2]
    update(four.ask(late))
    before = late.model_file
    four.play()
    STATES[name](late, before)
    caplog.clear()
    answer(hand(four, late, box_of(four, first), stage, round_=2, history=first.model.history))
    assert late.model_file == first.model_file
    assert private(late.run / "model")
    assert ("differed from the others'" in caplog.text) == (name == "drifted")
    four.open(four.total(four.parts(2)))  # and it takes part again
    assert late.model.round == 2


def test_never_back_to_an_earlier_round(group: Group) -> None:
    [one] = group.play()
    site = group.sites[1]
    old = box_of(group, group.sites[0])
    two = group.total(group.parts(2))
    answer(group.evaluate(site, two))
    after = site.model_file
    for stage in ("sync", "checkpoint", "evaluate"):
        answer(hand(group, site, old, stage, sums=[one, two]))
    update(hand(group, site, old, "round", round_=3))
    refused(hand(group, site, old, "round", round_=2), 1014)
    site.initial = Makes()
    refused(group.ask(site, "initial"), 1014)  # in the middle of a federation
    assert site.model_file == after


def test_a_first_model_of_the_servers_own_does_not_last(group: Group) -> None:
    site, other = group.sites[2], group.sites[0]
    false = {"arrays": records.from_numpy({"x": np.zeros(3, np.float32)})}
    answer(group.ask(site, "sync", extra=false))
    assert not (site.run / "model").exists()  # nobody has named it
    history = Model.initial({"x": np.zeros(3, np.float32)}).history
    answer(group.ask(site, "sync", extra=false, history=history))
    assert site.model.layout.floats == 3
    update(group.ask(other))
    answer(group.ask(site, "sync", extra=group.box(other)))
    assert site.model.layout == other.model.layout
    group.open(group.total())


# --- checkpoints that are refused ---


def test_a_checkpoint_that_a_member_sealed_otherwise(group: Group) -> None:
    """A member has the key; what it may say with it is bound all the same."""
    group.play()
    site, epoch = group.sites[0], group.sites[1].epoch
    model = dataclasses.replace(site.model, round=5, steps=2)
    model = model.linked(Link(5, model.history, bytes(32), b""))
    other = Model.initial({"w": np.ones(3, np.float32)})
    other = dataclasses.replace(model, layout=other.layout, masters=other.masters)
    brought: list[dict[str, Any]] = [
        {"moments": {"v": np.ones(model.layout.floats, np.float32)}},
        {"mask": Support.of(np.zeros(1, np.uint32), model.layout.floats)},
    ]
    before = site.model_file

    def handed(model: Model, round_: int = 5, rank: int = 1, **key: Any) -> Message:
        """It vouches for what it seals; where nobody may collude, that is enough."""
        used = dataclasses.replace(ModelKey.of(epoch), **key)
        box = records.from_pieces(seal.seal(used, round_, rank, model.chunks()))
        return hand(group, site, box, vouchers=[group.signed(1, model)])

    changes: tuple[dict[str, Any], ...] = (
        *({"round_": 6}, {"run_id": RUN + 1}, {"roster_hash": bytes(32)}, {"epoch": bytes(16)}),
        *({"rank": 2}, {"rank": 3}),
    )
    for change in changes:
        refused(handed(model, **change), 1014)
    for false in (other, *(dataclasses.replace(model, **each) for each in brought)):
        refused(handed(false), 1014)
    assert site.model_file == before
    answer(handed(model))
    assert site.model.round == 5


# --- the first model, unknown to the server ---


class Makes:
    """Makes an initial model, another one each time, and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, context: Context) -> ArrayRecord:
        self.calls += 1
        return records.from_numpy({**arrays(), "scale": np.array(self.calls, np.float32)})


@pytest.fixture
def secret(group: Group) -> Group:
    """A federation whose messages hold no model."""
    group.start = {}
    for site in group.sites:
        site.initial = Makes()
    return group


def test_a_secret_initial_model(secret: Group) -> None:
    site = secret.sites[1]
    reply = secret.ask(site, "initial")
    said = answer(reply)
    assert set(said) == {
        *["v", "round", "history", "digest", "layout", "voucher", "crypto-s", "signed"]
    }
    assert set(reply.content) == {records.REPLY, records.BOX}
    assert (said["round"], said["history"]) == (0, site.model.history)
    layout = site.model.layout.to_fields()
    assert canonical.loads(said["layout"], 1 << 16, "layout") == layout  # type: ignore[arg-type]
    shown = wire(reply) + b"".join(records.to_pieces(sealed(reply)))
    assert site.model.masters["w"].tobytes() not in shown
    # Nobody can test a guess at the arrays against what is public.
    assert site.model.history != Model.initial(site.model.arrays()).history
    other = secret.ask(secret.sites[0], "initial")
    assert secret.sites[0].model.masters["scale"] == site.model.masters["scale"]
    assert answer(other)["history"] != said["history"]
    # Asked again it is the same, and whichever is handed on.
    again = secret.ask(site, "initial")
    for name in ("history", "digest", "layout"):
        assert answer(again)[name] == said[name]
    assert site.initial.calls == 1  # type: ignore[union-attr]
    for box in (reply, again):
        answer(hand(secret, secret.sites[2], sealed(box)))
        assert secret.sites[2].model_file == site.model_file


def fails(context: Context) -> ArrayRecord:
    raise ValueError(SECRET)


@pytest.mark.parametrize(
    ("made", "code", "says"),
    [
        (None, 1017, "HEMod(initial=...)"),
        (lambda context: arrays(), 1017, "must return an ArrayRecord"),
        (lambda context: records.from_numpy({"flags": np.array([True])}), 1017, "'flags' is bool"),
        (fails, 1001, SECRET),
    ],
)
def test_an_app_that_makes_no_initial_model(secret: Group, made: Any, code: int, says: str) -> None:
    site = secret.sites[0]
    site.initial = made
    reply = secret.ask(site, "initial")
    refused(reply, code)
    assert SECRET.encode() not in wire(reply)
    assert says in site.log
    assert not (site.run / "model").exists()


# --- where a node says that it stands ---


def test_status_tells_how_far_a_node_has_come(group: Group, site: Site, tmp_path: Path) -> None:
    assert "epoch" not in answer(site.ask("status"))  # nothing is confirmed yet
    group.play()
    reply = site.ask("status")
    assert set(reply.content) == {records.REPLY}
    known = {"round": 1, "history": site.model.history, "member": site.store.identity().public}
    known |= {"v": records.PROTOCOL, **{n: answer(reply)[n] for n in ("crypto-s", "signed")}}
    assert answer(reply) == {**known, "epoch": site.epoch.id}
    shutil.copytree(site.home, tmp_path / "copy")
    update(group.ask(site, round_=2))
    assert "epoch" not in answer(Site(tmp_path / "copy").ask("status"))
    assert "epoch" in answer(site.ask("status"))
    (site.run / "journal").unlink()
    assert set(answer(site.ask("status"))) == set(known)
    refused(group.ask(site, round_=3), 1020)


# --- a model that is not the others' ---


@pytest.mark.parametrize("stage", ["round", "evaluate", "sync", "checkpoint"])
def test_a_message_names_the_model_that_it_starts_from(group: Group, stage: str) -> None:
    total = group.total()
    site, kind = group.sites[0], "evaluate" if stage == "evaluate" else "train"
    start = site.model.history
    if stage != "evaluate":  # which it does no more, once it has gone on
        answer(group.ask(site, stage, kind, history=start, attempt=1))
    calls = len(site.app.seen)
    for wrong in (bytes(32), start[:-1], "x", 7):
        refused(group.ask(site, stage, kind, history=wrong, attempt=2), 1019)
    refused(group.ask(site, stage, kind, history=start, sums=[total], round_=2), 1023)
    assert site.model.round == 0  # nothing is opened that is not what the message names
    answer(group.ask(site, "sync", sums=[total], round_=2))
    assert site.model.round == 1
    refused(group.ask(site, stage, kind, history=start, round_=2), 1019)
    assert len(site.app.seen) == calls
    answer(group.ask(site, stage, kind, history=site.model.history, round_=2))


def test_a_model_that_changed_since_the_update_was_sent(group: Group, site: Site) -> None:
    """The digest is that of the model that was trained on, kept with the claim."""
    parts = group.parts()
    first = group.ask(site)
    site.put(drifted(site.model))
    assert answer(group.ask(site))["digest"] == answer(first)["digest"]
    total = group.total(parts)
    refused(group.evaluate(site, total), 1014)  # its sum is fine; the model to add it to is not
    assert site.model.round == 0
    answer(group.evaluate(group.sites[1], total))


# --- a run that resumes another's federation ---


@pytest.mark.parametrize("name", [bytes(7), bytes(9), "x" * 8, 7, True, [bytes(8)]])
def test_a_federation_that_is_none(group: Group, name: Any) -> None:
    refused(group.sites[0].ask("status", federation=name), 1014)
