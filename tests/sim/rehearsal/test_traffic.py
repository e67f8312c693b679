"""The search of a capture: silent about what nodes really send, loud about each thing that leaks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flhe.node.store import Store
from flhe.wire import derive
from flhe.wire.canonical import loads
from flhe.wire.derive import hkdf
from flhe_lab.rehearsal import derived_secrets
from flhe_lab.rehearsal.derived_secrets import DERIVED, Contexts
from flhe_lab.rehearsal.node_secrets import GROUP, PAIR
from flhe_lab.rehearsal.traffic import COUNT, search
from flhe_lab.rehearsal.updates import LANES
from flhe_lab.rehearsal.verdict import expected
from flhe_lab.rehearsal.wire import objects, read, records
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


def _slot(loopback: Any) -> Any:
    contexts = Contexts()
    up, _ = objects(read(loopback.machines.captured))
    contexts.take([values for _, values in records(up)])
    (slot,) = contexts.slots
    return slot


def _group(loopback: Any) -> bytes:
    (key,) = loopback.secrets.kinds[GROUP]
    return bytes(key)


def _pair(loopback: Any, rank: int) -> bytes:
    from flhe.keys.agreement.states import Epoch

    store = Store(loopback.home("site-a"))
    epoch = Epoch.from_bytes(store.read(store.names("epochs/*")[0]))
    return bytes(epoch.pair_keys[rank]) or bytes(epoch.pair_keys[rank - 1])


PLANTED: dict[str, tuple[str, Callable[[Any], bytes]]] = {
    "group key, repr": (GROUP, lambda it: repr(_group(it)).encode()),
    "pair key, list": (PAIR, lambda it: str(list(_pair(it, 1))).encode()),
    "count": (COUNT, lambda it: b"trained on 267435452 examples"),
    **{
        label: (DERIVED, lambda it, label=label: hkdf(_group(it), label, *_slot(it).context()))
        for label in ("sum-tag", "permutation")
    },
    "sum-tag-mask": (
        DERIVED,
        lambda it: hkdf(_group(it), "sum-tag-mask", *_slot(it).context(), 2, b""),
    ),
    "round key": (
        DERIVED,
        lambda it: hkdf(_group(it), "flashe", *_slot(it).context(), "double", 18).hex(":").encode(),
    ),
    "digest key": (
        DERIVED,
        lambda it: hkdf(
            _group(it), "digest", _slot(it).run_id, _slot(it).roster_hash, _slot(it).epoch
        ),
    ),
    "share's key": (DERIVED, lambda it: hkdf(_pair(it, 1), "kshare", _slot(it).digest(), 0, 1)),
}


def test_whatever_is_planted_in_a_log_is_found(tmp_path: Path) -> None:
    """All at once, a line each; which of them is which is told by its windows."""
    lines: dict[str, bytes] = {}

    def plant(loopback: Any) -> bytes:
        lines.update({name: make(loopback) for name, (_, make) in PLANTED.items()})
        return b"\n".join(lines.values())

    loopback = capture(tmp_path, plant)
    found = {each.kind: each.count for each in search(loopback).found}
    assert set(found) == {kind for kind, _ in PLANTED.values()}
    derived = [name for name, (kind, _) in PLANTED.items() if kind == DERIVED]
    assert found[DERIVED] >= 25 * len(derived)  # all windows of each
    assert found[GROUP] >= 25
    assert found[PAIR] >= 25


def test_every_key_that_nodes_derive_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever comes out of HKDF in a round, with its real contexts, by its label."""
    made: dict[bytes, str] = {}
    real = derive.HKDF

    class Told:
        def __init__(self, *, info: bytes, **how: Any) -> None:
            self.hkdf = real(info=info, **how)
            self.label = loads(info, 1 << 16, "info")[0].removeprefix(derive.PREFIX)

        def derive(self, key_material: bytes) -> bytes:
            key = self.hkdf.derive(key_material)
            made[key] = self.label
            return key

    monkeypatch.setattr(derive, "HKDF", Told)
    loopback = capture(tmp_path)
    nodes = dict(made)
    search(loopback)
    held = set().union(*loopback.secrets.kinds.values())
    unknown = {label for key, label in nodes.items() if key not in held}
    assert unknown == set()
    assert {"flashe", "sum-tag", "sum-tag-mask", "digest"} <= set(nodes.values())
    assert {"pair", "pair-aead", "group", "confirm"} <= set(nodes.values())


ELSEWHERE = {"seal"}
"""Labels of boxes whose salt is inside."""


def test_every_label_in_the_source_is_known_here() -> None:
    root = Path(derive.__file__).parents[1]
    call = re.compile(r'hkdf\(\s*[^"()]*(?:\([^()]*\))?[^"()]*?"([a-z-]+)"')
    used = {label for path in root.rglob("*.py") for label in call.findall(path.read_text())}
    assert len(used) > 14
    known = Path(derived_secrets.__file__).read_text() + '"models" "pair" "group"'
    assert {label for label in used if f'"{label}"' not in known} == ELSEWHERE
