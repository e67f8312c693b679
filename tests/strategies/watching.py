"""What must hold of nodes and of a server's rounds, whatever fails: watched from inside.

Watched by wrapping what encrypts, what opens and what is written; `Watch.wrong` has breaches.
"""

from __future__ import annotations

import functools
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from flwr.app import RecordDict
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.mods import records
from flhe.node.journal import Journal
from flhe.node.node import Node as NodeState
from flhe.schemes.esafl.adder import EsaflOpener, EsaflSealer
from flhe.schemes.flashe import adder as flashe
from flhe.schemes.sash.adder import SashOpener, SashSealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.strategies import HEStrategy
from flhe.strategies.ledger import Ledger
from flhe.training.chain import link_of
from flhe.training.draft import Draft
from flhe.training.model import Model
from flhe.training.session import Session

Outcome = Literal["done", "quorum", "killed", "stopped"]
Kept = tuple[Draft, NDArray[np.float32]]
"""A draft, and the residual before it."""


@dataclass
class Made:
    """An update that a node encrypted."""

    node: int
    lanes: NDArray[Any]
    coords: NDArray[np.uint32] | None = None
    beside: bool = False
    """These are no update: mean squares, which travel before it, or an evaluation after it."""


def summed(parts: list[Made]) -> NDArray[np.int64]:
    """What a sum of these opens to: values of the coordinates that somebody sent, then extras."""
    if parts[0].coords is None:
        return np.sum([part.lanes for part in parts], axis=0)
    union = np.unique(np.concatenate([part.coords for part in parts]))
    values = np.zeros(union.size, np.int64)
    extras = np.zeros(parts[0].lanes.size - parts[0].coords.size, np.int64)
    for part in parts:
        values[np.searchsorted(union, part.coords)] += part.lanes[: part.coords.size]
        extras += part.lanes[part.coords.size :]
    return np.concatenate([values, extras])


