"""Drafts: what a node trained and has not sent, from message to message and across crashes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.mods import records
from flhe.node.node import Node
from flhe.schemes.flashe.adder import FlasheSealer
from flhe.sums.secure_sum import SecureSum
from flhe.training.draft import Draft
from flhe.training.model import Model
from tests.mods.apps import Moves, Raises
from tests.mods.harness import (
    FLOATS,
    TERMS,
    App,
    Group,
    answer,
    arrays,
    codec,
    drifted,
    dying,
    private,
    refused,
    support,
    update,
)

SPARSE = replace(TERMS, codec=codec(top_k=0.25, small=0, warmup=0))


@pytest.fixture
def sparse(tmp_path: Path) -> Group:
    return Group(tmp_path, 3, SPARSE).agree()


def whole(one: Draft) -> float:
    """Sum of what is in the residual once the update is put back."""
    residual = one.given_back().residual
    assert residual is not None
    return float(residual.sum())


def test_each_step_is_claimed_and_tells_the_same_again(sparse: Group) -> None:
    site = sparse.sites[0]
    first = sparse.ask(site)
    assert site.claims == ["1-0-1"]
    told = support(first)
    assert set(first.content) == {records.REPLY}
    assert set(answer(first)) == {"v", "step", "support", "digest", "app_inputs_hash", "crypto-s"}
    assert support(sparse.ask(site)) == told
    part = update(sparse.ask(site, "update"), [told])
    assert site.claims == ["1-0-2"]
    assert part.supports == (told,)
    again = sparse.ask(site, "update")
    assert (update(again, [told]).digest(), answer(again)["resent"]) == (part.digest(), True)
    assert support(sparse.ask(site)) == told  # a server that forgot everything
    assert site.claims == ["1-0-2"]
    assert len(site.app.seen) == 1
    assert set(site.files) >= {"draft", "outbox"}
    assert private(site.run / "draft")


def test_another_attempt_tells_another_support_of_the_same_update(sparse: Group) -> None:
    site = sparse.sites[0]
    told = support(sparse.ask(site))
    before = site.files["draft"]
    other = support(sparse.ask(site, attempt=1))
    assert other.count == told.count
    assert site.claims == ["1-1-1"]
    refused(sparse.ask(site, "update", attempt=0), 1014)
    refused(sparse.ask(site, attempt=0), 1022)
    assert update(sparse.ask(site, "update", attempt=1), [other]).supports == (other,)
    assert site.files["draft"] == before
    assert len(site.app.seen) == 1  # trained once, for both


def test_a_sum_settles_the_drafts(sparse: Group) -> None:
    site, left_out = sparse.sites[0], sparse.sites[2]
    total = sparse.total(sparse.sparse_parts(sparse.supports())[:2])
    before = [s.draft() for s in sparse.sites]
    for s in sparse.sites:
        reply = sparse.evaluate(s, total)
        assert dict(reply.content["flhe.opened"]) == {"round": 1, "missed": s is left_out}
        assert "draft" not in s.files
    assert len({s.model_file for s in sparse.sites}) == 1
    kept, back = site.draft("residual").residual, left_out.draft("residual").residual
    np.testing.assert_array_equal(kept, before[0].residual)  # type: ignore[arg-type]
    np.testing.assert_array_equal(back, before[2].given_back().residual)  # type: ignore[arg-type]
    # What stayed is in the next draft: as much as was trained in both rounds, none lost.
    assert support(sparse.ask(left_out, round_=2)).count == before[2].values.size
    assert whole(left_out.draft()) == pytest.approx(2 * FLOATS * left_out.app.step)


def test_a_round_that_came_to_nothing_is_trained_again(sparse: Group) -> None:
    """From the same model and the same residual: its draft takes the other's place, and closes it."""
    told = sparse.supports()
    total = sparse.total(sparse.sparse_parts(told))
    site = sparse.sites[0]
    one = site.draft()
    support(sparse.ask(site, round_=2))
    two = site.draft()
    assert (one.round, two.round) == (1, 2)
    assert whole(one) == whole(two)
    assert len(site.app.seen) == 2
    refused(sparse.evaluate(site, total), 1012)
    assert site.model.round == 0
    answer(sparse.evaluate(sparse.sites[1], total))


def test_an_earlier_round_is_not_trained_again(sparse: Group) -> None:
    """It would take the place of the draft that the next sum settles, and that would count twice."""
    told = sparse.supports(round_=2)
    site = sparse.sites[0]
    refused(sparse.ask(site, round_=1), 1022)
    assert len(site.app.seen) == 1, "the app was not asked"
    kept = site.draft().residual
    answer(sparse.evaluate(site, sparse.total(sparse.sparse_parts(told, round_=2)), round_=2))
    np.testing.assert_array_equal(site.draft("residual").residual, kept)  # type: ignore[arg-type]


# --- crashes and damage ---


