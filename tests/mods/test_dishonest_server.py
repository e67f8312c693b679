"""A server that forges, replays and holds back, or tells nodes different things; and crashes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from flhe.mods import records
from tests.mods.harness import (
    BEFORE_THE_SESSION,
    TERMS,
    Group,
    answer,
    dying,
    initial,
    refused,
    update,
)


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
    first = group.total(parts)
    first = replace(first, data=first.data ^ np.uint8(1))
    refused(group.evaluate(site, first, round=2), 1023)  # and yet it was decrypted
    group.confirms = confirms
    second = [update(group.ask(s, round_=2)) for s in group.sites if s is not site]
    third = group.ask(site, round_=2)
    if not third.has_error():
        second.append(update(third))
    refused(group.evaluate(site, group.total(second), round=2), 1012)
    assert site.model.round == 1


# --- what nodes are told ---


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
