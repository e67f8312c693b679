"""What an epoch leaves behind, a node that leaves, and a run that goes on with a federation.

And what one message, one file or one restart may do to a node: nothing that lasts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.keys.agreement.epoch import Epoch
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


def test_a_round_that_a_checkpoint_brought_is_not_opened(four: Group) -> None:
    """Nor in the next epoch."""
    late = four.sites[3]
    update(four.ask(late))
    before, one = late.model_file, four.total()
    answer(four.evaluate(four.sites[1], one))
    answer(four.ask(late, "sync", extra=four.box(four.sites[0], sums=[one])))
    assert not late.opened
    late.put(before)
    refused(four.evaluate(late, one), 1012)
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


@pytest.mark.parametrize("when", ["after a round", "in an agreement", "after a crash"])
def test_a_node_that_leaves_destroys_its_keys(group: Group, site: Site, when: str) -> None:
    if when != "in an agreement":
        group.play()
    if when == "after a crash":
        group.renew()
        with dying(*CRASHES["before the erasure"]):
            group.ask(site, "sync")
    agreement, seen = site.run / "agreement", len(site.app.seen)
    assert len(site.epochs) == {"after a round": 1, "in an agreement": 0, "after a crash": 2}[when]
    assert agreement.exists() is (when != "after a round")
    before = site.files.get("model")
    site.allow(flhe_leave=True)
    for stage, kind in (("round", "train"), ("evaluate", "evaluate"), ("sync", "train")):
        refused(group.ask(site, stage, kind, round_=2), 1021)
    for stage in ("status", "advertise"):
        refused(site.ask(stage, number=1, contract=Contract(TERMS).to_bytes()), 1021)
    assert site.epochs == []
    assert not agreement.exists()
    assert (site.files.get("model"), len(site.app.seen)) == (before, seen)
    site.allow(flhe_leave=False)  # somebody thought better of it: only with new keys
    refused(group.ask(site, round_=2), 1020)
    group.renew()
    update(group.ask(site, round_=2 if before else 1))


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


@pytest.mark.parametrize(
    "what", ["older", "cut short", "of another federation", "put in its place", "session"]
)
def test_a_key_file_that_cannot_be_read_keeps_nobody_out(
    group: Group, site: Site, what: str
) -> None:
    """Nor does it make a round openable again. A damaged journal is never guessed."""
    group.play()
    keys = next(site.home.glob("epochs/*"))
    if what == "of another federation":
        junk = site.home / "epochs" / bytes(16).hex()
        junk.write_bytes(b"junk")
        junk.chmod(0o600)
    elif what == "older":
        body = canonical.loads(keys.read_bytes(), 1 << 26, "keys")
        keys.write_bytes(canonical.dumps({**body, "v": 1}))
    elif what == "put in its place":
        keys.write_bytes(replace(Epoch.from_bytes(keys.read_bytes()), run_id=9).to_bytes())
    else:
        bad = site.run / "session" if what == "session" else keys
        bad.write_bytes(bad.read_bytes()[:-5])
    if what != "of another federation":
        assert "epoch" not in answer(site.ask("status"))
        refused(group.ask(site, round_=2), 1014 if what == "put in its place" else 1020)
    group.renew()
    group.open(group.total(group.parts(2)), round=2)
    assert site.opened == [1, 2]
    assert site.journal.over == 1
    assert site.model.round == 2
    (site.run / "journal").write_bytes(b"junk")
    refused(group.ask(site, round_=3), 1015)
    assert "record of finished rounds is damaged" in site.log


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


# --- updates: what is not sent is neither lost nor sent twice, whenever it crashes ---


RUN, LENGTH = 7, 12
HISTORY = bytes(range(32))


def draft(round_: int = 3, scale: float = 1.0) -> Draft:
    coords = np.array([1, 4, 5], np.uint32)
    residual = np.arange(LENGTH, dtype=np.float32) * np.float32(scale)
    residual[coords] = 0
    values = np.array([0.5, -2.0, 8.0], np.float32)
    return Draft(round_, HISTORY, values, np.array([1, 10], np.int64), coords, residual)


DENSE = Draft(3, HISTORY, np.ones(LENGTH, np.float32), np.array([1], np.int64))


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


@pytest.mark.parametrize("kept", [draft(3), DENSE])
@pytest.mark.parametrize("sent", [True, False])
def test_a_round_is_over_once_and_no_earlier_one_settles_it(
    node: Node, sent: bool, kept: Draft
) -> None:
    """A dense draft leaves nothing."""
    node.save_draft(kept)
    before = files(node)
    for round_ in (0, 1, 2):
        node.settle_draft(round_, sent=sent)
    assert files(node) == before
    node.settle_draft(3, sent=sent)
    after = files(node)
    assert after != before
    assert kept is not DENSE or not after
    for again in (True, False):
        node.settle_draft(3, sent=again)
        node.settle_draft(9, sent=again)
    assert files(node) == after


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


def test_a_checkpoint_leaves_a_draft_from_its_own_model(node: Node) -> None:
    node.save_draft(BASE)
    before = files(node)
    node.skip_draft(model(), 0, bytes(32))
    assert files(node) == before
    node.save_draft(replace(BASE, base=OTHER))  # the weights differed, as after a bad disk
    node.skip_draft(model(), 0, bytes(32))
    assert node.load_draft() is None


Act = Callable[[Node], None]


def settle(round_: int, *, sent: bool, contract: bytes = b"") -> Act:
    return lambda node: node.settle_draft(round_, sent=sent, contract=contract)


def skip(taken: Model, counted: int) -> Act:
    return lambda node: node.skip_draft(taken, counted, bytes(32))


def given_back_and_skipped(node: Node) -> None:
    """The node opened a sum without it; then it took the others' model, whose sum has it."""
    settle(3, sent=False, contract=bytes(32))(node)
    assert kept(node) in (rest(draft(3).given_back()), None)  # None where it is done again
    skip(model(3), 3)(node)


