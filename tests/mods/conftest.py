"""Groups that tests of nodes begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mods.harness import Group, Site


@pytest.fixture
def group(tmp_path: Path) -> Group:
    """Three sites that have agreed on keys."""
    return Group(tmp_path).agree()


@pytest.fixture
def site(group: Group) -> Site:
    """The first of them."""
    return group.sites[0]


@pytest.fixture
def four(tmp_path: Path) -> Group:
    """Four of them."""
    return Group(tmp_path, 4).agree()
