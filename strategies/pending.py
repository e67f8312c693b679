"""Pending: a survivor set that members may have signed, until it is opened or never can be.

A node that has signed a set signs no other one from the same model. So a set has three ends. If t
members answer UNMASK, its sum is the round's. If enough members promise never to answer, the next
round begins from the same model. If the run stops, a resumed one begins with the set.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from flhe.errors import ProtocolError, QuorumError, SumRangeError
from flhe.keys.agreement.voids import VOID, Promise, Void
from flhe.mods import records
from flhe.schemes.sealed import Sealed
from flhe.strategies.federation import Federation
from flhe.strategies.ledger import PendingSet
from flhe.strategies.masking_agreement import MaskingAgreement
from flhe.strategies.options import RunSettings
from flhe.strategies.suspects import spoilt
from flhe.strategies.trouble import log, reasons


@dataclass(slots=True)
class Settling:
    """Brings the ledger's pending set to its end."""

    fed: Federation
    settings: RunSettings
    _trouble: dict[int, str] = field(default_factory=dict)

    def keep(self, total: Sealed) -> ArrayRecord:
        """Keep a sum as its round's; if the scheme has releases, its senders open it.

        Raises QuorumError: its set was given up, or as `settle`.
        """
        fed = self.fed
        if not fed.terms.scheme.opened_together:
            return fed.keep(total)
        void = Void.of(fed.parameters.circle, total.slot)
        fed.ledger.hold(PendingSet(void), total)  # before any member may sign it
        agreement = self._agreement(total)
        failed = False
        try:
            agreement.sign()
        except QuorumError as error:
            failed = True
            log(WARNING, "%s", error)
        # Too few of t or more are some that accuse others: their set is not opened.
        if not failed or len(agreement.signatures) < void.circle.thresholds.threshold:
            self._note(signatures=agreement.signatures)
        if (kept := self.settle()) is None:
            raise QuorumError(
                f"round {total.slot.round}: its sum was given up before it was opened"
            )
        return kept

    def settle(self) -> ArrayRecord | None:
        """Have the pending set opened, and keep its sum as the round's; None if it was given up.

        Raises QuorumError: too few answered, and too few have given it up; AlteredError: the opened
        sum is not the sum of its senders' ciphertexts.
        """
        fed, settings = self.fed, self.settings
        for turn in range(settings.retries + 1):
            if turn:
                fed.wait_for(len(fed.members), settings.connect_timeout)
            if (opened := self._open()) is not None:
                return opened
            if self._give_up():
                return None
        pending = self._pending
        circle, said = pending.void.circle, pending.answers.keys() | pending.void.promises.keys()
        silent = [n for n, rank in self._ranks(fed.members).items() if rank not in said]
        raise QuorumError(
            f"round {pending.void.slot.round}: {len(pending.answers)} survivors released their part of "
            f"the sum, which takes {circle.thresholds.threshold}, and {len(pending.void.promises)} "
            f"members gave it up, which takes {circle.given_up}; nodes {silent} are silent: start "
            f"them, then resume the run ({reasons(self._trouble)})"
        )

    @property
    def hopeless(self) -> bool:
        """Return whether too few have kept the keys that open the set."""
        keyless, pending = self.fed.membership.keyless, self._pending
        able = {r for node, r in self._ranks(self.fed.members).items() if node not in keyless}
        return len(able | pending.answers.keys()) < pending.void.circle.thresholds.threshold

    @property
    def _pending(self) -> PendingSet:
        assert self.fed.ledger.pending is not None
        return self.fed.ledger.pending

    def _note(self, **found: Any) -> None:
        self.fed.ledger.hold(replace(self._pending, **found))

    def _ranks(self, nodes: Iterable[int]) -> dict[int, int]:
        """Return the rank in the pending set's circle of each of `nodes` in it."""
        members = self._pending.void.circle.members
        keys = {node: self.fed.members.get(node, b"") for node in nodes}
        return {node: members.index(key) for node, key in keys.items() if key in members}

    def _agreement(self, total: Sealed) -> MaskingAgreement:
        return MaskingAgreement(self.fed, self.fed.adder, total, self.settings)

    def _open(self) -> ArrayRecord | None:
        """Request the set's release as long as enough may answer; None if too few did."""
        fed, pending, total = self.fed, self._pending, self.fed.ledger.pending_sum
        assert total is not None
        if fed.parameters.epoch.epoch != total.slot.epoch:
            return None  # its keys are gone
        agreement = self._agreement(total)
        agreement.signatures, agreement.answers = dict(pending.signatures), dict(pending.answers)
        if not agreement.may_open(pending.void.promises):
            return None
        try:
            answers = agreement.unmask()
        except QuorumError as error:
            log(WARNING, "%s", error)
            self._note(answers=agreement.answers)
            return None
        try:
            return fed.keep(total, answers)
        except SumRangeError:
            raise  # no node is to blame
        except ProtocolError as error:
            raise spoilt(fed, total.slot.round) from error

    def _give_up(self) -> bool:
        """Have members give the set up, if enough of them are connected; return whether it is void."""
        fed, pending, void = self.fed, self._pending, self._pending.void
        done, signed = pending.answers.keys() | void.promises.keys(), pending.signatures.keys()
        ranks = self._ranks(set(fed.connected()) - fed.membership.left)
        ranks = {node: rank for node, rank in ranks.items() if rank not in done}
        free = {node: rank for node, rank in ranks.items() if rank not in signed}
        # A node that gives it up cannot answer any more: as few are asked as may be enough.
        if void.would_do([False] * len(free)):
            ranks = free
        elif not void.would_do([rank in signed for rank in ranks.values()]):
            return False

        def read(node: int, answer: ConfigRecord, _: RecordDict) -> Promise:
            made = Promise.from_bytes(records.field(answer, "promise", bytes))
            void.check_promise(ranks[node], made)
            return made

        confirmed, slot = fed.confirmed.issuperset(ranks), void.slot
        fields = {"round": slot.round, "attempt": slot.attempt, "number": void.circle.number}
        stage = fed.stage(VOID, confirmed, slot=slot.to_bytes(), **fields)
        contents = dict.fromkeys(ranks, RecordDict({records.STAGE: stage}))
        self._trouble.clear()
        made = fed.gather(VOID, contents, self.settings.stage_timeout, self._trouble, read)
        void = void.with_promises({ranks[node]: each for node, each in made.items()})
        self._note(void=void)
        if not void.complete:
            return False
        given_up = "void: %d members have given the set of round %d up"
        log(INFO, given_up, len(void.promises), slot.round)
        fed.ledger.give_up()
        return True
