"""A member that colludes with the server, and seals any model for others to take.

Or a server that tells one site another sum of a round, or never adds its updates, and heals it.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.errors import ProtocolError
from flhe.training.chain import Link
from flhe.training.model import Model
from tests.mods.harness import Group, answer, refused, update


@pytest.fixture
def five(tmp_path: Path) -> Group:
    """Five members of whom one may collude."""
    return Group(tmp_path, 5).agree()


@pytest.fixture
def group(five: Group) -> Group:
    """All are at round 1."""
    five.play()
    return five


def forged(model: Model, round_: int) -> Model:
    """A model of the server's choice; where its round is a later one, as if a sum had made it."""
    masters = {n: a * a.dtype.type(3) for n, a in model.masters.items()}
    if round_ == model.round:
        return dataclasses.replace(model, masters=masters)
    then = dataclasses.replace(model, round=round_, masters=masters, steps=model.steps + 1)
    return then.linked(Link(round_, model.history, bytes(32), b""))


@pytest.mark.parametrize("victims", ["there", "gone"])
@pytest.mark.parametrize("round_", [1, 5])
def test_one_member_puts_no_model_in_anothers_place(
    group: Group, victims: str, round_: int
) -> None:
    victim, false = group.sites[0], forged(group.sites[1].model, round_)
    if victims == "gone":
        (victim.run / "model").unlink()
    before, seen = victim.files, len(victim.app.seen)
    own, true = group.signed(1, false), group.signed(2, group.sites[2].model)
    changed = own[:-1] + bytes([own[-1] ^ 1])
    for second, code in ((own, 1014), (true, 1014), (changed, 1013), (own[:-1], 1014)):
        refused(group.handed(victim, false, own, second), code)
    refused(group.handed(victim, false), 1014)  # one voucher, or none
    refused(group.handed(victim, false, b""), 1014)
    assert victim.files == before
    assert len(victim.app.seen) == seen


@pytest.mark.parametrize("brought", ["memory", "moments"])
def test_a_first_model_holds_nothing_that_only_sums_make(five: Group, brought: str) -> None:
    """One member seals it alone: with a selection it chose what all sent in clear."""
    for site in five.sites:
        answer(five.ask(site))
    victim, kept = five.sites[0], np.zeros(five.sites[0].model.layout.floats)
    made = {"memory": kept[:1], "moments": kept.astype(np.float32)}
    brings: Any = {brought: {"m": made[brought]}}
    before = victim.files
    refused(five.handed(victim, dataclasses.replace(five.sites[1].model, **brings)), 1014)
    assert "a first model must hold no result" in victim.log
    assert victim.files == before


def test_one_more_than_may_collude_are_enough(group: Group) -> None:
    victim, model = group.sites[0], group.sites[1].model
    (victim.run / "model").unlink()
    answer(group.handed(victim, model, group.signed(1, model), group.signed(4, model)))
    assert victim.model_file == group.sites[1].model_file


def test_a_voucher_is_of_one_epoch(group: Group) -> None:
    victim, model = group.sites[0], group.sites[1].model
    old = group.signed(4, model)
    group.renew()
    for site in group.sites:
        answer(group.ask(site, "sync"))
    (victim.run / "model").unlink()
    refused(group.handed(victim, model, group.signed(1, model), old), 1014)
    answer(group.handed(victim, model, group.signed(1, model), group.signed(4, model)))


@pytest.mark.parametrize(
    "change",
    [{"senders": bytes(8)}, {"digest": bytes(32)}, {"before": bytes(32)}, {"round": 2}],
    ids=str,
)
def test_links_that_do_not_lead_to_the_history(group: Group, change: dict[str, Any]) -> None:
    """Even members who vouch for it cannot have it taken: the reader computes it itself."""
    victim, model = group.sites[0], group.sites[1].model
    (victim.run / "model").unlink()
    [link] = model.chain
    for chain in ((link._replace(**change),), (), (link, link)):
        false = dataclasses.replace(model, chain=chain)
        refused(group.handed(victim, false, *(group.signed(r, false) for r in (1, 4))), 1024)
    assert not (victim.run / "model").exists()


