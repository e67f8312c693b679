"""What several test modules share."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba  # noqa: F401  Here, with no other thread: it changes the filters of warnings meanwhile
import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

# Before numba or torch start their threads: tests run beside each other on small machines.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# State directories are synchronized at each step: in memory, where there is such a place.
if (memory := Path("/dev/shm")).is_dir():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

# Witnesses are where their tests are, whatever process keeps them, and the machine's own stay clean.
if "FLHE_WITNESS" not in os.environ:
    witnesses = tempfile.mkdtemp(
        prefix="flhe-witness-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")
    )
    os.environ["FLHE_WITNESS"] = witnesses
    atexit.register(shutil.rmtree, witnesses, ignore_errors=True)

# How long drawing takes says something about the machine and what else runs on it.
settings.register_profile(
    "flhe", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("flhe")

LONG = (
    "sim/rehearsal/test_loopback",
    "test_end_to_end",
    "apps/test_launch",
)
"""Files that start Flower's own processes."""


@pytest.fixture(autouse=True, scope="session")
def _disks() -> Iterator[None]:
    """Whatever disks this machine has, witnesses are on another one than state directories."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flhe.node.witness.is_apart", lambda place, home: True)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes longest first."""
    place = {item: _file_of(item.nodeid) for item in items}
    items.sort(key=lambda item: LONG.index(place[item]) if place[item] in LONG else len(LONG))


class ByFile(LoadScopeScheduling):
    """With `-n 2`, a file is one worker's; what starts Flower is one worker's, all of it.

    Two simulations at once take longer than one after the other, and each sees the other's processes.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = _file_of(nodeid)
        return "flower" if file in LONG else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def _file_of(nodeid: str) -> str:
    return nodeid.split("::", maxsplit=1)[0].removeprefix("tests/").removesuffix(".py")
