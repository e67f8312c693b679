"""A server that makes an epoch of few of a roster's sites, to open sums of fewer than it may."""

from __future__ import annotations

from pathlib import Path

from tests.mods.harness import Group, pinned, refused
from tests.mods.masked import Masked


def test_six_of_ten_open_no_sum(tmp_path: Path) -> None:
    """Ten sites of whom three collude open sums of seven: five were enough in an epoch of six."""
    group = Masked(tmp_path, 6, "clients")
    group.hellos()
    pinned(tmp_path, group.sites, collusion=3, strangers=4)
    group.agree()
    for rank in range(5):
        refused(group.upload(rank), 1011)
        assert not group.sites[rank].app.seen
        assert "7 must" in group.sites[rank].log


def test_two_halves_open_sums_apart_under_a_shared_key(tmp_path: Path) -> None:
    """It works: docs/limits.md says so. A roster that nobody colludes in has groups of three."""
    halves = [Group(tmp_path / name, 3) for name in ("one", "other")]
    for half in halves:
        half.hellos()
    sites = [site for half in halves for site in half.sites]
    pinned(tmp_path, sites, collusion=0)
    for half in halves:
        half.agree().open(half.total())