# --- two sums of one round ---


@pytest.fixture
def split(five: Group) -> Group:
    """The first site has opened another sum of round 1 than the others, who are at round 2."""
    victim, *others = five.sites
    parts = five.parts()
    answer(five.evaluate(victim, five.total(parts[:3])))
    for site in others:
        answer(five.evaluate(site, five.total(parts[1:])))
    second = five.total([update(five.ask(site, round_=2)) for site in others])
    for site in others:
        answer(five.evaluate(site, second, round=2))
    return five


@pytest.mark.parametrize("went_on", [False, True])
def test_who_was_told_another_sum_is_not_healed_unasked(split: Group, went_on: bool) -> None:
    """The first round that differs is named, also where the victim went on with what it was told."""
    victim, other = split.sites[0], split.sites[3]
    before = victim.model
    if went_on:
        own = before.chain[0]._replace(round=2, before=before.history)
        victim.put(dataclasses.replace(before, round=2, steps=2).linked(own))
    kept = victim.model_file
    refused(split.ask(victim, "sync", extra=split.box(other)), 1024)
    assert victim.model_file == kept
    link, _ = other.model.chain
    sealer = split.publics[3].hex()[:16]
    assert f"round 1: the result here is {before.history.hex()[:16]}" in victim.log
    assert f"in the checkpoint by {sealer} it is {link.history.hex()[:16]}" in victim.log


def test_it_comes_back_where_its_administrator_says_so(split: Group) -> None:
    victim, other = split.sites[0], split.sites[3]
    (victim.run / "model").rename(victim.home / "model-of-another-story")
    answer(split.ask(victim, "sync", extra=split.box(other)))
    assert victim.model_file == other.model_file
    split.open(split.total(split.parts(3)))
    assert victim.model.chain[-1].names(split.publics[0])


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_site_that_is_left_out_learns_of_it(
    four: Group, rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It trains in each round; the others' sums never hold its update, and checkpoints bring it on."""
    *others, victim = four.sites
    for round_ in range(1, rounds + 1):
        update(four.ask(victim, round_=round_))
        total = four.total([update(four.ask(site, round_=round_)) for site in others])
        for site in others:
            answer(four.evaluate(site, total, round=round_))
    answer(four.ask(victim, "sync", extra=four.box(others[0])))
    assert victim.model_file == others[0].model_file
    said = "round 1" if rounds == 1 else f"rounds 1 to {rounds}"
    assert f"{said}: this node's update is not in the sums" in caplog.text


def test_who_was_away_or_is_in_the_sums_is_not_warned(
    four: Group, caplog: pytest.LogCaptureFixture
) -> None:
    *others, away = four.sites
    there = others[2]
    total = four.total([update(four.ask(site)) for site in others])
    for site in others[:2]:
        answer(four.evaluate(site, total))
    for site in (away, there):
        answer(four.ask(site, "sync", extra=four.box(others[0])))
        assert site.model_file == others[0].model_file
    assert "is not in the sums" not in caplog.text


def test_updates_to_two_stories_never_come_into_one_sum(five: Group) -> None:
    """History is bound into masks and tags: what a relay adds up all the same opens for nobody."""
    parts = five.parts()
    for rank, site in enumerate(five.sites):
        answer(five.evaluate(site, five.total(parts[:3] if rank < 2 else parts[2:])))
    second = [update(five.ask(site, round_=2)) for site in five.sites]
    with pytest.raises(ProtocolError, match="slot"):
        five.total(second)
    site, before = five.sites[0], five.sites[0].model_file
    for among in (second, second[:3]):
        mixed = five.total([dataclasses.replace(p, slot=second[0].slot) for p in among])
        refused(five.evaluate(site, mixed, round=2), 1023 if among is second else 1012)
    assert site.model_file == before
