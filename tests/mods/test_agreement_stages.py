"""Key agreement as a node sees it: any message, in any order, gives a reply of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from flhe.mods import he_mod
from flhe.training.contract import Contract
from flhe.training.optimizer import Optimizer
from tests.mods.harness import TERMS, Group, Site, answer, codec, pinned, refused, update

KEYS = ("key-pair", "take-pair", "joint", "joint-sum", "key-commit", "key-reveal", "key-shared")
FIRST = ("share", "confirm", *KEYS)
"""Stages of an agreement that has begun."""


@pytest.fixture
def fresh(tmp_path: Path) -> Group:
    return Group(tmp_path)


# --- order ---


@pytest.mark.parametrize("stage", sorted({name for _, name in he_mod.STAGES} - {"advertise"}))
def test_nothing_comes_before_advertise(tmp_path: Path, stage: str) -> None:
    site = Site(tmp_path / "home")
    fields = {"round": 1, "attempt": 0, "terms": TERMS.to_bytes(), "messages": [b"x"]}
    kind = "evaluate" if stage == "evaluate" else "train"
    reply = site.ask(stage, kind, **fields, confirms=[b"x"], sums=[])
    if stage == "status":
        answer(reply)
    else:
        refused(reply, 1014 if stage in FIRST else 1020)
    assert not site.app.seen


def first(group: Group, stage: str, messages: list[bytes]) -> Message:
    """What the first site answers, once hellos have put the sites in order."""
    return group.sites[0].ask(stage, **group.stage(messages=messages))


def twice(stage: str, group: Group) -> Message:
    messages = group.hellos() if stage == "share" else group.shares(group.hellos())
    answer(first(group, stage, messages))
    return first(group, stage, messages)


def before_confirms(group: Group) -> Message:
    group.shares(group.hellos())
    return group.ask(group.sites[0])


def by_another(group: Group) -> Message:
    hellos = group.hellos()
    (group.sites[0].home / "identity.key").write_bytes(bytes([99]) * 32)
    return first(group, "share", hellos)


OUT_OF_ORDER: dict[str, tuple[Callable[[Group], Message], int]] = {
    "confirm without share": (lambda g: first(g, "confirm", g.hellos()), 1014),
    "share twice": (lambda g: twice("share", g), 1014),
    "confirm twice": (lambda g: twice("confirm", g), 1014),
    "a round before everybody confirmed": (before_confirms, 1020),
    "of another epoch": (lambda g: g.agree().ask(g.sites[0], epoch=bytes(16)), 1020),
    "no checkpoint to verify": (lambda g: g.agree().ask(g.sites[0], "verify"), 1014),
    "too few members": (lambda g: first(g, "share", g.hellos()[:2]), 1011),
    "share under another identity": (by_another, 1014),
}


@pytest.mark.parametrize("name", OUT_OF_ORDER)
def test_out_of_order(fresh: Group, name: str) -> None:
    ask, code = OUT_OF_ORDER[name]
    refused(ask(fresh), code)
    assert not any(site.app.seen for site in fresh.sites)


@pytest.mark.parametrize("stage", KEYS)
def test_stages_that_the_scheme_has_not(group: Group, site: Site, stage: str) -> None:
    update(group.ask(site))
    group.agree()
    fields = {"confirms": group.confirms, "messages": [b"x"], "key-pair": b"x"}
    refused(site.ask(stage, **group.stage(**fields)), 1014)
    assert "the scheme has no keys of the kind" in site.log


def test_a_second_advertise_starts_over(fresh: Group) -> None:
    first, second = fresh.hellos(), fresh.hellos()
    assert first[0] != second[0]
    site = fresh.sites[0]
    refused(site.ask("share", **fresh.stage(messages=first)), 1013)  # not its own any more
    answer(site.ask("share", **fresh.stage(messages=second)))


def test_a_message_of_another_type_is_no_stage(tmp_path: Path) -> None:
    site = Site(tmp_path / "home")
    fields = {"number": 0, "contract": Contract(TERMS).to_bytes()}
    for kind in ("evaluate", "query", "train.advertise", "train.round"):
        refused(site.ask("advertise", kind, **fields), 1014)
    refused(site.ask("evaluate", "train", **fields), 1014)
    assert not site.app.seen


# --- rosters ---


@pytest.mark.parametrize("rounds", [1, 0])
def test_a_roster_pinned_anew_in_the_middle_of_a_run(
    group: Group, site: Site, tmp_path: Path, rounds: int
) -> None:
    """Or once its agreement is over: that carries the roster that it began under."""
    for attempt in range(rounds):
        update(group.ask(site, attempt=attempt))
    pinned(tmp_path, group.sites, collusion=0, min_survivors=3)
    refused(group.ask(site), 1020)
    refused(group.evaluate(site), 1020)
    assert len(site.app.seen) == rounds


# --- terms ---


OTHER: dict[str, Any] = {"codec": codec(clip=2.0), "optimizer": Optimizer("fedadam")}
"""One that is in the layout, and one that is not; that every term is in the hash is tested there."""


@pytest.mark.parametrize("name", OTHER)
def test_terms_are_a_federations_for_good(group: Group, name: str) -> None:
    """Whatever a message says; a contract with other ones is refused."""
    site, terms = group.sites[0], dataclasses.replace(TERMS, **{name: OTHER[name]})
    contract = Contract(terms).to_bytes()
    update(group.ask(site, contract=contract, terms=terms.to_bytes()))
    refused(site.ask("advertise", number=1, contract=contract), 1010)
    assert not (site.run / "agreement").exists()
    group.renew(lr=0.5)  # all else may change, with an epoch that all sign
    update(group.ask(site, attempt=1))
    assert [dict(seen["config"])["lr"] for seen in site.app.seen] == [0.1, 0.5]


def test_members_who_were_told_different_runs_share_no_key(fresh: Group) -> None:
    """Another contract, or another config of the run: every message of theirs is signed for it."""
    for change in ("contract", "config"):
        hellos, site = fresh.hellos(), fresh.sites[0]
        if change == "contract":
            other = dataclasses.replace(fresh.contract, rounds=7).to_bytes()
            hellos[0] = answer(site.ask("advertise", **fresh.stage(contract=other)))["envelope"]
        else:
            site.context.run_config["epochs"] = 0
            hellos[0] = answer(site.ask("advertise", **fresh.begin()))["envelope"]
        for each in fresh.sites:
            refused(each.ask("share", **fresh.stage(messages=hellos)), 1014)


def test_a_config_of_the_run_that_nobody_signed(group: Group) -> None:
    update(group.ask(group.sites[0]))
    group.sites[0].context.run_config["epochs"] = 0
    refused(group.ask(group.sites[0], attempt=1), 1020)
    assert len(group.sites[0].app.seen) == 1


def test_a_site_may_wait_for_its_administrator(tmp_path: Path) -> None:
    group = Group(tmp_path)
    accepted, site = group.contract.hash().hex(), group.sites[0]
    site.allow(flhe_accept_contract=f"{bytes(32).hex()}")
    refused(site.ask("advertise", **group.begin()), 1010)
    assert accepted in site.log
    site.allow(flhe_accept_contract=f"{bytes(32).hex()}, {accepted}")
    group.agree()
    update(group.ask(group.sites[0]))
    site.allow(flhe_accept_contract=bytes(32).hex())  # taken back
    refused(group.ask(site, attempt=1), 1010)
