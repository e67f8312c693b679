"""A federation whose nodes and whose relay do what a test says."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Result

from flhe.errors import QuorumError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.mods import HEMod, records
from flhe.node import audit
from flhe.node.store import Store
from flhe.strategies import HEStrategy
from flhe.strategies import grid as grid_module
from flhe.strategies.federation import Federation
from flhe.strategies.grid import StreamGrid
from flhe.strategies.report import RoundReport
from flhe.testing import InProcessGrid
from flhe.training.model import Model
from tests.rosters import write_pinned
from tests.strategies.reference import COUNTS, MAX, start_arrays, trained

Fate = Literal["dead", "silent"] | None
Fates = dict[tuple[int, str], Iterable[int]]
"""(round, stage) -> partitions"""

Lie = Callable[[int, Message], Message | None]
"""(node, its reply) -> another one; None where it was changed in place."""

Patch, Log = pytest.MonkeyPatch, pytest.LogCaptureFixture

MASKED = ("round", "consist", "unmask")
"""Stages of a round whose survivors are signed."""


class Here:
    """In place of a pool of threads: a node works when it is asked."""

    @staticmethod
    def submit(work: Callable[..., None], *args: Any) -> None:
        work(*args)

    def shutdown(self, wait: bool) -> None:
        """There is nothing to wait for."""


class Clock:
    """Stands in for `time`: what sleeps moves it, and nodes take no time at all."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.perf_counter = time.perf_counter

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += max(seconds, 1e-6)


class Node(ClientApp):
    """The app of every node; `examples` and `metrics` say what a partition tells."""

    def __init__(self, *mods: Any) -> None:
        super().__init__(mods=list(mods))
        self.examples: Callable[[int], Any] = COUNTS.__getitem__
        self.metrics: Callable[[int], Mapping[str, float]] = lambda p: {"train_loss": 1.0 + p}
        self.evaluated: Callable[[int], Mapping[str, Any]] = lambda p: {"loss": 0.5 + p}
        self.trained = trained
        self.ran: list[tuple[str, int]] = []
        self.configs: list[Mapping[str, Any]] = []

        @self.train()
        def _train(message: Message, context: Context) -> Message:
            partition = int(context.node_config["partition-id"])
            self.ran.append(("train", partition))
            self.configs.append(dict(message.content["config"]))
            arrays = records.to_numpy(message.content["arrays"])
            told = {"num-examples": self.examples(partition), **self.metrics(partition)}
            content = RecordDict({"metrics": MetricRecord(told)})
            content["arrays"] = records.from_numpy(self.trained(arrays, partition))
            return Message(content, reply_to=message)

        @self.evaluate()
        def _evaluate(message: Message, context: Context) -> Message:
            partition = int(context.node_config["partition-id"])
            self.ran.append(("evaluate", partition))
            told = {"num-examples": self.examples(partition), **self.evaluated(partition)}
            return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)


def new_node() -> Node:
    return Node(HEMod())


