"""Drafts: what a node has not sent yet is neither lost nor sent twice, whenever it crashes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.errors import StoreError
from flhe.keys.identity import Identity
from flhe.mods import records, staged
from flhe.node.node import Node
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.schemes.flashe.scheme import FlasheSealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.draft import Draft
from tests.mods.harness import (
    RUN,
    TERMS,
    App,
    Group,
    Raises,
    Site,
    answer,
    private,
    refused,
    wire,
)
from tests.mods.staging import LAYOUT, added, ranges, sparse_update, support

LENGTH = 12
HISTORY = bytes(range(32))
SPARSE = dataclasses.replace(TERMS, top_k=0.25, warmup=0)
FITTED = dataclasses.replace(SPARSE, clip="exchange", masking="adaptive")


def draft(round_: int = 3, scale: float = 1.0) -> Draft:
    coords = np.array([1, 4, 5], np.uint32)
    residual = np.arange(LENGTH, dtype=np.float32) * np.float32(scale)
    residual[coords] = 0
    values = np.array([0.5, -2.0, 8.0], np.float32)
    return Draft(round_, HISTORY, values, np.array([1, 10], np.int64), coords, residual)


def whole(one: Draft) -> list[float]:
    """What is in the residual once the update is put back."""
    residual = one.given_back().residual
    assert residual is not None
    return residual.tolist()  # type: ignore[no-any-return]


def rest(one: Draft) -> list[float]:
    """What is in the residual once the update was sent."""
    assert one.residual is not None
    return one.residual.tolist()  # type: ignore[no-any-return]


def dense(round_: int = 3) -> Draft:
    return Draft(round_, HISTORY, np.ones(LENGTH, np.float32), np.array([1], np.int64))


def sealed(round_: int) -> Sealed:
    slot = Slot(RUN, bytes(32), bytes(16), round_, 0, bytes(32), HISTORY)
    return Sealed("flashe", slot, (0,), 4, np.zeros(9, np.uint8))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    home = tmp_path / "node"
    policy = Policy(home, trust="first-use")
    return Node(policy, Store(home), Identity.from_seed(bytes(32)), RUN)


def files(node: Node) -> dict[str, bytes]:
    folder = node.policy.home / "runs" / str(RUN)
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.is_dir() else {}


def kept(node: Node) -> list[float] | None:
    residual = node.residual()
    return None if residual is None else residual.tolist()


# --- one node ---


def test_a_draft_is_kept_and_read_back(node: Node) -> None:
    assert node.load_draft() is None
    assert node.residual() is None
    for one in (draft(), draft(4, 2.0), dense()):
        node.save_draft(one)
        again = node.load_draft()
        assert again is not None
        assert b"".join(again.chunks()) == b"".join(one.chunks())
    assert private(node.policy.home / "runs" / str(RUN) / "draft")
    assert node.residual() is None  # tentative until the round is over


@pytest.mark.parametrize("sent", [True, False])
def test_a_round_that_is_over_once_is_over(node: Node, sent: bool) -> None:
    node.save_draft(draft())
    node.settle_draft(3, sent=sent)
    before = files(node)
    for again in (True, False):
        node.settle_draft(3, sent=again)
        node.settle_draft(9, sent=again)
        node.skip_draft(9)
    assert files(node) == before


@pytest.mark.parametrize("sent", [True, False])
def test_the_sum_of_an_earlier_round_settles_nothing(node: Node, sent: bool) -> None:
    node.save_draft(draft(3))
    before = files(node)
    for round_ in (0, 1, 2):
        node.settle_draft(round_, sent=sent)
        node.skip_draft(round_)
    assert files(node) == before


@pytest.mark.parametrize("sent", [True, False])
def test_a_dense_draft_leaves_nothing(node: Node, sent: bool) -> None:
    node.save_draft(dense())
    node.settle_draft(3, sent=sent)
    assert files(node) == {}


@pytest.mark.parametrize("uploaded", [None, 2, 3])
def test_a_round_that_was_skipped(node: Node, uploaded: int | None) -> None:
    """With a model of another member nobody says whose updates are in it: what was handed over is.

    What was not is dropped: its node may have started from another model than the others.
    """
    if uploaded is not None:
        node.save_output(sealed(uploaded), b"envelope")
    node.save_draft(draft(3))
    node.skip_draft(2)
    assert node.load_draft() is not None
    node.skip_draft(5)
    assert node.load_draft() is None
    expected = draft().residual.tolist() if uploaded == 3 else None  # type: ignore[union-attr]
    assert kept(node) == expected


def test_only_mean_squares_were_handed_over(node: Node) -> None:
    node.save_output(sealed(3), b"envelope", "ranges")
    node.save_draft(draft(3))
    node.skip_draft(3)
    assert node.load_draft() is None
    assert kept(node) is None


Settle = Callable[[Node], None]
SETTLE: dict[str, tuple[Settle, list[float]]] = {
    "sent": (lambda node: node.settle_draft(3, sent=True), rest(draft(3))),
    "not sent": (lambda node: node.settle_draft(3, sent=False), whole(draft(3))),
    # The draft's own round came to nothing: whatever is in this sum, it is not this update.
    "another round": (lambda node: node.settle_draft(5, sent=True), whole(draft(3))),
    "another round, too": (lambda node: node.settle_draft(5, sent=False), whole(draft(3))),
    "skipped": (lambda node: node.skip_draft(3), rest(draft(2, 9.0))),
}
"""What becomes of a draft of round 3, and what is left then; a residual of round 2 is in it already."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("crash", ["move", "write_chunks", "erase"])
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
    settle(node)
    assert files(node) == expected
    settle(node)
    assert files(node) == expected


