"""Attempts at a round: it is asked for again until enough answer, or given up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import ERROR, WARNING

from flhe.errors import FlheError, QuorumError
from flhe.strategies.epochs import Epochs
from flhe.strategies.federation import Federation
from flhe.strategies.trouble import log


@dataclass(slots=True)
class Attempts:
    """Runs rounds, counting attempts at one and rounds in a row that came to nothing."""

    fed: Federation
    epochs: Epochs
    _lost: int = field(default=0, init=False)
    """Rounds in a row that came to nothing."""

    def run(self, number: int, train: Callable[[], object]) -> None:
        """Have `train` make an attempt at round `number`, until one has a sum.

        Raises QuorumError: too few answered each attempt, or so many rounds in a row came to nothing.
        """
        fed = self.fed
        again = fed.ledger.round == number and fed.ledger.phase == "training"
        start = fed.ledger.attempt if again else 0
        left: float = self.epochs.settings.retries
        for attempt in itertools.count(start):
            self.epochs.prepare(number)
            if fed.ledger.phase == "summed":  # its set was pending
                break
            if fed.ledger.spoiled == number:
                self._void(number)
                return
            fed.begin(number, attempt)
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
                    # Nodes send what they have sent again, so a resumed run asks for another.
                    fed.ledger.begin(number, attempt + 1)
                    raise
                log(WARNING, "%s; asking again (attempt %d)", error, attempt + 2)
            else:
                break
        self._lost = 0

    def _cost(self) -> float:
        """How many of the retries the failed attempt takes; all where another one is hopeless."""
        fed = self.fed
        # With keys of a new epoch they may answer: that is no retry, and comes once a round.
        granted = fed.round.grants_another(len(fed.members))
        if 2 * len(fed.attempt.app_failed) > fed.attempt.asked:  # most apps did, and would again
            return float("inf")
        # A group that becomes smaller does so a few times at most: that is no retry.
        smaller = fed.terms.scheme.needs_all_members and self.epochs.lose_members(
            fed.attempt.missing
        )
        return (0 if smaller else 1) - granted

    def _passed_over(self, number: int) -> bool:
        """Whether most nodes call a round over: then it is."""
        fed = self.fed
        if 2 * len(fed.attempt.spent) <= len(fed.members):
            return False
        log(ERROR, "round %d is over, most nodes say: the next one is asked for", number)
        fed.ledger.done()
        # Of their models, which had all sums, they have said nothing.
        fed.at |= dict.fromkeys(fed.attempt.spent, fed.ledger.base)
        return True

    def _void(self, number: int) -> None:
        """Give a round up: nobody opens a sum of it. The next one trains again.

        Raises QuorumError: so many rounds in a row were.
        """
        why = "the group changed in the middle of it"
        if self.fed.terms.scheme.opened_together:
            why = "those who could open it have given it up"
        log(ERROR, "round %d is void: %s", number, why)
        self.fed.ledger.done()  # or a run that is resumed would come upon it for ever
        self._lost += 1
        if self._lost > self.epochs.settings.retries:
            raise QuorumError(
                f"{self._lost} rounds in a row are void: start more nodes, then resume the run"
            )
