"""What must hold of a server's rounds: nothing is lost, doubled or other than FedAvg's mean."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.mods import records
from flhe.node.node import Node as NodeState
from flhe.schemes.flashe import adder as flashe
from flhe.schemes.sealed import Sealed, Slot
from flhe.strategies import HEStrategy
from flhe.strategies.grid import StreamGrid
from flhe.strategies.ledger import Ledger
from flhe.training.chain import link_of
from flhe.training.draft import Draft
from flhe.training.model import Model
from flhe.training.session import Session
from tests.strategies.reference import COUNTS, Arrays, trained
from tests.strategies.watching import Made, Watch

MAX = 64
ROUND, STAGE, CONNECT = 60.0, 10.0, 20.0
"""Seconds that the strategy waits."""

Outcome = Literal["done", "quorum", "killed", "stopped"]
Kept = tuple[Draft, NDArray[np.float32]]
"""A draft, and the residual before it."""


def start_arrays() -> Arrays:
    """A model as small as it can be with floats, a narrow float and integers in it."""
    return {
        "w": np.array([[0.5, -0.25, 0.125]], np.float32),
        "half": np.array([0.25], np.float16),
        "steps": np.array(3, np.int64),
    }


class Words(logging.Handler):
    """What the server and the nodes said aloud."""

    def __init__(self, world: Rounds) -> None:
        super().__init__(logging.WARNING)
        self.world = world
        self.said: list[tuple[int, int | None, str]] = []
        self.plans: dict[str, Callable[[], None]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.said.append((self.world.round(), self.world.actor, text))
        for what in (what for part, what in self.plans.items() if part in text):
            what()


class Rounds(Watch):
    """Runs of a server, and what was seen of them so far."""

    strict = True

    def __init__(self, path: Path, clocked: Sequence[Any]) -> None:
        self.words = Words(self)
        self.strategy: HEStrategy | None = None
        super().__init__(path, self.words, clocked)
        self.ledger: Ledger | None = None
        self.outcomes: list[tuple[Outcome, str]] = []
        self.ids: dict[int, int] = {}
        # What was seen: by mask, by (federation, round), by history.
        self.masks: set[tuple[bytes, int]] = set()
        self.open_sums: dict[tuple[int, int, str], bytes] = {}
        self.sent_sums: dict[tuple[int, int], bytes] = {}
        self.kept: dict[tuple[int, bytes], Sealed] = {}
        self.references: dict[tuple[int, bytes], tuple[Arrays, int]] = {}
        self.restored: set[int] = set()
        """Nodes that may hold a residual of some time ago, of a backup, or have given theirs up."""
        self.drafts: dict[tuple[int, int], list[Kept]] = {}
        """What may be a node's last draft; two if it died writing."""
        self._drafted: Any = None
        self.wrap(Session, "open", after=self._applies)
        self.wrap(Session, "draft", after=self._drafts)
        self.wrap(NodeState, "save_draft", self._saves, self._saved)
        self.wrap(NodeState, "leave", lambda *_: self.restored.add(self.actor))  # with its keys
        self.wrap(Ledger, "keep", self._keeps)
        ask = StreamGrid.send_and_receive

        def asked(grid: StreamGrid, messages: Any, *, timeout: float | None = None) -> Any:
            if timeout not in (ROUND, STAGE):
                self.breach(f"the server waits {timeout} s")
            began = self.clock.now
            return self._in_time(ask(grid, messages, timeout=timeout), began + (timeout or 0))

        self.patch.setattr(StreamGrid, "send_and_receive", asked)

    def round(self) -> int:
        """The round that the server is at; 0 before it has begun."""
        fed = None if self.strategy is None else self.strategy._fed
        return 0 if fed is None else fed.ledger.round

    def check(self, strategy: HEStrategy) -> None:
        """Look at what only shows once a run is over."""
        self.look()
        fed = strategy._fed
        if fed is not None and self.outcomes[-1][0] == "done":
            self.ledger = fed.ledger
            self._check_lost(fed.ledger)

    def nodes_of(self, total: Sealed) -> list[int]:
        return [self.made[total.slot, rank].node for rank in sorted(total.senders)]

    @property
    def senders(self) -> dict[int, set[int]]:
        """Nodes whose updates are in the model, by round."""
        rounds = [(r, history) for r, history in sorted(self.ledger.chain.items()) if r > 0]
        kept = {r: self.kept[self.ledger.federation, history] for r, history in rounds}
        return {r: set(self.nodes_of(total)) for r, total in kept.items()}

    def _check_lost(self, ledger: Ledger) -> None:
        """Every update is in the sum of its round, or somebody said that it is not."""
        before = b""
        for round_, history in sorted(ledger.chain.items()):
            if round_ > 0:
                if self.kept[ledger.federation, history].slot.history != before:
                    self.breach(f"the sum of round {round_} does not follow from the one before")
                opened = (ledger.federation, round_, "update") in self.open_sums
                if round_ not in ledger.sums and not opened:
                    self.breach(f"the sum of round {round_} was dropped, and nobody opened it")
            before = history
        # By node, not by identity: one that was wiped in mid-round trains again under a new one.
        inside = {(round_, node) for round_, nodes in self.senders.items() for node in nodes}
        for made in self.made.values():
            slot = made.slot
            ended = self.outcomes[made.asked - 1][0] != "done"
            if made.beside or slot.run_id != ledger.federation or ended:
                continue
            if (slot.round, made.node) not in inside and not self._said(made):
                self.breach(
                    f"round {slot.round}, attempt {slot.attempt}: the update of node {made.node} "
                    "was lost without a word"
                )

    def on_word(self, part: str, what: Callable[[], None]) -> None:
        """Do something whenever a warning holds `part`."""
        self.words.plans[part] = what

    def names(self, index: int, part: str) -> bool:
        """Whether the server warned of that node, in a text that holds `part`."""
        ids = [f"node {i} " for i, node in self.ids.items() if node == index]
        texts = [text for _, actor, text in self.words.said if actor is None and part in text]
        return any(i in text for text in texts for i in ids)

    def _said(self, made: Made) -> bool:
        names = "|".join(str(i) for i, node in self.ids.items() if node == made.node)
        out = re.compile(rf"aggregate_train: node ({names}) is left out")
        void = f"(the sum of )?round {made.slot.round} (opened for nobody|is void)"
        own = f"round {made.slot.round}: this node's update is not in the sum"
        return any(
            re.match(void, text) or (round_ == made.slot.round and bool(out.match(text)))
            if actor is None
            else actor == made.node and own in text
            for round_, actor, text in self.words.said
        )

    def _in_time(self, replies: Iterator[Message], deadline: float) -> Iterator[Message]:
        for reply in replies:
            if self.clock.now > deadline + 1e-3:
                self.breach("a reply was taken after its deadline")
            yield reply
        if self.clock.now > deadline + 1e-3:
            self.breach("the server waited beyond its deadline")

    def encrypts(self, sealed: Sealed, sealer: Any, plain: Plain, slot: Slot, **how: Any) -> None:
        """Masks are told apart by their keys too."""
        super().encrypts(sealed, sealer, plain, slot, **how)
        if isinstance(sealer, flashe.FlasheSealer):
            mode = how.get("mode", "")
            key = flashe._round_key(sealer.adder, sealer.group_key, slot, mode), sealer.rank
            if key in self.masks:
                self.breach(f"a mask is used twice: round {slot.round}, attempt {slot.attempt}")
            self.masks.add(key)

    def sums(self, lanes: NDArray[Any], opener: Any, total: Sealed) -> None:
        """All nodes open one sum of a round."""
        super().sums(lanes, opener, total)
        slot, digest = total.slot, total.digest()
        what = slot.purpose if self.made[slot, total.senders[0]].beside else "update"
        if self.open_sums.setdefault((slot.run_id, slot.round, what), digest) != digest:
            self.breach(f"{what}: two sums of round {slot.round}")

    def _applies(self, done: Any, session: Session, model: Model, total: Sealed, *_: Any) -> None:
        """The same in float64 and in plain, from the model before as it is there."""
        after, federation = done[0], session.epoch.run_id
        if model.round == 0:
            arrays = {n: a.astype(np.float64) for n, a in start_arrays().items()}
            self.references.setdefault((federation, model.history), (arrays, 0))
        before, rounds = self.references[federation, model.history]
        nodes = self.nodes_of(total)
        weight = sum(COUNTS[node] for node in nodes)
        reference: Arrays = {}
        sent = {n: np.asarray(a, start_arrays()[n].dtype) for n, a in before.items()}
        for name, old in before.items():
            changes = [COUNTS[n] * (trained(sent, n)[name] - old) for n in nodes]
            mean = sum(changes) / weight
            whole = start_arrays()[name].dtype.kind != "f"
            reference[name] = np.asarray(old + (np.floor(mean + 0.5) if whole else mean))
        self.references[federation, after.history] = reference, rounds + 1
        # What was left out comes later, `_drafts` watches over that; and who comes with far larger
        # updates than before is clipped at first.
        if total.supports or session.terms.codec.fitting == "first":
            return
        step = len(nodes) * MAX / weight / (2**15 - 1)
        if session.terms.codec.fitting == "always":
            step *= 4  # thresholds of their own
        for name, expected in reference.items():
            slack = 2e-3 if name == "half" else 0.0
            bound = (rounds + 1) * (3 * step + slack) + 1e-5
            if not np.allclose(after.masters[name], expected, atol=bound, rtol=0):
                self.breach(f"round {total.slot.round}: {name!r} is not the plain mean")

    def _saves(self, node: NodeState, _draft: Draft) -> None:
        self.drafts.setdefault((self.actor, node.run_id), []).append(self._drafted)

    def _saved(self, _: None, node: NodeState, _draft: Draft) -> None:
        self.drafts[self.actor, node.run_id] = [self._drafted]

    def _drafts(self, draft: Draft, session: Session, old: Model, *args: Any) -> None:
        """A client adds what it has not sent so far, no more and no less."""
        if draft.residual is None:
            return
        nothing = np.zeros(session.layout.floats, np.float32)
        had = nothing if args[4] is None else args[4].copy()
        key = (self.actor, session.epoch.run_id)
        kept = self.drafts.get(key, [])
        due = [due for last in kept for due in self._left(key, old, *last)] or [nothing]
        stale = self.actor in self.restored
        self.restored.discard(self.actor)
        if not stale and not any(np.array_equal(had, whole) for whole in due):
            self.breach(f"node {self.actor} lost or doubled an update before round {draft.round}")
        self._drafted = draft, had

    def _left(
        self, key: tuple[int, int], old: Model, before: Draft, had: NDArray[np.float32]
    ) -> list[NDArray[np.float32]]:
        """What may be left over if `before` is the last draft."""
        if before.history == old.history:  # its round came to nothing, and is trained anew
            return [had]
        sent, back = before.residual, before.given_back().residual
        at, total = old.history, None
        while at != before.history:
            if (total := self.kept.get((key[1], at))) is None:
                return [sent, back, had]  # not of this model's past: its sum was void
            at = total.slot.history
        counted = total.slot.round == before.round and key[0] in self.nodes_of(total)
        saw = (self.identity(key[0]), key[1], total.slot.round, "update") in self.opened
        if counted:
            return [sent]
        if saw:
            return [back if total.slot.round == before.round else had]
        return [had, sent]  # by a checkpoint: nobody told it who was in the sum

    def _keeps(self, ledger: Ledger, total: Sealed, history: bytes, *_: Any) -> None:
        if len(set(total.senders)) != len(total.senders):
            self.breach(f"a sender counts twice in round {total.slot.round}")
        if link_of(ledger.history, total, total.digest(), ledger.agreed.publics).history != history:
            self.breach(f"the history of round {total.slot.round} is another sum's")
        self.kept[ledger.federation, history] = Sealed(
            total.scheme, total.slot, total.senders, total.length, np.empty(0, np.uint8)
        )

    def sees(self, content: RecordDict) -> None:
        """Look at what the server sends: one sum a round, to everybody."""
        record = records.find_config(content, records.STAGE)
        if record is None or "sums" not in record:
            return
        for i, header in enumerate(records.bytes_list(record, "sums")):
            total = records.to_sealed(header, content[f"{records.SUM}.{i}"])
            key, digest = (total.slot.run_id, total.slot.round), total.digest()
            if self.sent_sums.setdefault(key, digest) != digest:
                self.breach(f"the server sent two sums of round {total.slot.round}")
