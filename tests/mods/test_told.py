"""A relay that tells one node's app something else, or hands it another model: nothing adds up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ProtocolError
from flhe.training.start import UNTOLD, Start, start_layout, told_hash
from tests.mods.harness import CONFIG, TOLD, Group, answer, refused, update
from tests.mods.masked import Masked

VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.booleans(),
    st.lists(st.integers(0, 9), max_size=3),
)
RECORDS = st.dictionaries(
    st.text(max_size=5), st.dictionaries(st.text(max_size=5), VALUES, max_size=4), max_size=3
)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path, 4).agree()


def as_told(records: Any) -> Any:
    """What is told, with the type of every value: 1, 1.0 and True are equal to Python."""
    return [
        [name, [[key, type(value), repr(value)] for key, value in sorted(record.items())]]
        for name, record in sorted(records.items())
    ]


@given(RECORDS, RECORDS)
def test_what_is_told_has_one_hash_and_what_differs_another(one: Any, other: Any) -> None:
    same = as_told(one) == as_told(other)
    assert (told_hash(one, {}) == told_hash(other, {})) == same
    assert told_hash(one, {}) == told_hash(dict(reversed(one.items())), {})
    assert told_hash(one, {}) != told_hash(one, {"x": 1})
    assert told_hash(one, {}) != UNTOLD


@pytest.mark.parametrize("value", [1, 1.0, True, "1", b"1", [1], [1.0], 0, False, "", b"", []])
def test_types_are_told_apart(value: object) -> None:
    others = [1, 1.0, True, "1", b"1", [1], [1.0], 0, False, "", b"", []]
    hashes = {told_hash({"config": {"lr": other}}, {}) for other in others}
    assert len(hashes) == len(others)
    assert told_hash({"config": {"lr": value}}, {}) in hashes


def test_what_cannot_be_told() -> None:
    with pytest.raises(ProtocolError, match="no number, text or bytes"):
        told_hash({"config": {"lr": None}}, {})


def test_start_names_all_of_it() -> None:
    layouts = {
        start_layout(bytes(32), bytes(32), bytes(32)),
        start_layout(bytes([1]) * 32, bytes(32), bytes(32)),
        start_layout(bytes(32), bytes([1]) * 32, bytes(32)),
        Start(bytes(32), bytes([1]) * 32).layout(bytes(32)),
    }
    assert len(layouts) == 4


def test_nodes_tell_what_they_were_told(group: Group) -> None:
    assert {answer(group.ask(site))["told"] for site in group.sites} == {TOLD}


def test_another_setting_for_one_node_adds_up_with_nobodys(group: Group) -> None:
    """Everybody but one is told to stand still: the sum would be that one's update."""
    replies = [
        group.ask(site, extra={"config": ConfigRecord({"lr": 0.0})} if i else {})
        for i, site in enumerate(group.sites)
    ]
    assert len({answer(reply)["told"] for reply in replies}) == 2
    parts = [update(reply) for reply in replies]
    with pytest.raises(ProtocolError, match="slot"):
        group.total(parts)
    # Whatever the relay writes over them, and says that they were told.
    for slot in (parts[0].slot, parts[1].slot):
        lied = group.total([dataclasses.replace(part, slot=slot) for part in parts])
        for site in group.sites:
            for told in (TOLD, told_hash({"config": {"lr": 0.0}}, {})):
                assert group.evaluate(site, lied, told=[told]).has_error()
    assert all(site.model.round == 0 for site in group.sites)


def test_another_run_config_for_one_node_adds_up_with_nobodys(group: Group) -> None:
    group.sites[2].context.run_config["epochs"] = 0
    replies = [group.ask(site) for site in group.sites]
    told = [answer(reply)["told"] for reply in replies]
    assert [one == TOLD for one in told] == [True, True, False, True]
    assert told[2] == told_hash({"config": CONFIG}, {"epochs": 0})
    with pytest.raises(ProtocolError, match="slot"):
        group.total([update(reply) for reply in replies])


def test_any_record_that_the_app_is_shown_counts(group: Group) -> None:
    first = answer(group.ask(group.sites[0], extra={"more": ConfigRecord({"x": 1})}))
    second = answer(group.ask(group.sites[1], extra={"more": ConfigRecord({"x": 2})}))
    third = answer(group.ask(group.sites[2], extra={"flhe.more": ConfigRecord({"x": 2})}))
    assert len({first["told"], second["told"], TOLD}) == 3
    assert third["told"] == TOLD  # ours, and nothing that the app sees
    seen = [site.app.seen[-1] for site in group.sites[:3]]
    assert len(seen) == 3


def test_what_was_told_is_asked_for_when_a_sum_is_opened(group: Group) -> None:
    """Who was not among the senders takes it from the message: a wrong one opens nothing."""
    parts = [update(group.ask(site)) for site in group.sites[:3]]
    total = group.total(parts)
    late = group.sites[3]
    refused(group.evaluate(late, total, told=[]), 1014)
    refused(group.evaluate(late, total, told=[bytes(32)]), 1014)
    answer(group.evaluate(late, total))
    for site in group.sites[:3]:
        answer(group.evaluate(site, total))
    models = [b"".join(site.model.chunks()) for site in group.sites]
    assert len(set(models)) == 1


def test_an_update_that_was_kept_is_sent_as_it_was_told_only(tmp_path: Path) -> None:
    """Drafts outlive an attempt; trained under other settings they are trained anew."""
    terms = Group(tmp_path / "x").terms
    group = Group(tmp_path / "y", 4, dataclasses.replace(terms, clip="exchange")).agree()
    site = group.sites[0]
    answer(group.ask(site))
    assert len(site.app.seen) == 1
    answer(group.ask(site, attempt=1))
    assert len(site.app.seen) == 1  # the same draft
    answer(group.ask(site, attempt=2, extra={"config": ConfigRecord({"lr": 0.5})}))
    assert len(site.app.seen) == 2
    assert np.isfinite(site.model.masters["w"]).all()


@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_nobody_signs_a_set_with_one_that_was_told_otherwise(tmp_path: Path, unmask: Any) -> None:
    """SASH: shares are sealed for a slot, so those of another do not open, and no seed is released."""
    group = Masked(tmp_path, 4, unmask)
    group.agree()
    for rank in range(4):
        extra = {"config": ConfigRecord({"lr": 0.0})} if rank != 2 else {}
        assert not group.upload(rank, extra=extra).has_error()
    for rank in range(4):
        said = answer(group.consist(rank, range(4)))
        assert "signature" not in said
        assert said["bad"] == ([2] if rank != 2 else [0, 1, 3])
    signatures = group.signatures((0, 1, 3), (0, 1, 3))
    assert len(group.answers((0, 1, 3), signatures)) == 3
