"""What machines cost: the papers' clouds.

A gigabyte here is GB = 2**30 bytes, as clouds bill it and as FLASHE's Table 4 counts its traffic:
374 rounds of ResNet-20's 272,474 values, 20 bits each, up and down, are its 0.47.

What leaves a machine costs what the network says (`flhe_lab.advise.wan`).
"""

from __future__ import annotations

from dataclasses import dataclass

from flhe_lab.advise.toml_files import check_amounts

GB = 1 << 30
"""Bytes of one billed gigabyte."""


@dataclass(frozen=True, slots=True)
class Prices:
    """What is paid."""

    client_usd_per_hour: float  # One client's machine; the mean where sites differ
    server_usd_per_hour: float  # The server's

    def __post_init__(self) -> None:
        check_amounts(
            "prices",
            client_usd_per_hour=self.client_usd_per_hour,
            server_usd_per_hour=self.server_usd_per_hour,
        )


@dataclass(frozen=True, slots=True)
class Cost:
    """A bill, USD: machines, and what left them."""

    instance_usd: float
    network_usd: float

    @property
    def total(self) -> float:
        """Both."""
        return self.instance_usd + self.network_usd


R5_4XLARGE = 1.008
"""USD an hour of the papers' server in Ohio or Oregon, AWS's list price on demand."""

BATCHCRYPT = Prices(
    # BatchCrypt, Sec. 6.5: 8.758 USD an hour for nine clients and the server. A bill for all of them
    # is the same however it is split.
    client_usd_per_hour=(8.758 - R5_4XLARGE) / 9,
    server_usd_per_hour=R5_4XLARGE,
)

FLASHE = Prices(
    # AWS's list prices for the machines of FLASHE, Sec. 6.1, whose sums Table 4 bears out:
    # c5.4xlarge in London, Tokyo, Ohio, N. California and Sydney, two clients in each
    client_usd_per_hour=(0.808 + 0.856 + 0.680 + 0.848 + 0.888) / 5,
    server_usd_per_hour=R5_4XLARGE,
)
"""FLASHE names machines and no prices, but its Table 4 implies them: cost = A hours + B traffic
holds in all 15 rows, to their rounding, only for A from 9.15 to 9.18 USD an hour and B from 0.345 to
0.352 USD a GB. The list prices add up to A = 9.168. What leaves London, Tokyo, Ohio, N. California and
Sydney for another region (0.02, 0.09, 0.02, 0.02 and 0.098 USD) makes B = 0.348: the traffic told is
one client's, half of it goes up from each of ten clients, half comes down to each from Ohio. The table
vouches for these two sums alone; how they part by region is the list's, which changes."""
