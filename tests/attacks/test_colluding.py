"""A member that helps the server: what its keys read and forge, and two sums of one model.

Members sign one set of updates to one model. So a helper that wants a second sum without one site,
which differs from the first by its update, needs another model that is nearly the same: another first
one, which they refuse, or one that a sum of its own has hardly changed.
Where an attack works, docs/limits.md says so.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.errors import FlheError
from flhe.keys.agreement.answers import pack
from flhe.keys.roles import opener_for
from flhe.math.ring import Q
from flhe.mods import records
from flhe.schemes.sealed import Sealed
from flhe.schemes.sum_mac import SumMac, split
from flhe.training.model import Model
from flhe.training.session import Session
from tests.mods.harness import App, Group, answer, arrays, initial, refused, update
from tests.mods.masked import Masked
from tests.training import rounds

ALL, VICTIM = (0, 1, 2, 3), 3
OTHERS = ALL[:VICTIM]


@pytest.fixture
def group(tmp_path: Path) -> Masked:
    made = Masked(tmp_path, 4, "clients").agree()
    made.sites[VICTIM].app = App(-0.375)
    return made


def summed(group: Masked, senders: tuple[int, ...], round_: int) -> tuple[Sealed, list[bytes]]:
    """A sum that these have signed, and the answers that open it."""
    parts = [update(group.upload(rank, round_=round_)) for rank in senders]
    signed = group.signatures(senders, senders, round_=round_)
    return group.total(parts), group.answers(OTHERS, signed, round_=round_)


def read(group: Group, total: Sealed, answers: list[bytes] | None = None) -> NDArray[Any]:
    """What the helper, which has one member's keys, reads in a sum."""
    adder = group.terms.for_cohort(len(ALL))
    return opener_for(adder, group.sites[0].epoch, total, answers or ()).decrypt(total)


def other_first() -> Model:
    """A first model that differs from all sites' own in one bit."""
    changed = np.nextafter(arrays()["scale"], np.float32(9))
    return Model.initial({**arrays(), "scale": np.array(changed, np.float32)})


def test_another_first_model_takes_no_place_once_a_set_is_signed(group: Masked) -> None:
    """One member can make a first model, so the first would be the attacker's to change at any time."""
    summed(group, ALL, 1)
    for site in group.sites[1:]:
        before = site.model_file
        refused(group.handed(site, other_first(), rank=0), 1024)
        assert site.model_file == before
    refused(group.upload(1, round_=2), 1012)


def test_nor_in_a_place_that_is_empty(group: Masked) -> None:
    """A site that has lost its model, or moved it away, takes no other first one either."""
    summed(group, ALL, 1)
    (group.sites[1].run / "model").unlink()
    group.start = {"arrays": records.from_numpy(other_first().masters)}
    refused(group.upload(1, round_=2), 1024)
    group.start = {"arrays": initial()}
    refused(group.upload(1, round_=2), 1012)  # the same one, and a set of its updates is signed


def test_nor_by_the_stage_that_makes_one(tmp_path: Path) -> None:
    """A member whose model is lost would make the same weights under another history."""
    group = Masked(tmp_path, 4, "clients").agree()
    group.start = {}
    maker, *others = group.sites
    maker.initial = lambda _: initial()
    told: dict[str, Any] = {"round": 0, "attempt": 0, "confirms": group.confirms}
    made = maker.ask("initial", **told)
    box = {records.BOX: made.content[records.BOX]}
    for site in others:
        answer(group.ask(site, "sync", extra=box, vouchers=[answer(made)["voucher"]]))
    summed(group, ALL, 1)
    (maker.run / "model").unlink()
    refused(maker.ask("initial", **told), 1024)


def test_updates_to_a_model_that_was_left_are_not_signed(group: Masked) -> None:
    """Nobody has signed yet, so the other first model is taken; the sum from the one before is lost."""
    for rank in ALL:
        update(group.upload(rank))
    for site in group.sites[1:]:
        answer(group.handed(site, other_first(), rank=0))
    assert all(group.consist(rank, ALL).has_error() for rank in ALL[1:])
    (group.sites[1].run / "model").unlink()
    refused(group.consist(1, ALL), 1019)
    for site in group.sites[1:]:
        answer(group.handed(site, Model.initial(arrays()), rank=0))
    group.signatures(ALL[1:], ALL)
    refused(group.handed(group.sites[2], other_first(), rank=0), 1024)


