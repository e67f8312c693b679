"""Run: what the server remembers of a federation. Nothing in it can decrypt."""

from __future__ import annotations

import time
from dataclasses import replace
from logging import WARNING, getLogger

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from flhe import records
from flhe.errors import ProtocolError
from flhe.keys.messages import open_detached
from flhe.mods.codes import explain
from flhe.rounds.model import Model, next_history
from flhe.rounds.terms import Terms
from flhe.schemes.base import Scheme
from flhe.sealed import Sealed, Slot
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.report import RoundReport, scalar

log = getLogger("flwr").log


class Run:
    """What the server remembers of a run. Nothing in it can decrypt."""

    def __init__(
        self,
        grid: StreamGrid | None = None,
        agreed: Agreed | None = None,
        terms: Terms | None = None,
        model: Model | None = None,
        initial: ArrayRecord | None = None,
    ) -> None:
        self.members: dict[int, bytes] = agreed.members if agreed else {}
        self.have = dict.fromkeys(self.members, -1)
        self.sums: dict[int, tuple[bytes, ArrayRecord]] = {}
        self.means: dict[int, MetricRecord] = {}
        self.round = 0
        self.began = 0.0
        self.adding_s = 0.0
        self.crypto_s: dict[int, float] = {}
        self.survivors = 0
        if grid and agreed and terms and model is not None and initial is not None:
            self.grid = grid
            self.agreed = agreed
            self.terms = terms
            self.initial = initial
            self.history = model.history  # of the initial model; the model itself is not kept
            self.scheme: Scheme = terms.for_cohort(len(self.members))
            self.layout_hash = terms.layout_hash(model.layout, self.scheme)
            self.lanes = terms.lanes(model.layout)

    def begin(self, server_round: int) -> None:
        """Start a round's clocks."""
        self.round = server_round
        self.began = time.monotonic()
        self.adding_s = 0.0
        self.survivors = 0
        self.crypto_s = {}

    def slot(self) -> Slot:
        """The slot of the current round."""
        agreed = self.agreed
        return Slot(
            self.grid.run.run_id,
            agreed.roster_hash,
            agreed.epoch,
            self.round,
            0,
            self.layout_hash,
            self.history,
        )

    def receive(self, node: int, reply: Message) -> Sealed:
        """The verified update in a reply.

        Raises
        ------
        ProtocolError
            An error reply, or an update that is not this node's for this round.
        """
        if reply.has_error():
            raise ProtocolError(explain(reply.error.code, reply.error.reason))
        content = reply.content
        answer = records.find_config(content, records.REPLY)
        arrays = content.get(records.UPDATE)
        if answer is None or not isinstance(arrays, ArrayRecord):
            raise ProtocolError("the reply holds no encrypted update")
        part = records.to_sealed(records.field(answer, "header", bytes), arrays)
        slot = self.slot()
        if replace(part.slot, history=slot.history) != slot:
            raise ProtocolError("the update belongs to another round, epoch or parameter set")
        if part.slot.history != slot.history:
            raise ProtocolError("its model has drifted: it has seen another initial model or sum")
        if part.senders != (self.agreed.rank(node),):
            raise ProtocolError("the update says that it is another member's")
        if part.length != self.lanes:
            raise ProtocolError("the update has another length than the model")
        open_detached(
            records.field(answer, "envelope", bytes),
            part.digest(),
            {
                "roster_hash": slot.roster_hash,
                "run_id": slot.run_id,
                "epoch": self.agreed.number,
                "round": slot.round,
                "attempt": slot.attempt,
                "stage": "update",
                "policy_hash": self.terms.hash(),
                "layout_hash": slot.layout_hash,
            },
            senders=[self.members[node]],
        )
        self.heard(node, content)
        return part

    def heard(self, node: int, content: RecordDict) -> None:
        """Note what a node's reply tells of its state, time and the sums it opened."""
        self.have[node] = max(self.have[node], max(self.sums, default=0))
        answer = records.find_config(content, records.REPLY)
        seconds = answer.get("crypto-s") if answer else None
        if isinstance(seconds, float):
            self.crypto_s[node] = self.crypto_s.get(node, 0.0) + seconds
        opened = records.find_config(content, "flhe.opened")
        if opened is not None and opened.get("missed") is True:
            log(WARNING, "node %d reports that its update is missing from the sum", node)
        if self.agreed.rank(node) == 0:
            for name, means in content.metric_records.items():
                number = name.removeprefix(records.MEANS)
                if number != name and number.isdigit() and int(number) in self.sums:
                    self.means[int(number)] = means

    def keep(self, total: Sealed) -> ArrayRecord:
        """Keep a round's sum until every member has it; earlier ones that all have are dropped."""
        arrays = records.from_sealed(total)
        behind = min(self.have.values())
        self.sums = {r: s for r, s in self.sums.items() if r > behind}
        self.sums[total.slot.round] = (total.header(), arrays)
        self.history = next_history(self.history, total.digest())
        self.survivors = len(total.senders)
        return arrays

    def report(self, server_round: int, metrics: MetricRecord | None) -> RoundReport:
        """What the round cost and what it reached."""
        traffic = self.grid.take()
        return RoundReport(
            round=server_round,
            accuracy=scalar(metrics, "accuracy"),
            loss=scalar(metrics, "loss"),
            bytes_up=traffic.up,
            bytes_down=traffic.down,
            crypto_s=max(self.crypto_s.values(), default=0.0) + self.adding_s,
            round_s=time.monotonic() - self.began,
            survivors=self.survivors,
        )