def test_a_crash_between_the_sum_and_the_model(sparse: Group) -> None:
    site = sparse.sites[0]
    total = sparse.total(sparse.sparse_parts(sparse.supports()))
    expected = site.draft().residual
    with dying(Node, "save_model"):
        sparse.evaluate(site, total)
    assert site.model.round == 0
    answer(sparse.evaluate(site, total))
    np.testing.assert_array_equal(site.draft("residual").residual, expected)  # type: ignore[arg-type]
    sparse.open(total)


@pytest.mark.parametrize("where", [(SecureSum, "sign"), (FlasheSealer, "encrypt")])
def test_a_crash_after_the_claim_needs_another_attempt(sparse: Group, where: Any) -> None:
    site = sparse.sites[0]
    support(sparse.ask(site))
    with dying(*where):
        sparse.ask(site, "update")
    assert site.claims == ["1-0-2"]
    refused(sparse.ask(site, "update"), 1022)
    told = support(sparse.ask(site, attempt=1))
    update(sparse.ask(site, "update", attempt=1), [told])
    assert len(site.app.seen) == 1


def test_a_damaged_draft_is_not_sent(sparse: Group) -> None:
    site = sparse.sites[0]
    support(sparse.ask(site))
    path = site.run / "draft"
    good = path.read_bytes()
    for bad in (b"", good[:20], good[:-4], good + bytes(4)):
        path.write_bytes(bad)
        assert sparse.ask(site, "update").error.code in (1014, 1015), site.log
    assert site.claims == ["1-0-1"]
    path.write_bytes(good)
    answer(sparse.ask(site, "update"))


@pytest.mark.parametrize("lost", [True, False])
def test_a_support_that_would_change_is_not_told(sparse: Group, lost: bool) -> None:
    """If the draft is lost in mid-attempt, another training has another support: a new attempt."""
    site = sparse.sites[0]
    told = support(sparse.ask(site))
    one = site.draft()
    assert one.coords is not None
    free = sorted(set(range(FLOATS)) - set(one.coords.tolist()))
    moved = np.sort(np.append(one.coords[1:], np.uint32(free[0]))).astype(np.uint32)
    if lost:
        (site.run / "draft").unlink()
        site.app = Moves(*np.arange(12) / 9)
        refused(sparse.ask(site), 1022)
        assert support(sparse.ask(site, attempt=1)).count == told.count
        return
    (site.run / "draft").write_bytes(b"".join(replace(one, coords=moved).chunks()))
    refused(sparse.ask(site), 1012)
    refused(sparse.ask(site, "update"), 1012)
    assert site.claims == ["1-0-1"]


def test_an_app_that_fails_leaves_no_draft(sparse: Group) -> None:
    site = sparse.sites[0]
    site.app = Raises(ValueError("no"))
    refused(sparse.ask(site), 1001)
    assert not (site.run / "draft").exists()
    assert not site.claims
    site.app = App()
    support(sparse.ask(site))


def test_no_update_before_its_support(sparse: Group) -> None:
    site = sparse.sites[0]
    refused(sparse.ask(site, "update"), 1014)
    refused(sparse.ask(site, "supports"), 1014)
    assert not site.app.seen
    support(sparse.ask(site))
    for fields in ({"attempt": 1}, {"round_": 2}):
        refused(sparse.ask(site, "update", **fields), 1014)  # type: ignore[arg-type]
    assert site.claims == ["1-0-1"]


# --- a draft is of one model, and goes with it ---


def test_a_draft_is_of_the_very_model(sparse: Group) -> None:
    """The same round and history, and other weights: what it learned is not sent as the others'."""
    site = sparse.sites[0]
    support(sparse.ask(site))
    site.put(drifted(site.model))
    refused(sparse.ask(site, "update"), 1014)
    support(sparse.ask(site, attempt=1))
    assert len(site.app.seen) == 2, "trained again"


def test_what_a_drifted_model_learned_goes_with_it(tmp_path: Path) -> None:
    """It takes the others' model of the same round; a sum without it then gives nothing back."""
    group = Group(tmp_path, 4, SPARSE).agree()
    history = Model.initial(arrays()).history
    for each in group.sites:
        answer(group.ask(each, "sync", history=history))
    site = group.sites[3]
    site.put(drifted(site.model))
    told = group.supports()
    assert "draft" in site.files
    answer(group.ask(site, "sync", extra=group.box(group.sites[0])))
    answer(group.evaluate(site, group.total(group.sparse_parts(told[:3]))))
    assert not {"draft", "residual"} & set(site.files)


def test_who_leaves_keeps_no_update(sparse: Group) -> None:
    site = sparse.sites[0]
    support(sparse.ask(site))
    assert "draft" in site.files
    site.allow(flhe_leave=True)
    refused(sparse.ask(site), 1021)
    assert not {"draft", "residual", "outbox", "mean-squares"} & set(site.files)
