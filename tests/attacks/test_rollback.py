"""A volume that is rolled back while the machine runs: inodes, times and contents are what they were.

Whoever runs the storage below a site (an image, LVM, ZFS, a container's volume) can do it between two
messages. Asked for the same slot again, a node would encrypt another vector under the same mask.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from flwr.app import Message

from tests.mods.harness import App, Group, Site, answer, put_back, refused, update
from tests.mods.masked import Masked


@pytest.mark.parametrize("claimed", [0, 2])
def test_a_volume_that_was_put_back_encrypts_nothing(
    group: Group, site: Site, tmp_path: Path, claimed: int
) -> None:
    """Before the first round, when an agreement waits there, and between two attempts."""
    for attempt in range(claimed):
        update(group.ask(site, attempt=attempt))
    shutil.copytree(site.home, tmp_path / "image")
    first = update(group.ask(site, attempt=claimed))
    put_back(site.home, tmp_path / "image")
    site.app = app = App(step=0.25)
    refused(second := group.ask(site, attempt=claimed), 1020)
    assert app.seen == []  # nothing is trained for a round that cannot be claimed
    assert mask_is_safe(first.data.tobytes(), second)
    group.renew()
    update(group.ask(site, attempt=claimed + 1))  # under keys that nothing was encrypted with


def mask_is_safe(before: bytes, reply: Message) -> bool:
    """Whether no second vector left under the mask of the first."""
    return reply.has_error() or update(reply).data.tobytes() == before


def test_a_volume_that_was_put_back_opens_no_second_sum(four: Group, tmp_path: Path) -> None:
    """Two sums of one round differ by a single update."""
    site, parts = four.sites[0], four.parts()
    shutil.copytree(site.home, tmp_path / "image")
    answer(four.evaluate(site, four.total(parts)))
    put_back(site.home, tmp_path / "image")
    refused(four.evaluate(site, four.total(parts[1:])), 1020)
    assert site.model.round == 0


def test_a_volume_that_was_put_back_forgets_which_set_it_signed(tmp_path: Path) -> None:
    """It works with new keys: docs/limits.md says so. All others still refuse."""
    group, everybody = Masked(tmp_path, 4).agree().uploaded(), range(4)
    site = group.sites[0]
    shutil.copytree(site.home, tmp_path / "image")
    group.answers(everybody, group.signatures(everybody, everybody))
    put_back(site.home, tmp_path / "image")
    group.renew()
    update(group.upload(0))
    for rank in everybody[1:]:
        refused(group.upload(rank), 1012)


def test_nothing_notices_a_machine_that_is_put_back_with_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It works: docs/limits.md says so, because the witness comes back with everything else."""
    monkeypatch.setenv("FLHE_WITNESS", str(tmp_path / "memory"))
    group = Group(tmp_path).agree()
    site = group.sites[0]
    update(group.ask(site))
    for kept in (site.home, tmp_path / "memory"):
        shutil.copytree(kept, tmp_path / "image" / kept.name)
    first = update(group.ask(site, attempt=1))
    for lost in (site.home, tmp_path / "memory"):
        put_back(lost, tmp_path / "image" / lost.name)
    site.app = App(step=0.25)
    assert not mask_is_safe(first.data.tobytes(), group.ask(site, attempt=1))
