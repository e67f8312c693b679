"""Updates on a node's disk: what is not sent is neither lost nor sent twice, whenever it crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.keys.identity import Identity
from flhe.node.node import Node
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.draft import Draft
from tests.mods.harness import private

RUN, LENGTH = 7, 12
HISTORY = bytes(range(32))


def draft(round_: int = 3, scale: float = 1.0) -> Draft:
    coords = np.array([1, 4, 5], np.uint32)
    residual = np.arange(LENGTH, dtype=np.float32) * np.float32(scale)
    residual[coords] = 0
    values = np.array([0.5, -2.0, 8.0], np.float32)
    return Draft(round_, HISTORY, values, np.array([1, 10], np.int64), coords, residual)


def dense() -> Draft:
    return Draft(3, HISTORY, np.ones(LENGTH, np.float32), np.array([1], np.int64))


def rest(one: Draft) -> list[float]:
    """What is in the residual once the update was sent."""
    assert one.residual is not None
    return one.residual.tolist()  # type: ignore[no-any-return]


def sealed(round_: int) -> Sealed:
    slot = Slot(RUN, bytes(32), bytes(16), round_, 0, bytes(32), HISTORY)
    return Sealed("flashe", slot, (0,), 4, np.zeros(9, np.uint8))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    home = tmp_path / "node"
    policy = Policy(home, trust="first-use")
    return Node(policy, Store(home), Identity(bytes(32)), RUN)


def files(node: Node) -> dict[str, bytes]:
    folder = node.policy.home / "runs" / str(RUN)
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.is_dir() else {}


def kept(node: Node) -> list[float] | None:
    residual = node.residual()
    return None if residual is None else residual.tolist()


@pytest.mark.parametrize("sent", [True, False])
def test_a_round_is_over_once_and_no_earlier_one_settles_it(node: Node, sent: bool) -> None:
    node.save_draft(draft(3))
    before = files(node)
    for round_ in (0, 1, 2):
        node.settle_draft(round_, sent=sent)
        node.skip_draft(round_)
    assert files(node) == before
    node.settle_draft(3, sent=sent)
    after = files(node)
    assert after != before
    for again in (True, False):
        node.settle_draft(3, sent=again)
        node.settle_draft(9, sent=again)
        node.skip_draft(9)
    assert files(node) == after


@pytest.mark.parametrize("sent", [True, False])
def test_a_dense_draft_leaves_nothing(node: Node, sent: bool) -> None:
    node.save_draft(dense())
    node.settle_draft(3, sent=sent)
    assert files(node) == {}


@pytest.mark.parametrize(
    ("uploaded", "name"), [(None, "outbox"), (2, "outbox"), (3, "outbox"), (3, "mean-squares")]
)
def test_a_round_that_was_skipped(node: Node, uploaded: int | None, name: Any) -> None:
    """With a model of another member nobody says whose updates are in it: what was handed over is.

    What was not is dropped: its node may have started from another model than the others. Mean squares
    alone are no update.
    """
    if uploaded is not None:
        made = sealed(uploaded)
        if name != "outbox":
            made = replace(made, slot=replace(made.slot, purpose=name))
        node.save_output(made, b"envelope")
    node.save_draft(draft(3))
    node.skip_draft(2)
    assert node.load_draft() is not None
    node.skip_draft(5)
    assert node.load_draft() is None
    assert kept(node) == (rest(draft()) if (uploaded, name) == (3, "outbox") else None)


SETTLE: dict[str, tuple[Callable[[Node], None], list[float]]] = {
    "sent": (lambda node: node.settle_draft(3, sent=True), rest(draft(3))),
    "not sent": (
        lambda node: node.settle_draft(3, sent=False, contract=bytes(32)),
        rest(draft(3).given_back()),
    ),
    "told otherwise": (
        lambda node: node.settle_draft(3, sent=False, contract=HISTORY),
        rest(draft(2, 9.0)),
    ),
    # The draft's own round came to nothing: whatever is in this sum, it is not this update.
    "another round": (lambda node: node.settle_draft(5, sent=True), rest(draft(2, 9.0))),
    "another, too": (lambda node: node.settle_draft(5, sent=False), rest(draft(2, 9.0))),
    "skipped": (lambda node: node.skip_draft(3), rest(draft(2, 9.0))),
}
"""What becomes of a draft of round 3, and what is left then; a residual of round 2 is in it already."""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("crash", ["move", "write", "erase"])
@pytest.mark.parametrize("name", SETTLE)
def test_a_crash_between_its_steps(
    node: Node, monkeypatch: pytest.MonkeyPatch, name: str, crash: str, when: str
) -> None:
    """Done again it comes to what it would have come to at once."""
    settle, left = SETTLE[name]
    node.save_draft(draft(2, 9.0))
    node.settle_draft(2, sent=True)
    node.save_draft(draft(3))
    begin = files(node)
    settle(node)
    expected = files(node)
    assert set(expected) == {"residual"}
    assert kept(node) == left
    assert node.load_draft() is None
    assert private(node.policy.home / "runs" / str(RUN) / "residual")
    for file, data in begin.items():
        node.store.write(f"runs/{RUN}/{file}", data)
    real = getattr(Store, crash)

    def dies(self: Store, *args: Any) -> None:
        if when == "after":
            real(self, *args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, crash, dies)
        try:
            settle(node)
        except KeyboardInterrupt:
            assert kept(node) is not None  # an older one or the new one, whole
    for _ in range(2):
        settle(node)
        assert files(node) == expected
