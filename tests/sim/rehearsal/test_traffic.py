"""The search of a capture: silent about what nodes really send, loud about each thing that leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flhe.node.store import Store
from flhe_lab.rehearsal.node_secrets import GROUP, PAIR
from flhe_lab.rehearsal.traffic import COUNT, search
from flhe_lab.rehearsal.updates import LANES
from flhe_lab.rehearsal.verdict import expected
from tests.sim.rehearsal.captured import PLAN, capture, hide_nothing


def test_nothing_is_found_in_what_nodes_send(tmp_path: Path) -> None:
    traffic = search(capture(tmp_path))
    assert traffic.found == ()
    assert traffic.missing == ()
    assert all(traffic.controls.values()), traffic.controls
    least = expected(PLAN)
    assert all(traffic.searched.get(kind, 0) >= count for kind, count in least.items())


def test_updates_under_masks_of_zero_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole of the real node's code, with a keystream that is nothing."""
    hide_nothing(monkeypatch)
    traffic = search(capture(tmp_path))
    found = [each for each in traffic.found if each.kind == LANES]
    assert {each.kind for each in traffic.found} == {LANES}
    assert sum(each.place.startswith("array") for each in found) == 3
    assert all(each.count > 1000 for each in found)


def _group(loopback: Any) -> bytes:
    (key,) = loopback.secrets.kinds[GROUP]
    return bytes(key)


def _pair(loopback: Any, rank: int) -> bytes:
    from flhe.keys.agreement.states import Epoch

    store = Store(loopback.home("site-a"))
    epoch = Epoch.from_bytes(store.read(store.names("epochs/*")[0]))
    return bytes(epoch.pair_keys[rank]) or bytes(epoch.pair_keys[rank - 1])


PLANTED: dict[str, Callable[[Any], bytes]] = {
    GROUP: lambda it: repr(_group(it)).encode(),
    PAIR: lambda it: str(list(_pair(it, 1))).encode(),
    COUNT: lambda it: b"trained on 267435452 examples",
}


def test_whatever_is_planted_in_a_log_is_found(tmp_path: Path) -> None:
    """All at once, a line each."""
    loopback = capture(tmp_path, lambda it: b"\n".join(make(it) for make in PLANTED.values()))
    found = {each.kind: each.count for each in search(loopback).found}
    assert set(found) == set(PLANTED)
    assert found[GROUP] >= 25
    assert found[PAIR] >= 25
