"""Honest exchanges of whole federations, stage by stage, with the disk of the node as it was.

Each can be had again: the node's directory is rolled back to what it was before the message came. (A
store notices that its directory was rolled back, by its witness; where these tests run it does not.)
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flhe.coding.select import Select
from flhe.keys.agreement.epoch import Epoch
from flhe.mods import HEMod, records
from flhe.node.witness import Witness
from flhe.schemes.base import Scheme
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import (
    EsaflFedAvg,
    FedmlHeFedAvg,
    FlasheFedAvg,
    SashFedAvg,
    SchemeFedAvg,
    SecureSum,
)
from flhe.strategies.options import RunSettings
from flhe_lab.variants.threshold.scheme import ThresholdCkks
from tests.fuzz.group import scratch
from tests.fuzz.messages import copied
from tests.strategies.conftest import quickly
from tests.strategies.puppets import Node, Puppets, initial, stage_of

Disk = dict[str, bytes | None]
"""Content by path; None for a directory."""


@dataclass(frozen=True)
class Case:
    """One federation: its strategy, and how many nodes it has."""

    strategy: Callable[..., Any]
    how: Mapping[str, Any] = field(default_factory=dict)
    nodes: int = 4
    rounds: int = 2
    served: bool = True
    config: Mapping[str, Any] = field(default_factory=dict)
    away: str = ""
    """A stage of the first round that one node does not answer, so that it catches up later."""
    silent: int = 1
    """How many do not."""
    late: bool = False
    """Whether one node is there from the second round on only, and is asked who it is."""


def _some(context: Context) -> ArrayRecord:
    return initial()


def _sensitivity(message: Message, context: Context) -> dict[str, Any]:
    arrays = records.to_numpy(message.content["arrays"])  # type: ignore[arg-type]
    return {
        name: np.abs(np.asarray(a, np.float32)) for name, a in arrays.items() if a.dtype.kind == "f"
    }


def _numbers(asked: ConfigRecord, context: Context) -> ArrayRecord:
    return records.from_numpy({"n": np.arange(3) + int(str(asked["n"]))})


class Analyst:
    """In the place of a strategy: what asks a query a round."""

    def __init__(self, scheme: Scheme, max_examples: int, **how: Any) -> None:
        self.scheme, self.settings = scheme, RunSettings(**how)
        self._evaluate = None

    def start(self, grid: Any, _: object, num_rounds: int) -> None:
        """Ask them."""
        settings = {"retries": self.settings.retries}
        with SecureSum(grid, self.scheme, **settings) as secure:  # type: ignore[arg-type]
            for number in range(num_rounds):
                secure.sum("numbers", {"n": number})


SELECTED = {"flhe-min-select": 0.01, "flhe-select-rules": "sensitivity", "flhe-min-bits": 112}
CASES: dict[str, Case] = {
    "flashe-late": Case(FlasheFedAvg, {"min_available_nodes": 3}, late=True),
    "flashe-secret-start": Case(FlasheFedAvg, served=False),
    "flashe-sparse": Case(
        FlasheFedAvg, {"top_k": 0.3, "small": 0, "clip": "exchange", "masking": "adaptive"}
    ),
    "sash-clients": Case(SashFedAvg, {"unmask": "clients"}),
    "sash-void": Case(SashFedAvg, nodes=3, away="consist", silent=2, rounds=3),
    "esafl": Case(EsaflFedAvg, {"keys": "joint"}, nodes=3),
    "queries": Case(partial(Analyst, Flashe()), config={"flhe-queries": "numbers"}, nodes=3),
    "queries-together": Case(
        partial(Analyst, Sash(unmask="clients")), config={"flhe-queries": "numbers"}
    ),
    "threshold-ckks": Case(
        partial(SchemeFedAvg, ThresholdCkks()), config={"flhe-schemes": "threshold-ckks"}, nodes=3
    ),
    "fedml-he": Case(
        FedmlHeFedAvg,
        {"select": Select(0.5, "sensitivity"), "weighted": False},
        config=SELECTED,
        nodes=3,
    ),
}


@dataclass(frozen=True, eq=False)
class Moment:
    """One message to one node, before and after it was answered."""

    case: str
    stage: str
    kind: str
    content: RecordDict
    home: Path
    context: Context
    before: Disk
    after: Disk
    app: ClientApp

    def send(self, content: RecordDict | None = None, kind: str = "") -> Message:
        """What the node answers to this message, or to another one in its place."""
        told = replace(self.context, node_config=dict(self.context.node_config), state=RecordDict())
        there = copied(self.content) if content is None else content
        return self.app(Message(there, self.context.node_id, kind or self.kind), told)

    def restore(self) -> None:
        """Put the node's directory back to what it was."""
        put(self.home, self.before)