class Watch:
    """Nodes and runs of their server, in state directories under `path`; breaches of what must hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sites: list[Any] = []
        self.actor: int | None = None
        self.wrong: list[str] = []
        self.ledger: Ledger | None = None
        self.outcomes: list[tuple[Outcome, str]] = []
        # What was seen: by mask, by (federation, round), by history.
        self.masks: set[tuple[bytes, int]] = set()
        self.made: dict[tuple[Slot, int], Made] = {}
        self.opened: dict[tuple[str, int, int, str], bytes] = {}
        self.models: dict[tuple[str, int, bytes], bytes] = {}
        self.open_sums: dict[tuple[int, int, str], bytes] = {}
        self.sent_sums: dict[tuple[int, int], bytes] = {}
        self.kept: dict[tuple[int, bytes], Sealed] = {}
        self.restored: set[int] = set()
        """Nodes that may hold a residual of some time ago, of a backup, or have given theirs up."""
        self.drafts: dict[tuple[int, int], list[Kept]] = {}
        """What may be a node's last draft; two if it died writing."""
        self._drafted: Any = None
        self.patch = pytest.MonkeyPatch()
        for name in ("flwr", "flhe"):  # what thousands of runs say would fill the memory
            self.patch.setattr(logging.getLogger(name), "handlers", [logging.NullHandler()])
            self.patch.setattr(logging.getLogger(name), "propagate", False)
        for sealer in (flashe.FlasheSealer, SashSealer, EsaflSealer):
            self.wrap(sealer, "encrypt", after=self.encrypts)
        for opener in (flashe.FlasheOpener, SashOpener, EsaflOpener):
            self.wrap(opener, "decrypt", self.opens, self.sums)
        self.wrap(Session, "draft", after=self._drafts)
        self.wrap(NodeState, "save_draft", self._saves, self._saved)
        self.wrap(NodeState, "leave", lambda *_: self.restored.add(self.actor))  # with its keys
        self.wrap(Ledger, "keep", self._keeps)

    def close(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.path)

    def wrap(self, kind: type, name: str, before: Any = None, after: Any = None) -> None:
        """Call `before` with what a method is called with, and `after` with what it gave, too."""
        honest = getattr(kind, name)

        @functools.wraps(honest)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args, **kwargs)
            value = honest(*args, **kwargs)
            if after is not None:
                after(value, *args, **kwargs)
            return value

        self.patch.setattr(kind, name, wrapped)

    def breach(self, text: str) -> None:
        self.wrong.append(text)

    def identity(self, node: int) -> str:
        """What tells a node from one that began anew in the same place."""
        path = self.sites[node].home / "identity.key"
        return path.read_bytes().hex() if path.exists() else ""

    # --- what must hold of nodes ---

    def encrypts(self, _: Sealed, sealer: Any, plain: Plain, slot: Slot, **how: Any) -> None:
        """No mask is used twice, not even for one update."""
        lanes = np.concatenate([plain.values, plain.extras]).astype(np.int64)
        made = Made(self.actor, lanes, plain.coords, plain.values.size == 0)
        before = self.made.setdefault((slot, sealer.rank), made)
        again = before is not made
        if isinstance(sealer, flashe.FlasheSealer):  # masks of two slots, too
            mode = how.get("mode", "")
            key = flashe._round_key(sealer.adder, sealer.group_key, slot, mode), sealer.rank
            again = again or key in self.masks
            self.masks.add(key)
        if again:
            self.breach(f"a mask is used twice: round {slot.round}, attempt {slot.attempt}")
        self.made[slot, sealer.rank] = made

    def opens(self, _opener: Any, total: Sealed) -> None:
        """A node opens one sum of a round, once it is written down that it does."""
        slot, digest, node = total.slot, total.digest(), self.actor
        what = self.purpose(total)
        key = self.identity(node), slot.run_id, slot.round, what
        if self.opened.setdefault(key, digest) != digest:
            self.breach(f"node {node} {what}: two sums of round {slot.round}")
        path = self.sites[node].home / "runs" / str(slot.run_id) / "journal"
        journal = Journal.from_bytes(path.read_bytes())
        if journal.opened.get(what, {}).get(slot.round) != digest:
            self.breach(f"node {node} {what} of round {slot.round} before it was recorded")

    def sums(self, lanes: NDArray[Any], _opener: Any, total: Sealed) -> None:
        """What is opened is the sum of what its senders encrypted, and all open the same one."""
        parts, slot = [self.made[total.slot, rank] for rank in total.senders], total.slot
        if not np.array_equal(summed(parts), lanes):
            self.breach(f"the sum of round {slot.round} is not what its senders sent")
        key, digest = (slot.run_id, slot.round, self.purpose(total)), total.digest()
        if self.open_sums.setdefault(key, digest) != digest:
            self.breach(f"{key[2]}: two sums of round {slot.round}")

    def purpose(self, total: Sealed) -> str:
        return total.slot.purpose if self.made[total.slot, total.senders[0]].beside else "update"

    def look(self) -> None:
        for path in (path for site in self.sites for path in site.home.glob("runs/*/model")):
            data = path.read_bytes()
            model = Model.from_bytes(data)
            key = path.parent.name, model.round, model.history
            if self.models.setdefault(key, data) != data:
                self.breach(f"two members differ at round {model.round}")

    # --- what must hold of rounds ---

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
        """No sum is lost, and each follows from the one before."""
        before = b""
        for round_, history in sorted(ledger.chain.items()):
            if round_ > 0:
                if self.kept[ledger.federation, history].slot.history != before:
                    self.breach(f"the sum of round {round_} does not follow from the one before")
                opened = (ledger.federation, round_, "update") in self.open_sums
                if round_ not in ledger.sums and not opened:
                    self.breach(f"the sum of round {round_} was dropped, and nobody opened it")
            before = history

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
        if total.slot.round == before.round:  # from another contract it is dropped
            return [back] if saw else [back, had]
        # By a checkpoint: if another draft's values are in the sum, so is what was there then.
        there = not saw and key[0] in self.nodes_of(total)
        return [had, np.zeros_like(had)] if there else [had]

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
