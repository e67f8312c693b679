"""`flhe advise`: everything is ranked or excluded with a reason, and more is never faster."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe import packages
from flhe.coding.select import Select
from flhe.errors import ConfigError
from flhe.strategies import aliases
from flhe_lab.advise import calibration, command, wan
from flhe_lab.advise.calibration import POINTS
from flhe_lab.advise.cost_model import Point, extra, units
from flhe_lab.advise.demand import Demand
from flhe_lab.advise.offers import OFFERS, work
from flhe_lab.advise.prices import FLASHE
from flhe_lab.advise.ranking import Advice, advise
from flhe_lab.tables import phase_costs as who
from flhe_lab.tables.store import Store
from tests.provision.site import bad, good, run
from tests.sim.advise.test_calibration import machine

UNIT_S = {who.FEDML: 3e-7, who.FEDML_TENTH: 4e-8, who.BATCHCRYPT: 5e-4, who.SASH: 7e-9}


def seconds(point: Point, phase: str) -> float:
    """Of a made-up machine."""
    fixed = 1e-4 if phase == "encrypt" else 1e-5
    more = 4e-10 * extra(point, phase)
    count = units(point)
    return fixed + UNIT_S.get(point.name, 3e-9) * count * (0.1 if phase == "add" else 1) + more


SPEED = machine(seconds)
EVERYTHING = {"server_may_see_model": True, "clear_part": True, "sparse": True}


def demand(values: int = 1_000_000, clients: int = 12, mbps: float = 40, **more: object) -> Demand:
    return Demand(values, clients, wan.uniform(mbps, cohort=clients), FLASHE, **more)  # type: ignore[arg-type]


def reasons(answer: Advice) -> dict[str, str]:
    return {each.name: "; ".join(each.reasons) for each in answer.excluded}


def ranked(answer: Advice) -> dict[str, float]:
    return {each.name: each.round_s for each in answer.ranked}


def stood(clients: int, some: bool, **more: object) -> Demand:
    return demand(clients=clients, members_may_collude=some and clients > 3, **more)  # type: ignore[arg-type]


demands = st.builds(
    stood,
    values=st.integers(1, 3_000_000_000 // 2),
    clients=st.integers(3, 60) | st.sampled_from([101, 120, 256, 1030]),
    mbps=st.floats(0.1, 1e5),
    dropout=st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.2]),
    server_may_see_model=st.booleans(),
    clear_part=st.booleans(),
    sparse=st.booleans(),
    some=st.booleans(),
)


@settings(max_examples=40)
@given(demands)
def test_each_offer_is_ranked_or_excluded_with_a_reason(asked) -> None:
    answer = advise(asked, SPEED)
    names = [*ranked(answer), *reasons(answer)]
    assert sorted(names) == sorted(offer.name for offer in OFFERS)
    assert all(each.reasons and all(each.reasons) for each in answer.excluded)
    times = list(ranked(answer).values())
    assert times == sorted(times)
    assert answer.sentence().startswith("Take " if times else "No scheme")
    for row in (*answer.ranked, answer.plain):
        assert row.round_s >= row.encrypt_s
        assert row.usd > 0
        assert row.round_gb > 0


def test_without_dropouts_or_colluders_only_what_must_be_asked_for_is_left_out() -> None:
    assert set(reasons(advise(demand(), SPEED))) == {
        "SASH",
        "FLASHE, top 10%",
        "FedML-HE, 10% encrypted",
    }
    assert reasons(advise(demand(**EVERYTHING), SPEED)) == {}


SHARED = ["FLASHE", "FLASHE, top 10%", "BatchCrypt", "FedML-HE", "FedML-HE, 10% encrypted"]
SOME = {"members_may_collude": True}
LASTING = ["ESAFL, lasting keys", "ESAFL, rns-8192, lasting keys"]


def test_a_scheme_whose_library_is_missing_is_excluded_with_what_to_install(monkeypatch) -> None:
    found = packages.find_spec
    monkeypatch.setattr(
        packages, "find_spec", lambda name: (name != "gmpy2" and found(name)) or None
    )
    said = reasons(advise(demand(), SPEED))
    assert "it needs gmpy2, not installed here" in said["BatchCrypt"]
    assert "pip install 'gmpy2>=" in said["BatchCrypt"]
    assert "FedML-HE" not in said
    points = tuple(point for point in POINTS if point.name != who.FEDML)
    part = dataclasses.replace(SPEED, points=points)
    assert "--calibrate" in reasons(advise(demand(), part))["FedML-HE"]


NAMES = {**vars(aliases), "Select": Select}


@pytest.mark.parametrize("offer", OFFERS, ids=lambda offer: offer.name)
def test_what_is_printed_is_what_was_costed(offer) -> None:
    assert eval(offer.strategy, NAMES).terms == offer.terms


def test_who_reads_decides_who_opens_and_what_comes_back() -> None:
    by_name = {offer.name: work(offer, demand(), SPEED)[0] for offer in OFFERS[2:4]}
    server, members = by_name["SASH"], by_name["SASH, members read"]
    assert server.decrypt_s == 0
    assert server.exchanges[1].server_s > members.decrypt_s * 0.9
    assert server.download_bytes == 4_000_000
    assert members.download_bytes > members.exchanges[1].up_bytes * 12 + 4_000_000


def test_who_is_missing_is_counted_by_its_chance() -> None:
    """Keys of all members: encrypted again. Too few for a sum: the round is lost."""
    calm, rough, worse = (
        {row.name: row for row in advise(demand(dropout=d, train_s=5.0), SPEED).ranked}
        for d in (0.0, 0.005, 0.4)
    )
    complete = 0.995**12
    one, many = calm[LASTING[0]], rough[LASTING[0]]
    upload = 8 * one.upload_bytes / 40e6
    again = (1 - complete) * (upload + one.encrypt_s)
    assert many.round_s - one.round_s == pytest.approx(again, rel=0.05)
    assert many.upload_bytes == pytest.approx((2 - complete) * one.upload_bytes, rel=1e-6)
    asked = demand(dropout=0.4)
    offer = next(offer for offer in OFFERS if offer.name == "FLASHE")
    lost = asked.lost(offer.min_senders(asked))
    one, many = calm[offer.name], worse[offer.name]
    assert 0 < lost < 0.1
    assert many.upload_bytes == pytest.approx(one.upload_bytes / (1 - lost), rel=1e-6)
    assert many.hours == pytest.approx(many.round_s * asked.rounds / 3600)


@pytest.mark.parametrize(
    ("more", "names", "says"),
    [
        ({}, ["SASH"], "--server-may-see-model"),
        ({}, ["FedML-HE, 10% encrypted"], "--clear-part"),
        ({}, ["FLASHE, top 10%"], "--sparse"),
        ({**SOME, "clear_part": True}, SHARED, "members share a key"),
        (SOME, LASTING, "its keys last"),
        ({**SOME, "dropout": 0.05}, ["ESAFL", "SASH, members read"], ""),
        ({"dropout": 0.05}, LASTING, "0.05 with 12 clients means a whole re-encryption in 46%"),
        ({"clients": 4, "dropout": 0.01}, LASTING, "fewer than c + 3 are left, here 4"),
        ({"clients": 5, "dropout": 0.01}, LASTING, ""),
        ({"dropout": 0.4}, ["SASH, members read"], "updates or more"),
        ({"clients": 1030}, ["FLASHE", "FedML-HE"], "1024"),
    ],
)
def test_an_exclusion_says_why_and_what_mends_it_does(more, names, says) -> None:
    answer = advise(demand(**more), SPEED)
    for name in names:
        assert says in reasons(answer)[name] if says else name in ranked(answer)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"values": 0}, "--params"),
        ({"clients": 2}, "--clients 2"),
        ({"dropout": 1.0}, "--dropout"),
        ({"clients": 3, "dropout": 0.6}, "two of 3"),
        ({"rounds": 0}, "--rounds"),
        ({"train_s": float("nan")}, "--train"),
        ({"clients": 3, **SOME}, "three members cannot withstand one; four can"),
    ],
)
def test_a_demand_that_is_none_is_refused(wrong, says) -> None:
    with pytest.raises(ConfigError, match=says):
        demand(**wrong)


def test_what_to_know_of_the_advice_is_said() -> None:
    said = advise(demand(mbps=1, sparse=True), SPEED).sentence()
    assert said.startswith("Take FLASHE, top 10%, FlasheFedAvg(top_k=0.1, warmup=0")
    assert "members see which values" in said
    assert " Else FLASHE: " in said


@pytest.mark.parametrize(
    ("text", "units", "value"),
    [
        ("25M", command.COUNTS, 25_000_000),
        ("1_200_000", command.COUNTS, 1_200_000),
        ("7 B", command.COUNTS, 7 * 10**9),
        ("1 Gbps", command.SPEEDS, 1000),
        ("5MB/s", command.SPEEDS, 40),
        ("800kbit/s", command.SPEEDS, 0.8),
        ("many", command.COUNTS, None),
        ("5X", command.COUNTS, None),
        ("40", command.SPEEDS, None),
        ("5Mb/s", command.SPEEDS, None),
        ("0Mbps", command.SPEEDS, None),
    ],
)
def test_quantities_are_read(text, units, value) -> None:
    if value is not None:
        assert command.quantity("--what", text, units, "") == pytest.approx(value)
        return
    with pytest.raises(ConfigError, match=r"--what '.*(write LIKE|as in LIKE|more than 0)"):
        command.quantity("--what", text, units, "LIKE")


def test_a_network_is_links_or_a_name() -> None:
    assert command.network("40Mbps", "100Mbps", "", 5).links(5)[0] == wan.Link(40, 100)
    assert command.network("", "", "batchcrypt", 9) == wan.named("batchcrypt")
    for uplink, downlink, name in (("", "", ""), ("1Mbps", "", "40mbps"), ("", "1Mbps", "40mbps")):
        with pytest.raises(ConfigError, match="link"):
            command.network(uplink, downlink, name, 5)


def test_on_the_command_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Store(calibration.cache_folder()).put("calibration", SPEED.to_json())
    said = ["advise", "--params", "25M", "--clients", "12", "--uplink", "40Mbps"]

    def advice(*more: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(run(*said, *more, "--json").stdout)
        assert document["advice"].splitlines()[0] in " ".join(good(*said, *more).split())
        return document

    lossy = advice("--dropout", "0.05")
    names = {row["name"] for row in (*lossy["ranked"], *lossy["excluded"])}
    assert names == {offer.name for offer in OFFERS}
    assert advice("--members-may-collude")["asked"]["members_may_collude"]
    assert "FLASHE, top 10%" in [row["name"] for row in advice("--sparse")["ranked"]]
    assert advice("--server-usd", "2.5")["asked"]["prices"]["server_usd_per_hour"] == 2.5
    assert "say the unit" in bad(*said[:-1], "40")


def test_a_noise_multiplier_for_a_privacy_budget() -> None:
    """That of the accountant, for as many rounds as were said."""
    from flhe.coding.base import Mechanism
    from flhe.training.accountant import epsilon
    from flhe_lab.advise.report import noise

    # With the nearest three digits the second one is 0.626, which costs 5.02.
    for budget, delta, sampling, rounds in ((3.0, 1e-5, 0.1, 50), (5.0, 1e-6, 0.01, 60)):
        said = noise(budget, delta, sampling, rounds)
        found = float(said.split("multiplier ")[1].split(";")[0])
        assert 0.98 * budget < epsilon({Mechanism(found, sampling): rounds}, delta) <= budget
