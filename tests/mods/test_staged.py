"""Rounds of several stages on the client: an attempt has one support, one mode, one set of ranges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.mods import records
from flhe.schemes.sealed import to_bytes
from flhe.training.draft import Draft
from flhe.training.model import Model
from tests.mods.harness import TERMS, Group, answer, arrays, refused, update
from tests.mods.staging import (
    RANGED,
    SPARSE,
    added,
    files,
    group,
    ranges,
    sparse_update,
    sums,
    support,
)


def test_one_mode_an_attempt(tmp_path: Path) -> None:
    """Both modes of one attempt would show F(j + 1) alone: the second gets the first's bytes."""
    g = group(tmp_path, SPARSE)
    site = g.sites[0]
    told = support(g.ask(site))
    first = sparse_update(g.ask(site, "update", mode="double"), told)
    other = sparse_update(g.ask(site, "update", mode="single"), told)
    assert (other.mode, other.digest()) == ("double", first.digest())
    (site.run / "outbox").unlink()
    refused(g.ask(site, "update", mode="single"), 1022)
    refused(g.ask(site, "update", mode="double"), 1022)
    later = support(g.ask(site, attempt=1))
    part = sparse_update(g.ask(site, "update", attempt=1, mode="single"), later)
    assert (part.mode, part.slot.attempt) == ("single", 1)


@pytest.mark.parametrize("mode", ["double", "single"])
def test_a_mode_where_the_masking_is_fixed(tmp_path: Path, mode: str) -> None:
    for name, terms in {"dense": TERMS, "sparse": replace(SPARSE, masking="double")}.items():
        g = group(tmp_path / name, terms)
        g.ask(g.sites[0])
        refused(g.ask(g.sites[0], "update" if terms.sparse else "round", mode=mode), 1014)


def test_a_dense_round_has_no_stages(tmp_path: Path) -> None:
    g = group(tmp_path, TERMS)
    for stage in ("supports", "update"):
        refused(g.ask(g.sites[0], stage), 1014)
    g = group(tmp_path / "ranged", RANGED)
    fitted = sums(g)
    refused(g.ask(g.sites[0], "supports", **{"fitted-on": fitted}), 1014)


def test_ranges_that_are_not_what_they_should_be(tmp_path: Path) -> None:
    g = group(tmp_path, RANGED, 4)
    parts = [ranges(g.ask(s)) for s in g.sites]
    site = g.sites[0]
    good = added(g, parts)
    two = added(g, parts[:2])
    data = good.data.copy()
    data[3] ^= 1
    alone = parts[1]
    wrong = {
        "too few": (two, 1011),
        "one": (alone, 1011),
        "another round": (replace(good, slot=replace(good.slot, round=2)), 1014),
        "an update's slot": (replace(good, slot=replace(good.slot, layout_hash=bytes(32))), 1014),
        "shorter": (replace(good, length=good.length - 1, data=data[:-3]), 1014),
    }
    for name, (total, code) in wrong.items():
        reply = g.ask(site, "update", **{"fitted-on": to_bytes(total)})
        assert reply.has_error(), name
        assert reply.error.code == code, name
    answer(g.ask(site, "update", **{"fitted-on": to_bytes(good)}))
    other = g.sites[1]
    changed = to_bytes(replace(good, data=data))
    refused(g.ask(other, "update", **{"fitted-on": changed}), 1023)


def test_ranges_where_none_are_due(tmp_path: Path) -> None:
    g = group(tmp_path / "ranged", RANGED)
    fitted = sums(g)
    h = group(tmp_path / "sparse", SPARSE)
    refused(h.ask(h.sites[0], **{"fitted-on": fitted}), 1014)


def test_updates_that_were_clipped_otherwise_are_not_added(tmp_path: Path) -> None:
    """The slot names the ranges, so neither the server nor a mask mixes them."""
    g = group(tmp_path, RANGED, 4)
    parts = [ranges(g.ask(s)) for s in g.sites]
    slots = []
    for site, senders in zip(g.sites[:2], ([0, 1, 2], [0, 1, 3]), strict=True):
        fitted = to_bytes(added(g, [parts[i] for i in senders]))
        reply = g.ask(site, "update", **{"fitted-on": fitted})
        header = answer(reply)["header"]
        slots.append(records.to_sealed(header, reply.content[records.UPDATE]).slot)  # type: ignore[arg-type]
    assert slots[0].layout_hash != slots[1].layout_hash
    assert replace(slots[0], layout_hash=bytes(32)) == replace(slots[1], layout_hash=bytes(32))


