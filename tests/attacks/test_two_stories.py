"""A server that tells one site another sum of a round, or never adds its updates, and heals it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from flhe.errors import ProtocolError
from tests.mods.harness import Group, answer, refused, update


def split(path: Path) -> Group:
    """The first site has opened another sum of round 1 than the others, who are at round 2."""
    group = Group(path, 5).agree()
    victim, *others = group.sites
    parts = group.parts()
    answer(group.evaluate(victim, group.total(parts[:3])))
    for site in others:
        answer(group.evaluate(site, group.total(parts[1:])))
    second = group.total([update(group.ask(site, round_=2)) for site in others])
    for site in others:
        answer(group.evaluate(site, second, round=2))
    return group


def test_who_was_told_another_sum_is_not_healed_unasked(tmp_path: Path) -> None:
    group = split(tmp_path)
    victim, other = group.sites[0], group.sites[3]
    before = victim.model
    refused(group.ask(victim, "sync", extra=group.box(other)), 1024)
    assert victim.model.history == before.history
    link, _ = other.model.chain
    sealer = group.publics[3].hex()[:16]
    assert f"round 1: the result here is {before.history.hex()[:16]}" in victim.log
    assert f"in the checkpoint by {sealer} it is {link.history.hex()[:16]}" in victim.log


def test_it_comes_back_where_its_administrator_says_so(tmp_path: Path) -> None:
    group = split(tmp_path)
    victim, other = group.sites[0], group.sites[3]
    (victim.run / "model").rename(victim.home / "model-of-another-story")
    answer(group.ask(victim, "sync", extra=group.box(other)))
    assert victim.model_file == other.model_file
    group.open(group.total(group.parts(3)))
    assert victim.model.chain[-1].names(group.publics[0])


def test_the_first_round_that_differs_is_named(tmp_path: Path) -> None:
    """Also where the victim went on with what it was told."""
    group = split(tmp_path)
    victim, *others = group.sites
    before = victim.model.history
    own = victim.model.chain[0]._replace(round=2, before=before)
    victim.put(dataclasses.replace(victim.model, round=2, steps=2).linked(own))
    refused(group.ask(victim, "sync", extra=group.box(others[0])), 1024)
    assert f"round 1: the result here is {before.hex()[:16]}" in victim.log


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


def test_updates_to_two_stories_never_come_into_one_sum(tmp_path: Path) -> None:
    """History is bound into masks and tags: what a relay adds up all the same opens for nobody."""
    group = Group(tmp_path, 5).agree()
    parts = group.parts()
    for rank, site in enumerate(group.sites):
        answer(group.evaluate(site, group.total(parts[:3] if rank < 2 else parts[2:])))
    second = [update(group.ask(site, round_=2)) for site in group.sites]
    with pytest.raises(ProtocolError, match="slot"):
        group.total(second)
    site, before = group.sites[0], group.sites[0].model_file
    for among in (second, second[:3]):
        mixed = group.total([dataclasses.replace(p, slot=second[0].slot) for p in among])
        refused(group.evaluate(site, mixed, round=2), 1023 if among is second else 1012)
    assert site.model_file == before
