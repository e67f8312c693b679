"""Epochs: start of a run, and the members, key and model of each round."""

from __future__ import annotations

from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import Protocol, TypeVar

from flwr.app import ArrayRecord

from flhe.errors import ConfigError, QuorumError
from flhe.mods import records
from flhe.packages import warn_untested_flower
from flhe.strategies.catch_up import CatchUp
from flhe.strategies.federation import Federation
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import ATTEMPTS, MIN_MEMBERS, Agreed, agree
from flhe.strategies.ledger import Ledger
from flhe.strategies.membership import Membership
from flhe.strategies.options import RunSettings
from flhe.strategies.pending import Settling
from flhe.strategies.sampling import Sampling
from flhe.strategies.trouble import log
from flhe.training.contract import Contract
from flhe.training.model import Model

F = TypeVar("F", bound=Federation)


def begin(
    grid: StreamGrid,
    contract: Contract,
    membership: Membership,
    initial: ArrayRecord | None,
    state_dir: str | Path | None,
    *,
    resume: bool,
    of: type[F],
) -> F:
    """Return a federation of class `of`: the one in `state_dir` with `resume`, else a new one.

    Raises ConfigError: there is nothing to resume, it ran under other terms, or a server that reads
    the sums got no model.
    """
    warn_untested_flower()
    terms = contract.terms
    server_reads = terms.scheme.reader == "server"
    model = None if initial is None else Model.initial(records.to_numpy(initial))
    directory = None if state_dir is None else Path(state_dir)
    if resume:
        if directory is None:
            raise ConfigError("resume needs state_dir: the directory of the run before")
        ledger = Ledger.load(directory, terms.to_bytes())
        if ledger.agreed is not None and ledger.agreed.contract != contract.hash():
            membership.asked = True  # members sign the other one
        if model is not None and ledger.chain.get(0) != model.history:
            log(WARNING, "initial_arrays are ignored: the federation began with another model")
            initial = None
    else:
        if model is None and server_reads:
            raise ConfigError(
                "the server reads the sums, so it has the model: give start() initial_arrays, or have "
                'the clients read them (unmask="clients")'
            )
        ledger = Ledger.create(directory, grid.run.run_id, terms.to_bytes())
        if model is not None and server_reads:
            ledger.start_model(model)
        elif model is not None:
            # Of a model that clients read, only layout and history are known from here on.
            ledger.layout, ledger.chain = model.layout, {0: model.history}
    return of(grid, ledger, contract, membership, initial)