def test_a_support_that_would_change_is_not_told(tmp_path: Path) -> None:
    """If the draft is lost in mid-attempt, another training has another support: a new attempt."""
    g = group(tmp_path, SPARSE)
    site = g.sites[0]
    told = support(g.ask(site))
    (site.run / "draft").unlink()
    site.app.step = -0.25
    order = np.random.default_rng(3).permutation(12).reshape(3, 4)
    before = site.app.trained

    def other(record: Any) -> Any:
        after = records.to_numpy(before(record))
        return records.from_numpy({**after, "w": after["w"] + order.astype(np.float32) / 99})

    site.app.trained = other
    refused(g.ask(site), 1022)
    later = support(g.ask(site, attempt=1))
    assert later.count == told.count


def test_an_altered_support_in_the_sum_is_refused(tmp_path: Path) -> None:
    """Each sender's support is bound inside the ciphertext: a relay cannot exchange two of them."""
    g = group(tmp_path, SPARSE)
    for i, site in enumerate(g.sites):  # so that supports differ
        place = np.zeros(12, np.float32)
        place[3 * i : 3 * i + 3] = 0.5
        before = site.app.trained

        def moved(record: Any, before: Any = before, place: Any = place) -> Any:
            after = records.to_numpy(before(record))
            return records.from_numpy({**after, "w": after["w"] + place.reshape(3, 4)})

        site.app.trained = moved
    told = [support(g.ask(s)) for s in g.sites]
    assert len({t.data for t in told}) == 3
    parts = [
        sparse_update(g.ask(s, "update", mode="single"), t)
        for s, t in zip(g.sites, told, strict=True)
    ]
    total = added(g, parts)
    swapped = replace(total, supports=(total.supports[1], total.supports[0], total.supports[2]))
    refused(g.evaluate(g.sites[0], swapped), 1023)
    assert g.sites[0].model.round == 0
    answer(g.evaluate(g.sites[1], total))


def test_an_earlier_round_is_not_trained_again(tmp_path: Path) -> None:
    """It would take the place of the draft that the next sum settles, and that would count twice."""
    g = group(tmp_path, SPARSE)
    told = [support(g.ask(s, round_=2)) for s in g.sites]
    site = g.sites[0]
    refused(g.ask(site, round_=1), 1022)
    assert len(site.app.seen) == 1, "the app was not asked"
    parts = [
        sparse_update(g.ask(s, "update", mode="double", round_=2), t)
        for s, t in zip(g.sites, told, strict=True)
    ]
    kept = Draft.from_bytes(files(site)["draft"]).residual
    answer(g.evaluate(site, added(g, parts), round_=2))
    left = Draft.from_bytes(files(site)["residual"]).residual
    assert kept is not None
    assert left is not None
    assert np.array_equal(left, kept)


def test_a_later_round_closes_the_one_whose_draft_it_replaces(tmp_path: Path) -> None:
    g = group(tmp_path, SPARSE)
    told = [support(g.ask(s, round_=2)) for s in g.sites]
    parts = [
        sparse_update(g.ask(s, "update", mode="double", round_=2), t)
        for s, t in zip(g.sites, told, strict=True)
    ]
    support(g.ask(g.sites[0], round_=3))  # from the same model
    refused(g.evaluate(g.sites[0], added(g, parts), round_=3), 1012)
    assert g.sites[0].model.round == 0
    answer(g.evaluate(g.sites[1], added(g, parts), round_=2))


