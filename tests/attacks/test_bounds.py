"""A server that tries what has no bound: numbers, lengths, texts, files, shares of an update."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from flhe.coding.flatten import Entry, Layout
from flhe.coding.select import Select
from flhe.mods import records
from flhe.mods.he_mod import LOCKS
from flhe.wire import canonical
from flhe.wire.codes import explain
from tests.mods.harness import TERMS, Group, answer, codec, refused, update
from tests.mods.masked import Masked

LAST = (1 << 32) - 1


@pytest.mark.parametrize("reads", ["server", "clients"])
def test_a_round_far_ahead_ends_nothing(tmp_path: Path, reads: str) -> None:
    """The claim of round 2^32 - 1 was the last that a node made in its federation."""
    kind = Masked if reads == "server" else Group
    group = kind(tmp_path, rounds=25).agree()
    site = group.sites[0]
    base = {"base": LAST - 1} if reads == "server" else {}
    refused(group.ask(site, round_=LAST, **base), 1014)
    refused(group.ask(site, round_=26, **({"base": 25} if base else {})), 1014)
    assert not site.app.seen
    update(group.ask(site, **({"base": 0} if base else {})))


def test_a_contract_of_a_megabyte_is_not_read(tmp_path: Path) -> None:
    group = Group(tmp_path)
    clips = {f"layer{i:06d}": 1.0 for i in range(30_000)}
    terms = dataclasses.replace(TERMS, codec=codec(clip=clips)).to_bytes()
    body = canonical.loads(group.contract.to_bytes(), 1 << 20, "contract")
    contract = canonical.dumps({**body, "terms": terms})
    refused(group.sites[0].ask("advertise", **group.stage(contract=contract)), 1014)


@pytest.mark.parametrize("share", [1e-6, 0.005, 0.01])
def test_the_server_alone_does_not_choose_how_few_values_are_sent(
    tmp_path: Path, share: float
) -> None:
    """Of very few values hardly any two sites send the same: their sum is one site's."""
    terms = dataclasses.replace(TERMS, codec=codec(top_k=share, small=0))
    group = Group(tmp_path, terms=terms)
    if share < 0.01:
        refused(group.sites[0].ask("advertise", **group.begin()), 1010)
        assert "flhe-min-top-k" in group.sites[0].log
        return
    group.agree()
    answer(group.ask(group.sites[0]))


def test_a_nodes_reason_writes_nothing_else_into_the_servers_log() -> None:
    said = explain(0, "gone\nWARNING all is well\x1b[2J" + "x" * 10_000)
    assert said.isprintable()
    assert len(said) < 300


def test_federations_that_never_begin_leave_no_files(tmp_path: Path) -> None:
    group = Group(tmp_path)
    site = group.sites[0]
    for number in range(100):
        name = records.federation_name(1000 + number)
        answer(site.ask("advertise", **group.begin(federation=name)))
    left = [path for path in site.home.rglob("*") if not path.name.startswith("lock-")]
    assert len(left) < 60
    assert len(list(site.home.glob("lock-*"))) <= LOCKS + 2  # empty files


def test_a_first_model_does_not_take_a_layer_out_of_the_selection() -> None:
    """A server that scales the first layer's gradients down had next to nothing of it encrypted."""
    layout = Layout(tuple(Entry(name, (1000,), "float32") for name in ("first", "second", "third")))
    sums = np.arange(3000, dtype=np.int32)
    sums[:1000] = 0
    found = Select(0.1).of_map(sums, layout)
    assert found.count == 300
    assert np.count_nonzero(found.coords < 1000) == 50
