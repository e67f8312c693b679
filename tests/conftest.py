"""What several test modules share."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Before numba or torch start their threads: tests run beside each other on small machines.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long drawing takes says something about the machine and what else runs on it.
settings.register_profile("flhe", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("flhe")

LONG = (
    "deploy/test_loopback",
    "test_end_to_end",
    "apps/test_resume",
    "apps/test_launch",
    "apps/test_esafl",
    "apps/test_fedml_he",
)
"""Files that start Flower's own processes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 2`, a file is one worker's; what starts Flower is the first one's, all of it.

    Two simulations at once take longer than one after the other, and would be what is waited for last.
    """
    place = {item: _file_of(item) for item in items}
    for item, file in place.items():
        item.add_marker(pytest.mark.xdist_group("flower" if file in LONG else file))
    items.sort(key=lambda item: LONG.index(place[item]) if place[item] in LONG else len(LONG))


def _file_of(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0].removeprefix("tests/").removesuffix(".py")
