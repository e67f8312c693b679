"""What nodes sign of each result, and what they read in others' receipts."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from flhe.mods import records
from flhe.sums import receipts
from flhe.wire import canonical
from tests.mods.harness import TERMS, Group, answer, initial, refused, update


def receipt(message: Message) -> tuple[bytes, int]:
    """History and missed round in a reply's receipt."""
    data = answer(message)["receipt"]
    assert isinstance(data, bytes)
    history, missed, _ = canonical.loads(data, receipts.MAX_RECEIPT, "receipt")
    return history, missed


def test_a_server_that_tells_two_stories_is_named_one_round_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each node opens one sum of round 1, but not the same one; round 2 brings them together."""
    group = Group(tmp_path, 5).agree()
    parts = group.parts()
    stories = [group.total(parts[:3]), group.total(parts[2:])]
    for rank, site in enumerate(group.sites):
        answer(group.evaluate(site, stories[rank > 1]))
    replies = [group.ask(site, round_=2) for site in group.sites]
    told = [receipt(reply)[0] for reply in replies]
    assert told[0] == told[1] == group.sites[0].model.history
    assert told[2] == told[3] == told[4] == group.sites[4].model.history
    assert told[0] != told[2]
    # Its nodes encrypt for different slots now; a relay writes one of them over all.
    second = [update(reply) for reply in replies]
    mixed = group.total([replace(part, slot=second[0].slot) for part in second])
    signed = receipts.pack([answer(reply)["receipt"] for reply in replies])  # type: ignore[misc]
    before = group.sites[0].model
    reply = group.evaluate(group.sites[0], mixed, round=2, receipts=[signed])
    refused(reply, 1024)
    assert group.sites[0].model.history == before.history
    log = group.sites[0].log
    other = group.publics[2].hex()[:16]
    assert f"{other} has signed that round 2 starts from the result {told[2].hex()[:16]}" in log
    assert f"here it is {told[0].hex()[:16]}: the server told two stories" in log
    # Nothing was decrypted, nor does a lack of receipts help the server.
    refused(group.evaluate(group.sites[0], mixed, round=2, receipts=[]), 1014)


def test_a_sender_without_a_receipt(group: Group) -> None:
    total = group.total()
    some = canonical.loads(group.receipts(total), 1 << 20, "receipts")[0][:2]
    refused(group.evaluate(group.sites[0], total, receipts=[receipts.pack(some)]), 1014)
    assert "came without one receipt by each of its senders" in group.sites[0].log
    answer(group.evaluate(group.sites[0], total))


def test_who_was_left_out_says_so_to_all(four: Group, caplog: pytest.LogCaptureFixture) -> None:
    group, left_out = four, four.sites[3]
    group.open(group.total(group.parts()[:3]))
    replies = [group.ask(site, round_=2) for site in group.sites]
    assert [receipt(reply)[1] for reply in replies] == [0, 0, 0, 1]
    again = group.ask(left_out, round_=2)
    assert receipt(again) == receipt(replies[3])
    second = group.total([update(reply) for reply in replies])
    with caplog.at_level(logging.WARNING, "flhe"):
        answer(group.evaluate(group.sites[0], second, round=2))
    name = group.publics[3].hex()[:16]
    assert f"round 1: {name} has signed that its update was left out of the sum" in caplog.text
    third = group.total(group.parts(3, [second]))
    caplog.clear()
    answer(group.evaluate(group.sites[0], third, round=3))
    assert "left out" not in caplog.text  # it is told once


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
