"""A server that forges, replays and holds back, or tells nodes different things; and crashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from flhe.errors import ProtocolError
from flhe.mods import records
from flhe.schemes.sealed import Sealed
from flhe.training.terms import Terms
from tests.mods.harness import (
    BEFORE_THE_SESSION,
    FLOATS,
    RANGED,
    TERMS,
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
    answer(four.evaluate(four.sites[2], four.total(parts)))
    refused(four.ask(one, "sync", extra=four.box(other)), 1024)
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


def test_an_update_that_was_kept_is_sent_as_it_was_told_only(tmp_path: Path) -> None:
    """Drafts outlive an attempt; trained under another contract they are trained anew."""
    group = Group(tmp_path, 4, RANGED).agree()
    site = group.sites[0]
    for attempt, told, seen in ((0, {}, 1), (1, {}, 1), (2, {"lr": 0.5}, 2)):
        if told:
            group.renew(**told)
        answer(group.ask(site, attempt=attempt))
        assert len(site.app.seen) == seen


@pytest.mark.parametrize(
    ("spoken", "named", "text"),
    [
        (1, None, "speaks version 1 of flhe's protocol (this node runs flhe"),
        (1, "0.0.9", "version 1 of flhe's protocol (flhe 0.0.9, this node runs flhe"),
        (9, "0.3.0", "version 9 of flhe's protocol (flhe 0.3.0, this node runs flhe"),
        (1, "<script>", "version 1 of flhe's protocol (this node runs flhe"),
    ],
)
def test_a_server_of_another_version_is_refused_by_name(
    tmp_path: Path, spoken: int, named: str | None, text: str
) -> None:
    site = Group(tmp_path, 3).sites[0]
    answer(site.ask("status"))
    fields = {"v": spoken, "stage": "advertise", "number": 0, "terms": TERMS.to_bytes()}
    record = ConfigRecord({**fields, **({} if named is None else {"flhe": named})})  # type: ignore[dict-item]
    refused(site.send(RecordDict({records.STAGE: record})), 1025)
    assert text in site.log
    assert "upgrade the older side" in site.log


def test_asking_for_plaintext_is_in_the_nodes_own_log(tmp_path: Path) -> None:
    site = Group(tmp_path, 3).sites[0]
    answer(site.ask("status"))
    plain = RecordDict({"arrays": initial(), "config": ConfigRecord({})})
    refused(site.send(plain), 1010)
    assert "the server asked for an unencrypted run, which this node refuses" in site.log
    assert '"stage":"plain"' in (site.home / "audit.log").read_text()
    assert not site.app.seen
