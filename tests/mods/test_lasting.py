"""What one message, one file or one restart may do to a node: nothing that lasts."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flhe.coding.support import Support
from flhe.errors import StoreError
from flhe.keys.roster.roster import Member, Roster
from flhe.mods import he_mod, records
from flhe.node.high_water_marks import Floor
from flhe.node.keyfile import KeyFile
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.schemes.flashe.sparse import covered
from flhe.training.due import MAX_AHEAD
from flhe.training.model import Model
from flhe.training.terms import Terms
from flhe.wire import canonical, files
from tests.mods.harness import TERMS, Group, Site, answer, refused, update
from tests.mods.staging import LAYOUT, SPARSE, added, group, sparse_update, support
from tests.rosters import write_signed


def content_stamp(path: Path) -> str | None:
    """What inode and change time are to a file of a disk image that was put back: the same again."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None


def test_an_agreement_on_a_disk_that_was_put_back_is_not_finished_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands before its epoch: finished twice, it would have two sets of marks for one key."""
    boot = ["monday"]

    def opened(policy: Policy) -> Store:
        return Store(policy.home, boot=boot[0])

    monkeypatch.setattr(he_mod, "open_store", opened)
    monkeypatch.setattr(files, "stamp", content_stamp)
    one = Group(tmp_path, 3).agree()
    site = one.sites[0]
    image = tmp_path / "image"
    shutil.copytree(site.home, image)
    update(one.ask(site))
    shutil.rmtree(site.home)
    shutil.copytree(image, site.home)
    boot[0] = "tuesday"
    refused(one.ask(site), 1020)
    assert "this machine has started anew since" in site.log
    assert len(site.app.seen) == 1
    one.number += 1
    update(one.agree().ask(site, attempt=1))


@pytest.mark.parametrize("what", ["older", "cut short", "of another federation"])
def test_a_key_file_that_cannot_be_read_keeps_nobody_out(tmp_path: Path, what: str) -> None:
    """Nor does it make a round openable again."""
    one = Group(tmp_path, 3).agree()
    total = one.total(one.parts())
    for site in one.sites:
        answer(one.evaluate(site, total))
    site = one.sites[0]
    keys = next(site.home.glob("epochs/*"))
    if what == "of another federation":
        junk = site.home / "epochs" / bytes(16).hex()
        junk.write_bytes(b"junk")
        junk.chmod(0o600)
    elif what == "older":
        body = canonical.loads(keys.read_bytes(), 1 << 26, "keys")
        del body["boot"]
        keys.write_bytes(canonical.dumps({**body, "v": 2}))
    else:
        keys.write_bytes(keys.read_bytes()[:-5])
    if what != "of another federation":
        assert "epoch" not in answer(site.ask("status"))
        refused(one.ask(site, round_=2), 1020)
    one.number += 1
    one.agree()
    replies = [one.ask(s, round_=2) for s in one.sites]
    second = one.total([update(reply) for reply in replies])
    for each in one.sites:
        answer(one.evaluate(each, second, round=2))
    assert {s.model.round for s in one.sites} == {2}
    kept = KeyFile.from_bytes(
        next(p for p in site.home.glob("epochs/*") if p.stat().st_size > 9).read_bytes()
    )
    assert kept.opened == 2


def test_a_session_that_cannot_be_read_is_agreed_on_anew(tmp_path: Path) -> None:
    one = Group(tmp_path, 3).agree()
    one.parts()
    site = one.sites[0]
    (site.run / "session").write_bytes(b"\xa1")
    assert "epoch" not in answer(site.ask("status"))
    refused(one.ask(site, attempt=1), 1020)
    one.number += 1
    one.agree()
    update(one.ask(site, attempt=1))


def test_a_round_far_ahead_is_refused(tmp_path: Path) -> None:
    """Each number that is used up is one that no later round has."""
    one = Group(tmp_path, 3).agree()
    site = one.sites[0]
    refused(one.ask(site, round_=1 + MAX_AHEAD), 1014)
    total = one.total(one.parts(MAX_AHEAD))
    bad = replace(total, data=total.data.copy())
    bad.data[0] ^= 1
    refused(one.evaluate(site, bad, round=MAX_AHEAD), 1023)
    # Those numbers are gone, and the ones behind them are not out of reach.
    refused(one.evaluate(site, total, round=MAX_AHEAD), 1012)
    replies = [one.ask(s, round_=1 + MAX_AHEAD, attempt=1) for s in one.sites[:1]]
    update(replies[0])


def test_a_first_model_of_the_servers_own_does_not_last(tmp_path: Path) -> None:
    one = Group(tmp_path, 3).agree()
    site, others = one.sites[2], one.sites[:2]
    false = records.from_numpy({"x": np.zeros(3, np.float32)})
    answer(one.ask(site, "sync", extra={"arrays": false}))
    assert not (site.run / "model").exists()  # nobody has named it
    history = Model.initial(records.to_numpy(false)).history
    answer(one.ask(site, "sync", extra={"arrays": false}, history=history))
    assert site.model.layout.floats == 3
    for other in others:
        update(one.ask(other))
    box = one.ask(others[0], "checkpoint").content[records.BOX]
    answer(one.ask(site, "sync", extra={records.BOX: box}))
    assert site.model.layout == others[0].model.layout
    total = one.total(one.parts(1, ()))
    for each in one.sites:
        answer(one.evaluate(each, total))


def test_no_coordinate_is_taken_out_of_a_sparse_sum(tmp_path: Path) -> None:
    """Whether one is zero: without its place in the tags the kind of refusal would tell."""
    one = group(tmp_path, replace(SPARSE, top_k=0.5))
    for i, site in enumerate(one.sites):
        place = np.zeros(12, np.float32)
        place[[3 * i, 3 * i + 1]] = 0.5, 0.25
        site.app.step = 0.0
        before = site.app.trained

        def moved(record: object, before: object = before, place: object = place) -> object:
            after = records.to_numpy(before(record))  # type: ignore[operator]
            return records.from_numpy({**after, "w": after["w"] + place.reshape(3, 4)})  # type: ignore[attr-defined]

        site.app.trained = moved
    told = [support(one.ask(s)) for s in one.sites]
    parts = [
        sparse_update(one.ask(s, "update", mode="single"), t)
        for s, t in zip(one.sites, told, strict=True)
    ]
    total = added(one, parts)
    packing = one.terms.for_cohort(3).packing  # type: ignore[attr-defined]
    zeros = np.zeros(total.length, packing.lane)
    lanes = packing.unpack(total.data, zeros, np.empty(total.length, packing.signed))
    union = covered(total.supports).tolist()
    for at, gone in enumerate(union):
        supports = tuple(
            Support.of(np.array([c for c in s.coords.tolist() if c != gone], np.uint32), LAYOUT)
            for s in total.supports
        )
        rest = np.ascontiguousarray(np.delete(lanes, at))
        data = packing.pack(rest, np.zeros(rest.size, packing.lane))
        cut = replace(total, supports=supports, length=total.length - 1, data=data)
        site = one.sites[0]
        for record in site.home.glob("used/*/opened-1"):
            record.unlink()  # for the test alone: one of these a round otherwise
        keys = next(site.home.glob("epochs/*"))
        keys.write_bytes(replace(KeyFile.from_bytes(keys.read_bytes()), opened=0).to_bytes())
        refused(one.evaluate(site, cut), 1023)
    answer(one.evaluate(one.sites[1], total))


def pinned(path: Path, sites: list[Site], **settings: object) -> None:
    """Pin a roster of these sites on each of them."""
    identities = [Store(site.home).identity() for site in sites]
    members = tuple(Member(f"site-{i}", one.public) for i, one in enumerate(identities))
    config = write_signed(path / "roster", Roster(members, 1, 2, ("*",)), identities)
    for site in sites:
        del site.context.node_config["flhe-trust"]
        site.context.node_config.update({**config, **settings})


@pytest.mark.parametrize("most", [1, 2])
def test_a_server_begins_as_many_federations_as_a_node_allows(tmp_path: Path, most: int) -> None:
    """Two from one model have two sums of one round, whose difference may be somebody's update."""
    one = Group(tmp_path, 4)
    pinned(tmp_path, one.sites, **({} if most == 1 else {"flhe-max-federations": most}))
    stage = one.stage
    for number in range(most):
        name = records.federation_name(500 + number)
        one.stage = lambda name=name, **fields: stage(federation=name, **fields)  # type: ignore[method-assign, misc]
        one.agree()
        update(one.ask(one.sites[0], federation=name))
    fields = {"number": 0, "terms": TERMS.to_bytes(), "federation": records.federation_name(900)}
    refused(one.sites[0].ask("advertise", **fields), 1026)
    assert f"begun on this node, its policy allows {most}" in one.sites[0].log
    again = {**fields, "federation": records.federation_name(500), "number": 9}
    answer(one.sites[0].ask("advertise", **again))  # one that has begun goes on


