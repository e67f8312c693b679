"""A node's own bounds on groups and sums: below them it helps nobody, whatever the server says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from flhe.schemes.sealed import Sealed, from_bytes, to_bytes
from tests.mods.harness import TERMS, Group, answer, refused, update
from tests.mods.masked import Masked, answer_in, signature_in

RANGED = dataclasses.replace(TERMS, clip="exchange")


def test_keys_are_shared_with_no_group_that_is_too_small(tmp_path: Path) -> None:
    for number, setting in enumerate(("flhe_min_members", "flhe_min_survivors")):
        group = Group(tmp_path / str(number), 4)
        hellos = group.hellos()
        site = group.sites[0]
        site.allow(**{setting: 4})
        refused(site.ask("share", **group.stage(messages=hellos[:3])), 1011)
        answer(site.ask("share", **group.stage(messages=hellos)))


def test_a_bound_that_is_raised_holds_at_once(tmp_path: Path) -> None:
    group = Group(tmp_path).agree()
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
    said = [
        answer(s.ask("confirm", **group.stage(messages=shares)))["min-opening"] for s in group.sites
    ]
    assert sorted(said) == [2, 2, 3]  # type: ignore[type-var]


def test_a_sum_of_too_few_stays_closed(tmp_path: Path) -> None:
    group = Group(tmp_path).agree()
    parts = group.parts()
    few, all_ = group.total(parts[:2]), group.total(parts)
    site = group.sites[2]
    site.allow(flhe_min_survivors=3)
    refused(group.evaluate(site, few), 1011)
    assert not list((site.home / "used").rglob("opened-*"))
    assert answer(group.evaluate(site, all_))["round"] == 1  # nothing was spoiled by asking
    assert answer(group.evaluate(group.sites[0], few))["round"] == 1  # where nothing is said


def mean_squares(group: Group, count: int) -> bytes:
    def of(data: Any) -> Sealed:
        return from_bytes(data)

    parts = [of(answer(group.ask(s))["sealed"]) for s in group.sites]
    scheme = group.terms.for_cohort(len(group.sites))
    return to_bytes(scheme.close(group.total(parts[:count])))


@pytest.mark.parametrize(("count", "opens"), [(2, False), (3, True)])
def test_mean_squares_of_too_few_stay_closed(tmp_path: Path, count: int, opens: bool) -> None:
    group = Group(tmp_path, terms=RANGED).agree()
    sums = mean_squares(group, count)
    site = group.sites[0]
    site.allow(flhe_min_survivors=3)
    reply = group.ask(site, "update", **{"fitted-on": sums})
    if opens:
        update(reply)
    else:
        refused(reply, 1011)
        assert not list((site.home / "used").rglob("ranges-*"))


@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_no_set_of_survivors_that_is_too_small_is_signed(tmp_path: Path, unmask: Any) -> None:
    group = Masked(tmp_path, unmask=unmask).agree()
    for rank in range(3):
        update(group.upload(rank))
    group.sites[0].allow(flhe_min_survivors=3)
    refused(group.consist(0, (0, 1)), 1011)
    signature_in(group.consist(1, (0, 1, 2)))
    signatures = group.signatures((0, 2), (0, 1, 2))
    signatures |= group.signatures((1,), (0, 1, 2))
    answer_in(group.unmask(0, signatures))


def test_first_use_is_bounded_too(tmp_path: Path) -> None:
    """The harness's sites all are first-use: the bound is the node's own, no roster's."""
    group = Group(tmp_path, 3, config={"flhe-min-members": 4})
    hellos = group.hellos()
    for site in group.sites:
        assert site.context.node_config["flhe-trust"] == "first-use"
        refused(site.ask("share", **group.stage(messages=hellos)), 1011)