SETTLE: dict[str, tuple[Draft, Act, list[float] | None]] = {
    "sent": (draft(3), settle(3, sent=True), rest(draft(3))),
    "not sent": (draft(3), settle(3, sent=False, contract=OTHER), rest(draft(3).given_back())),
    "told otherwise": (draft(3), settle(3, sent=False, contract=HISTORY), EARLIER),
    # The draft's own round came to nothing: whatever is in this sum, it is not this update.
    "another round": (draft(3), settle(5, sent=True), EARLIER),
    "another, too": (draft(3), settle(5, sent=False), EARLIER),
    "given back and counted": (draft(3), given_back_and_skipped, None),
    **{name: (one, skip(taken, last), left) for name, (one, taken, last, left) in SKIPPED.items()},
}
"""Kept draft, what becomes of it, and what is left then; a residual of round 2 is there already."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("crash", ["move", "write", "erase"])
@pytest.mark.parametrize("name", SETTLE)
def test_a_crash_between_its_steps(
    node: Node, monkeypatch: pytest.MonkeyPatch, name: str, crash: str, when: str
) -> None:
    """What a sum holds is not sent again, what it lacks is; what is not known is dropped.

    Done again it comes to what it would have come to at once.
    """
    kept_draft, act, left = SETTLE[name]
    node.save_draft(draft(2, 9.0))
    node.settle_draft(2, sent=True)
    node.save_draft(kept_draft)
    begin = files(node)
    act(node)
    expected = files(node)
    assert kept(node) == left
    assert expected.keys() == ({"residual"} if left else set())
    assert left is None or private(node.policy.home / "runs" / str(RUN) / "residual")
    for file, data in begin.items():
        node.store.write(f"runs/{RUN}/{file}", data)
    real = getattr(Store, crash)

    def dies(self: Store, *args: Any) -> None:
        if when == "after":
            real(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, crash, dies)
        with suppress(KeyboardInterrupt):
            act(node)
    assert left is None or kept(node) is not None  # an older one or the new one, whole
    for _ in range(2):
        act(node)
        assert files(node) == expected
