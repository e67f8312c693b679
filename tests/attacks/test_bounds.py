"""A server that tries what has no bound: numbers, lengths, texts, files, parameters, few members."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.coding.flatten import Entry, Layout
from flhe.coding.select import Select
from flhe.errors import ConfigError
from flhe.mods import records
from flhe.mods.he_mod import LOCKS
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.registry import SCHEMES
from flhe.schemes.sash.scheme import Sash
from flhe.wire import canonical
from flhe.wire.codes import explain
from tests.mods.harness import TERMS, App, Group, answer, codec, pinned, refused, update
from tests.mods.masked import Masked

LAST = (1 << 32) - 1


@pytest.mark.parametrize("reads", ["server", "clients"])
def test_a_round_far_ahead_ends_nothing(tmp_path: Path, reads: str) -> None:
    """The claim of round 2^32 - 1 was the last that a node made in its federation."""
    group = (Masked if reads == "server" else Group)(tmp_path, rounds=25).agree()
    site = group.sites[0]
    for round_ in (LAST, 26, 1):
        base = {"base": round_ - 1} if reads == "server" else {}
        reply = group.ask(site, round_=round_, **base)
        if round_ == 1:
            update(reply)
        else:
            refused(reply, 1014)
            assert not site.app.seen


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
    group = Group(tmp_path, codec=codec(top_k=share, small=0))
    if share < 0.01:
        group.declined(1010, "flhe-min-top-k")
    else:
        answer(group.agree().ask(group.sites[0]))


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


# --- parameters that the server can break ---


def test_a_node_takes_no_parameters_below_its_bar(tmp_path: Path) -> None:
    group = Group(tmp_path, scheme=BatchCrypt(key_bits=2048))
    group.declined(1010, "112 bits of security, this node takes 128 or more")
    for site in group.sites:
        site.allow(flhe_min_bits=112)
    group.agree()


@pytest.mark.parametrize("own", SCHEMES.own)
def test_every_scheme_of_ours_is_rated_and_reaches_the_bar(own: str) -> None:
    scheme: Scheme = SCHEMES.named(own)()
    assert scheme.security >= 128


@pytest.mark.parametrize("preset", ["lwr-736", "lwr-1024"])
def test_no_server_can_choose_the_papers_matrix(preset: str) -> None:
    """132 bits, it said; by the rounding errors of an opened sum 86 at 10^8 values."""
    with pytest.raises(ConfigError, match="SASH has ring-2048"):
        Sash(preset=preset)


# --- updates weighed by something that the server wants to know: it reads the sum of weights ---

NAME = "deaths-this-week"
WEIGHTS: list[tuple[str, dict[str, Any], str]] = [
    *((NAME, {"flhe-metrics": listed}, "flhe-metrics") for listed in ("", "loss")),
    *((name, {"flhe-metrics": ""}, "") for name in ("num-examples", "num_examples")),
    (NAME, {"flhe-metrics": NAME}, ""),
]


@pytest.mark.parametrize(("name", "config", "says"), WEIGHTS)
def test_the_weight_is_a_count_of_examples_or_what_the_site_names(
    tmp_path: Path, name: str, config: dict[str, Any], says: str
) -> None:
    group = Group(tmp_path, weight_key=name, config=config)
    if says:
        group.declined(1010, says)
    else:
        group.agree().sites[0].app = App(**{name: 3})
        update(group.ask(group.sites[0]))


@pytest.mark.parametrize(
    "named", [{}, {"flhe-metrics": "loss, accuracy"}], ids=["default", "named"]
)
@pytest.mark.parametrize("name", ["accuracy", "train_loss", "eval-acc"])
def test_a_loss_or_an_accuracy_is_no_weight(
    tmp_path: Path, name: str, named: dict[str, str]
) -> None:
    """Whether a site's is 1, 0 or neither was in the code of its refusal: weights are whole."""
    group = Group(tmp_path, weight_key=name, metrics=(), config=named)
    group.declined(1010, "model is no weight")


# --- an epoch of few of a roster's sites, to open sums of fewer than it may ---


def test_six_of_ten_open_no_sum(tmp_path: Path) -> None:
    """Ten sites of whom three collude open sums of seven: five were enough in an epoch of six."""
    group = Masked(tmp_path, 6, "clients")
    group.hellos()
    pinned(tmp_path, group.sites, collusion=3, strangers=4)
    group.agree()
    for rank in range(5):
        refused(group.upload(rank), 1011)
        assert not group.sites[rank].app.seen
        assert "7 must" in group.sites[rank].log


def test_two_halves_open_sums_apart_under_a_shared_key(tmp_path: Path) -> None:
    """It works: docs/limits.md says so. A roster that nobody colludes in has groups of three."""
    halves = [Group(tmp_path / name, 3) for name in ("one", "other")]
    for half in halves:
        half.hellos()
    sites = [site for half in halves for site in half.sites]
    pinned(tmp_path, sites, collusion=0)
    for half in halves:
        half.agree().open(half.total())
