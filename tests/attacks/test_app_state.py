"""A server that asks some sites for attempts that nobody adds, to set the apps of the others apart.

An app that keeps something from one call to the next (here: it trains on its first call only) behaved
otherwise at the site that was asked less often, and the sum was that site's update.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict

from flhe.training.model import Model
from tests.mods.harness import TERMS, App, Group, Raises, Site, answer, arrays, refused, update
from tests.mods.masked import Masked


class Once(App):
    """Trains on its first call; later on it stands still."""

    def __call__(self, message: Message, context: Context) -> Message:
        state = context.state.setdefault("calls", ConfigRecord({"n": 0}))
        self.step = 0.0 if state["n"] else 0.125  # type: ignore[index]
        state["n"] += 1  # type: ignore[index, operator]
        return super().__call__(message, context)


class Replaces(App):
    """As `Once`, but it puts another state in its context's place."""

    def __call__(self, message: Message, context: Context) -> Message:
        calls = context.state.get("calls")
        n = calls["n"] if isinstance(calls, ConfigRecord) else 0
        self.step = 0.0 if n else 0.125
        context.state = RecordDict({"calls": ConfigRecord({"n": n + 1})})  # type: ignore[operator]
        return super().__call__(message, context)


def each(group: Group, stage: str = "round", **fields: Any) -> None:
    for site in group.sites[1:]:
        kind = "evaluate" if stage == "evaluate" else "train"
        answer(group.ask(site, stage, kind, **fields))


DECOYS: dict[str, Callable[[Group], None]] = {
    "an attempt": each,
    "two attempts": lambda group: (each(group), each(group, attempt=1))[0],
    "an earlier round": lambda group: each(group, round_=1, attempt=3),
    "an evaluation": lambda group: each(group, "evaluate"),
}


@pytest.mark.parametrize("app", [Once, Replaces])
@pytest.mark.parametrize("decoy", DECOYS)
def test_no_decoy_sets_an_app_apart(tmp_path: Path, decoy: str, app: type[App]) -> None:
    group = Group(tmp_path, 4, TERMS).agree()
    for site in group.sites:
        site.app = app()
    DECOYS[decoy](group)
    total = group.total([update(group.ask(s, round_=2)) for s in group.sites])
    before = Model.initial(arrays()).masters["w"]
    answer(group.evaluate(group.sites[0], total))
    moved = group.sites[0].model.masters["w"] - before
    np.testing.assert_allclose(moved, 0.125, atol=1e-3)  # every app has trained


def calls(site: Site) -> list[object]:
    """What the app has in its state."""
    own = [r for n, r in site.context.state.items() if not n.startswith("flhe")]
    return [record["n"] for record in own]  # type: ignore[index]


def test_an_evaluation_that_replaces_the_state_leaves_ours(tmp_path: Path) -> None:
    group = Group(tmp_path, 4, TERMS).agree()
    site = group.sites[0]
    before = dict(site.context.state)
    site.app = Replaces()
    answer(group.ask(site, "evaluate", "evaluate"))
    assert "flhe" in before
    assert dict(site.context.state) == before


@pytest.mark.parametrize("by", ["sum", "checkpoint"])
@pytest.mark.parametrize("senders", [4, 3])
def test_what_counts_stays(tmp_path: Path, senders: int, by: str) -> None:
    """The last site's update is in the sum, or it is not; a checkpoint shows it too."""
    group = Group(tmp_path, 4, TERMS).agree()
    for site in group.sites:
        site.app = Once()
    last = group.sites[3]
    total = group.total([update(group.ask(s)) for s in group.sites][:senders])
    assert calls(last) == [1]
    last.app = App()
    if by == "checkpoint":
        for site in group.sites[:3]:
            answer(group.evaluate(site, total))
        answer(group.ask(last, "sync", extra=group.box(group.sites[0])))
    else:
        answer(group.evaluate(last, total))
    assert calls(last) == ([1] if senders == 4 else [])
    last.app = Once()
    update(group.ask(last, round_=2))
    assert calls(last) == [2 if senders == 4 else 1]
    last.app = Raises(ValueError())
    refused(group.ask(last, round_=2, attempt=1), 1001)
    assert calls(last) == ([1] if senders == 4 else [])


def test_where_the_server_reads_a_node_goes_by_what_it_signed(tmp_path: Path) -> None:
    group = Masked(tmp_path, 4).agree()
    for site in group.sites:
        site.app = Once()
    group.uploaded()
    answer(group.consist(0, [0, 1, 2]))
    for site in group.sites[0], group.sites[3]:
        site.app = App()
        answer(group.evaluate(site, base=1))
    assert [calls(group.sites[i]) for i in (0, 3)] == [[1], []]