# --- through messages ---


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path, 3, SPARSE).agree()


def parts(group: Group, round_: int = 1, sums: Sequence[Sealed] = ()) -> list[Sealed]:
    """Everyone's support, then everyone's update."""
    told = [support(group.ask(s, round_=round_, sums=sums)) for s in group.sites]
    return [
        sparse_update(group.ask(s, "update", round_=round_), one)
        for s, one in zip(group.sites, told, strict=True)
    ]


def claims(site: Site) -> list[str]:
    return sorted(p.name for p in site.home.glob("used/*/[0-9]*"))


def residual(site: Site) -> np.ndarray[Any, Any]:
    one = Draft.from_bytes((site.run / "residual").read_bytes())
    assert one.residual is not None
    return one.residual


def stored_draft(site: Site) -> Draft:
    return Draft.from_bytes((site.run / "draft").read_bytes())


def test_each_step_is_claimed_and_tells_the_same_again(group: Group) -> None:
    site = group.sites[0]
    first = group.ask(site)
    assert claims(site) == ["1-0-1"]
    told = support(first)
    assert set(first.content) == {records.REPLY}
    assert set(answer(first)) == {"v", "step", "support", "digest", "told", "crypto-s"}
    assert support(group.ask(site)) == told
    part = sparse_update(group.ask(site, "update"), told)
    assert claims(site) == ["1-0-2"]
    assert part.supports == (told,)
    again = group.ask(site, "update")
    assert (sparse_update(again, told).digest(), answer(again)["resent"]) == (part.digest(), True)
    assert support(group.ask(site)) == told  # a server that forgot everything
    assert claims(site) == ["1-0-2"]
    assert len(site.app.seen) == 1
    assert {p.name for p in site.run.iterdir()} >= {"draft", "outbox"}
    assert private(site.run / "draft")


def test_another_attempt_tells_another_support_of_the_same_update(group: Group) -> None:
    site = group.sites[0]
    told = support(group.ask(site))
    draft_before = (site.run / "draft").read_bytes()
    other = support(group.ask(site, attempt=1))
    assert other.count == told.count
    assert claims(site) == ["1-1-1"]
    refused(group.ask(site, "update", attempt=0), 1014)
    refused(group.ask(site, attempt=0), 1022)
    assert sparse_update(group.ask(site, "update", attempt=1), other).supports == (other,)
    assert (site.run / "draft").read_bytes() == draft_before
    assert len(site.app.seen) == 1  # trained once, for both


def test_a_sum_settles_the_drafts(group: Group) -> None:
    site, left_out = group.sites[0], group.sites[2]
    updates = parts(group)
    before = {s.home: stored_draft(s) for s in group.sites}
    opened = added(group, updates[:2])
    for s in group.sites:
        reply = group.evaluate(s, opened)
        assert dict(reply.content["flhe.opened"]) == {"round": 1, "missed": s is left_out}
        assert not (s.run / "draft").exists()
    assert len({(s.run / "model").read_bytes() for s in group.sites}) == 1
    np.testing.assert_array_equal(residual(site), before[site.home].residual)  # type: ignore[arg-type]
    given_back = before[left_out.home].given_back().residual
    np.testing.assert_array_equal(residual(left_out), given_back)  # type: ignore[arg-type]
    assert np.count_nonzero(residual(left_out)) > np.count_nonzero(residual(site))
    # What stayed is in the next draft: as much as was trained in both rounds, none lost.
    again = support(group.ask(left_out, round_=2))
    assert again.count == before[left_out.home].values.size
    trained = left_out.model.layout.floats * left_out.app.step
    assert sum(whole(stored_draft(left_out))) == pytest.approx(2 * trained)


