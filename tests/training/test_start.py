"""What a round starts from."""

from __future__ import annotations

from flhe.training.start import fitted_layout, started_layout


def test_layouts_name_all_of_it() -> None:
    one, other = bytes(32), bytes([1]) * 32
    pairs = [(one, one), (one, other), (other, one), (other, other)]
    assert len({f(*pair) for pair in pairs for f in (started_layout, fitted_layout)}) == 8
