"""A node's own bounds on groups and sums: below them it helps nobody, whatever the server says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.mods.harness import RANGED, Group, answer, refused, update
from tests.mods.masked import Masked, answer_in, signature_in


@pytest.mark.parametrize("setting", ["flhe_min_members", "flhe_min_survivors"])
def test_keys_are_shared_with_no_group_that_is_too_small(tmp_path: Path, setting: str) -> None:
    """Sites are first-use here: the bound is the node's own, no roster's."""
    group = Group(tmp_path, 4)
    hellos, site = group.hellos(), group.sites[0]
    assert site.context.node_config["flhe-trust"] == "first-use"
    site.allow(**{setting: 4})
    refused(site.ask("share", **group.stage(messages=hellos[:3])), 1011)
    answer(site.ask("share", **group.stage(messages=hellos)))


def test_a_bound_that_is_raised_holds_at_once(group: Group) -> None:
    site = group.sites[0]
    site.allow(flhe_min_members=4)
    refused(group.ask(site), 1011)
    assert not site.app.seen
    site.allow(flhe_min_members=3)
    update(group.ask(site))


def test_the_server_is_told_how_many_a_sum_needs(tmp_path: Path) -> None:
    group = Group(tmp_path)
    group.sites[0].allow(flhe_min_survivors=3)
    shares = group.shares(group.hellos())
    said = [answer(s.ask("confirm", **group.stage(messages=shares))) for s in group.sites]
    assert sorted(one["min-opening"] for one in said) == [2, 2, 3]  # type: ignore[type-var]


def test_a_sum_of_too_few_stays_closed(group: Group) -> None:
    parts, site = group.parts(), group.sites[2]
    few, all_ = group.total(parts[:2]), group.total(parts)
    site.allow(flhe_min_survivors=3)
    refused(group.evaluate(site, few), 1011)
    assert not site.opened
    assert answer(group.evaluate(site, all_))["round"] == 1  # nothing was spoiled by asking
    assert answer(group.evaluate(group.sites[0], few))["round"] == 1  # where nothing is said


def test_mean_squares_of_too_few_stay_closed(tmp_path: Path) -> None:
    group = Group(tmp_path, terms=RANGED).agree()
    site = group.sites[0]
    site.allow(flhe_min_survivors=3)
    refused(group.ask(site, "update", **{"fitted-on": group.mean_squares(2)}), 1011)
    assert not list((site.home / "used").rglob("mean-squares-*"))
    update(group.ask(site, "update", **{"fitted-on": group.mean_squares()}))


@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_no_set_of_survivors_that_is_too_small_is_signed(tmp_path: Path, unmask: Any) -> None:
    group = Masked(tmp_path, unmask=unmask).agree().uploaded()
    group.sites[0].allow(flhe_min_survivors=3)
    refused(group.consist(0, (0, 1)), 1011)
    signature_in(group.consist(1, (0, 1, 2)))
    answer_in(group.unmask(0, group.signatures((0, 1, 2), (0, 1, 2))))
