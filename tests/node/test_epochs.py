"""What an epoch leaves behind, a node that leaves, and a run that goes on with a federation.

And what one message, one file or one restart may do to a node: nothing that lasts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.mods import records
from flhe.node.node import Node
from flhe.node.store import Store
from flhe.training.contract import MAX_AHEAD, Contract
from flhe.wire import canonical
from tests.attacks.test_checkpoints import handed, signed
from tests.mods.harness import (
    BEFORE_THE_SESSION,
    FLOATS,
    TERMS,
    Group,
    Site,
    answer,
    codec,
    dying,
    pinned,
    refused,
    update,
)
from tests.mods.masked import Masked, signature_in


def test_nor_one_that_came_with_a_checkpoint(four: Group) -> None:
    late = four.sites[3]
    update(four.ask(late))
    before = late.model_file
    one = four.total()
    answer(four.evaluate(four.sites[1], one))
    answer(four.ask(late, "sync", extra=four.box(four.sites[0], sums=[one])))
    assert not late.opened
    four.renew()
    for site in four.sites:
        answer(four.ask(site, "sync"))
        site.put(before)
    refused(four.evaluate(late, four.total()), 1012)


CRASHES: dict[str, tuple[Any, ...]] = {
    "before the keys": (Store, "write"),
    "before the session": BEFORE_THE_SESSION,
    "before the erasure": (Store, "erase"),
    "before the end": (Node, "drop_agreement"),
}


@pytest.mark.parametrize("name", CRASHES)
@pytest.mark.parametrize("then", ["again", "another agreement"])
def test_keys_are_erased_after_a_crash_too(group: Group, site: Site, name: str, then: str) -> None:
    [first] = group.play()
    [old] = site.epochs
    before = site.model_file
    group.renew()
    with dying(*CRASHES[name]):
        group.ask(site, "sync")
    if then == "another agreement":
        group.renew()
    answer(group.ask(site, "sync"))
    assert old not in site.epochs
    if (name, then) != ("before the session", "another agreement"):
        assert len(site.epochs) == 1
    assert not (site.run / "agreement").exists()
    assert site.model_file == before
    group.open(group.total(group.parts(2, [first])))


def test_other_keys_are_never_put_in_an_epochs_place(group: Group, site: Site) -> None:
    with dying(*BEFORE_THE_SESSION):
        group.ask(site)
    [name] = site.epochs
    (site.home / "epochs" / name).write_bytes(b"others")
    refused(group.ask(site), 1012)


# --- leaving ---


def test_a_node_that_leaves_destroys_its_keys(group: Group, site: Site) -> None:
    group.play()
    before = site.model_file
    assert len(site.epochs) == 1
    site.allow(flhe_leave=True)
    for stage, kind in (("round", "train"), ("evaluate", "evaluate"), ("sync", "train")):
        refused(group.ask(site, stage, kind, round_=2), 1021)
    for stage in ("status", "advertise"):
        refused(site.ask(stage, number=1, contract=Contract(TERMS).to_bytes()), 1021)
    assert site.epochs == []
    assert site.model_file == before
    assert len(site.app.seen) == 2
    site.allow(flhe_leave=False)  # somebody thought better of it: only with new keys
    refused(group.ask(site, round_=2), 1020)
    group.renew()
    update(group.ask(site, round_=2))


def test_a_node_that_leaves_in_the_middle_of_an_agreement(group: Group, site: Site) -> None:
    assert (site.run / "agreement").exists()
    site.allow(flhe_leave=True)
    refused(group.ask(site), 1021)
    assert not (site.run / "agreement").exists()
    site.allow(flhe_leave=False)
    refused(group.ask(site), 1020)


def test_a_node_that_leaves_after_a_crash(group: Group, site: Site) -> None:
    group.play()
    group.renew()
    with dying(*CRASHES["before the erasure"]):
        group.ask(site, "sync")
    assert len(site.epochs) == 2
    site.allow(flhe_leave=True)
    refused(group.ask(site), 1021)
    assert site.epochs == []


# --- what lasts ---


def test_an_agreement_that_was_put_back_alone_is_not_finished_again(
    group: Group, site: Site
) -> None:
    before, confirms = (site.run / "agreement").read_bytes(), group.confirms
    update(group.ask(site))
    group.renew()
    update(group.ask(site, attempt=1))
    (site.run / "agreement").touch(0o600)
    (site.run / "agreement").write_bytes(before)
    refused(group.ask(site, attempt=2, confirms=confirms), 1020)
    assert "not the key agreement that was begun here last" in site.log


@pytest.mark.parametrize("what", ["older", "cut short", "of another federation"])
def test_a_key_file_that_cannot_be_read_keeps_nobody_out(
    group: Group, site: Site, what: str
) -> None:
    """Nor does it make a round openable again."""
    group.play()
    keys = next(site.home.glob("epochs/*"))
    if what == "of another federation":
        junk = site.home / "epochs" / bytes(16).hex()
        junk.write_bytes(b"junk")
        junk.chmod(0o600)
    elif what == "older":
        body = canonical.loads(keys.read_bytes(), 1 << 26, "keys")
        keys.write_bytes(canonical.dumps({**body, "v": 1}))
    else:
        keys.write_bytes(keys.read_bytes()[:-5])
    if what != "of another federation":
        assert "epoch" not in answer(site.ask("status"))
        refused(group.ask(site, round_=2), 1020)
    group.renew()
    group.open(group.total(group.parts(2)), round=2)
    assert site.opened == [1, 2]
    assert site.journal.over == 1
    assert site.model.round == 2


def test_a_session_that_cannot_be_read_is_agreed_on_anew(group: Group, site: Site) -> None:
    group.parts()
    (site.run / "session").write_bytes(b"\xa1")
    assert "epoch" not in answer(site.ask("status"))
    refused(group.ask(site, attempt=1), 1020)
    group.renew()
    update(group.ask(site, attempt=1))


def test_a_round_far_ahead_is_refused(group: Group, site: Site) -> None:
    """Each number that is used up is one that no later round has."""
    refused(group.ask(site, round_=1 + MAX_AHEAD), 1014)
    total = group.total(group.parts(MAX_AHEAD))
    bad = replace(total, data=total.data.copy())
    bad.data[0] ^= 1
    refused(group.evaluate(site, bad, round=MAX_AHEAD), 1023)
    # Those numbers are gone, and the ones behind them are not out of reach.
    refused(group.evaluate(site, total, round=MAX_AHEAD), 1012)
    update(group.ask(site, round_=1 + MAX_AHEAD, attempt=1))


@pytest.mark.parametrize(("count", "code"), [(7, 1019), (3, 1014)])
@pytest.mark.parametrize("model_is", ["there", "gone", "damaged"])
def test_a_checkpoint_with_another_selection_is_refused(
    tmp_path: Path, model_is: str, count: int, code: int
) -> None:
    """With it a node would answer the same round again, and show what it had encrypted."""
    terms = replace(TERMS, codec=codec(weighted=False), select=Select(0.5, "magnitude"))
    allowed = {"flhe-min-select": 0.5, "flhe-select-rules": "magnitude"}
    one = Group(tmp_path, 5, terms, allowed).agree()
    one.play()  # the map
    victim, model, before = one.sites[0], one.sites[1].model, len(one.sites[0].app.seen)
    update(one.ask(victim, round_=2))
    outside = np.setdiff1d(np.arange(FLOATS, dtype=np.uint32), model.mask.coords)  # type: ignore[union-attr]
    coords = np.sort(np.append(outside, model.mask.coords)[:count])  # type: ignore[union-attr]
    false = replace(model, mask=Support.of(coords, FLOATS))
    if model_is == "gone":
        (victim.run / "model").unlink()
    elif model_is == "damaged":
        victim.put(b"?" + victim.model_file[1:])
    vouchers = [signed(one, rank, false) for rank in (1, 2, 3, 4)]
    refused(handed(one, victim, false, vouchers), code)
    assert len(victim.app.seen) == before + 1
    if model_is == "there":
        assert victim.model.mask == model.mask


# --- federations ---


@pytest.mark.parametrize("most", [1, 2])
def test_a_server_begins_as_many_federations_as_a_node_allows(tmp_path: Path, most: int) -> None:
    """Two from one model have two sums of one round, whose difference may be somebody's update."""
    one = Group(tmp_path, 4)
    pinned(tmp_path, one.sites, **({} if most == 1 else {"flhe-max-federations": most}))  # type: ignore[arg-type]
    site, stage, fields = (
        one.sites[0],
        one.stage,
        {"number": 0, "contract": Contract(TERMS).to_bytes()},
    )
    for number in (800, 801):  # an agreement that fails uses up none
        answer(site.ask("advertise", federation=records.federation_name(number), **fields))
    for number in range(most):
        name = records.federation_name(500 + number)
        one.stage = lambda name=name, **fields: stage(federation=name, **fields)  # type: ignore[method-assign, misc]
        one.agree()
        update(one.ask(site, federation=name))
    refused(site.ask("advertise", federation=records.federation_name(900), **fields), 1026)
    assert f"begun on this node, its policy allows {most}" in site.log
    begun = {**fields, "federation": records.federation_name(500), "number": 9}
    answer(site.ask("advertise", **begun))  # one that has begun goes on