def test_a_round_that_came_to_nothing_is_trained_again(group: Group) -> None:
    """From the same model and the same residual: its draft takes the other's place."""
    site = group.sites[0]
    support(group.ask(site))
    one = stored_draft(site)
    support(group.ask(site, round_=2))
    two = stored_draft(site)
    assert (one.round, two.round) == (1, 2)
    assert whole(one) == whole(two)
    assert len(site.app.seen) == 2


def test_a_crash_between_the_sum_and_the_model(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = group.sites[0]
    opened = added(group, parts(group))
    expected = stored_draft(site).residual

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Node, "save_model", die)
        with pytest.raises(KeyboardInterrupt):
            group.evaluate(site, opened)
    assert site.model.round == 0
    answer(group.evaluate(site, opened))
    assert site.model.round == 1
    np.testing.assert_array_equal(residual(site), expected)  # type: ignore[arg-type]
    answer(group.evaluate(group.sites[1], opened))
    assert (site.run / "model").read_bytes() == (group.sites[1].run / "model").read_bytes()


@pytest.mark.parametrize("where", ["sign", "encrypt"])
def test_a_crash_after_the_claim_needs_another_attempt(
    group: Group, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    site = group.sites[0]
    support(group.ask(site))

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*((staged, "sign") if where == "sign" else (FlasheSealer, "encrypt")), die)
        with pytest.raises(KeyboardInterrupt):
            group.ask(site, "update")
    assert claims(site) == ["1-0-2"]
    refused(group.ask(site, "update"), 1022)
    told = support(group.ask(site, attempt=1))
    sparse_update(group.ask(site, "update", attempt=1), told)
    assert len(site.app.seen) == 1


def test_a_damaged_draft_is_not_sent(group: Group) -> None:
    site = group.sites[0]
    support(group.ask(site))
    path = site.run / "draft"
    good = path.read_bytes()
    for bad in (b"", good[:20], good[:-4], good + bytes(4)):
        path.write_bytes(bad)
        reply = group.ask(site, "update")
        assert reply.error.code in (1014, 1015), site.log
    assert claims(site) == ["1-0-1"]
    path.write_bytes(good)
    answer(group.ask(site, "update"))


def test_a_draft_that_changed_after_its_support_was_told_is_not_sent(group: Group) -> None:
    site = group.sites[0]
    support(group.ask(site))
    one = stored_draft(site)
    assert one.coords is not None
    free = sorted(set(range(LAYOUT)) - set(one.coords.tolist()))
    moved = np.sort(np.append(one.coords[1:], np.uint32(free[0]))).astype(np.uint32)
    other = dataclasses.replace(one, coords=moved)
    (site.run / "draft").write_bytes(b"".join(other.chunks()))
    refused(group.ask(site), 1012)
    refused(group.ask(site, "update"), 1012)
    assert claims(site) == ["1-0-1"]


# --- with mean squares first ---


@pytest.fixture
def fitted(tmp_path: Path) -> Group:
    return Group(tmp_path, 4, FITTED).agree()


def test_all_three_steps_are_claimed_in_order(fitted: Group) -> None:
    """One sum of mean squares a round, then supports, then updates in the mode of all."""
    site = fitted.sites[0]
    first = fitted.ask(site)
    assert set(first.content) == {records.REPLY}
    assert claims(site) == ["1-0-0"]
    assert private(site.run / "ranges")
    refused(fitted.ask(site, "supports"), 1014)  # not without the sum
    refused(fitted.ask(site, "update", mode="double"), 1014)
    assert claims(site) == ["1-0-0"]
    squares = [ranges(first), *(ranges(fitted.ask(s)) for s in fitted.sites[1:])]
    assert ranges(fitted.ask(site)).digest() == squares[0].digest()
    fitting = staged.to_bytes(fitted.total(squares))
    told = [support(fitted.ask(s, "supports", **{"fitted-on": fitting})) for s in fitted.sites]
    assert claims(site) == ["1-0-1"]
    [recorded] = site.home.glob("used/*/ranges-1")
    assert recorded.read_bytes() == fitted.total(squares).digest()
    refused(fitted.ask(site, "update", **{"fitted-on": fitting}), 1014)  # in no mode
    refused(fitted.ask(site, "update", mode="triple", **{"fitted-on": fitting}), 1014)
    assert claims(site) == ["1-0-1"]
    updates = [
        sparse_update(fitted.ask(s, "update", mode="single", **{"fitted-on": fitting}), one)
        for s, one in zip(fitted.sites, told, strict=True)
    ]
    assert claims(site) == ["1-0-2"]
    again = fitted.ask(site, "update", mode="double", **{"fitted-on": fitting})
    assert (
        sparse_update(again, told[0]).digest() == updates[0].digest()
    )  # one mode, and no second one
    opened = added(fitted, updates)
    for s in fitted.sites:
        answer(fitted.evaluate(s, opened, ranges=[fitting]))
    assert len({(s.run / "model").read_bytes() for s in fitted.sites}) == 1
    assert len(site.app.seen) == 2  # a round and an evaluation


