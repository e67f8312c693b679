"""Rounds of several stages on the client: one support, mode and sum of mean squares an attempt.

And drafts: what a node trained and has not sent, from message to message and across crashes.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord

from flhe.coding.support import Support, covered
from flhe.mods import records
from flhe.node.witness import Witness
from flhe.schemes.sealed import Sealed
from flhe.training.draft import Draft
from tests.mods.harness import (
    FLOATS,
    RANGED,
    SPARSE,
    TERMS,
    App,
    Group,
    Raises,
    Site,
    answer,
    codec,
    mean_squares,
    private,
    put_back,
    refused,
    support,
    update,
)
from tests.training.rounds import drifted

FITTED = replace(SPARSE, codec=codec(top_k=0.25, small=0, warmup=0, clip="exchange"))


@pytest.fixture
def sparse(tmp_path: Path) -> Group:
    return Group(tmp_path / "sparse", 3, SPARSE).agree()


@pytest.fixture
def ranged(tmp_path: Path) -> Group:
    return Group(tmp_path / "ranged", 4, RANGED).agree()


@pytest.fixture
def fitted(tmp_path: Path) -> Group:
    """Mean squares first, then supports, then updates in the mode of all."""
    return Group(tmp_path / "fitted", 4, FITTED).agree()


def on(mean_squares: bytes, **fields: Any) -> dict[str, Any]:
    return {"fitted-on": mean_squares, **fields}


class Moves(App):
    """An app that moves each weight of the matrix by so much, and nothing else."""

    def __init__(self, *by: float) -> None:
        super().__init__(step=0.0)
        self.by = np.array(by, np.float32).reshape(3, 4)

    def trained(self, record: Any) -> ArrayRecord:
        after = records.to_numpy(super().trained(record))
        return records.from_numpy({**after, "w": after["w"] + self.by})


# --- the order of the stages ---


def test_one_mode_an_attempt(sparse: Group) -> None:
    """Both modes of one attempt would show F(j + 1) alone: the second gets the first's bytes."""
    site = sparse.sites[0]
    told = support(sparse.ask(site))
    first = update(sparse.ask(site, "update", mode="double"), [told])
    other = update(sparse.ask(site, "update", mode="single"), [told])
    assert (other.mode, other.digest()) == ("double", first.digest())
    (site.run / "outbox").unlink()
    refused(sparse.ask(site, "update", mode="single"), 1022)
    refused(sparse.ask(site, "update", mode="double"), 1022)
    later = support(sparse.ask(site, attempt=1))
    part = update(sparse.ask(site, "update", attempt=1, mode="single"), [later])
    assert (part.mode, part.slot.attempt) == ("single", 1)


def test_stages_that_a_round_has_not(group: Group, sparse: Group, ranged: Group) -> None:
    dense, few = group.sites[0], sparse.sites[0]
    for mode in ("double", "single"):  # where the masking is fixed
        refused(group.ask(dense, mode=mode), 1014)
        refused(ranged.ask(ranged.sites[0], "update", **on(ranged.mean_squares(), mode=mode)), 1014)
    for stage in ("supports", "update"):
        refused(group.ask(dense, stage), 1014)
    refused(ranged.ask(ranged.sites[0], "supports", **on(ranged.mean_squares())), 1014)
    refused(sparse.ask(few, **on(ranged.mean_squares())), 1014)  # mean squares where none are due


def test_all_three_steps_are_claimed_in_order(fitted: Group) -> None:
    site = fitted.sites[0]
    first = fitted.ask(site)
    assert set(first.content) == {records.REPLY, records.UPDATE}
    assert site.claims == ["1-0-0"]
    assert private(site.run / "mean-squares")
    refused(fitted.ask(site, "supports"), 1014)  # not without the sum
    refused(fitted.ask(site, "update", mode="double"), 1014)
    assert site.claims == ["1-0-0"]
    sums = fitted.mean_squares()
    assert mean_squares(fitted.ask(site)).digest() == mean_squares(first).digest()
    told = fitted.supports("supports", **on(sums))
    assert site.claims == ["1-0-1"]
    assert list(site.journal.opened["mean-squares"]) == [1]
    refused(fitted.ask(site, "update", **on(sums)), 1014)  # in no mode
    refused(fitted.ask(site, "update", **on(sums, mode="triple")), 1014)
    assert site.claims == ["1-0-1"]
    updates = fitted.sparse_parts(told, **on(sums))
    assert site.claims == ["1-0-2"]
    again = update(fitted.ask(site, "update", **on(sums, mode="double")), told[:1])
    assert again.digest() == updates[0].digest()  # one mode, and no second one
    fitted.open(fitted.total(updates), **{"mean-squares": [sums]})
    assert len(site.app.seen) == 2  # a round and an evaluation


