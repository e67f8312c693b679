"""A helper that wants two sums of one model, the second without one site: they differ by its update.

Members sign one set of updates to one model. So the helper needs another model that is nearly the
same: another first one, which they refuse, or one that a sum of its own has hardly changed.
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
from flhe.keys import seal
from flhe.keys.agreement.answers import pack
from flhe.keys.roles import opener_for
from flhe.keys.seal import ModelKey
from flhe.math.ring import Q
from flhe.mods import records
from flhe.schemes.sealed import Sealed
from flhe.schemes.sum_mac import SumMac, split
from flhe.training.model import Model
from flhe.training.session import Session
from tests.mods.harness import App, answer, arrays, initial, refused, update
from tests.mods.masked import Masked

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


def read(group: Masked, total: Sealed, answers: list[bytes]) -> NDArray[Any]:
    """What the helper, which has one member's keys, reads in a sum."""
    adder = group.terms.for_cohort(len(ALL))
    return opener_for(adder, group.epoch(0), total, answers).decrypt(total)


def sealed_first(group: Masked, model: Model) -> dict[str, Any]:
    """A first model as the helper seals it for the others, with the one voucher that it needs."""
    epoch = group.epoch(0)
    session = Session(epoch, group.terms, model.layout)
    voucher = session.holding(model, session.digest(model)).sign(group.identity(0))
    box = records.from_pieces(seal.seal(ModelKey.of(epoch), 0, 0, model.chunks()))
    return {"extra": {records.BOX: box}, "vouchers": [voucher]}


def other_first() -> Model:
    """A first model that differs from all sites' own in one bit."""
    changed = np.nextafter(arrays()["scale"], np.float32(9))
    return Model.initial({**arrays(), "scale": np.array(changed, np.float32)})


def test_another_first_model_takes_no_place_once_a_set_is_signed(group: Masked) -> None:
    """One member can make a first model, so the first would be the attacker's to change at any time."""
    summed(group, ALL, 1)
    swapped = sealed_first(group, other_first())
    for site in group.sites[1:]:
        before = site.model_file
        refused(group.ask(site, "sync", **swapped), 1024)
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
    swapped = sealed_first(group, other_first())
    for site in group.sites[1:]:
        answer(group.ask(site, "sync", **swapped))
    assert all(group.consist(rank, ALL).has_error() for rank in ALL[1:])
    (group.sites[1].run / "model").unlink()
    refused(group.consist(1, ALL), 1019)
    back = sealed_first(group, Model.initial(arrays()))
    for site in group.sites[1:]:
        answer(group.ask(site, "sync", **back))
    group.signatures(ALL[1:], ALL)
    refused(group.ask(group.sites[2], "sync", **swapped), 1024)


def test_a_lost_model_comes_back_beside_a_set_that_was_given_up(group: Masked) -> None:
    """An honest run: the void round is made again, and the first model comes with the message."""
    parts = [update(group.upload(rank)) for rank in ALL]
    group.signatures((1,), ALL)
    void = group.voided((0, 2, 3), parts[0].slot, group.circle)
    (group.sites[1].run / "model").unlink()
    update(group.upload(1, round_=2, voids=[void.to_bytes()]))


def test_another_first_model_is_taken_before_a_set_is_signed(group: Masked) -> None:
    """The server's own one does not last: the others' comes with a voucher."""
    for site in group.sites:
        answer(group.ask(site, "sync", extra={"arrays": initial()}))
    swapped = sealed_first(group, other_first())
    for site in group.sites[1:]:
        answer(group.ask(site, "sync", **swapped))
        assert site.model.masters["scale"] == other_first().masters["scale"]


class Heavy(App):
    """An app that stands still, and says that it did so on very many examples."""

    def __init__(self) -> None:
        super().__init__(0.0, examples=1 << 29)

    def trained(self, record: Any) -> Any:
        return record


def test_a_heavy_update_of_nothing_makes_way_for_a_second_sum(group: Masked) -> None:
    """It works without a forged sum: the mean is so small that no weight changes."""
    group.sites[0].app = Heavy()
    total, answers = summed(group, ALL, 1)
    first, model = read(group, total, answers), group.sites[0].model
    for site in group.sites:
        answer(group.ask(site, "sync", sums=[total], releases=[pack(answers)], round=1))
        assert np.array_equal(site.model.masters["w"], model.masters["w"])
    group.start = {}
    found_in(first - read(group, *summed(group, OTHERS, 2)))


def test_a_sum_of_nothing_makes_way_for_a_second_sum(group: Masked) -> None:
    """It works: the helper forges tags, and honest members sign a second set from the same weights."""
    total, answers = summed(group, ALL, 1)
    first = read(group, total, answers)
    model = group.sites[0].model
    nothing = forged(group, model, total, first)
    for site in group.sites:
        answer(group.ask(site, "sync", sums=[nothing], releases=[pack(answers)], round=1))
        assert np.array_equal(site.model.masters["w"], model.masters["w"])
    group.start = {}
    found_in(first - read(group, *summed(group, OTHERS, 2)))


def found_in(difference: NDArray[Any]) -> None:
    """The victim's steps, all of one size, in steps of the quantizer; rounding is random."""
    victims = difference[:12]
    largest = np.abs(victims).max()
    assert largest > 100
    np.testing.assert_allclose(victims, -largest, rtol=0.02)


def forged(group: Masked, model: Model, total: Sealed, opened: NDArray[Any]) -> Sealed:
    """The sum with zeros for values, the same weights, and tags that fit, under the same seeds."""
    epoch, adder = group.epoch(0), group.terms.for_cohort(len(ALL))
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
