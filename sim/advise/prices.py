"""What machines and traffic cost: the papers' clouds, and a user's own.

A gigabyte here is GB = 2**30 bytes, as clouds bill it and as FLASHE's Table 4 counts its traffic:
374 rounds of ResNet-20's 272,474 values, 20 bits each, up and down, are its 0.47.

One's own prices are a TOML file; those by site may be left to the network's (`Wan.egress`):

    name = "our cloud"
    source = "our contract of 2026"
    client_usd_per_hour = 0.5
    server_usd_per_hour = 0.8
    egress_usd_per_gb = 0.09        # optional; or a table of sites, and `server`:

    [egress_usd_per_gb]
    north = 0.02
    south = 0.09
    server = 0.02
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from flhe.errors import ConfigError
from flhe_lab.advise.toml_files import check_amounts, known, load_toml, made, take
from flhe_lab.advise.wan import EGRESS, PUBLISHED, Wan

GB = 1 << 30
"""Bytes of one billed gigabyte."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What is paid."""

    name: str
    source: str  # Where they come from
    client_usd_per_hour: float  # One client's machine; the mean where sites differ
    server_usd_per_hour: float  # The server's
    egress_usd_per_gb: float | Mapping[str, float] = field(default_factory=dict)
    """What leaves a machine, USD a GB: everywhere, or by site, and under "server"."""

    def __post_init__(self) -> None:
        check_amounts(
            f"Prices {self.name}",
            client_usd_per_hour=self.client_usd_per_hour,
            server_usd_per_hour=self.server_usd_per_hour,
        )
        egress = self.egress_usd_per_gb
        by_site = egress if isinstance(egress, Mapping) else {"everywhere": egress}
        check_amounts(f"Prices {self.name}, {EGRESS}", **by_site)

    def on(self, wan: Wan) -> Prices:
        """These, and the network's own where these have none for a site or the server.

        Beside prices by site, a network's 0 is no price: a site that neither has a price of is refused
        when it is billed. Prices without any take the network's as they are.
        """
        mine = self.egress_usd_per_gb
        if not isinstance(mine, Mapping):
            return self
        more = {site: usd for site, usd in wan.egress.items() if usd or not mine}
        return replace(self, egress_usd_per_gb={**more, **mine})

    def egress(self, site: str) -> float:
        """USD a GB that leaves `site`; ConfigError where it is not told."""
        if not isinstance(self.egress_usd_per_gb, Mapping):
            return self.egress_usd_per_gb
        if site not in self.egress_usd_per_gb:
            told = ", ".join(self.egress_usd_per_gb) or "none"
            raise ConfigError(
                f"Prices {self.name}: no {EGRESS} for {site!r} (known: {told}); "
                "add it, give one number for all, or take the network's by Prices.on(wan)"
            )
        return self.egress_usd_per_gb[site]


@dataclass(frozen=True, slots=True)
class Cost:
    """A bill, USD: machines, and what left them."""

    instance_usd: float
    network_usd: float

    @property
    def total(self) -> float:
        """Both."""
        return self.instance_usd + self.network_usd


def cost(
    prices: Prices, hours: float, egress_gb_by_site: Mapping[str, float], clients: int
) -> Cost:
    """Bill `hours` of `clients` machines and a server, and what left each site.

    All machines run for all of `hours`, idle or not: a round is synchronous. `egress_gb_by_site` has GB
    that left all clients of a site, and the server under "server".
    """
    hourly = clients * prices.client_usd_per_hour + prices.server_usd_per_hour
    network = sum(prices.egress(site) * gb for site, gb in egress_gb_by_site.items())
    return Cost(hours * hourly, network)


R5_4XLARGE = 1.008
"""USD an hour of the papers' server in Ohio or Oregon, AWS's list price on demand."""

BATCHCRYPT = Prices(
    "batchcrypt",
    "BatchCrypt, Sec. 6.5: 8.758 USD an hour for nine clients and the server, egress by region",
    # The paper tells the sum alone. A bill for nine clients is the same however it is split
    client_usd_per_hour=(8.758 - R5_4XLARGE) / 9,
    server_usd_per_hour=R5_4XLARGE,
    egress_usd_per_gb=PUBLISHED["batchcrypt"].egress,
)

FLASHE = Prices(
    "flashe",
    "AWS's list prices for the machines of FLASHE, Sec. 6.1, whose sums Table 4 bears out",
    # c5.4xlarge in London, Tokyo, Ohio, N. California and Sydney, two clients in each
    client_usd_per_hour=(0.808 + 0.856 + 0.680 + 0.848 + 0.888) / 5,
    server_usd_per_hour=R5_4XLARGE,
    egress_usd_per_gb=PUBLISHED["40mbps"].egress,
)
"""FLASHE names machines and no prices, but its Table 4 implies them: cost = A hours + B traffic
holds in all 15 rows, to their rounding, only for A from 9.15 to 9.18 USD an hour and B from 0.345 to
0.352 USD a GB. The list prices add up to A = 9.168. What leaves London, Tokyo, Ohio, N. California and
Sydney for another region (0.02, 0.09, 0.02, 0.02 and 0.098 USD) makes B = 0.348: the traffic told is
one client's, half of it goes up from each of ten clients, half comes down to each from Ohio. The table
vouches for these two sums alone; how they part by region is the list's, which changes."""

PUBLISHED_PRICES: Mapping[str, Prices] = {prices.name: prices for prices in (BATCHCRYPT, FLASHE)}


def named(name: str) -> Prices:
    """One of PUBLISHED_PRICES, or a user's own where `name` is the path of a .toml."""
    return known("prices", name, PUBLISHED_PRICES, read)


def read(path: Path) -> Prices:
    """A user's own, from a file as in this module's docstring; ConfigError names what is wrong."""
    found = load_toml(path)
    by_site = isinstance(egress := found.get(EGRESS, {}), dict)
    if by_site:
        take(egress, f"{path}, {EGRESS}", dict.fromkeys(egress, float))
    hourly = {"client_usd_per_hour": float, "server_usd_per_hour": float}
    needed = {"name": str, "source": str, **hourly}
    fields = take(found, str(path), needed, {EGRESS: dict if by_site else float})
    return made(str(path), Prices, **fields)
