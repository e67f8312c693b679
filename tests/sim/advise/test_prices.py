"""Prices: what the papers tell, what FLASHE's table implies, and a user's own file."""

from __future__ import annotations

from pathlib import Path

import pytest

from flhe.errors import ConfigError
from flhe_lab.advise import prices
from flhe_lab.advise.prices import FLASHE, Cost, Prices, cost, named, read
from flhe_lab.advise.wan import SERVER, Link, Site, Wan, uniform

SITES = Wan("two", "drawn", (Site("north", Link(1, 1), 1, 0.5), Site("south", Link(1, 1), 1, 0.25)))


def test_cost_by_hand() -> None:
    found = Prices("p", "drawn", 0.5, 2.0, {"a": 0.1, SERVER: 0.3})
    assert cost(found, 4, {"a": 10, SERVER: 5}, 3) == Cost(4 * 3.5, pytest.approx(2.5))
    assert cost(found, 4, {"a": 10}, 3).total == pytest.approx(15)
    flat = Prices("p", "drawn", 0, 0, 0.25)
    assert cost(flat, 4, {"anywhere": 8, SERVER: 4}, 3) == Cost(0, 3)


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


def documented() -> list[str]:
    lines = (prices.__doc__ or "").splitlines()
    return [line[4:] for line in lines if line.startswith("    ")]


def test_own_file(tmp_path: Path) -> None:
    """As documented: by site, or one number for all, or none."""
    path, lines = tmp_path / "own.toml", documented()
    by_site = [line for line in lines if not line.startswith("egress_usd_per_gb =")]
    hourly = [line for line in lines if "per_hour" in line or line.startswith(("name", "source"))]
    for some, egress in (
        (by_site, {"north": 0.02, "south": 0.09, SERVER: 0.02}),
        (lines[: lines.index("[egress_usd_per_gb]")], 0.09),
        (hourly, {}),
    ):
        path.write_text("\n".join(some))
        found = named(str(path))
        assert found == Prices("our cloud", "our contract of 2026", 0.5, 0.8, egress)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("client_usd_per_hour = 0.5", "client_usd_per_hour = -1", "client_usd_per_hour=-1 must be"),
        ("client_usd_per_hour = 0.5", "client_usd = 1", "client_usd_per_hour is missing"),
        ("north = 0.02", 'north = "0.02"', "egress_usd_per_gb: north='0.02' must be a number"),
        ("north = 0.02", "north = inf", "egress_usd_per_gb: north=inf must be finite"),
    ],
)
def test_own_file_that_is_wrong(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "own.toml"
    by_site = (line for line in documented() if not line.startswith("egress_usd_per_gb ="))
    path.write_text("\n".join(by_site).replace(old, new))
    with pytest.raises(ConfigError, match=says) as error:
        read(path)
    assert str(path) in str(error.value)