class Strategy(Protocol):
    """Current settings of a strategy; a subclass may change them between rounds."""

    settings: RunSettings

    @property
    def sampling(self) -> Sampling:
        """Return the requirements of a round."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """Decides before each round its members, key and starting model."""

    fed: Federation
    strategy: Strategy

    @property
    def settings(self) -> RunSettings:
        """The strategy's current settings."""
        return self.strategy.settings

    def connect(self, need: int) -> None:
        """Wait for `need` nodes before the first round; QuorumError if they do not connect."""
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
        """Decide the members, the key and the starting model of round `number`.

        Raises QuorumError: too few nodes are connected, or agreed, or none of them holds the model.
        """
        self._await_members()
        fed, ledger, membership = self.fed, self.fed.ledger, self.fed.membership
        catch_up = CatchUp(fed, self.settings.stage_timeout)
        connected = fed.connected()
        membership.mute = set()
        membership.mute = catch_up.greet(membership.candidates(number, connected))
        membership.see(number, fed.members, connected)
        self._settle()
        if fed.terms.scheme.needs_all_members:
            self.lose_members(set(fed.members) - set(fed.present()))
        if ledger.agreed is None:
            self._change(catch_up, number, "")
        for _ in range(2):  # the second time where the first has cost members their keys
            why = membership.due(number, ledger.since, fed.members, connected)
            if not why or self._change(catch_up, number, why):
                break
        self._settle(last=True)
        if ledger.layout is None:  # a run before this one ended between its keys and its model
            catch_up.fetch_initial()
        if lost := [node for node in fed.present() if fed.missing_rounds(node) is None]:
            catch_up.settle(lost)

    def _settle(self, *, last: bool = False) -> None:
        """Bring a pending set to its end, under the keys of its signatures if they still exist.

        Raises QuorumError: too few are connected; AlteredError: it does not fit.
        """
        if self.fed.ledger.pending is None:
            return
        settling = Settling(self.fed, self.settings)
        try:
            settling.settle()
        except QuorumError:
            if last or not settling.hopeless:
                raise  # with new keys members can only give it up

    def lose_members(self, nodes: set[int]) -> bool:
        """Go on without `nodes` if sums need all members; return whether the group shrinks.

        Dealt keys are for one set of members, which is asked again.
        """
        if self.fed.terms.scheme.dealt:
            return False
        least = max(MIN_MEMBERS, self.strategy.sampling.min_replies or 0)
        return self.fed.membership.lose(nodes, self.fed.members, least)

    def _await_members(self) -> None:
        """Wait until a round's number of nodes is connected; they need not be members yet."""
        fed, seconds = self.fed, self.settings.connect_timeout
        alone = MIN_MEMBERS if fed.terms.scheme.needs_all_members or not fed.members else 2
        need = max(self.strategy.sampling.quorum(fed), alone)
        if len(connected := fed.wait_for(need, seconds)) < need:
            raise QuorumError(
                f"{len(connected)} nodes are connected after {seconds:g} s, a round "
                f"needs {need}: start the others, then resume the run"
            )

    def _change(self, catch_up: CatchUp, number: int, why: str) -> bool:
        """Agree on a new key and one model among all connected nodes; return whether they did."""
        fed, ledger, membership = self.fed, self.fed.ledger, self.fed.membership
        first = ledger.agreed is None
        if not first:
            log(INFO, "A new epoch, because of: %s", why)
            present = [node for node in fed.present() if node not in membership.lost]
            if ledger.chain and fed.members_hold and present:
                catch_up.settle(present)  # what is sealed under the old key is opened with it
            fed.end_epoch(self.settings.stage_timeout)
        asked = membership.candidates(number, fed.connected())
        try:
            agreed = agree(
                fed.grid,
                asked,
                fed.contract,
                run_id=ledger.federation,
                timeout=self.settings.stage_timeout,
                number=ledger.number,
            )
            if ledger.chain and not self._is_held(catch_up, agreed):
                raise QuorumError(
                    f"too few who are connected hold the model of round {ledger.base}: start those "
                    "that do, then resume the run"
                )
        except (QuorumError, ConfigError) as error:  # also a group that has outgrown its terms
            ledger.number += ATTEMPTS  # its numbers are not used again
            ledger.save()
            if ledger.agreed is None or len(fed.present()) < self.strategy.sampling.quorum(fed):
                raise
            broken = fed.terms.scheme.needs_all_members
            membership.failed(number, asked, fed.members, broken=broken)
            gone = "the members' keys may be gone, they agree on new ones"
            log(WARNING, "%s: %s", gone if broken else "the epoch before goes on", error)
            return False
        ledger.change_epoch(agreed, number)
        membership.changed(number, asked, agreed.members)
        fed.confirmed.clear()
        if first:
            self.strategy.sampling.check(fed)  # later a round asks as many as it needs
        if ledger.layout is None:
            catch_up.fetch_initial()
        if fed.members_hold and (ledger.base > 0 or fed.initial is None):
            catch_up.settle(fed.present())
        return True

    def _is_held(self, catch_up: CatchUp, agreed: Agreed) -> bool:
        """Void sums that too few opened; return whether enough in the new epoch hold the model."""
        fed, ledger = self.fed, self.fed.ledger
        if not fed.members_hold or (ledger.base == 0 and fed.initial is not None):
            return True  # then nobody has to

        def held() -> bool:
            return sum(map(fed.has_model, agreed.members)) > fed.spared(agreed)

        if not held():
            catch_up.take_back(agreed)
        return held()