def test_a_draft_is_of_the_very_model(tmp_path: Path) -> None:
    """The same round and history, and other weights: what it learned is not sent as the others'."""
    g = group(tmp_path, SPARSE)
    site = g.sites[0]
    support(g.ask(site))
    model = site.model
    masters = {**model.masters, "w": model.masters["w"] + 1}
    changed = replace(model, masters=masters)
    (site.run / "model").write_bytes(b"".join(changed.chunks()))
    refused(g.ask(site, "update", mode="single"), 1014)
    support(g.ask(site, attempt=1))
    assert len(site.app.seen) == 2, "trained again"


def test_a_claim_of_a_model_before_stands_for_no_other(tmp_path: Path) -> None:
    """Claimed for round 2 before round 1 was opened: that sum is of the model after it."""
    g = group(tmp_path, TERMS, 4)
    site, others = g.sites[3], g.sites[:3]
    answer(g.ask(site, round_=2))
    first = added(g, [update(g.ask(s)) for s in others])
    second = added(g, [update(g.ask(s, round_=2, sums=[first])) for s in others])
    answer(g.evaluate(site, first, second))
    assert site.model.round == 2


def test_what_a_drifted_model_learned_goes_with_it(tmp_path: Path) -> None:
    """It takes the others' model of the same round; a sum without it then gives nothing back."""
    g = group(tmp_path, SPARSE, 4)
    history = Model.initial(arrays()).history
    for each in g.sites:
        answer(g.ask(each, "sync", history=history))
    site = g.sites[3]
    model = site.model
    masters = {**model.masters, "w": model.masters["w"] + 1}
    (site.run / "model").write_bytes(b"".join(replace(model, masters=masters).chunks()))
    told = [support(g.ask(s)) for s in g.sites]
    assert "draft" in files(site)
    box = g.ask(g.sites[0], "checkpoint").content[records.BOX]
    answer(g.ask(site, "sync", extra={records.BOX: box}))
    parts = [
        sparse_update(g.ask(s, "update", mode="double"), t)
        for s, t in zip(g.sites[:3], told[:3], strict=True)
    ]
    answer(g.evaluate(site, added(g, parts)))
    assert not {"draft", "residual"} & set(files(site))


def test_the_site_decides_whether_its_choice_is_seen(tmp_path: Path) -> None:
    terms = replace(SPARSE, permute=False)
    g = Group(tmp_path, 3, terms)
    refused(g.sites[0].ask("advertise", **g.stage()), 1010)
    assert "flhe-unpermuted" in g.sites[0].log
    h = Group(tmp_path / "allowed", 3, terms, config={"flhe-unpermuted": True}).agree()
    told = support(h.ask(h.sites[0]))
    assert told.coords[-1] == 12, "the scalar, last of the layout, in its own place"
    h.sites[0].allow(flhe_unpermuted=False)
    refused(h.ask(h.sites[0], attempt=1), 1010)


def test_who_leaves_keeps_no_update(tmp_path: Path) -> None:
    g = group(tmp_path, SPARSE)
    site = g.sites[0]
    support(g.ask(site))
    assert "draft" in files(site)
    site.allow(flhe_leave=True)
    refused(g.ask(site), 1021)
    assert not {"draft", "residual", "outbox", "ranges"} & set(files(site))


def test_mean_squares_of_the_first_round_are_told_once(tmp_path: Path) -> None:
    """A dropout between the stages must not leave a difference of two sums that is its own."""
    terms = replace(TERMS, clip="history")
    g = group(tmp_path, terms, 4)
    fitted = sums(g)
    parts = [update(g.ask(s, "update", **{"fitted-on": fitted})) for s in g.sites[:3]]
    total = added(g, parts)
    reply = g.ask(g.sites[0], "evaluate", "evaluate", sums=[total], ranges=[fitted])
    answer(reply)
    before = g.sites[0].model.memory["clip.mean-square"]
    later = [update(g.ask(s, round_=2, sums=[total], ranges=[fitted])) for s in g.sites[:3]]
    answer(
        g.ask(
            g.sites[0], "evaluate", "evaluate", sums=[total, added(g, later)], ranges=[fitted, b""]
        )
    )
    after = g.sites[0].model.memory["clip.mean-square"]
    assert np.all(before > 0)
    assert np.all(after > 0)
    assert g.sites[0].model.round == 2
