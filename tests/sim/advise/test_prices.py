"""Prices: what the papers tell, what FLASHE's table implies, and a user's own file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe_lab.advise import prices
from flhe_lab.advise.prices import FLASHE, Cost, Prices, cost, named, read
from flhe_lab.advise.wan import SERVER, Link, Site, Wan, uniform
from flhe_lab.advise.wan import named as network
from flhe_lab.papers.convergence import REPORTED, Reported

OWN = """
name = "ours"
source = "contract"
client_usd_per_hour = 0.5
server_usd_per_hour = 1

[egress_usd_per_gb]
north = 0.02
server = 0.09
"""
SITES = Wan("two", "drawn", (Site("north", Link(1, 1), 1, 0.5), Site("south", Link(1, 1), 1, 0.25)))


def hourly(found: Prices, clients: int) -> float:
    return cost(found, 1.0, {}, clients).total


@pytest.mark.parametrize("line", [line for line in REPORTED if line.paper == "FLASHE"], ids=str)
def test_flashes_table_4(line: Reported) -> None:
    """Hours and traffic as printed give the dollars as printed, within the rounding of all three."""

    def bill(hours: float, gb: float) -> float:
        leaving = {site.name: 2 * gb / 2 for site in network("40mbps").sites}
        return cost(FLASHE, hours, {**leaving, SERVER: 10 * gb / 2}, 10).total

    half = 0.005
    assert line.usd is not None
    least = bill(line.hours - half, line.traffic_gb - half) - half
    most = bill(line.hours + half, line.traffic_gb + half) + half
    assert least <= line.usd <= most


def test_flashes_hour_is_that_of_its_table() -> None:
    """What the docstring of FLASHE says: no other hour or gigabyte fits the table."""
    lines = [line for line in REPORTED if line.paper == "FLASHE"]

    def fits(hour: float, gb: float) -> bool:
        slack = 0.005 * (hour + gb + 1)
        return all(
            abs(hour * line.hours + gb * line.traffic_gb - (line.usd or 0)) <= slack
            for line in lines
        )

    hours, gbs = zip(
        *(
            (h / 1000, g / 1000)
            for h in range(9000, 9400)
            for g in range(300, 400)
            if fits(h / 1000, g / 1000)
        ),
        strict=True,
    )
    assert (min(hours), max(hours)) == pytest.approx((9.155, 9.179), abs=0.002)
    assert (min(gbs), max(gbs)) == pytest.approx((0.345, 0.352), abs=0.001)
    assert fits(hourly(FLASHE, 10), 0.348)


def test_cost_by_hand() -> None:
    found = Prices("p", "drawn", 0.5, 2.0, {"a": 0.1, SERVER: 0.3})
    assert cost(found, 4, {"a": 10, SERVER: 5}, 3) == Cost(4 * 3.5, pytest.approx(2.5))
    assert cost(found, 4, {"a": 10}, 3).total == pytest.approx(15)
    flat = Prices("p", "drawn", 0, 0, 0.25)
    assert cost(flat, 4, {"anywhere": 8, SERVER: 4}, 3) == Cost(0, 3)


AMOUNTS = st.floats(0, 1e6)


def test_a_networks_own_prices() -> None:
    own = Prices("p", "drawn", 1, 1, {"north": 0.1}).on(SITES)
    assert (own.egress("north"), own.egress("south")) == (0.1, 0.25)
    with pytest.raises(ConfigError, match="no egress_usd_per_gb for 'server'"):
        own.egress(SERVER)
    none = Prices("p", "drawn", 1, 1).on(SITES)
    assert (none.egress("north"), none.egress(SERVER)) == (0.5, 0)
    assert Prices("p", "drawn", 1, 1, 0.3).on(SITES).egress("south") == 0.3
    with pytest.raises(ConfigError, match=r"flashe: no egress_usd_per_gb for 'all' \(known: "):
        FLASHE.on(uniform(40)).egress("all")


def test_own_file(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    by_site = {"north": 0.02, SERVER: 0.09}
    assert named(str(path)) == Prices("ours", "contract", 0.5, 1, by_site)
    path.write_text(OWN.partition("[")[0] + "egress_usd_per_gb = 0.09")
    assert read(path).egress("anywhere") == 0.09
    path.write_text(OWN.partition("[")[0])
    assert read(path).egress_usd_per_gb == {}


def test_the_documented_example_is_read(tmp_path: Path) -> None:
    lines = [line[4:] for line in (prices.__doc__ or "").splitlines() if line.startswith("    ")]
    either = [line for line in lines if not line.startswith("egress_usd_per_gb =")]
    flat = lines[: lines.index("[egress_usd_per_gb]")]
    path = tmp_path / "example.toml"
    path.write_text("\n".join(either))
    assert read(path).egress("south") == 0.09
    path.write_text("\n".join(flat))
    assert read(path).egress("south") == 0.09


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "ours"', 'name = "ours', "line 2"),
        ('source = "contract"\n', "", "source is missing"),
        ("client_usd_per_hour = 0.5", "client_usd_per_hour = -1", "client_usd_per_hour=-1 must be"),
        ("client_usd_per_hour = 0.5", "client_usd = 1", "client_usd_per_hour is missing"),
        ("server_usd_per_hour = 1", 'server_usd_per_hour = "1"', "'1' must be a number"),
        ("north = 0.02", 'north = "0.02"', "egress_usd_per_gb: north='0.02' must be a number"),
        ("north = 0.02", "north = inf", "egress_usd_per_gb: north=inf must be finite"),
    ],
)
def test_own_file_that_is_wrong(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(OWN.replace(old, new))
    with pytest.raises(ConfigError) as error:
        read(path)
    assert told in str(error.value)
    assert str(path) in str(error.value)


def test_other_refusals() -> None:
    with pytest.raises(ConfigError, match=r"no prices 'gold': have batchcrypt, flashe, or"):
        named("gold")
    with pytest.raises(ConfigError, match="hours=-1"):
        cost(FLASHE, -1, {}, 10)
    with pytest.raises(ConfigError, match="egress_gb_by_site: London=nan"):
        cost(FLASHE, 1, {"London": float("nan")}, 10)
