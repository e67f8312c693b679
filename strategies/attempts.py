"""Attempts at a round: repeated until enough nodes answer, or given up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from logging import ERROR, WARNING

from flhe.errors import FlheError, QuorumError
from flhe.strategies.epochs import Epochs
from flhe.strategies.federation import Federation
from flhe.strategies.trouble import log


@dataclass(slots=True)
class Attempts:
    """Runs rounds, counting attempts at one."""

    fed: Federation
    epochs: Epochs

    def run(self, number: int, train: Callable[[], object]) -> None:
        """Call `train` for attempts at round `number`, until one has a sum.

        Raises QuorumError: too few answered each attempt, too many consecutive rounds failed, or the
        first rounds have not changed the model.
        """
        fed = self.fed
        again = fed.ledger.round == number and fed.ledger.phase == "training"
        start = fed.ledger.attempt if again else 0
        left: float = self.epochs.settings.retries
        for attempt in itertools.count(start):
            self.epochs.prepare(number)
            fed.check_voids(self.epochs.settings.retries)
            if fed.ledger.phase == "summed":  # its survivor set was pending
                break
            if fed.ledger.spoiled == number:
                self._void(number)
                return
            fed.begin(number, attempt)
            if self._stands_still(number):
                return
            try:
                train()
            except FlheError as error:
                if fed.ledger.pending is not None:  # nothing more is signed before its end
                    raise
                if fed.ledger.spoiled == number:
                    log(WARNING, "%s", error)
                    self._void(number)
                    return
                if not isinstance(error, QuorumError):
                    raise
                if self._passed_over(number):
                    return
                left -= self._cost()
                if left < 0:
                    # Nodes resend old answers, so a resumed run needs a new attempt.
                    fed.ledger.begin(number, attempt + 1)
                    raise
                log(WARNING, "%s; asking again (attempt %d)", error, attempt + 2)
            else:
                break

    def _stands_still(self, number: int) -> bool:
        """End a round that begins with an earlier round's model; return whether it does.

        If the server reads the sums, a model's history is a hash of its arrays, and members open one
        sum of each. They would refuse this round and all later ones.

        Raises QuorumError: no round has changed the model, so nothing was trained.
        """
        ledger = self.fed.ledger
        known = list(ledger.chain.values())
        if not known or known.count(ledger.history) < 2:
            return False
        why = (
            f"round {number} begins with the model of an earlier round, and where the server reads the "
            "sums, members open one sum of each model: have every round change it (a learning rate of "
            "0 does not), or let the members read the sums"
        )
        if len(set(known)) == 1:
            raise QuorumError(why)
        log(ERROR, "%s; the round is left out", why)
        ledger.done()
        return True

    def _cost(self) -> float:
        """Return the retries that a failed attempt costs; all if another one is hopeless."""
        fed = self.fed
        # With keys of a new epoch they may answer: no retry, granted once a round.
        granted = fed.round.grants_another(len(fed.members))
        if 2 * len(fed.attempt.app_failed) > fed.attempt.asked:  # most apps failed, and would again
            return float("inf")
        # A group shrinks at most a few times: no retry.
        smaller = fed.terms.scheme.needs_all_members and self.epochs.lose_members(
            fed.attempt.missing
        )
        return (0 if smaller else 1) - granted

    def _passed_over(self, number: int) -> bool:
        """End a round as void if most nodes call it over; return whether they do."""
        fed = self.fed
        if 2 * len(fed.attempt.spent) <= len(fed.members):
            return False
        log(ERROR, "round %d is over, most nodes say: the next one is asked for", number)
        fed.ledger.done()
        fed.voids[number] = False
        # Their models had all sums, and they have reported nothing else.
        fed.at |= dict.fromkeys(fed.attempt.spent, fed.ledger.base)
        return True

    def _void(self, number: int) -> None:
        """Give a round up: no node opens its sum. The next one trains again.

        Raises QuorumError: too many consecutive rounds were void.
        """
        why = "the group changed in the middle of it"
        if self.fed.terms.scheme.opened_together:
            why = "those who could open it have given it up"
        log(ERROR, "round %d is void: %s", number, why)
        self.fed.ledger.done()  # or a resumed run would return to it forever
        self.fed.voids[number] = True
        self.fed.check_voids(self.epochs.settings.retries)
