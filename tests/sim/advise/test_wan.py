"""Networks and prices: the papers' numbers, who is placed where, and a user's own files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe_lab.advise import prices, wan
from flhe_lab.advise.prices import FLASHE, Cost, Prices, cost
from flhe_lab.advise.wan import PUBLISHED, SERVER, Link, Site, Wan, named, read, uniform


def test_published_speeds() -> None:
    by_name = {site.name: site for site in named("batchcrypt").sites}
    assert {name: site.link.up_mbps for name, site in by_name.items()} == {
        "Oregon": 9841,
        "Tokyo": 116,
        "N. Virginia": 165,
        "London": 97,
        "Hong Kong": 81,
    }
    assert named("batchcrypt").clients == 9
    for name, speed in {
        "fedml-infiniband": 5e9,
        "fedml-region": 592e6,
        "fedml-regions": 15.6e6,
        "fedml-200": 200e6,
        "40mbps": 5e6,
    }.items():
        (link,) = set(named(name).links(10))
        assert link.up_mbps == link.down_mbps == pytest.approx(8e-6 * speed)
    assert all(name == found.name and found.source for name, found in PUBLISHED.items())


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(1, 40))
def test_sites_get_their_share(weights: list[int], cohort: int) -> None:
    sites = tuple(Site(f"{i}", Link(1 + i, 1), weight) for i, weight in enumerate(weights))
    network = Wan("any", "drawn", sites)
    placed = network.placed(cohort)
    counts = Counter(site.name for site in placed)
    for site in sites:
        share = cohort * site.clients / network.clients
        assert abs(counts[site.name] - share) < len(sites)
        if cohort % network.clients == 0:
            assert counts[site.name] == share
    assert network.links(cohort) == tuple(site.link for site in placed)
    assert network.placed(cohort + 1)[:cohort] == placed


def documented(module: ModuleType) -> list[str]:
    """The example in a module's documentation."""
    return [line[4:] for line in (module.__doc__ or "").splitlines() if line.startswith("    ")]


def own(tmp_path: Path, old: str = "", new: str = "") -> Path:
    """The documented example, with one change."""
    text = "\n".join(line.partition("#")[0].rstrip() for line in documented(wan))
    assert not old or text.count(old) == 1
    path = tmp_path / "own.toml"
    path.write_text(text.replace(old, new) if old else text)
    return path


def test_own_file(tmp_path: Path) -> None:
    found = named(str(own(tmp_path)))
    sites = (Site("north", Link(100, 250, 0.015), 3), Site("south", Link(40, 100), 1))
    source = "iperf3, ten runs a day, median of March"
    assert found == Wan("our four hospitals", source, sites, Link(1000, 1000), 0.09)
    assert found.egress == {"north": 0, "south": 0, SERVER: 0.09}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "north"', 'name = "north', "line 8"),
        ("source = ", "from = ", "source is missing"),
        ("[server]", "[sever]", "unknown field sever"),
        ("\ndown_mbps = 1000", "\ndown = 500", "server: down_mbps is missing"),
        ("\ndown_mbps = 1000", "\ndown_mbps = 0", "server: Link: down_mbps=0 must be positive"),
        ("latency_s = 0.015", "latency_s = -1", "site 1: Link: latency_s=-1 must be finite"),
        ("latency_s = 0.015", "latency_ms = 15", "site 1: unknown field latency_ms; it has name"),
        ("clients = 3", "clients = 2.5", "site 1: clients=2.5 must be a whole number"),
        ("clients = 3", "clients = true", "clients=True must be a whole number"),
        ("clients = 3", "clients = 0", "Site north: clients=0 must be 1 or more"),
        ("up_mbps = 40", 'up_mbps = "40"', "site 2: up_mbps='40' must be a number"),
        ("up_mbps = 40", "up_mbps = nan", "site 2: Link: up_mbps=nan must be positive"),
        ('name = "south"', 'name = "north"', "more than one site is named 'north'"),
        ('name = "south"', 'name = "server"', "stands for the server"),
        ("per_gb = 0.09", "per_gb = -0.09", "per_gb=-0.09 must be finite and 0 or more"),
    ],
)
def test_own_file_that_is_wrong(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = own(tmp_path, old, new)
    with pytest.raises(ConfigError, match=says) as error:
        read(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ('name = "a"\nsource = "b"\nsite = []', "it has no site"),
        ('name = "a"\nsource = "b"\nsite = [3]', "site 1: must be a table, got 3"),
    ],
)
def test_files_that_are_no_network(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "own.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        named(str(path))


def test_other_refusals() -> None:
    with pytest.raises(ConfigError, match=r"no network 'wifi': have batchcrypt, .* a \.toml"):
        named("wifi")


# --- prices: what the papers tell, what FLASHE's table implies, and a user's own file ---

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


def test_own_prices(tmp_path: Path) -> None:
    """As documented: by site, or one number for all, or none."""
    path, lines = tmp_path / "own.toml", documented(prices)
    by_site = [line for line in lines if not line.startswith("egress_usd_per_gb =")]
    hourly = [line for line in lines if "per_hour" in line or line.startswith(("name", "source"))]
    for some, egress in (
        (by_site, {"north": 0.02, "south": 0.09, SERVER: 0.02}),
        (lines[: lines.index("[egress_usd_per_gb]")], 0.09),
        (hourly, {}),
    ):
        path.write_text("\n".join(some))
        found = prices.named(str(path))
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
def test_own_prices_that_are_wrong(tmp_path: Path, old: str, new: str, says: str) -> None:
    path = tmp_path / "own.toml"
    by_site = (line for line in documented(prices) if not line.startswith("egress_usd_per_gb ="))
    path.write_text("\n".join(by_site).replace(old, new))
    with pytest.raises(ConfigError, match=says) as error:
        prices.read(path)
    assert str(path) in str(error.value)
