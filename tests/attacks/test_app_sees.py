"""A server that sets one site's app apart, by what it is told, what it keeps, or a residual.

The order of records, the order of their keys and the message's group, which no hash covered, made one
app train and all others stand still: the sum was that site's update. An app that keeps something from
one call to the next (here: it trains on its first call only) behaved otherwise at the site that was
asked for fewer attempts that nobody adds. What sparse updates keep back could be seen alone, or be
counted twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from flhe.mods import HEMod, records
from flhe.training.model import Model
from tests.mods.harness import (
    SPARSE,
    App,
    Group,
    Raises,
    Site,
    answer,
    arrays,
    refused,
    support,
    update,
)
from tests.mods.masked import Masked

# --- what an app is told ---

ONE, OTHER = ConfigRecord({"a": 1, "lr": 0.1}), ConfigRecord({"lr": 0.1, "a": 1})


class Looks(App):
    """An app that looks wherever two messages could differ, but for the model."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[Any] = []

    def __call__(self, message: Message, context: Context) -> Message:
        told = [
            (name, type(r).__name__, list(r), repr(r if isinstance(r, ConfigRecord) else None))
            for name, r in message.content.items()
        ]
        known = {"_dst_node_id", "_created_at"}  # the site's own number, and its own clock
        metadata = {k: v for k, v in vars(message.metadata).items() if k not in known}
        metadata["sent lately"] = abs(time.time() - message.metadata.created_at) < 3600
        self.looks.append((told, metadata, list(context.run_config.items())))
        return super().__call__(message, context)


CHANNELS: dict[str, Any] = {
    "order of records": lambda m: reordered(m, list(reversed(list(m.content)))),
    "order of keys": lambda m: m.content.update({"config": OTHER}),
    "another value": lambda m: m.content.update({"config": ConfigRecord({"a": 1, "lr": 0.0})}),
    "group": lambda m: setattr(m.metadata, "group_id", "you"),
    "time to live": lambda m: setattr(m.metadata, "ttl", 1234.0),
    "sent at": lambda m: setattr(m.metadata, "created_at", 1.0),
    "sender": lambda m: m.metadata.__dict__.update(_src_node_id=77),
    "a record of metrics": lambda m: m.content.update({"more": MetricRecord({"you": 1})}),
    "arrays": lambda m: m.content.update({"more": m.content["arrays"]}),
}


def reordered(message: Message, names: list[str]) -> None:
    message.content = RecordDict({name: message.content[name] for name in names})


@pytest.mark.parametrize("kind", ["train", "evaluate"])
@pytest.mark.parametrize("channel", CHANNELS)
def test_apps_cannot_tell_messages_apart(group: Group, channel: str, kind: str) -> None:
    seen, stage = [], "round" if kind == "train" else "evaluate"
    for site, change in zip(group.sites, (None, CHANNELS[channel]), strict=False):
        site.app = Looks()
        record = records.stage_record(stage, round=1, attempt=0, confirms=group.confirms)
        content = RecordDict({**group.start, records.STAGE: record, "config": ONE})
        content["more-config"] = ConfigRecord({"b": [1.0, 2.0]})
        message = Message(content, site.context.node_id, kind)
        if change is not None:
            change(message)
        answer(HEMod()(message, site.context, site.app))
        seen += site.app.looks
    assert len(seen) == 2
    assert seen[0] == seen[1]


def test_nor_by_the_order_of_the_runs_config(tmp_path: Path) -> None:
    group, seen = Group(tmp_path), []
    configs: list[dict[str, Any]] = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2}]
    for site, config in zip(group.sites, configs, strict=True):
        site.app, site.context.run_config = Looks(), config
    group.agree()
    for site in group.sites:
        update(group.ask(site))
        seen += site.app.looks
    assert seen[0] == seen[1] == seen[2]


def test_all_apps_may_be_given_another_config_of_the_run(tmp_path: Path) -> None:
    """It works: docs/limits.md says so. It takes new keys, and the contract stays the same."""
    group = Group(tmp_path)
    for site in group.sites:
        site.allow(flhe_accept_contract=group.contract.hash().hex())
        site.context.run_config = {"epochs": 1}
    group.agree()
    update(group.ask(group.sites[0]))
    for site in group.sites:
        site.context.run_config = {"epochs": 0}
    refused(group.ask(group.sites[0], attempt=1), 1020)
    group.renew()
    update(group.ask(group.sites[0], attempt=1))