class Puppets(InProcessGrid):
    """Nodes that die, fall silent or forge, as `fate` and `forge` say; keeps all that it carried."""

    def __init__(
        self,
        path: Path,
        nodes: int,
        app: ClientApp | None = None,
        *,
        run_id: int = 7,
        config: Callable[[int], Mapping[str, Any]] | None = None,
    ) -> None:
        self.homes = [path / f"node-{i}" for i in range(nodes)]
        super().__init__(
            app or new_node(),
            nodes,
            run_id=run_id,
            node_config=lambda i: {
                "flhe-home": str(self.homes[i]),
                "flhe-trust": "first-use",
                "flhe-server-reads": True,
                "flhe-fresh-keys": False,
                **(config(i) if config else {}),
            },
        )
        self._pool = Here()
        self.fate: Callable[[int, str, int], Fate] = lambda node, stage, round_: None
        self.away: Callable[[int], set[int]] = lambda round_: set()
        self.before: dict[int, Callable[[], None]] = {}
        self.unreached: Fates = {}
        self.lost: Fates = {}
        self.for_good = False
        self.killed: set[int] = set()
        self.reports: list[RoundReport] = []
        self.round, self.asked = 1, 0
        self.rewrite: Callable[[int, str, RecordDict], RecordDict] = lambda n, s, content: content
        self.forge: Callable[[int, str, Message], Message] = lambda node, stage, reply: reply
        self.sent: list[tuple[int, str, RecordDict]] = []
        self.replies: list[tuple[int, str, Message]] = []
        self._about: dict[str, tuple[int, str]] = {}

    # --- who is there ---

    def get_node_ids(self) -> list[int]:
        return [node for node in self.contexts if node not in self.away(self.round)]

    def timed(self, strategy: HEStrategy) -> HEStrategy:
        """Have time go on with each round of a strategy, whose reports may come later; keep those."""
        settings, account = strategy.settings, strategy._evaluate
        if settings.on_round is None:
            strategy.settings = replace(settings, on_round=self.reports.append)

        def over(fed: Any, number: int, *rest: Any) -> None:
            account(fed, number, *rest)
            self.round = number + 1
            self.before.get(self.round, lambda: None)()

        strategy._evaluate = over  # type: ignore[method-assign]
        return strategy

    def drop(self, round_: int, stage: str, how: str, nodes: Iterable[int]) -> None:
        """Have partitions drop out at a stage, "dead" before it or its answer "lost", for the round."""
        at = MASKED.index(stage) if stage in MASKED else len(MASKED)
        (self.lost if how == "lost" else self.unreached)[round_, stage] = nodes
        self.unreached |= {(round_, later): nodes for later in MASKED[at + 1 :]}

    def _fate(self, node: int, stage: str, round_: int) -> Fate:
        self.asked = round_ or self.asked
        if node - 100 in self.unreached.get((round_, stage), ()):
            if self.for_good:
                self.killed.add(node)
            return "dead"
        return "dead" if node in self.killed else self.fate(node, stage, round_)

    def _loses(self, node: int, stage: str) -> bool:
        lost = node - 100 in self.lost.get((self.asked, stage), ())
        if lost and self.for_good:
            self.killed.add(node)
        return lost

    def lies(
        self, nodes: Collection[int] | Callable[[int], bool], stage: str, change: Lie
    ) -> list[int]:
        """Have `change` spoil what nodes answer to a stage; returns who has lied, as they do."""
        honest, lied = self.forge, list[int]()
        picked = nodes if callable(nodes) else nodes.__contains__

        def forge(node: int, at: str, reply: Message) -> Message:
            reply = honest(node, at, reply)
            if at != stage or reply.has_error() or not picked(node):
                return reply
            lied.append(node)
            return change(node, reply) or reply

        self.forge = forge
        return lied

    # --- what it carries ---

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            stage = stage_of(message.content)
            record = records.find_config(message.content, records.STAGE)
            number = record.get("round", 0) if record else 0
            message.content = self.rewrite(node, stage, message.content)
            self.sent.append((node, stage, message.content))
            fate = self._fate(node, stage, number if isinstance(number, int) else 0)
            self.dead = {node} if fate == "dead" else set()
            self.silent = {node} if fate == "silent" else set()
            self._about[f"{self._count + 1:064x}"] = (node, stage)
            ids += super().push_messages([message])
        return ids

    def send_and_receive(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("this one waits for everyone")

    def wait_for_reply(self, seconds: float) -> None:
        """Wait as `Clock` has it: nobody works meanwhile."""
        grid_module.time.sleep(seconds)

    def _put(self, message_id: str, reply: Message) -> None:
        node, stage = self._about[message_id]
        reply = self.forge(node, stage, reply)
        if self._loses(node, stage):
            reply._content, reply._error = None, Error(code=4)
        self.replies.append((node, stage, reply))
        super()._put(message_id, reply)

    def model(self, index: int) -> Model:
        return Model.from_bytes((self.run_dir(index) / "model").read_bytes())

    def run_dir(self, index: int) -> Path:
        """A node's directory of the federation, whose first run had the usual id."""
        return self.homes[index] / "runs" / "7"

    def stages(self, stage: str) -> list[int]:
        return [node for node, name, _ in self.sent if name == stage]

    def stages_of(self, node: int) -> list[str]:
        return [stage for one, stage, _ in self.sent if one == node]

    def log(self, index: int) -> str:
        return (self.homes[index] / "errors.log").read_text(encoding="utf-8")

    def trainings(self, index: int) -> int:
        return self.app.ran.count(("train", index))

    @property
    def survivors(self) -> list[int]:
        return [report.survivors for report in self.reports]

    # --- keys ---

    def epoch(self, index: int) -> Epoch:
        store = Store(self.homes[index])
        (only,) = store.names("epochs/*")
        return Epoch.from_bytes(store.read(only))

    def epochs(self, index: int) -> int:
        """Epochs whose keys a node has had."""
        entries = audit.last(Store(self.homes[index]), 10**6)
        return len({entry.epoch for entry in entries if entry is not None and entry.epoch})

    def keys(self, index: int) -> int:
        """Epochs whose keys a node has now."""
        return len(list((self.homes[index] / "epochs").iterdir()))

    def ranked(self) -> list[int]:
        return sorted(range(len(self.homes)), key=lambda i: self.identity(i).public)

    def identity(self, index: int) -> Identity:
        return Identity((self.homes[index] / "identity.key").read_bytes())


def stage_of(content: RecordDict) -> str:
    record = records.find_config(content, records.STAGE)
    return str(record["stage"]) if record else "plain"


def initial() -> ArrayRecord:
    """The start arrays, for a strategy."""
    return records.from_numpy(start_arrays())


def same(grid: Puppets, members: Iterable[int]) -> Model:
    """The model that all of them hold, to the bit."""
    models = [grid.model(i) for i in members]
    assert len({b"".join(m.chunks()) for m in models}) == 1
    return models[0]


def told(reply: Message) -> ConfigRecord:
    """What a reply says, for a test to change."""
    return reply.content[records.REPLY]


def restaged(content: RecordDict, **fields: Any) -> RecordDict:
    """A message whose stage says something else."""
    record = ConfigRecord({**content[records.STAGE], **fields})
    return RecordDict({**content, records.STAGE: record})


def pin(
    grid: Puppets, nodes: Sequence[int], listed: int, name: str = "roster", **how: Any
) -> tuple[Roster, list[Identity]]:
    """Pin one roster on nodes, which lists so many sites, each with an identity of its own."""
    ids = [Identity(bytes([i + 1]) * 32) for i in range(max(listed, len(grid.homes)))]
    members = tuple(Member(f"site-{i}", each.public) for i, each in enumerate(ids[:listed]))
    roster = Roster(members, **{"collusion": 0, "min_survivors": 2, "schemes": ("*",), **how})
    config = write_pinned(grid.homes[0].parent / name, roster)
    for i in nodes:
        put_identity(grid.homes[i], bytes([i + 1]) * 32)
        grid.contexts[100 + i].node_config.update(config)
    return roster, ids


def put_identity(home: Path, seed: bytes) -> None:
    Store(home).identity(lambda _: seed)


def play(
    make: Callable[..., HEStrategy],
    grid: Puppets,
    rounds: int = 3,
    *,
    start: Mapping[str, Any] | None = None,
    **how: Any,
) -> tuple[HEStrategy, Result]:
    """A whole run; `how` goes to the strategy, `start` to its start()."""
    strategy = grid.timed(make(**{"max_examples": MAX, **how}))
    try:
        given = {"initial_arrays": initial(), **(start or {})}
        result = strategy.start(grid, num_rounds=rounds, **given)
    finally:
        grid.close()
    return strategy, result


def federated(
    make: Callable[..., HEStrategy], grid: Puppets, rounds: int = 3, **how: Any
) -> Federation:
    """The server's state after a whole run."""
    fed = play(make, grid, rounds, **how)[0]._fed
    assert fed is not None
    return fed


def refused(make: Callable[..., HEStrategy], grid: Puppets, rounds: int = 2, **how: Any) -> str:
    """The text of the QuorumError that a run ends with."""
    with pytest.raises(QuorumError) as caught:
        play(make, grid, rounds, **how)
    return str(caught.value)


def lie(
    grid: Puppets,
    node: int,
    stage: str,
    change: Callable[[Message], Any],
    round_: int | None = None,
) -> None:
    """Have `change` done to what a node answers in a stage, in one round or in all."""

    def changed(_: int, reply: Message) -> None:
        if round_ in (None, grid.asked):
            change(reply)

    grid.lies([node], stage, changed)


def lose(reply: Message) -> None:
    """What a node answered does not arrive: for `lie`."""
    reply._content, reply._error = None, Error(code=4)


def spoil_shares(reply: Message) -> None:
    """None of the shares that come with an update decrypts: for `lie`."""
    record: Any = told(reply)
    if "shares" in record:
        record["shares"] = [box[:-1] + b"\0" if box else box for box in record["shares"]]


def first_of(patch: Patch, first: Callable[[int], bool]) -> None:
    """Have some nodes' replies to every stage come before the others', each time in order."""
    honest = StreamGrid.send_and_receive

    def ordered(self: StreamGrid, *args: Any, **kwargs: Any) -> Iterator[Message]:
        replies = list(honest(self, *args, **kwargs))
        node_of = self.node_of
        return iter(sorted(replies, key=lambda r: (not first(node_of(r)), node_of(r))))

    patch.setattr(StreamGrid, "send_and_receive", ordered)


def drift(grid: Puppets, index: int) -> None:
    """A node's weights are no more what its history says: a bad disk, or other arithmetic."""
    model = grid.model(index)
    other = replace(model, masters={**model.masters, "w": model.masters["w"] + 3})
    (grid.run_dir(index) / "model").write_bytes(b"".join(other.chunks()))
