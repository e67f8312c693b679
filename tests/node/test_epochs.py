"""What an epoch leaves behind, a node that leaves, and a run that goes on with a federation.

And what one message, one file or one restart may do to a node: nothing that lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.keys.identity import Identity
from flhe.mods import records
from flhe.node.node import Node
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.training.chain import Link
from flhe.training.contract import MAX_AHEAD, Contract
from flhe.training.draft import Draft
from flhe.training.model import Model
from flhe.wire import canonical
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
    private,
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
    assert "not the last key agreement that was begun here" in site.log


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
    refused(one.handed(victim, false, *(one.signed(rank, false) for rank in (1, 2, 3, 4))), code)
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
    assert "record of finished rounds is damaged" in site.log


# --- updates: what is not sent is neither lost nor sent twice, whenever it crashes ---


RUN, LENGTH = 7, 12
HISTORY = bytes(range(32))


def draft(round_: int = 3, scale: float = 1.0) -> Draft:
    coords = np.array([1, 4, 5], np.uint32)
    residual = np.arange(LENGTH, dtype=np.float32) * np.float32(scale)
    residual[coords] = 0
    values = np.array([0.5, -2.0, 8.0], np.float32)
    return Draft(round_, HISTORY, values, np.array([1, 10], np.int64), coords, residual)


def rest(one: Draft) -> list[float]:
    """What is in the residual once the update was sent."""
    assert one.residual is not None
    return one.residual.tolist()  # type: ignore[no-any-return]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    home = tmp_path / "node"
    policy = Policy(home, trust="first-use")
    return Node(policy, Store(home), Identity(bytes(32)), RUN)


def files(node: Node) -> dict[str, bytes]:
    folder = node.policy.home / "runs" / str(RUN)
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.is_dir() else {}


def kept(node: Node) -> list[float] | None:
    residual = node.residual()
    return None if residual is None else residual.tolist()


@pytest.mark.parametrize("sent", [True, False])
def test_a_round_is_over_once_and_no_earlier_one_settles_it(node: Node, sent: bool) -> None:
    node.save_draft(draft(3))
    before = files(node)
    for round_ in (0, 1, 2):
        node.settle_draft(round_, sent=sent)
    assert files(node) == before
    node.settle_draft(3, sent=sent)
    after = files(node)
    assert after != before
    for again in (True, False):
        node.settle_draft(3, sent=again)
        node.settle_draft(9, sent=again)
    assert files(node) == after


@pytest.mark.parametrize("sent", [True, False])
def test_a_dense_draft_leaves_nothing(node: Node, sent: bool) -> None:
    node.save_draft(Draft(3, HISTORY, np.ones(LENGTH, np.float32), np.array([1], np.int64)))
    node.settle_draft(3, sent=sent)
    assert files(node) == {}


def model(*rounds: int) -> Model:
    """A model of another member, with the sums of these rounds."""
    made = replace(Model.initial({"w": np.zeros(LENGTH, np.float32)}), history=HISTORY)
    for round_ in rounds:
        made = replace(made.linked(Link(round_, made.history, bytes(32), b"")), round=round_)
    return made


OTHER = bytes(32)
BASE = replace(draft(3), base=model().fingerprint())
EARLIER = rest(draft(2, 9.0))
SKIPPED: dict[str, tuple[Draft, Model, int, list[float] | None]] = {
    "in its sum": (draft(3), model(3), 3, rest(draft(3))),
    "not in it": (draft(3), model(3), 0, rest(draft(3).given_back())),
    "in one before": (draft(5), model(3), 3, None),
    "in one before what is kept": (draft(5), model(1, 5), 1, EARLIER),
    "in an earlier one": (
        replace(draft(5), history=model(3).history),
        model(3, 5),
        3,
        rest(draft(5).given_back()),
    ),
    "of another contract": (replace(draft(3), contract=HISTORY), model(3), 0, EARLIER),
    "from another model": (replace(draft(3), history=OTHER), model(3), 0, EARLIER),
    "of a round without a sum": (draft(3), model(4), 0, EARLIER),
    "ahead, from another model": (draft(3), model(2), 0, EARLIER),
}
"""Kept draft, model, its last sum with this node's update -> the residual; round 2's is there."""


@pytest.mark.parametrize("name", SKIPPED)
def test_a_checkpoint_says_which_update_was_counted(node: Node, name: str) -> None:
    """What a sum holds is not sent again, what it lacks is; what is not known is dropped."""
    kept_draft, taken, counted, left = SKIPPED[name]
    node.save_draft(draft(2, 9.0))
    node.settle_draft(2, sent=True)
    node.save_draft(kept_draft)
    for _ in range(2):
        node.skip_draft(taken, counted, bytes(32))
        assert node.load_draft() is None
        assert kept(node) == left


def test_an_update_that_was_given_back_and_counted_is_not_sent_again(node: Node) -> None:
    """The node opened a sum without it; then it took the others' model, whose sum has it."""
    node.save_draft(draft(3))
    node.settle_draft(3, sent=False, contract=bytes(32))
    assert kept(node) == rest(draft(3).given_back())
    node.skip_draft(model(3), 3, bytes(32))
    assert kept(node) is None