# --- the sum of mean squares ---


def test_a_second_sum_of_mean_squares_is_not_opened(fitted: Group) -> None:
    """Nor in another attempt, nor in another epoch: drafts outlive both."""
    site = fitted.sites[0]
    all_of, fewer = fitted.mean_squares(), fitted.mean_squares(3)
    support(fitted.ask(site, "supports", **on(all_of)))
    for stage in ("supports", "update"):
        refused(fitted.ask(site, stage, **on(fewer, mode="double")), 1012)
    # Nor in the next attempt, in which the first one may be used.
    other = fitted.mean_squares(3, attempt=1)
    refused(fitted.ask(site, "supports", attempt=1, **on(other)), 1012)
    support(fitted.ask(site, "supports", attempt=1, **on(all_of)))
    assert site.claims == ["1-1-1"]
    assert len(site.app.seen) == 1
    fitted.renew()
    for other in (fitted.mean_squares(attempt=2), fitted.mean_squares(3, attempt=2)):
        refused(fitted.ask(site, "supports", attempt=2, **on(other)), 1012)
    other = fitted.mean_squares(round_=2)
    support(fitted.ask(site, "supports", round_=2, **on(other)))


# --- supports ---


def apart(group: Group) -> Sealed:
    """The sum of updates whose supports differ."""
    for i, site in enumerate(group.sites):
        site.app = Moves(*np.isin(np.arange(12), (5 * i, 5 * i + 1)) * 0.5)
    return group.total(group.sparse_parts(group.supports()))


