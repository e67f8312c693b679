"""A file of a node that a disk has damaged: it costs a round at most, and no key stays behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mods.harness import Group, answer, refused, update


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path, 4).agree()


def damage(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:5] + b"\xff" + data[6:])


def test_who_leaves_with_a_damaged_journal_has_no_key(group: Group) -> None:
    site = group.sites[0]
    answer(group.ask(site))
    journal = site.run / "journal"
    journal.write_bytes(journal.read_bytes()[:-1])
    site.allow(flhe_leave=True)
    refused(group.ask(site), 1021)
    assert site.epochs == []
    assert "outbox" not in site.files


def test_a_damaged_update_is_in_the_way_of_no_checkpoint(group: Group) -> None:
    """It counts as sent: its round is over there."""
    late = group.sites[3]
    first = group.total(group.parts(1))
    group.open(first)
    two = group.total([update(group.ask(s, round_=2, sums=[first])) for s in group.sites[:3]])
    for site in group.sites[:3]:
        answer(group.ask(site, "sync", sums=[two]))
    damage(late.run / "outbox")
    answer(group.ask(late, "sync", extra=group.box(group.sites[0])))
    answer(group.ask(late, "round", round_=3))


def test_a_damaged_evaluation_allows_no_second_one_and_the_next(group: Group) -> None:
    site, sums = group.sites[3], [group.total(group.parts(1))]
    answer(group.evaluate(site, sums[-1]))
    damage(site.run / "evaluation")
    refused(group.evaluate(site), 1022)
    sums.append(group.total(group.parts(2, sums[-1:])))
    answer(group.evaluate(site, sums[-1]))
