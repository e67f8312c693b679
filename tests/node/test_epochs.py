"""What an epoch leaves behind, a node that leaves, and a run that goes on with a federation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flhe.node.keyfile import KeyFile
from flhe.node.node import Node
from flhe.node.policy import Policy
from flhe.node.store import Store
from tests.mods.harness import (
    BEFORE_THE_SESSION,
    RUN,
    TERMS,
    Group,
    answer,
    dying,
    refused,
    update,
)


@pytest.mark.parametrize("model", ["before", "none"])
def test_a_round_that_was_opened_is_not_opened_in_a_later_epoch(group: Group, model: str) -> None:
    """Two sums of one round differ by single updates, under whatever keys."""
    site = group.sites[0]
    update(group.ask(site))
    before = site.model_file
    group.play()
    group.renew()
    for s in group.sites:
        (s.run / "model").unlink()
        if model == "before":
            s.put(before)
    again = group.total(group.parts(1))  # masks of the new epoch are unused
    for s in group.sites:
        refused(group.evaluate(s, again), 1012)
        assert s.model.round == 0
    group.open(group.total(group.parts(2)))


def test_nor_one_that_came_with_a_checkpoint(four: Group) -> None:
    late = four.sites[3]
    update(four.ask(late))
    before = late.model_file
    one = four.total()
    answer(four.ask(late, "sync", extra=four.box(four.sites[0], sums=[one])))
    assert not late.opened
    four.renew()
    for site in four.sites:
        answer(four.ask(site, "sync"))
        site.put(before)
    refused(four.evaluate(late, four.total()), 1012)


def test_keys_of_the_epoch_before_are_erased(group: Group) -> None:
    group.play()
    olds = [site.epochs for site in group.sites]
    group.renew()
    for site, old in zip(group.sites, olds, strict=True):
        assert site.epochs == old  # until everybody has confirmed
        answer(group.ask(site, "sync"))
        assert len(site.epochs) == 1
        assert site.epochs != old
        assert site.model.round == 1
        assert (site.home / "used" / old[0] / "erased").exists()


CRASHES: dict[str, tuple[Any, ...]] = {
    "before the keys": (Store, "put_epoch"),
    "before the session": BEFORE_THE_SESSION,
    "before the erasure": (Store, "erase_epoch"),
    "before the end": (Node, "drop_agreement"),
}


@pytest.mark.parametrize("name", CRASHES)
@pytest.mark.parametrize("then", ["again", "another agreement"])
def test_keys_are_erased_after_a_crash_too(group: Group, name: str, then: str) -> None:
    [first] = group.play()
    site = group.sites[0]
    [old] = site.epochs
    before = site.model_file
    group.renew()
    with dying(*CRASHES[name]):
        group.ask(site, "sync")
    if then == "another agreement":
        group.renew()
    answer(group.ask(site, "sync"))
    assert old not in site.epochs
    if (name, then) != ("before the session", "another agreement"):
        assert len(site.epochs) == 1
    assert not (site.run / "agreement").exists()
    assert site.model_file == before
    group.open(group.total(group.parts(2, [first])))


def test_a_crash_forgets_no_opening(group: Group) -> None:
    site = group.sites[0]
    update(group.ask(site))
    before = site.model_file
    group.play()
    group.renew()
    with dying(*CRASHES["before the erasure"]):
        group.ask(site, "sync")
    group.renew()
    for s in group.sites:
        s.put(before)
    refused(group.evaluate(site, group.total()), 1012)


def test_keys_that_cannot_be_read_are_erased_and_their_rounds_stay_over(group: Group) -> None:
    group.play()
    site = group.sites[0]
    [name] = site.epochs
    keys = site.home / "epochs" / name
    damaged = replace(KeyFile.from_bytes(keys.read_bytes()), epoch=b"?")
    keys.write_bytes(damaged.to_bytes())
    store = Store(site.home)
    node = Node(Policy(site.home, trust="first-use"), store, store.identity(), RUN)
    node.erase_keys()
    assert site.epochs == []
    assert node.floor().opened == 1


# --- leaving ---


def test_a_node_that_leaves_destroys_its_keys(group: Group) -> None:
    group.play()
    site = group.sites[0]
    before = site.model_file
    [old] = site.epochs
    site.allow(flhe_leave=True)
    for stage, kind in (("round", "train"), ("evaluate", "evaluate"), ("sync", "train")):
        refused(group.ask(site, stage, kind, round_=2), 1021)
    for stage in ("status", "advertise"):
        refused(site.ask(stage, number=1, terms=TERMS.to_bytes()), 1021)
    assert site.epochs == []
    assert (site.home / "used" / old / "erased").exists()
    assert site.model_file == before
    assert len(site.app.seen) == 2
    site.allow(flhe_leave=False)  # somebody thought better of it: only with new keys
    refused(group.ask(site, round_=2), 1020)
    group.renew()
    update(group.ask(site, round_=2))


def test_a_node_that_leaves_in_the_middle_of_an_agreement(group: Group) -> None:
    site = group.sites[0]
    assert (site.run / "agreement").exists()
    site.allow(flhe_leave=True)
    refused(group.ask(site), 1021)
    assert not (site.run / "agreement").exists()
    site.allow(flhe_leave=False)
    refused(group.ask(site), 1020)


def test_a_node_that_leaves_after_a_crash(group: Group) -> None:
    group.play()
    site = group.sites[0]
    group.renew()
    with dying(*CRASHES["before the erasure"]):
        group.ask(site, "sync")
    assert len(site.epochs) == 2
    site.allow(flhe_leave=True)
    refused(group.ask(site), 1021)
    assert site.epochs == []
