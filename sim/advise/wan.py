"""Who is how far from the server: the papers' networks, and a user's own.

A network is sites; at each, some clients with one link apiece, and a price for what leaves it. The
papers tell speeds and no latencies, so theirs are zero. One's own is a TOML file:

    name = "our four hospitals"
    source = "iperf3, ten runs a day, median of March"
    server_egress_usd_per_gb = 0.09 # optional: 0.02

    [[site]]
    name = "north"
    clients = 3                     # its weight, where a round has more or fewer
    up_mbps = 100
    down_mbps = 250
    latency_s = 0.015               # optional: 0, one way
    egress_usd_per_gb = 0           # optional: 0.0496

    [[site]]
    name = "south"
    clients = 1
    up_mbps = 40
    down_mbps = 100

What leaving costs is by default what it does in FLASHE's network, on average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flhe.errors import ConfigError
from flhe_lab.advise.toml_files import check_amounts, load_toml, made, take

MEGABIT = 1e6
"""Bits; of a second, Mbps."""

EGRESS_USD, SERVER_EGRESS_USD = 0.0496, 0.02
"""USD for a billed gigabyte that leaves a site, or the server, where nothing is said."""

_SPEEDS = {"up_mbps": float, "down_mbps": float}
_OPTIONAL = {"latency_s": float, "egress_usd_per_gb": float}


@dataclass(frozen=True, slots=True)
class Link:
    """One machine's way to the network."""

    up_mbps: float  # What it sends, 10**6 bits a second; infinite where it never limits
    down_mbps: float  # The same, what it receives
    latency_s: float = 0.0  # Seconds a message is under way beside what its size takes, one way

    def __post_init__(self) -> None:
        for name in ("up_mbps", "down_mbps"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"Link: {name}={getattr(self, name)} must be positive")
        check_amounts("Link", latency_s=self.latency_s)


@dataclass(frozen=True, slots=True)
class Site:
    """Clients in one place."""

    name: str
    link: Link  # Of each client there; they do not share it
    clients: int  # How many; its weight where a round has another number in all
    egress_usd_per_gb: float = EGRESS_USD  # Price of what leaves it; a GB is `prices.GB`

    def __post_init__(self) -> None:
        if self.clients < 1:
            raise ConfigError(f"Site {self.name}: clients={self.clients} must be 1 or more")
        check_amounts(f"Site {self.name}", egress_usd_per_gb=self.egress_usd_per_gb)


@dataclass(frozen=True, slots=True)
class Wan:
    """A network between clients and one server."""

    name: str
    source: str  # Where its speeds come from
    sites: tuple[Site, ...]  # At least one
    server_egress_usd_per_gb: float = SERVER_EGRESS_USD  # Price of what leaves the server

    def __post_init__(self) -> None:
        if not self.sites:
            raise ConfigError(f"Wan {self.name}: it has no site; add one with a client")
        check_amounts(f"Wan {self.name}", server_egress_usd_per_gb=self.server_egress_usd_per_gb)

    @property
    def clients(self) -> int:
        """How many clients its sites have."""
        return sum(site.clients for site in self.sites)

    def placed(self, cohort: int) -> tuple[Site, ...]:
        """The site of each of `cohort` clients.

        Sites take turns by their share: `clients` of them are placed as the sites say, and one more
        client never moves those before it.
        """
        due = [0] * len(self.sites)  # what each is owed, in 1 / clients of a client
        found = []
        for _ in range(cohort):
            due = [owed + site.clients for owed, site in zip(due, self.sites, strict=True)]
            first = due.index(max(due))
            due[first] -= self.clients
            found.append(self.sites[first])
        return tuple(found)

    def links(self, cohort: int) -> tuple[Link, ...]:
        """The link of each of `cohort` clients; see `placed`."""
        return tuple(site.link for site in self.placed(cohort))


def uniform(up_mbps: float, down_mbps: float | None = None, cohort: int = 10) -> Wan:
    """All clients alike; what they receive is as fast as what they send unless told otherwise."""
    down = up_mbps if down_mbps is None else down_mbps
    name = f"{up_mbps:g}mbps" if down == up_mbps else f"{up_mbps:g}-{down:g}mbps"
    return Wan(name, "as asked for", (Site("all", Link(up_mbps, down), cohort),))


def named(name: str) -> Wan:
    """One of PUBLISHED, or a user's own where `name` is the path of a .toml; else ConfigError."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    if name.endswith(".toml"):
        return read(Path(name))
    raise ConfigError(f"no network {name!r}: have {', '.join(PUBLISHED)}, or the path of a .toml")


def read(path: Path) -> Wan:
    """A user's own, from a file as in this module's docstring; ConfigError names what is wrong."""
    where, needed = str(path), {"name": str, "source": str, "site": list}
    found = take(load_toml(path), where, needed, {"server_egress_usd_per_gb": float})
    tables = enumerate(found.pop("site"), 1)
    sites = tuple(_site(table, f"{where}, site {i}") for i, table in tables)
    return made(where, Wan, sites=sites, **found)


def _site(table: object, where: str) -> Site:
    found = take(table, where, {"name": str, "clients": int, **_SPEEDS}, _OPTIONAL)
    speeds = {name: found.pop(name) for name in (*_SPEEDS, "latency_s") if name in found}
    return made(where, Site, link=made(where, Link, **speeds), **found)


PUBLISHED: Mapping[str, Wan] = {
    name: Wan(
        name,
        sites=tuple(_site(site, f"{name}, {site['name']}") for site in table.pop("site")),
        **table,
    )
    for name, table in load_toml(Path(__file__).with_name("networks.toml")).items()
}
"""The papers' networks by name."""
