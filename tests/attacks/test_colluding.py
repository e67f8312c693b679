"""A member that helps the server: what its keys read, and what they forge.

Where an attack works, docs/limits.md says so.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from flhe.errors import FlheError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.roles import opener_for
from flhe.node.store import Store
from tests.mods.harness import App, Group, Site, update
from tests.mods.masked import Masked
from tests.training.rounds import arrays, part, play

STEP = -0.375


def epoch_of(site: Site) -> Epoch:
    """What a member has on its disk, and may give to the server."""
    store = Store(site.home)
    [name] = store.names("epochs/*")
    return Epoch.from_bytes(store.read(name))


def test_a_shared_key_opens_one_sites_update(tmp_path: Path) -> None:
    """It works, and no count of senders helps: the helper asks nobody."""
    group = Group(tmp_path, 4).agree()
    helper, victim, *_ = group.sites
    victim.app = App(STEP)
    _, part = (update(group.ask(site)) for site in (helper, victim))
    lone = group.total([part])
    adder = group.terms.for_cohort(4)
    read = opener_for(adder, epoch_of(helper), lone).decrypt(lone)[:12]
    largest = np.abs(read).max()
    assert largest > 100  # steps of the quantizer
    np.testing.assert_allclose(read, -largest, atol=1)


def test_no_lone_member_opens_one_sites_update_under_sash(tmp_path: Path) -> None:
    """Its share of the seed opens nothing; nor do others sign a set of one."""
    group = Masked(tmp_path, 4, "clients").agree().uploaded()
    helper, victim = 0, 1
    lone = group.total([update(group.upload(victim))])
    with pytest.raises(FlheError):
        opener_for(group.terms.for_cohort(4), group.epoch(helper), lone)
    assert all(group.consist(rank, [victim]).has_error() for rank in range(4))


def test_a_helper_makes_a_sum_that_all_others_take() -> None:
    """It works: tags are made with a key that all members have."""
    honest = play(size=3)
    helper, forged = honest.sessions[0], []
    for rank in range(3):
        unused = tuple(bytes(32 * (i != rank)) for i in range(3))
        epoch = dataclasses.replace(helper.epoch, rank=rank, pair_keys=unused)
        in_its_name = dataclasses.replace(helper, epoch=epoch)
        forged.append(part(in_its_name, honest.model, {**arrays(), "w": arrays()["w"] + 1}))
    opened = honest.open(honest.sum_of(forged), rank=2)
    np.testing.assert_allclose(opened.masters["w"] - honest.model.masters["w"], 1, atol=1e-3)