def test_trials_begin_as_many_as_they_like(tmp_path: Path) -> None:
    site, fields = Site(tmp_path / "home"), {"number": 0, "contract": Contract(TERMS).to_bytes()}
    for number in range(3):
        answer(site.ask("advertise", federation=records.federation_name(number + 1), **fields))


# --- which rounds are over ---


@pytest.mark.parametrize("how", ["leaves and comes back", "its key file is cut short"])
def test_a_set_that_was_signed_stays_so(tmp_path: Path, how: str) -> None:
    """Two epochs later, too: there is no other sum from its model."""
    one = Masked(tmp_path, 4, "clients").agree().uploaded()
    site = one.sites[0]
    signature_in(one.consist(0, (0, 1, 2, 3)))
    one.renew()
    refused(one.upload(0, round_=2), 1012)
    if how == "leaves and comes back":
        site.allow(flhe_leave=True)
        refused(site.ask("status"), 1021)
        site.allow(flhe_leave=False)
    else:
        keys = next(site.home.glob("epochs/*"))
        keys.write_bytes(keys.read_bytes()[:-5])
    one.renew()
    refused(one.upload(0, round_=2), 1012)
    update(one.upload(1, round_=2))


def test_what_says_which_rounds_are_over_is_never_guessed(group: Group, site: Site) -> None:
    answer(group.evaluate(site, group.total()))
    group.renew()
    answer(group.ask(site, round_=2))
    kept = site.journal
    assert (kept.mark, kept.opened.keys(), kept.over) == ((2, 0, 2), {"update"}, 1)
    (site.run / "journal").write_bytes(b"junk")
    refused(group.ask(site, round_=2, attempt=1), 1015)
    assert "which rounds are over is damaged" in site.log
