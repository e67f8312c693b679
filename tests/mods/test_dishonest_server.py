"""A server that forges, replays and holds back, or tells nodes different things; and crashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from flhe.errors import ProtocolError
from flhe.mods import records
from flhe.schemes.sealed import Sealed
from flhe.training.start import hash_app_inputs
from flhe.training.terms import Terms
from tests.mods.harness import (
    APP_INPUTS,
    BEFORE_THE_SESSION,
    CONFIG,
    FLOATS,
    RANGED,
    Group,
    answer,
    drifted,
    dying,
    initial,
    refused,
    update,
)


def shifted(terms: Terms, cohort: int, total: Sealed, lanes: Mapping[int, int]) -> Sealed:
    """A sum with something added to some lanes, which nobody needs a key for."""
    packing = terms.for_cohort(cohort).packing  # type: ignore[attr-defined]
    values = np.zeros(total.length, packing.signed)
    for i, change in lanes.items():
        values[i] = change
    data = total.data.copy()
    packing.add(data, packing.pack(values, np.zeros(total.length, packing.lane)), total.length)
    return replace(total, data=data)


def extra_lanes(terms: Terms, index: int) -> list[int]:
    """Lanes of one of: count, weight, check."""
    limbs = terms.codec.codecs[2].limbs  # type: ignore[attr-defined]
    return [FLOATS + limbs * index + k for k in range(limbs)]


def test_public_digests_do_not_mend_the_check(group: Group) -> None:
    """A relay knows whose models differ, not what to add so that their sum passes."""
    group.play()
    site = group.sites[2]
    site.put(drifted(site.model))
    replies = [group.ask(s, round_=2) for s in group.sites]
    digests = [answer(r)["digest"] for r in replies]
    assert len(set(digests)) == 2
    parts = [update(r) for r in replies]
    with pytest.raises(ProtocolError, match="slot"):
        group.total(parts)
    # A relay may write one slot over the others, and then has masks of two slots to mend besides.
    total = group.total([replace(part, slot=parts[0].slot) for part in parts])
    lanes, bits = extra_lanes(group.terms, 2), group.terms.bits - 1
    checks = [int.from_bytes(d[:4], "big") >> 1 for d in digests]  # type: ignore[index]
    limbs = [[(c >> (bits * k)) & ((1 << bits) - 1) for k in range(len(lanes))] for c in checks]
    change = {
        lane: 3 * limbs[0][k] - sum(each[k] for each in limbs) for k, lane in enumerate(lanes)
    }
    forged = shifted(group.terms, 3, total, change)
    assert forged.data.tobytes() != total.data.tobytes()
    refused(group.evaluate(group.sites[0], forged, round=2), 1023)
    assert group.sites[0].model.round == 1


def test_no_second_sum_comes_as_a_checkpoint(four: Group) -> None:
    """Two sums of one round differ by somebody's update, also when one of them comes as a model."""
    parts = four.parts()
    one, other = four.sites[:2]
    answer(four.evaluate(one, four.total(parts[:3])))
    answer(four.evaluate(other, four.total(parts)))
    before = one.model_file
    refused(four.ask(one, "sync", extra=four.box(other)), 1019)
    assert one.model_file == before


def test_a_resumed_run_never_answers_in_plain(tmp_path: Path) -> None:
    group = Group(tmp_path, config={"flhe-schemes": "flashe,plain"}).agree()
    site = group.sites[0]
    update(group.ask(site))
    plain = lambda: RecordDict({"arrays": initial(), "config": ConfigRecord({})})  # noqa: E731
    refused(site.send(plain()), 1010)
    federation = records.federation_name(site.context.run_id)
    site.context.run_id += 1
    answer(site.ask("status", federation=federation))
    calls = len(site.app.seen)
    refused(site.send(plain()), 1010)
    assert len(site.app.seen) == calls
    assert not site.send(plain(), "evaluate").has_content()
    site.context.run_id += 1  # a run that is no federation's may still be a plain one
    assert site.send(plain()).has_content()


def test_a_round_has_one_sum_across_a_crash(group: Group) -> None:
    """The node stops between the keys of the next epoch and its session file."""
    group.play()
    parts, site = group.parts(2), group.sites[0]
    group.renew()
    confirms = group.confirms
    with dying(*BEFORE_THE_SESSION):
        group.ask(site, "sync")
    group.confirms = []  # the server holds them back: the epoch before goes on
    lane = extra_lanes(group.terms, 0)[0]
    first = shifted(group.terms, 3, group.total(parts), {lane: 1})
    refused(group.evaluate(site, first, round=2), 1023)  # and yet it was decrypted
    group.confirms = confirms
    second = [update(group.ask(s, round_=2)) for s in group.sites if s is not site]
    third = group.ask(site, round_=2)
    if not third.has_error():
        second.append(update(third))
    refused(group.evaluate(site, group.total(second), round=2), 1012)
    assert site.model.round == 1


# --- what nodes are told ---


def app_inputs_hash(**setting: Any) -> dict[str, Any]:
    return {"config": ConfigRecord(setting)}


def test_all_that_an_app_is_shown_counts(four: Group) -> None:
    four.sites[2].context.run_config["epochs"] = 0
    extras = [{"more": ConfigRecord({"x": 1})}, {"more": ConfigRecord({"x": 2})}, {}]
    extras.append({"flhe.more": ConfigRecord({"x": 2})})  # ours, and nothing that the app sees
    replies = [four.ask(s, extra=e) for s, e in zip(four.sites, extras, strict=True)]
    hashes = [answer(reply)["app_inputs_hash"] for reply in replies]
    assert len({*hashes}) == 4
    assert hashes[2] == hash_app_inputs({"config": CONFIG}, {"epochs": 0})
    assert hashes[3] == APP_INPUTS
    with pytest.raises(ProtocolError, match="slot"):
        four.total([update(reply) for reply in replies])


def test_what_was_told_is_asked_for_when_a_sum_is_opened(four: Group) -> None:
    """Who was not among the senders takes it from the message: a wrong one opens nothing."""
    total = four.total([update(four.ask(site)) for site in four.sites[:3]])
    for wrong in ([], [bytes(32)]):
        refused(four.evaluate(four.sites[3], total, **{"app-inputs": wrong}), 1014)
    four.open(total)


def test_an_update_that_was_kept_is_sent_as_it_was_told_only(tmp_path: Path) -> None:
    """Drafts outlive an attempt; trained under other settings they are trained anew."""
    group = Group(tmp_path, 4, RANGED).agree()
    site = group.sites[0]
    for attempt, extra, seen in ((0, {}, 1), (1, {}, 1), (2, app_inputs_hash(lr=0.5), 2)):
        answer(group.ask(site, attempt=attempt, extra=extra))
        assert len(site.app.seen) == seen