def test_no_coordinate_is_taken_out_of_a_sparse_sum(
    sparse: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether one is zero: without its place in the tags the kind of refusal would tell."""
    total, site = apart(sparse), sparse.sites[0]
    packing = sparse.terms.for_cohort(3).packing  # type: ignore[attr-defined]
    zeros = np.zeros(total.length, packing.lane)
    lanes = packing.unpack(total.data, zeros, np.empty(total.length, packing.signed))
    monkeypatch.setattr(Witness, "check", lambda *_: None)
    shutil.copytree(site.home, tmp_path / "before")
    for at, gone in enumerate(covered(total.supports).tolist()):
        coords = [support.coords[support.coords != gone] for support in total.supports]
        rest = np.ascontiguousarray(np.delete(lanes, at))
        cut = replace(
            total,
            supports=tuple(Support.of(one, FLOATS) for one in coords),
            length=rest.size,
            data=packing.pack(rest, np.zeros(rest.size, packing.lane)),
        )
        put_back(site.home, tmp_path / "before")  # for the test alone: else one of these a round
        refused(sparse.evaluate(site, cut), 1023)
    answer(sparse.evaluate(sparse.sites[1], total))


def test_the_site_decides_whether_its_choice_is_seen(tmp_path: Path) -> None:
    terms = replace(SPARSE, codec=codec(top_k=0.5, small=0, warmup=0, permute=False))
    Group(tmp_path, 3, terms).declined(1010, "flhe-unpermuted")
    group = Group(tmp_path / "allowed", 3, terms, config={"flhe-unpermuted": True}).agree()
    told = support(group.ask(group.sites[0]))
    assert told.coords[-1] == 12, "the scalar, last of the layout, in its own place"
    group.sites[0].allow(flhe_unpermuted=False)
    refused(group.ask(group.sites[0], attempt=1), 1010)


# --- drafts ---


QUARTER = replace(TERMS, codec=codec(top_k=0.25, small=0, warmup=0))


@pytest.fixture
def quarter(tmp_path: Path) -> Group:
    return Group(tmp_path, 3, QUARTER).agree()


def draft(site: Site, name: str = "draft") -> Draft:
    return Draft.from_bytes(site.files[name])


def whole(one: Draft) -> float:
    """Sum of what is in the residual once the update is put back."""
    residual = one.given_back().residual
    assert residual is not None
    return float(residual.sum())


def test_a_round_that_came_to_nothing_is_trained_again(quarter: Group) -> None:
    """From the same model and the same residual: its draft takes the other's place, and closes it."""
    told = quarter.supports()
    total = quarter.total(quarter.sparse_parts(told))
    site = quarter.sites[0]
    one = draft(site)
    support(quarter.ask(site, round_=2))
    two = draft(site)
    assert (one.round, two.round) == (1, 2)
    assert whole(one) == whole(two)
    assert len(site.app.seen) == 2
    refused(quarter.evaluate(site, total), 1012)
    assert site.model.round == 0
    answer(quarter.evaluate(quarter.sites[1], total))


# --- crashes and damage ---


@pytest.mark.parametrize("lost", [True, False])
def test_a_support_that_would_change_is_not_told(quarter: Group, lost: bool) -> None:
    """If the draft is lost in mid-attempt, another training has another support: a new attempt."""
    site = quarter.sites[0]
    told = support(quarter.ask(site))
    one = draft(site)
    assert one.coords is not None
    free = sorted(set(range(FLOATS)) - set(one.coords.tolist()))
    moved = np.sort(np.append(one.coords[1:], np.uint32(free[0]))).astype(np.uint32)
    if lost:
        (site.run / "draft").unlink()
        site.app = Moves(*np.arange(12) / 9)
        refused(quarter.ask(site), 1022)
        assert support(quarter.ask(site, attempt=1)).count == told.count
        return
    (site.run / "draft").write_bytes(b"".join(replace(one, coords=moved).chunks()))
    refused(quarter.ask(site), 1012)
    refused(quarter.ask(site, "update"), 1012)
    assert site.claims == ["1-0-1"]


def test_an_app_that_fails_leaves_no_draft(quarter: Group) -> None:
    site = quarter.sites[0]
    site.app = Raises(ValueError("no"))
    refused(quarter.ask(site), 1001)
    assert not (site.run / "draft").exists()
    assert not site.claims
    site.app = App()
    support(quarter.ask(site))


def test_no_update_before_its_support(quarter: Group) -> None:
    site = quarter.sites[0]
    refused(quarter.ask(site, "update"), 1014)
    refused(quarter.ask(site, "supports"), 1014)
    assert not site.app.seen
    support(quarter.ask(site))
    for fields in ({"attempt": 1}, {"round_": 2}):
        refused(quarter.ask(site, "update", **fields), 1014)  # type: ignore[arg-type]
    assert site.claims == ["1-0-1"]


# --- a draft is of one model, and goes with it ---


def test_a_draft_is_of_the_very_model(quarter: Group) -> None:
    """The same round and history, and other weights: what it learned is not sent as the others'."""
    site = quarter.sites[0]
    support(quarter.ask(site))
    site.put(drifted(site.model))
    refused(quarter.ask(site, "update"), 1014)
    support(quarter.ask(site, attempt=1))
    assert len(site.app.seen) == 2, "trained again"


# --- a file that a disk has damaged: it costs a round at most, and no key stays behind ---


def damage(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:5] + b"\xff" + data[6:])


def test_who_leaves_with_a_damaged_journal_has_no_key(group: Group, site: Site) -> None:
    answer(group.ask(site))
    journal = site.run / "journal"
    journal.write_bytes(journal.read_bytes()[:-1])
    site.allow(flhe_leave=True)
    refused(group.ask(site), 1021)
    assert site.epochs == []
    assert "outbox" not in site.files


def test_a_damaged_update_is_in_the_way_of_no_checkpoint(four: Group) -> None:
    """It counts as sent: its round is over there."""
    [first] = four.play()
    *others, late = four.sites
    two = four.total([update(four.ask(s, round_=2, sums=[first])) for s in others])
    for site in others:
        answer(four.ask(site, "sync", sums=[two]))
    damage(late.run / "outbox")
    answer(four.ask(late, "sync", extra=four.box(others[0])))
    answer(four.ask(late, "round", round_=3))


def test_a_damaged_evaluation_allows_no_second_one_and_the_next(group: Group, site: Site) -> None:
    sums = [group.total()]
    answer(group.evaluate(site, sums[-1]))
    damage(site.run / "evaluation")
    refused(group.evaluate(site), 1022)
    sums.append(group.total(group.parts(2, sums[-1:])))
    answer(group.evaluate(site, sums[-1]))
