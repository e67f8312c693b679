"""A search of a capture is silent about what nodes really send, and loud about what leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flhe.keys.agreement.states import Epoch
from flhe.node.store import Store
from flhe_lab.rehearsal.app import SITES
from flhe_lab.rehearsal.node_secrets import CONTRIBUTION, GROUP, PAIR
from flhe_lab.rehearsal.traffic import COUNT, search
from flhe_lab.rehearsal.verdict import expected
from tests.sim.rehearsal.captured import PLAN, capture


def test_nothing_is_found_in_what_nodes_send_and_what_was_not_collected_is_told(
    tmp_path: Path,
) -> None:
    loopback = capture(tmp_path)
    traffic = search(loopback)
    assert traffic.found == ()
    assert traffic.missing == ()
    assert all(traffic.controls.values()), traffic.controls
    least = expected(PLAN)
    assert all(traffic.searched.get(kind, 0) >= count for kind, count in least.items())
    loopback.secrets.kinds[CONTRIBUTION].pop()
    for note in loopback.notes(SITES[0]).iterdir():
        note.unlink()
    assert search(loopback).missing == (
        "share of the group key: 2 of 3",
        "updates of flashe, round 1: 2 of 3 sites",
    )


def _pair(loopback: Any) -> bytes:
    store = Store(loopback.home("site-a"))
    first, second, _ = Epoch.from_bytes(store.read(store.names("epochs/*")[0])).pair_keys
    return bytes(second) or bytes(first)


PLANTED: dict[str, Callable[[Any], bytes]] = {
    GROUP: lambda it: repr(bytes(*it.secrets.kinds[GROUP])).encode(),
    PAIR: lambda it: str(list(_pair(it))).encode(),
    COUNT: lambda it: b"trained on 267435452 examples",
}


def test_whatever_is_planted_in_a_log_is_found(tmp_path: Path) -> None:
    """All at once, a line each."""
    loopback = capture(tmp_path, lambda it: b"\n".join(make(it) for make in PLANTED.values()))
    found = {each.kind: each.count for each in search(loopback).found}
    assert set(found) == set(PLANTED)
    assert min(found[GROUP], found[PAIR]) >= 25