def test_a_wait_for_masks_does_not_tell_how_long_the_app_trained(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks are made while the app trains: the rest of their time is longer where it trains shorter."""
    now = 0.0

    class Ahead:
        def __init__(self, **_: object) -> None:
            self.start = lambda: None

        def join(self) -> None:
            nonlocal now
            now += 1000.0

    monkeypatch.setattr("flhe.mods.training.threading.Thread", Ahead)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert answer(group.ask(group.sites[0]))["crypto-s"] == 0
    assert now == 1000


# --- what it keeps ---


class Once(App):
    """Trains on its first call; later on it stands still."""

    replaces = False

    def __call__(self, message: Message, context: Context) -> Message:
        state: Any = context.state.setdefault("calls", ConfigRecord({"n": 0}))
        self.step = 0.0 if state["n"] else 0.125
        state["n"] += 1
        if self.replaces:
            context.state = RecordDict({"calls": state})
        return super().__call__(message, context)


class Replaces(Once):
    """As `Once`, but it puts another state in its context's place."""

    replaces = True


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
def test_no_decoy_sets_an_app_apart(four: Group, decoy: str, app: type[App]) -> None:
    for site in four.sites:
        site.app = app()
    DECOYS[decoy](four)
    total = four.total(four.parts(2))
    before = Model.initial(arrays()).masters["w"]
    answer(four.evaluate(four.sites[0], total))
    moved = four.sites[0].model.masters["w"] - before
    np.testing.assert_allclose(moved, 0.125, atol=1e-3)  # every app has trained


def calls(site: Site) -> list[object]:
    """What the app has in its state."""
    own = [r for n, r in site.context.state.items() if not n.startswith("flhe")]
    return [record["n"] for record in own]  # type: ignore[index]


def test_an_evaluation_that_replaces_the_state_leaves_ours(group: Group, site: Site) -> None:
    before = dict(site.context.state)
    site.app = Replaces()
    answer(group.ask(site, "evaluate", "evaluate"))
    assert "flhe" in before
    assert dict(site.context.state) == before


@pytest.mark.parametrize("by", ["sum", "checkpoint"])
@pytest.mark.parametrize("senders", [4, 3])
def test_what_counts_stays(four: Group, senders: int, by: str) -> None:
    """The last site's update is in the sum, or it is not; a checkpoint shows it too."""
    for site in four.sites:
        site.app = Once()
    *others, last = four.sites
    total = four.total(four.parts()[:senders])
    assert calls(last) == [1]
    last.app = App()
    if by == "checkpoint":
        for site in others:
            answer(four.evaluate(site, total))
        answer(four.ask(last, "sync", extra=four.box(others[0])))
    else:
        answer(four.evaluate(last, total))
    assert calls(last) == ([1] if senders == 4 else [])
    last.app = Once()
    update(four.ask(last, round_=2))
    assert calls(last) == [2 if senders == 4 else 1]
    last.app = Raises(ValueError())
    refused(four.ask(last, round_=2, attempt=1), 1001)
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


# --- what sparse updates keep back ---


@pytest.fixture
def sparse(tmp_path: Path) -> Group:
    return Group(tmp_path, 4, SPARSE).agree()


class Obeys(App):
    """An app that steps by the learning rate that it is told."""

    def __call__(self, message: Message, context: Context) -> Message:
        self.step = message.content["config"]["lr"]  # type: ignore[assignment, index]
        return super().__call__(message, context)


def test_a_residual_is_no_way_into_a_later_sum(sparse: Group) -> None:
    """The other members have agreed anew, and are told to stand still; then so is the victim.

    The whole update came into the next sum, alone.
    """
    for site in sparse.sites:
        site.app = Obeys()
    victim, *others = sparse.sites
    support(sparse.ask(victim))
    sparse.renew(lr=0.0)

    def summed(sites: list[Site], **fields: Any) -> Any:
        told = [support(sparse.ask(s, **fields)) for s in sites]
        fields = {"mode": "double", **fields, "sums": ()}
        said = zip(sites, told, strict=True)
        return sparse.total([update(sparse.ask(s, "update", **fields), [t]) for s, t in said])

    second = summed(sparse.sites, round_=2, sums=[summed(others, attempt=1)])
    before = others[0].model.masters["w"]
    answer(sparse.evaluate(others[0], second))
    np.testing.assert_allclose(others[0].model.masters["w"], before, atol=1e-3)


class Sloped(App):
    """Steps that differ from value to value, so that a part of each update is kept back."""

    def trained(self, record: Any) -> ArrayRecord:
        after = records.to_numpy(super().trained(record))
        slope = np.arange(1, 13, dtype=np.float32).reshape(3, 4) * np.float32(self.step)
        return records.from_numpy({**after, "w": records.to_numpy(record)["w"] + slope})


def test_a_residual_in_a_round_that_was_left_counts_once(sparse: Group) -> None:
    """The victim sends it, is asked alone for the next round, and takes the others' checkpoint."""
    *others, victim = sparse.sites
    for site in others:
        site.app = Sloped(0.0)
    victim.app = Sloped(0.01)
    sparse.open(sparse.total(sparse.sparse_parts(sparse.supports())))
    assert "residual" in victim.files
    victim.app = Sloped(0.0)  # from here on it sends nothing but what was kept back
    second = sparse.total(sparse.sparse_parts(sparse.supports(round_=2), round_=2))
    support(sparse.ask(victim, round_=3))
    for site in others:
        answer(sparse.evaluate(site, second))
    answer(sparse.ask(victim, "sync", extra=sparse.box(others[0])))
    moved = others[0].model.masters["w"]
    sparse.open(sparse.total(sparse.sparse_parts(sparse.supports(round_=4), round_=4)))
    np.testing.assert_allclose(others[0].model.masters["w"], moved, atol=1e-3)
