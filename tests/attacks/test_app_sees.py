"""A server that tells one site's app something else than all others.

The order of records, the order of their keys and the message's group, which no hash covered, made one
app train and all others stand still: the sum was that site's update.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from flhe.mods import HEMod, records
from tests.mods.harness import App, Group, answer, refused, update

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
    seen = []
    for site, change in zip(group.sites, (None, CHANNELS[channel]), strict=False):
        site.app = Looks()
        stage = "round" if kind == "train" else "evaluate"
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
    accepted = {"flhe-accept-contract": group.contract.hash().hex()}
    for site in group.sites:
        site.context.node_config.update(accepted)
        site.context.run_config = {"epochs": 1}
    group.agree()
    update(group.ask(group.sites[0]))
    for site in group.sites:
        site.context.run_config = {"epochs": 0}
    refused(group.ask(group.sites[0], attempt=1), 1020)
    group.renew()
    update(group.ask(group.sites[0], attempt=1))


def test_a_wait_for_masks_does_not_tell_how_long_the_app_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masks are made while the app trains: the rest of their time is longer where it trains shorter."""
    now = 0.0

    class Ahead:
        def __init__(self, **_: object) -> None:
            self.start = lambda: None

        def join(self) -> None:
            nonlocal now
            now += 1000.0

    group = Group(tmp_path, 3).agree()
    monkeypatch.setattr("flhe.mods.training.threading.Thread", Ahead)
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    assert answer(group.ask(group.sites[0]))["crypto-s"] == 0
    assert now == 1000