def test_a_checkpoint_leaves_a_draft_from_its_own_model(node: Node) -> None:
    node.save_draft(BASE)
    before = files(node)
    node.skip_draft(model(), 0, bytes(32))
    assert files(node) == before
    node.save_draft(replace(BASE, base=OTHER))  # the weights differed, as after a bad disk
    node.skip_draft(model(), 0, bytes(32))
    assert node.load_draft() is None


SETTLE: dict[str, tuple[Callable[[Node], None], list[float]]] = {
    "sent": (lambda node: node.settle_draft(3, sent=True), rest(draft(3))),
    "not sent": (
        lambda node: node.settle_draft(3, sent=False, contract=bytes(32)),
        rest(draft(3).given_back()),
    ),
    "told otherwise": (
        lambda node: node.settle_draft(3, sent=False, contract=HISTORY),
        rest(draft(2, 9.0)),
    ),
    # The draft's own round came to nothing: whatever is in this sum, it is not this update.
    "another round": (lambda node: node.settle_draft(5, sent=True), rest(draft(2, 9.0))),
    "another, too": (lambda node: node.settle_draft(5, sent=False), rest(draft(2, 9.0))),
    "skipped": (lambda node: node.skip_draft(model(3), 3, bytes(32)), rest(draft(3))),
    "skipped, not sent": (
        lambda node: node.skip_draft(model(3), 0, bytes(32)),
        rest(draft(3).given_back()),
    ),
}
"""What becomes of a draft of round 3, and what is left then; a residual of round 2 is in it already."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("crash", ["move", "write", "erase"])
@pytest.mark.parametrize("name", SETTLE)
def test_a_crash_between_its_steps(
    node: Node, monkeypatch: pytest.MonkeyPatch, name: str, crash: str, when: str
) -> None:
    """Done again it comes to what it would have come to at once."""
    settle, left = SETTLE[name]
    node.save_draft(draft(2, 9.0))
    node.settle_draft(2, sent=True)
    node.save_draft(draft(3))
    begin = files(node)
    settle(node)
    expected = files(node)
    assert set(expected) == {"residual"}
    assert kept(node) == left
    assert node.load_draft() is None
    assert private(node.policy.home / "runs" / str(RUN) / "residual")
    for file, data in begin.items():
        node.store.write(f"runs/{RUN}/{file}", data)
    real = getattr(Store, crash)

    def dies(self: Store, *args: Any) -> None:
        if when == "after":
            real(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, crash, dies)
        try:
            settle(node)
        except KeyboardInterrupt:
            assert kept(node) is not None  # an older one or the new one, whole
    for _ in range(2):
        settle(node)
        assert files(node) == expected
