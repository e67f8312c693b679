"""Epochs between rounds: members are awaited, agree on a key, and are brought to one model.

Attempts at a round: it is asked for again until enough answer, or given up. Sampling: how many members
a round asks, which ones, and how many of them must answer.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from logging import ERROR, INFO, WARNING, getLogger
from typing import Protocol

from flhe.errors import ConfigError, FlheError, QuorumError
from flhe.strategies.catch_up import CatchUp
from flhe.strategies.federation import Federation
from flhe.strategies.key_agreement import MIN_MEMBERS, Agreed, agree
from flhe.strategies.options import RunSettings
from flhe.training.terms import Terms

log = getLogger("flwr").log


class Strategy(Protocol):
    """What a strategy is set to now: a subclass may change it between rounds."""

    settings: RunSettings

    @property
    def sampling(self) -> Sampling:
        """What a round needs."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """Settles before each round who takes part in it, under which key, and from which model."""

    fed: Federation
    strategy: Strategy

    @property
    def settings(self) -> RunSettings:
        """As the strategy has them now."""
        return self.strategy.settings

    def connect(self, need: int) -> None:
        """Wait for `need` nodes before the first round; QuorumError where they do not come."""
        seconds = self.settings.connect_timeout
        if len(nodes := self.fed.connected()) < need:
            log(
                INFO,
                "%d of %d nodes are connected, waiting up to %g s for the others (a simulation has as "
                'many as --federation-config "num-supernodes=%d" says, and 2 without it)',
                *(len(nodes), need, seconds, need),
            )
        if len(nodes := self.fed.wait_for(need, seconds)) < need:
            raise QuorumError(
                f"{len(nodes)} nodes connected within {seconds:g} s, {need} are "
                "needed: start the others, or lower min_available_nodes (to 3 at least; in a "
                f'simulation: --federation-config "num-supernodes={need}")'
            )

    def prepare(self, number: int) -> None:
        """Settle who takes part in round `number`, under which key and from which model.

        QuorumError: Too few nodes are there, or agreed, or nobody of them holds the model.
        """
        self._await_members()
        fed, ledger, membership = self.fed, self.fed.ledger, self.fed.membership
        catch_up = CatchUp(fed, self.settings.stage_timeout)
        connected = fed.connected()
        membership.mute = set()
        membership.mute = catch_up.greet(membership.candidates(number, connected))
        membership.see(number, fed.members, connected)
        if fed.terms.scheme.needs_all_members:
            self.lose_members(set(fed.members) - set(fed.present()))
        if ledger.agreed is None:
            self._change(catch_up, number, "")
        for _ in range(2):  # the second time where the first has cost members their keys
            why = membership.due(number, ledger.since, fed.members, connected)
            if not why:
                break
            before = ledger.number
            self._change(catch_up, number, why)
            if ledger.agreed is not None and ledger.agreed.number >= before:
                break
        if ledger.layout is None:  # a run before this one ended between its keys and its model
            catch_up.fetch_initial()
        if lost := [node for node in fed.present() if fed.missing_rounds(node) is None]:
            catch_up.settle(lost)

    def lose_members(self, nodes: set[int]) -> bool:
        """Go on without `nodes` where sums are of all members; whether the group becomes smaller.

        Keys that were dealt are for one set of members, which is asked again.
        """
        if self.fed.terms.scheme.dealt:
            return False
        least = max(MIN_MEMBERS, self.strategy.sampling.min_replies or 0)
        return self.fed.membership.lose(nodes, self.fed.members, least)

    def _await_members(self) -> None:
        """Wait until as many nodes are there as a round needs; they need not be members yet."""
        fed, seconds = self.fed, self.settings.connect_timeout
        alone = MIN_MEMBERS if fed.terms.scheme.needs_all_members or not fed.members else 2
        need = max(self.strategy.sampling.quorum(fed), alone)
        if len(connected := fed.wait_for(need, seconds)) < need:
            raise QuorumError(
                f"{len(connected)} nodes are connected after {seconds:g} s, a round "
                f"needs {need}: start the others, then resume the run"
            )

    def _change(self, catch_up: CatchUp, number: int, why: str) -> None:
        """A new key among all that are there, and one model for all of them."""
        fed, ledger, membership = self.fed, self.fed.ledger, self.fed.membership
        if ledger.agreed is not None:
            log(INFO, "A new epoch, because of: %s", why)
            present = [node for node in fed.present() if node not in membership.lost]
            if ledger.chain and not fed.server_reads and present:
                catch_up.settle(present)  # what is sealed under the old key is opened with it
        asked = membership.candidates(number, fed.connected())
        try:
            agreed = agree(
                fed.grid,
                asked,
                fed.terms,
                run_id=ledger.federation,
                timeout=self.settings.stage_timeout,
                number=ledger.number,
            )
        except (QuorumError, ConfigError) as error:  # also a group that has outgrown its terms
            ledger.skip_agreements()
            if ledger.agreed is None or len(fed.present()) < self.strategy.sampling.quorum(fed):
                raise
            self._stay(number, asked, str(error))
            return
        if ledger.chain and not self._is_held(catch_up, agreed):
            ledger.skip_agreements()
            if len(fed.present()) < self.strategy.sampling.quorum(fed):
                raise QuorumError(
                    f"nobody who is connected holds the model of round {ledger.base}: start those "
                    "that do, then resume the run"
                )
            self._stay(number, asked, "nobody in the new one holds the model")
            return
        ledger.change_epoch(agreed, number)
        membership.changed(number, asked, agreed.members)
        fed.confirmed.clear()
        self.strategy.sampling.check(fed)
        if ledger.layout is None:
            catch_up.fetch_initial()
        if not fed.server_reads and (ledger.base > 0 or fed.initial is None):
            catch_up.settle(fed.present())

    def _is_held(self, catch_up: CatchUp, agreed: Agreed) -> bool:
        """Whether somebody in the new epoch holds the model, after voiding what nobody has opened."""
        fed, ledger = self.fed, self.fed.ledger
        if fed.server_reads or (ledger.base == 0 and fed.initial is not None):
            return True  # then nobody has to
        if not any(map(fed.has_model, agreed.members)):
            catch_up.take_back(agreed)
        return any(map(fed.has_model, agreed.members))

    def _stay(self, number: int, asked: list[int], why: str) -> None:
        """A new epoch came to nothing."""
        fed = self.fed
        if fed.terms.scheme.needs_all_members:
            fed.membership.broken(number, asked, fed.members)
            log(WARNING, "the members' keys may be gone, they agree on new ones: %s", why)
        else:
            fed.membership.failed(number, asked, fed.members)
            log(WARNING, "the epoch before goes on: %s", why)


@dataclass(slots=True)
class Attempts:
    """Runs rounds, counting attempts at one and rounds in a row that came to nothing."""

    fed: Federation
    epochs: Epochs
    _lost: int = field(default=0, init=False)
    """Rounds in a row that came to nothing."""
    _reached: int = field(default=0, init=False)
    """Round of the last sum that clients are known to have opened."""

    def run(self, number: int, train: Callable[[], object]) -> None:
        """Have `train` make an attempt at round `number`, until one has a sum.

        QuorumError: Too few answered each attempt, or so many rounds in a row came to nothing.
        """
        fed = self.fed
        again = fed.ledger.round == number and fed.ledger.phase == "training"
        start = fed.ledger.attempt if again else 0
        left: float = self.epochs.settings.retries
        for attempt in itertools.count(start):
            self.epochs.prepare(number)
            if attempt == start:
                self._count_progress(number)
            if fed.ledger.spoiled == number:
                self._void(number)
                return
            fed.begin(number, attempt)
            try:
                train()
            except FlheError as error:
                if fed.ledger.spoiled == number:  # also what members released and does not fit
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
                if not self._known_later:
                    self._lost = 0
                return

    @property
    def _known_later(self) -> bool:
        """Whether it shows only when the next round begins that clients opened a sum."""
        return self.fed.terms.scheme.opened_together and not self.fed.server_reads

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
        """Whether most nodes call a round over: then it is, and the next one is asked for."""
        fed = self.fed
        if 2 * len(fed.attempt.spent) <= len(fed.members):
            return False
        log(ERROR, "round %d is over, most nodes say: the next one is asked for", number)
        fed.ledger.done()
        # Of their models, which had all sums, they have said nothing.
        fed.at |= dict.fromkeys(fed.attempt.spent, fed.ledger.base)
        return True

    def _count_progress(self, number: int) -> None:
        """Where clients read: whether anybody opened the last sum is known when a round begins.

        QuorumError: So many rounds in a row came to nothing.
        """
        base = self.fed.ledger.base
        if not self._known_later:
            return
        if base > self._reached or number == 1:
            self._lost, self._reached = 0, max(base, 0)
        else:
            self._lose()

    def _lose(self) -> None:
        self._lost += 1
        if self._lost > self.epochs.settings.retries:
            raise QuorumError(
                f"{self._lost} rounds in a row are void: start more nodes, then resume the run"
            )

    def _void(self, number: int) -> None:
        """Give a round up: nobody opens, or signs, a second sum of it. The next one trains again.

        QuorumError: So many rounds in a row were.
        """
        why = "the group changed in the middle of it"
        if self.fed.terms.scheme.opened_together:
            why = "too few opened it to the end, and nobody signs two sets of survivors of a round"
        log(ERROR, "round %d is void: %s", number, why)
        self.fed.ledger.done()  # or a run that is resumed would come upon it for ever
        if not self._known_later:
            self._lose()


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a round needs, by the terms and by what `HEStrategy` was given."""

    terms: Terms
    min_replies: int | None
    fraction_train: float
    min_train_nodes: int

    def needed(self, fed: Federation | None) -> int:
        """Updates that a sum needs: of all members, where no other one opens."""
        members = 0 if fed is None else len(fed.members)
        if self.terms.scheme.needs_all_members and members:
            return max(members, self.min_replies or 0)
        return self.quorum(fed)

    def quorum(self, fed: Federation | None) -> int:
        """Members that a round needs."""
        members = 0 if fed is None else len(fed.members)
        if not self.terms.scheme.opened_together or members == 0:
            return self.min_replies or (members - 1) // 3 + 2
        assert fed is not None
        least = max(
            fed.parameters.circle.thresholds.min_set, self.terms.scheme.threshold_of(members)
        )
        return max(self.min_replies or 0, least, fed.parameters.epoch.min_opening)

    def check(self, fed: Federation) -> None:
        """Refuse a fraction that samples fewer members than a round needs: ConfigError."""
        members, needed = len(fed.members), self.needed(fed)
        size = sample_size(members, self.fraction_train, self.min_train_nodes)
        if self.fraction_train > 0 and size < needed:
            raise ConfigError(
                f"fraction_train={self.fraction_train} samples {size} of {members} members, a round "
                f"needs {needed} updates: raise fraction_train or min_train_nodes"
            )

    def mode(self, fed: Federation) -> str:
        """The scheme's mode in a dense round, by the dropout to be expected."""
        if self.terms.codec.sparse:
            return ""
        members = len(fed.members)
        asked = sample_size(members, self.fraction_train, self.min_train_nodes)
        dropout = 1 - asked / members if fed.dropout is None else fed.dropout
        return self.terms.scheme.mode_for(members, dropout)


def sample_size(members: int, fraction: float, minimum: int) -> int:
    """Return how many of `members` are asked."""
    return min(max(int(members * fraction), minimum), members)


def sample(fed: Federation, fraction: float, minimum: int) -> list[int]:
    """Members that are there and have the others' model, chosen at random."""
    able = [node for node in fed.following() if node not in fed.barred]
    size = min(sample_size(len(fed.members), fraction, minimum), len(able))
    return secrets.SystemRandom().sample(able, size)
