"""A server that adds to a sum what no sender of it encrypted: members notice, whatever it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.schemes.sealed import Sealed
from tests.strategies.test_cheating_sums import NODES, Cheat, folded, nodes, run
from tests.strategies.test_he_strategy import same

pytestmark = pytest.mark.usefixtures("quick")

Parts = dict[int, Sealed]


def added(scheme: Any, total: Sealed, more: Any) -> Sealed:
    data = total.data.copy()
    scheme.packing.add(data, more, total.length)
    return replace(total, data=data)


def injected(scheme: Any, parts: Parts, total: Sealed) -> Sealed:
    """A contribution of the server's own, on top of those of all senders."""
    packing = scheme.packing
    own = np.arange(total.length).astype(packing.signed) % 100
    return added(scheme, total, packing.pack(own, np.zeros(own.size, packing.lane)))


def counted_again(scheme: Any, parts: Parts, total: Sealed) -> Sealed:
    """One of the contributions, on top of all of them."""
    return added(scheme, total, parts[2].data)


@pytest.mark.parametrize("lie", [injected, counted_again])
def test_what_is_brought_in_is_refused_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: Any
) -> None:
    grid = nodes(tmp_path, "flashe")
    cheat = Cheat(monkeypatch, lie)
    run(grid, "flashe", 3)
    assert cheat.told == 1
    codes = [r.error.code for _, s, r in grid.replies if s == "evaluate" and r.has_error()]
    assert codes == [1023] * NODES
    assert "brought in on the way; the round is refused" in (
        grid.homes[0] / "errors.log"
    ).read_text(encoding="utf-8")
    assert same(grid, range(NODES)).round == 3


def test_an_update_of_the_round_before_is_refused_by_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the place of one of this round: under the same key, and genuine once."""
    grid, before = nodes(tmp_path, "flashe"), dict[int, Sealed]()

    def noted(_scheme: Any, parts: Parts, total: Sealed) -> Sealed:
        before.update(parts)
        return total

    def replayed(scheme: Any, parts: Parts, total: Sealed) -> Sealed:
        assert sorted(before) == sorted(parts)
        old = replace(before[1], slot=parts[1].slot)
        return folded(scheme, [old if rank == 1 else part for rank, part in parts.items()])

    Cheat(monkeypatch, noted, round_=1)
    cheat = Cheat(monkeypatch, replayed, round_=2)
    run(grid, "flashe", 3)
    assert cheat.told == 1
    codes = [r.error.code for _, s, r in grid.replies if s == "evaluate" and r.has_error()]
    assert codes == [1023] * NODES
    assert same(grid, range(NODES)).round == 3
