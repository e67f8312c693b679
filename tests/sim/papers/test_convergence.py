"""Rounds to convergence, their projection, and what the papers' own projections say of each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flhe.errors import ConfigError
from flhe_lab.advise.prices import FLASHE, GB, Prices
from flhe_lab.advise.round_model import Breakdown
from flhe_lab.advise.wan import Link, Site, Wan, named, uniform
from flhe_lab.papers.convergence import REPORTED, project, reported

ROUND = Breakdown(1, 1, 1, 1, 1, 1, 6, GB, GB // 2)


def test_projection_by_hand() -> None:
    """Two clients in the north, one in the south; 600 rounds of 6 s, 1 GB up and half a GB down."""
    link = Link(1, 1)
    wan = Wan("w", "drawn", (Site("north", link, 2, 0.1), Site("south", link, 1, 0.4)), None, 0.2)
    found = project(ROUND, 600, Prices("p", "drawn", 0.5, 1.5), wan, 3)
    assert (found.hours, found.traffic_gb) == (pytest.approx(1), pytest.approx(900))
    assert found.bill.instance_usd == pytest.approx(3.0)
    assert found.bill.network_usd == pytest.approx(600 * (2 * 0.1 + 0.4) + 300 * 3 * 0.2)


def test_projection_refuses() -> None:
    with pytest.raises(ConfigError, match="no egress_usd_per_gb for 'all'"):
        project(ROUND, 1, FLASHE, uniform(40), 10)
    assert len({(line.paper, line.model, line.mode) for line in REPORTED}) == len(REPORTED) == 36


@pytest.mark.parametrize(
    ("model", "values"), [("ResNet-20", 272_474), ("GRU", 660_000), ("CNN", 1_200_000)]
)
@pytest.mark.parametrize("mode", ["plain", "FLASHE"])
def test_flashes_table_4_is_projected_like_this(model: str, values: int, mode: str) -> None:
    """20 bits a value both ways, in GB of 2**30 bytes, and the dollars of the hours printed.

    In GB of 10**9 bytes, traffic would be off by 6 to 8 %.
    """
    line = reported("FLASHE", model, mode)
    nbytes = round(values * 20 / 8)
    seconds = 3600 * line.hours / line.epochs
    one = replace(ROUND, total_s=seconds, bytes_up=nbytes, bytes_down=nbytes)
    found = project(one, line.epochs, FLASHE, named("40mbps"), 10)
    assert found.traffic_gb == pytest.approx(line.traffic_gb, rel=0.01)
    assert found.bill.total == pytest.approx(line.usd, abs=0.053)