def test_a_second_sum_of_mean_squares_is_not_opened(fitted: Group) -> None:
    site = fitted.sites[0]
    squares = [ranges(fitted.ask(s)) for s in fitted.sites]
    all_of, fewer = fitted.total(squares), fitted.total(squares[:3])
    support(fitted.ask(site, "supports", **{"fitted-on": staged.to_bytes(all_of)}))
    for stage in ("supports", "update"):
        fields = {"fitted-on": staged.to_bytes(fewer), "mode": "double"}
        refused(fitted.ask(site, stage, **fields), 1012)
    # Nor in the next attempt, in which the first one may be used.
    squares = [ranges(fitted.ask(s, attempt=1)) for s in fitted.sites]
    other = staged.to_bytes(fitted.total(squares[:3]))
    refused(fitted.ask(site, "supports", attempt=1, **{"fitted-on": other}), 1012)
    told = staged.to_bytes(all_of)
    support(fitted.ask(site, "supports", attempt=1, **{"fitted-on": told}))
    assert claims(site) == ["1-1-1"]
    assert len(site.app.seen) == 1


def test_a_new_epoch_does_not_open_mean_squares_again(fitted: Group) -> None:
    """Drafts outlive an epoch, so two sums of one round would differ by single members' squares."""
    site = fitted.sites[0]
    squares = [ranges(fitted.ask(s)) for s in fitted.sites]
    fitting = staged.to_bytes(fitted.total(squares))
    support(fitted.ask(site, "supports", **{"fitted-on": fitting}))
    fitted.number = 1
    fitted.agree()
    squares = [ranges(fitted.ask(s)) for s in fitted.sites]
    for some in (squares, squares[:3]):
        other = staged.to_bytes(fitted.total(some))
        refused(fitted.ask(site, "supports", **{"fitted-on": other}), 1012)
    squares = [ranges(fitted.ask(s, round_=2)) for s in fitted.sites]
    other = staged.to_bytes(fitted.total(squares))
    support(fitted.ask(site, "supports", round_=2, **{"fitted-on": other}))


def test_a_round_has_one_sum_of_mean_squares_across_a_crash(
    fitted: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node stops between the keys of the next epoch and its session file."""
    site = fitted.sites[0]
    old = [ranges(fitted.ask(s)) for s in fitted.sites]
    fitted.number = 1
    fitted.agree()
    confirms, write = fitted.confirms, Store.write

    def fail(self: Store, name: str, data: bytes) -> None:
        if name.endswith("/session"):
            raise StoreError("no power")
        write(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", fail)
        assert fitted.ask(site, "sync").has_error()
    fitted.confirms = []  # the server holds them back: the epoch before goes on
    fitting = staged.to_bytes(fitted.total(old))
    support(fitted.ask(site, "supports", **{"fitted-on": fitting}))
    fitted.confirms = confirms
    new = [ranges(fitted.ask(s)) for s in fitted.sites]
    for some in (new, new[:3]):
        other = staged.to_bytes(fitted.total(some))
        refused(fitted.ask(site, "supports", **{"fitted-on": other}), 1012)


def test_no_stage_shows_a_draft(fitted: Group) -> None:
    site = fitted.sites[0]
    replies = [fitted.ask(s) for s in fitted.sites]
    fitting = staged.to_bytes(fitted.total([ranges(reply) for reply in replies]))
    fields = {"fitted-on": fitting, "mode": "double"}
    shown = wire(replies[0])
    shown += wire(fitted.ask(site, "supports", **fields))
    shown += wire(fitted.ask(site, "update", **fields))
    one = stored_draft(site)
    assert one.coords is not None
    for secret in (one.values, one.coords, one.residual):
        assert np.asarray(secret).tobytes() not in shown


def test_an_app_that_fails_leaves_no_draft(group: Group) -> None:
    site = group.sites[0]
    site.app = Raises(ValueError("no"))
    refused(group.ask(site), 1001)
    assert not (site.run / "draft").exists()
    assert not claims(site)
    site.app = App()
    support(group.ask(site))


def test_no_update_before_its_support(group: Group) -> None:
    site = group.sites[0]
    refused(group.ask(site, "update"), 1014)
    refused(group.ask(site, "supports"), 1014)
    assert not site.app.seen
    support(group.ask(site))
    for fields in ({"attempt": 1}, {"round_": 2}):
        refused(group.ask(site, "update", **fields), 1014)  # type: ignore[arg-type]
    assert claims(site) == ["1-0-1"]