def taken(home: Path) -> Disk:
    """All that is in a directory."""
    found = sorted(home.rglob("*")) if home.is_dir() else []
    return {str(p.relative_to(home)): None if p.is_dir() else p.read_bytes() for p in found}


def put(home: Path, disk: Disk) -> None:
    """Make a directory that again."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700, parents=True)
    for name, content in disk.items():
        if content is None:
            (home / name).mkdir(mode=0o700)
        else:
            (home / name).touch(0o600)
            (home / name).write_bytes(content)


@contextmanager
def ageless() -> Iterator[None]:
    """No store sees that its directory was rolled back, nobody waits for disks or silent nodes."""
    with quickly(), mock.patch.object(Witness, "check"):
        yield


class Recorder:
    """An app that notes what comes before it hands it on."""

    def __init__(self, case: str, app: ClientApp, homes: list[Path]) -> None:
        self.case, self.app, self.homes = case, app, homes
        self.moments: list[Moment] = []
        self.seen: set[object] = set()

    def __call__(self, message: Message, context: Context) -> Message:
        stage = stage_of(message.content)
        home = self.homes[int(context.node_config["partition-id"])]
        content, before = copied(message.content), taken(home)
        reply = self.app(message, context)
        kind_of = (stage, _form(content), sum(name.endswith("model") for name in before))
        if kind_of not in self.seen and not reply.has_error():
            self.seen.add(kind_of)
            kind = message.metadata.message_type
            at = (self.case, stage, kind, content, home, context, before, taken(home), self.app)
            self.moments.append(Moment(*at))
        return reply


def _form(content: RecordDict) -> object:
    """What tells one message of a stage from another: which records it has, and which fields."""
    record = records.find_config(content, records.STAGE)
    fields = {} if record is None else dict(record)
    return tuple(content), tuple((name, bool(value)) for name, value in sorted(fields.items()))


@functools.cache
def moments(name: str) -> tuple[Moment, ...]:
    """One message of each form, at each stage of a federation."""
    case = CASES[name]
    with ageless():
        grid, recorder = federation(case, scratch() / name, name)
        strategy = grid.timed(case.strategy(**{"max_examples": 64, **case.how}))
        strategy.start(grid, initial() if case.served else None, num_rounds=case.rounds)
        grid.close()
    return tuple(recorder.moments)


@functools.cache
def secrets(name: str) -> list[bytes]:
    """What no reply of a federation may hold: its nodes' seeds, and the keys of their epochs."""
    out: set[bytes] = set()
    for content in (disk for m in moments(name) for disk in (m.before, m.after)):
        out.add(content.get("identity.key") or b"")
        for data in (data for path, data in content.items() if path.startswith("epochs/")):
            epoch = Epoch.from_bytes(data or b"")
            out |= {epoch.group_key, *epoch.pair_keys, epoch.scheme_secret[:64]}
    return [bytes(secret) for secret in out if secret]


def federation(case: Case, path: Path, name: str = "") -> tuple[Puppets, Recorder]:
    """Its nodes, and what notes their messages."""
    app = Node(HEMod(None if case.served else _some, _sensitivity, {"numbers": _numbers}))
    grid = Puppets(path, case.nodes, config=lambda _: case.config)
    if case.away:
        first = 100 + case.nodes - case.silent
        grid.fate = lambda node, stage, round_: (
            "dead" if node >= first and (stage, round_) == (case.away, 1) else None
        )
    if case.late:
        grid.away = lambda round_: {100 + case.nodes - 1} if round_ < 2 else set()
    recorder = Recorder(name, app, grid.homes)
    grid.app = recorder  # type: ignore[assignment]
    return grid, recorder
