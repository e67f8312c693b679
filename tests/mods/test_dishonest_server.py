"""A server that forges, replays and holds back; and crashes in between."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from flhe.errors import ProtocolError, StoreError
from flhe.mods import records
from flhe.node.store import Store
from flhe.schemes.sealed import Sealed
from flhe.training.terms import Terms
from tests.mods.harness import Group, Site, answer, initial, refused, update

FLOATS = 13


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path).agree()


def shifted(terms: Terms, cohort: int, total: Sealed, lanes: Mapping[int, int]) -> Sealed:
    """A sum with something added to some lanes, which nobody needs a key for."""
    packing = terms.for_cohort(cohort).packing
    values = np.zeros(total.length, np.int32 if packing.word_bits == 32 else np.int64)
    for i, change in lanes.items():
        values[i] = change
    data = total.data.copy()
    packing.add(data, packing.pack(values, np.zeros(total.length, packing.lane)), total.length)
    return Sealed(total.scheme, total.slot, total.senders, total.length, data)


def extra_lanes(terms: Terms, index: int) -> list[int]:
    """Lanes of one of: count, weight, check."""
    limbs = terms.codec().codecs[2].limbs  # type: ignore[attr-defined]
    return [FLOATS + limbs * index + k for k in range(limbs)]


def open_round(group: Group, round_: int = 1) -> None:
    total = group.total(group.parts(round_))
    for site in group.sites:
        answer(group.evaluate(site, total, round=round_))


def copies(parts: list[Sealed]) -> list[Sealed]:
    return [Sealed(p.scheme, p.slot, p.senders, p.length, p.data.copy()) for p in parts]


def stored(site: Site) -> bytes:
    return (site.run / "model").read_bytes()


def test_public_digests_do_not_mend_the_check(group: Group) -> None:
    """A relay knows whose models differ, not what to add so that their sum passes."""
    open_round(group)
    site = group.sites[2]
    raw = bytearray(stored(site))
    raw[-20] ^= 1
    (site.run / "model").write_bytes(raw)
    replies = [group.ask(s, round_=2) for s in group.sites]
    digests = [answer(r)["digest"] for r in replies]
    assert len(set(digests)) == 2
    parts = [update(r) for r in replies]
    with pytest.raises(ProtocolError, match="slot"):
        group.total(parts)
    # A relay may write one slot over the others, and then has masks of two slots to mend besides.
    total = group.total([replace(part, slot=parts[0].slot) for part in parts])
    lanes = extra_lanes(group.terms, 2)
    bits = group.terms.bits - 1
    checks = [int.from_bytes(d[:4], "big") >> 1 for d in digests]  # type: ignore[index]
    limbs = [[(c >> (bits * k)) & ((1 << bits) - 1) for k in range(len(lanes))] for c in checks]
    change = {
        lane: 3 * limbs[0][k] - sum(each[k] for each in limbs) for k, lane in enumerate(lanes)
    }
    forged = shifted(group.terms, 3, total, change)
    assert any(change.values())
    assert forged.data.tobytes() != total.data.tobytes()
    refused(group.evaluate(group.sites[0], forged, round=2), 1023)
    assert group.sites[0].model.round == 1


def test_no_second_sum_comes_as_a_checkpoint(tmp_path: Path) -> None:
    """Two sums of one round differ by somebody's update, also when one of them comes as a model."""
    group = Group(tmp_path, 4).agree()
    parts = group.parts()
    fewer, all_ = group.total(copies(parts)[:3]), group.total(copies(parts))
    one, other = group.sites[:2]
    answer(group.evaluate(one, fewer))
    answer(group.evaluate(other, all_))
    before = stored(one)
    box = group.ask(other, "checkpoint").content[records.BOX]
    refused(group.ask(one, "sync", extra={records.BOX: box}), 1019)
    assert stored(one) == before


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


def test_a_round_has_one_sum_across_a_crash(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node stops between the keys of the next epoch and its session file."""
    open_round(group)
    parts, site = group.parts(2), group.sites[0]
    group.number += 1
    group.agree()
    confirms, write = group.confirms, Store.write

    def fail(self: Store, name: str, data: bytes) -> None:
        if name.endswith("/session"):
            raise StoreError("no power")
        write(self, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "write", fail)
        assert group.ask(site, "sync").has_error()
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


def test_a_checkpoint_heals_a_damaged_model(group: Group) -> None:
    open_round(group)
    box = group.ask(group.sites[0], "checkpoint").content[records.BOX]
    site = group.sites[2]
    (site.run / "model").write_bytes(stored(site)[:-8])
    assert answer(site.ask("status"))["round"] == -1
    assert answer(group.ask(site, "sync", extra={records.BOX: box}))["round"] == 1
    assert stored(site) == stored(group.sites[0])
    open_round(group, 2)
    assert len({stored(s) for s in group.sites}) == 1