def test_a_lost_model_comes_back_beside_a_set_that_was_given_up(group: Masked) -> None:
    """An honest run: the void round is made again, and the first model comes with the message."""
    parts = [update(group.upload(rank)) for rank in ALL]
    group.signatures((1,), ALL)
    void = group.voided((0, 2, 3), parts[0].slot, group.circle)
    (group.sites[1].run / "model").unlink()
    update(group.upload(1, round_=2, voids=[void.to_bytes()]))


class Heavy(App):
    """An app that stands still, and says that it did so on very many examples."""

    def __init__(self) -> None:
        super().__init__(0.0, examples=1 << 29)

    def trained(self, record: Any) -> Any:
        return record


@pytest.mark.parametrize("how", ["a heavy update of nothing", "a forged sum of nothing"])
def test_a_sum_of_nothing_makes_way_for_a_second_sum(group: Masked, how: str) -> None:
    """It works: honest members sign a second set from the same weights.

    The helper forges tags; or its update makes the mean so small that no weight changes.
    """
    heavy = how.startswith("a heavy")
    if heavy:
        group.sites[0].app = Heavy()
    total, answers = summed(group, ALL, 1)
    first, model = read(group, total, answers), group.sites[0].model
    shown = total if heavy else forged(group, model, total, first)
    for site in group.sites:
        answer(group.ask(site, "sync", sums=[shown], releases=[pack(answers)], round=1))
        assert np.array_equal(site.model.masters["w"], model.masters["w"])
    group.start = {}
    found_in(first - read(group, *summed(group, OTHERS, 2)))


def found_in(opened: NDArray[Any]) -> None:
    """The victim's steps, all of one size, in steps of the quantizer; rounding is random."""
    victims = opened[:12]
    largest = np.abs(victims).max()
    assert largest > 100
    np.testing.assert_allclose(victims, -largest, rtol=0.02)


def forged(group: Masked, model: Model, total: Sealed, opened: NDArray[Any]) -> Sealed:
    """The sum with zeros for values, the same weights, and tags that fit, under the same seeds."""
    epoch, adder = group.sites[0].epoch, group.terms.for_cohort(len(ALL))
    session = Session(epoch, group.terms, model.layout)
    of = session.sum(model, 1, 0)
    tags = 2 * -(-64 // (of.bits - 1))
    values, extras = np.zeros(of.values, np.int32), opened[of.values : -tags].astype(np.int32)
    extras[-session.terms.codec.lanes(1, session.layout) :] = 0  # of the integer: it stays, too
    mac = SumMac(epoch.group_key, of.slot, of.floats)
    told = [list(mac._polynomials(Plain(values, extras)))]
    told += [list(mac._masks(rank, b"")) for rank in ALL]
    tag = [sum(map(int, each)) % Q for each in zip(*told, strict=True)]
    wanted = np.concatenate([values, extras, np.array(split(tag, of.bits), np.int32)])
    change = (wanted.astype(np.int64) - opened.astype(np.int64)) << adder.guard
    lanes = (total.data.view("<u4").astype(np.int64) + change) % (1 << 32)
    return dataclasses.replace(total, data=lanes.astype("<u4").view(np.uint8))


# --- what a member's keys read, and what they forge ---


def test_a_shared_key_opens_one_sites_update(four: Group) -> None:
    """It works, and no count of senders helps: the helper asks nobody."""
    four.sites[VICTIM].app = App(-0.375)
    found_in(read(four, four.total(four.parts()[VICTIM:])))


def test_no_lone_member_opens_one_sites_update_under_sash(group: Masked) -> None:
    """Its share of the seed opens nothing; nor do others sign a set of one."""
    lone = group.total([update(group.uploaded().upload(VICTIM))])
    with pytest.raises(FlheError):
        read(group, lone)
    assert all(group.consist(rank, [VICTIM]).has_error() for rank in ALL)


def test_a_helper_makes_a_sum_that_all_others_take() -> None:
    """It works: tags are made with a key that all members have."""
    honest = rounds.play(size=3)
    helper, parts = honest.sessions[0], []
    for rank in range(3):
        unused = tuple(bytes(32 * (i != rank)) for i in range(3))
        epoch = dataclasses.replace(helper.epoch, rank=rank, pair_keys=unused)
        in_its_name = dataclasses.replace(helper, epoch=epoch)
        chosen = {**rounds.arrays(), "w": rounds.arrays()["w"] + 1}
        parts.append(rounds.part(in_its_name, honest.model, chosen))
    opened = honest.open(honest.sum_of(parts), rank=2)
    np.testing.assert_allclose(opened.masters["w"] - honest.model.masters["w"], 1, atol=1e-3)