def test_trials_begin_as_many_as_they_like(tmp_path: Path) -> None:
    site = Site(tmp_path / "home")
    for number in range(3):
        fields = {"number": 0, "terms": TERMS.to_bytes()}
        answer(site.ask("advertise", federation=records.federation_name(number + 1), **fields))


SEALED_TO_CLIENTS = Terms(
    "sash", 16, clip=1.0, max_examples=100, metrics=("loss",), unmask="clients"
)


@pytest.mark.parametrize("how", ["leaves and comes back", "its key file is cut short"])
def test_a_round_that_may_have_been_signed_stays_so(tmp_path: Path, how: str) -> None:
    """Two epochs later, too: marks that came from an epoch before have no file of their own."""
    one = Group(tmp_path, 4, SEALED_TO_CLIENTS).agree()
    site = one.sites[0]
    answer(one.ask(site, round_=3))
    one.number += 1
    one.agree()
    refused(one.ask(site, round_=2), 1012)
    if how == "leaves and comes back":
        site.allow(flhe_leave=True)
        refused(site.ask("status"), 1021)
        site.allow(flhe_leave=False)
    else:
        keys = next(site.home.glob("epochs/*"))
        keys.write_bytes(keys.read_bytes()[:-5])
    one.number += 1
    one.agree()
    refused(one.ask(site, round_=2), 1012)
    answer(one.ask(site, round_=4))


def test_what_says_which_rounds_are_over_is_never_guessed(tmp_path: Path) -> None:
    one = Group(tmp_path, 3).agree()
    site = one.sites[0]
    total = one.total(one.parts())
    answer(one.evaluate(site, total))
    one.number += 1
    one.agree()
    answer(one.ask(site, round_=2))
    assert Floor.from_bytes((site.run / "floor").read_bytes()) == Floor(1, 0, 1)
    with pytest.raises(StoreError):
        Floor.from_bytes(canonical.dumps([2, 1, 0, 1]))
    (site.run / "floor").write_bytes(b"junk")
    refused(one.ask(site, round_=2, attempt=1), 1015)
    assert "which rounds are over is damaged" in site.log


def test_an_agreement_that_fails_uses_up_no_federation(tmp_path: Path) -> None:
    one = Group(tmp_path, 4)
    pinned(tmp_path, one.sites)
    fields = {"number": 0, "terms": TERMS.to_bytes()}
    for name in (800, 801):
        answer(one.sites[0].ask("advertise", federation=records.federation_name(name), **fields))
    one.agree()
    update(one.ask(one.sites[0]))
