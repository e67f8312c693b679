"""dACIQ: thresholds of layers."""

from __future__ import annotations

import pytest

from flhe.coding import aciq
from flhe.coding.aciq import MAX_ALPHA, MIN_ALPHA, RATIOS
from flhe.errors import ConfigError


def test_thresholds_of_layers() -> None:
    c = RATIOS[8]
    assert aciq.thresholds(8, [4.0, 0.25]) == (2 * c, c / 2)
    assert aciq.thresholds(8, [0.0, 4.0, 1.0, 0.0]) == (2 * c, 2 * c, c, 2 * c)
    assert aciq.thresholds(8, [0.0, 0.0]) == (1.0, 1.0)
    assert aciq.thresholds(8, []) == ()
    assert aciq.thresholds(8, [1e-300, 1e300]) == (MIN_ALPHA, MAX_ALPHA)


@pytest.mark.parametrize("bits", [-1, 0, 1, 33])
def test_no_threshold_without_bits(bits: int) -> None:
    with pytest.raises(ConfigError, match="2 to 32 bits"):
        aciq.ratio(bits)
