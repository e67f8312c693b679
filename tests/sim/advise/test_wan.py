"""Networks: the papers' numbers, who is placed where, and a user's own files."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe_lab.advise import wan
from flhe_lab.advise.wan import PUBLISHED, Link, Site, Wan, named, read


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
    prices = [site.egress_usd_per_gb for site in named("40mbps").placed(10)]
    assert sum(prices) / 10 == pytest.approx(wan.EGRESS_USD)


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


def own(tmp_path: Path, old: str = "", new: str = "") -> Path:
    """The documented example, with one change."""
    documented = [line for line in (wan.__doc__ or "").splitlines() if line.startswith("    ")]
    text = "\n".join(line[4:].partition("#")[0].rstrip() for line in documented)
    assert not old or text.count(old) == 1
    path = tmp_path / "own.toml"
    path.write_text(text.replace(old, new) if old else text)
    return path


def test_own_file(tmp_path: Path) -> None:
    found = named(str(own(tmp_path)))
    sites = (Site("north", Link(100, 250, 0.015), 3, 0.0), Site("south", Link(40, 100), 1))
    source = "iperf3, ten runs a day, median of March"
    assert found == Wan("our four hospitals", source, sites, 0.09)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "north"', 'name = "north', "line 5"),
        ("source = ", "from = ", "source is missing"),
        ("server_egress", "sever_egress", "unknown field sever_egress"),
        ("down_mbps = 250", "down_mbps = 0", "site 1: Link: down_mbps=0 must be positive"),
        ("latency_s = 0.015", "latency_s = -1", "site 1: Link: latency_s=-1 must be finite"),
        ("latency_s = 0.015", "latency_ms = 15", "site 1: unknown field latency_ms; it has name"),
        ("clients = 3", "clients = 2.5", "site 1: clients=2.5 must be a whole number"),
        ("clients = 3", "clients = true", "clients=True must be a whole number"),
        ("clients = 3", "clients = 0", "Site north: clients=0 must be 1 or more"),
        ("up_mbps = 40", 'up_mbps = "40"', "site 2: up_mbps='40' must be a number"),
        ("up_mbps = 40", "up_mbps = nan", "site 2: Link: up_mbps=nan must be positive"),
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
    with pytest.raises(ConfigError, match=r"no network 'wifi': have batchcrypt, .* a \.toml"):
        named("wifi")
