"""Thresholds: how many shares, signatures and survivors it takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError
from flhe.keys.agreement.thresholds import Thresholds


@given(st.integers(3, 2000), st.integers(0, 2000))
def test_thresholds(members: int, colluders: int) -> None:
    if colluders > members - 2:
        with pytest.raises(ConfigError, match="allow at most"):
            Thresholds(members, colluders)
        return
    bounds = Thresholds(members, colluders)
    assert 2 * bounds.threshold > members + colluders >= 2 * (bounds.threshold - 1)
    assert bounds.min_set == max(bounds.threshold, colluders + 2) <= members


@pytest.mark.parametrize("arguments", [(2, 0), (5, -1), (5, 4), (5.0, 1), (5, True + 0.5)])
def test_thresholds_that_cannot_be(arguments: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match="Thresholds"):
        Thresholds(*arguments)
