"""HEStrategy: FedAvg that adds what it cannot read.

The server agrees on nothing but the order of messages: members share a key that it does not have, the
sum of a round stays sealed, and the model lives on the clients. What `start` returns is a sealed
checkpoint that only the group opens (`flhe open`).

A scheme with masking-key agreement (SASH) releases one key a round, that of the sum. Where the
server reads it, it has the model as under plain FedAvg, and never an update.

Between rounds the group may change: who joins, leaves, returns or lost its keys makes a new epoch, and
a member hands the model over, sealed. A round that too few answer is asked for again.

Memory: one sum, one reply at a time, and what some member has not received yet.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from logging import ERROR, INFO, WARNING, getLogger
from pathlib import Path
from typing import Any, NoReturn, Unpack, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from flhe.coding.select import describe
from flhe.errors import ConfigError, FlheError, QuorumError
from flhe.keys.agreement.thresholds import Thresholds
from flhe.mods import records
from flhe.node.policy import default_root
from flhe.packages import check_packages
from flhe.schemes.flashe import masking
from flhe.schemes.sealed import Sealed
from flhe.strategies.catch_up import CatchUp
from flhe.strategies.evaluations import comparable
from flhe.strategies.exchange import Exchange
from flhe.strategies.federation import LOST, Federation
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import MIN_MEMBERS, agree, reasons
from flhe.strategies.ledger import Ledger
from flhe.strategies.masking_agreement import MaskingAgreement
from flhe.strategies.membership import Membership
from flhe.strategies.options import FedAvgOptions, check_names
from flhe.strategies.overhead import ADD, EVALUATE, Spent
from flhe.strategies.report import OnRound
from flhe.training.model import Model
from flhe.training.select_terms import clear_warning
from flhe.training.start import Start
from flhe.training.terms import Terms

log = getLogger("flwr").log  # Flower's own log: one place to read a run

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

MAX_VIEWS = 3
"""Models among which the updates of one round are told apart; more than these are left out."""


class HEStrategy(FedAvg):
    """FedAvg over ciphertext.

    Parameters
    ----------
    terms : Terms
        Public parameters of encoding and encryption.
    round_timeout : float
        Seconds that a round waits for updates, and an evaluation for metrics.
    stage_timeout : float
        Seconds that each relay of the key agreement, each stage of a round after training, and each
        sealed checkpoint, waits.
    connect_timeout : float
        Seconds to wait for `min_available_nodes`, and in a later round for as many members as it needs.
    min_replies : int, optional
        Updates that a round needs. By default (N - 1) // 3 + 2 of N members, the number that clients of
        an unpinned roster insist on anyway.
    retries : int
        How often a round with fewer updates is asked for again before the run ends with an error.
    patience : int
        Rounds that a member may be away before the group agrees on a key without it.
    rekey_every : int
        Rounds after which the group agrees on fresh keys; 0 for never. See also `rekey`.
    checkpoint_every : int
        Rounds after which a member seals the model for those that come later; 0 for only when needed.
    state_dir : str or Path, optional
        Directory in which the server keeps what it needs to go on after a crash.
    on_round : callable, optional
        Receives a RoundReport after each round, with what each phase of it took; what comes after the
        last one is in `ending` when `start` has returned.
    **fedavg
        FedAvg's own arguments, with FedAvg's meaning.

    Raises
    ------
    ConfigError
        A parameter that cannot work.
    """

    def __init__(
        self,
        terms: Terms | None = None,
        *,
        round_timeout: float = 3600.0,
        stage_timeout: float = 300.0,
        connect_timeout: float = 300.0,
        min_replies: int | None = None,
        retries: int = 2,
        patience: int = 3,
        rekey_every: int = 0,
        checkpoint_every: int = 10,
        state_dir: str | Path | None = None,
        on_round: OnRound | None = None,
        **fedavg: Unpack[FedAvgOptions],
    ) -> None:
        check_names(HEStrategy, fedavg)
        if fedavg.get("train_metrics_aggr_fn") is not None:
            log(
                WARNING,
                "train_metrics_aggr_fn is not called: the server never sees single training metrics, "
                "they are averaged by example counts under encryption",
            )
        super().__init__(**fedavg)
        for name, value in (
            ("round_timeout", round_timeout),
            ("stage_timeout", stage_timeout),
            ("connect_timeout", connect_timeout),
        ):
            if not 0 < value < float("inf"):
                raise ConfigError(f"{name}={value}: must be positive and finite, in seconds")
        for name, count in (
            ("retries", retries),
            ("patience", patience),
            ("rekey_every", rekey_every),
            ("checkpoint_every", checkpoint_every),
        ):
            if type(count) is not int or count < 0:
                raise ConfigError(f"{name}={count!r}: must be an integer, 0 or more")
        if min_replies is not None and min_replies < 2:
            raise ConfigError(f"min_replies={min_replies}: a sum of one is that client's update")
        # What the app calls its arrays and its weight is part of what everybody agrees on.
        terms = terms or Terms()
        self.terms = replace(
            terms,
            arrays_key=self.arrayrecord_key,
            weight_key=self.weighted_by_key,
        )
        if self.terms.joint and self.fraction_train not in (0.0, 1.0):
            raise ConfigError(
                f"fraction_train={self.fraction_train} with scheme 'esafl': keys that last longer than "
                "a round open sums of all members only; use per_round_keys=True, or fraction_train=1.0"
            )
        check_packages(self.terms.scheme, "server")  # rather than at the first sum
        self.round_timeout = round_timeout
        self.stage_timeout = stage_timeout
        self.connect_timeout = connect_timeout
        self.min_replies = min_replies
        self.retries = retries
        self.checkpoint_every = checkpoint_every
        self.state_dir = None if state_dir is None else Path(state_dir)
        self.on_round = on_round
        self.ending: Spent | None = None
        """What came after the last round's report: its end, and the sealed checkpoint of the model."""
        self._membership = Membership(patience, rekey_every)
        self._fed: Federation | None = None
        self._exchanged: Exchange | None = None
        self._lost = 0
        """Rounds in a row that came to nothing."""
        self._reached = 0
        """Round of the last sum that clients are known to have opened."""

    # --- the run ---

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        resume: bool = False,
    ) -> Result:
        """Agree on keys, run rounds up to `num_rounds`, return a sealed checkpoint of the model.

        As FedAvg's, but for these:

        Parameters
        ----------
        num_rounds : int
            Rounds of training. Where a map says what is selected, it takes one more, the first; apps
            are told `server-round` without it. A round that comes to nothing counts, that one too.
        initial_arrays : ArrayRecord or None
            The initial model; None where a member's app makes it (`HEMod(initial=...)`), so that the
            server does not see even that.
        timeout : float
            Bounds each round where it is shorter than `round_timeout`.
        resume : bool
            Go on with the federation in `state_dir`, where a run before this one stood.

        Raises
        ------
        ConfigError
            `evaluate_fn` is given and the server has no model, the model has an array that cannot
            be averaged, there is nothing to resume, or something that was not asked to be resumed.
        QuorumError
            Too few nodes connected, agreed or replied.
        """
        if evaluate_fn is not None and self.terms.reader == "clients":
            raise ConfigError(
                "evaluate_fn would see ciphertext, the server has no model: evaluate on the clients "
                "with @app.evaluate(), or run `flhe open` on the result and evaluate that"
            )
        if self._fed is not None:
            raise ConfigError("this strategy has run before: make a new one, in a run of its own")
        fed = self._open(StreamGrid(grid), initial_arrays, resume)
        result = Result()
        seconds = min(timeout, self.round_timeout)
        self._connect(fed)
        log(INFO, "Starting %s strategy:", type(self).__name__)
        first = fed.ledger.round + (fed.ledger.phase == "done")
        self._prepare(fed, first)
        self.summary()
        began = time.monotonic()
        if first == 1:
            self._evaluate_here(fed, 0, evaluate_fn, result)
        last = num_rounds + self.terms.mapped  # the map takes a round of its own
        for number in range(first, last + 1):
            log(INFO, "")
            what = " the map of what is selected" if fed.maps else ""
            log(INFO, "[ROUND %s/%s]%s", number, last, what)
            if fed.ledger.phase != "summed":
                self._train(fed, number, seconds, train_config or ConfigRecord())
            self._evaluate_here(fed, number, evaluate_fn, result)
            metrics = self._evaluate(fed, number, seconds, evaluate_config or ConfigRecord())
            if metrics is not None:
                result.evaluate_metrics_clientapp[number] = metrics
            self._close(fed, number)
        arrays = self._finish(fed)
        result.arrays = arrays if fed.serves else records.SealedArrays(dict(arrays))
        self.ending = fed.grid.take()
        result.train_metrics_clientapp.update(fed.means)
        log(INFO, "")
        log(INFO, "Finished in %.2f s", time.monotonic() - began)
        if not fed.serves:
            log(
                INFO,
                "The result is sealed. Keep it: flhe.strategies.save_sealed(result, 'model.flhe'). "
                "Open it: flhe open model.flhe --key DIR, DIR being a member's state directory (of a "
                "simulation here: %s)",
                default_root(),
            )
        if warning := clear_warning(self.terms):
            log(WARNING, "%s", warning)
        log(INFO, "Train metrics, averaged under encryption: %s", dict(fed.means))
        log(INFO, "Evaluation metrics: %s", dict(result.evaluate_metrics_clientapp))
        return result

    def rekey(self) -> None:
        """Have the group agree on fresh keys before the next round."""
        self._membership.asked = True

    def summary(self) -> None:
        """Log the configuration."""
        members = 0 if self._fed is None else len(self._fed.members)
        log(INFO, "\t├──> Encryption:")
        log(INFO, "\t│\t├──Scheme: %s, %d members", self.terms.scheme, members)
        if self.terms.scheme == "esafl":
            log(INFO, "\t│\t├──Ring: %s, keys: %s", self.terms.ring, self.terms.keys)
        elif self.terms.masked:
            log(INFO, "\t│\t├──Sums are read by: the %s", self.terms.reader)
        elif self.terms.scheme == "batchcrypt":
            log(INFO, "\t│\t├──Paillier modulus: %d bits", self.terms.key_bits)
        elif self.terms.scheme == "fedml-he":
            log(INFO, "\t│\t├──CKKS ring: %s", self.terms.ckks_ring)
        else:
            log(INFO, "\t│\t├──Masking: %s", self.terms.masking)
        bits = self.terms.resolved(members).bits
        log(INFO, "\t│\t├──Quantization: %d bits, clipped at %s", bits, self.terms.clip)
        if self.terms.sparse:
            hidden = "permuted" if self.terms.permuted else "NOT permuted"
            log(INFO, "\t│\t├──Sparsification: top %s, coordinates %s", self.terms.top_k, hidden)
        if self.terms.select.partial:
            select = self.terms.select
            log(INFO, "\t│\t├──Encrypted part: %s", describe(select))
        if self.terms.noise is not None:
            noise = self.terms.noise
            log(INFO, "\t│\t├──Laplace noise: scale %g on %s", noise.scale, noise.scope)
        log(INFO, "\t│\t├──Server optimizer: %s", self.terms.optimizer.name)
        log(INFO, "\t│\t└──Replies needed: %d", self._needed(members))
        super().summary()
        if warning := clear_warning(self.terms):
            log(WARNING, "%s", warning)

    def _open(self, grid: StreamGrid, initial: ArrayRecord | None, resume: bool) -> Federation:
        """A new federation, or the one in `state_dir`."""
        if resume and self.state_dir is None:
            raise ConfigError("resume needs state_dir: the directory of the run before")
        model = None if initial is None else Model.initial(records.to_numpy(initial))
        if model is None and self.terms.reader == "server" and not resume:
            raise ConfigError(
                "the server reads the sums, so it has the model: give start() initial_arrays, or have "
                'the clients read them (unmask="clients")'
            )
        terms = self.terms.to_bytes()
        if resume and self.state_dir is not None:
            ledger = Ledger.load(self.state_dir, terms)
            if model is not None and ledger.chain.get(0) != model.history:
                log(WARNING, "initial_arrays are ignored: the federation began with another model")
                initial = None
        else:
            ledger = Ledger.create(self.state_dir, grid.run.run_id, terms)
            if model is not None and self.terms.reader == "server":
                ledger.start_model(model)
            elif model is not None:
                ledger.layout, ledger.chain = model.layout, {0: model.history}
        # Where clients read the sums, only its layout and history are known from here on.
        self._fed = Federation(grid, ledger, self.terms, self._membership, initial)
        return self._fed

    def _connect(self, fed: Federation) -> None:
        """Wait for `min_available_nodes`."""
        need = max(
            self.min_available_nodes, self.min_train_nodes, self.min_evaluate_nodes, MIN_MEMBERS
        )
        deadline = time.monotonic() + self.connect_timeout
        if len(nodes := fed.connected()) < need:
            log(
                INFO,
                "%d of %d nodes are connected, waiting up to %g s for the others (a simulation has as "
                'many as --federation-config "num-supernodes=%d" says, and 2 without it)',
                *(len(nodes), need, self.connect_timeout, need),
            )
        while len(nodes := fed.connected()) < need:
            if time.monotonic() >= deadline:
                raise QuorumError(
                    f"{len(nodes)} nodes connected within {self.connect_timeout:g} s, {need} are "
                    "needed: start the others, or lower min_available_nodes (to 3 at least; in a "
                    f'simulation: --federation-config "num-supernodes={need}")'
                )
            time.sleep(0.2)

    def _needed(self, members: int) -> int:
        """Updates that a sum needs: of all members, where no other one opens."""
        if self.terms.joint and members:
            return max(members, self.min_replies or 0)
        return self._quorum(members)

    def _lose_members(self, fed: Federation, nodes: set[int]) -> bool:
        """Go on without `nodes` where sums are of all members; whether the group becomes smaller.

        Keys that were dealt are for one set of members, which is asked again.
        """
        if self.terms.keys == "dealt":
            return False
        least = max(MIN_MEMBERS, self.min_replies or 0)
        return self._membership.lose(nodes, fed.members, least)

    def _quorum(self, members: int) -> int:
        """Members that a round needs."""
        usual = (members - 1) // 3 + 2
        if not self.terms.masked or members == 0:
            return self.min_replies or usual
        if self._fed is not None and self._fed.members:
            agreed = self._fed.ledger.agreed
            assert agreed is not None
            least = self._fed.circle.thresholds.min_set
            return max(self.min_replies or 0, least, agreed.min_opening)
        return max(self.min_replies or 0, Thresholds(members, (members - 1) // 3).min_set)

    def _check_sampling(self, fed: Federation) -> None:
        size = self._sample_size(len(fed.members), self.fraction_train, self.min_train_nodes)
        if self.fraction_train > 0 and size < self._needed(len(fed.members)):
            raise ConfigError(
                f"fraction_train={self.fraction_train} samples {size} of "
                f"{len(fed.members)} members, a round needs {self._needed(len(fed.members))} "
                "updates: raise fraction_train or min_train_nodes"
            )

    @staticmethod
    def _sample_size(members: int, fraction: float, minimum: int) -> int:
        return min(max(int(members * fraction), minimum), members)

    def _sample(self, fraction: float, minimum: int) -> list[int]:
        """Members that are there and have the others' model, chosen at random."""
        fed = self._running()
        able = [n for n in fed.present() if fed.lacks(n) is not None and n not in fed.barred]
        size = min(self._sample_size(len(fed.members), fraction, minimum), len(able))
        return secrets.SystemRandom().sample(able, size)

    def _running(self) -> Federation:
        if self._fed is None:
            raise ConfigError(
                "a strategy of flhe runs its rounds itself, and this one was asked for a part of one "
                "before its own start(): a wrapper around it (Flower's DifferentialPrivacy...) and a "
                "start() of your own would work on updates that the server cannot read. Call its own "
                "start(); for noise, put a mod behind HEMod: @app.train(mods=[LocalDpMod(...)])"
            )
        return self._fed

    # --- between rounds ---

    def _prepare(self, fed: Federation, number: int) -> None:
        """Settle who takes part in round `number`, under which key and from which model."""
        self._await_members(fed)
        catch_up = CatchUp(fed, self.stage_timeout)
        connected = fed.connected()
        self._membership.mute = set()
        self._membership.mute = catch_up.greet(self._membership.candidates(number, connected))
        self._membership.see(number, fed.members, connected)
        if self.terms.joint:
            present = fed.present()
            self._lose_members(fed, {n for n in fed.members if n not in present})
        ledger = fed.ledger
        if ledger.agreed is None:
            self._change_epoch(fed, catch_up, number, "")
        for _ in range(2):  # the second time where the first has cost members their keys
            why = self._membership.due(number, ledger.since, fed.members, connected)
            if not why:
                break
            before = ledger.number
            self._change_epoch(fed, catch_up, number, why)
            if ledger.agreed is not None and ledger.agreed.number >= before:
                break
        if ledger.layout is None:  # a run before this one ended between its keys and its model
            catch_up.fetch_initial()
        if lost := [node for node in fed.present() if fed.lacks(node) is None]:
            catch_up.settle(lost)

    def _await_members(self, fed: Federation) -> None:
        """Wait until as many nodes are there as a round needs; they need not be members yet."""
        alone = MIN_MEMBERS if self.terms.joint or not fed.members else 2
        need = max(self._quorum(len(fed.members)), alone)
        deadline = time.monotonic() + self.connect_timeout
        while len(connected := fed.connected()) < need:
            if time.monotonic() >= deadline:
                raise QuorumError(
                    f"{len(connected)} nodes are connected after {self.connect_timeout:g} s, a round "
                    f"needs {need}: start the others, then resume the run"
                )
            time.sleep(0.2)

    def _change_epoch(self, fed: Federation, catch_up: CatchUp, number: int, why: str) -> None:
        """A new key among all that are there, and one model for all of them."""
        ledger, membership = fed.ledger, self._membership
        first = ledger.agreed is None
        if not first:
            log(INFO, "A new epoch, because of: %s", why)
            present = [node for node in fed.present() if node not in membership.lost]
            if ledger.chain and not fed.serves and present:
                catch_up.settle(present)  # what is sealed under the old key is opened with it
        asked = membership.candidates(number, fed.connected())
        try:
            agreed = agree(
                fed.grid,
                asked,
                self.terms,
                run_id=ledger.federation,
                timeout=self.stage_timeout,
                number=ledger.number,
            )
        except (QuorumError, ConfigError) as error:  # also a group that has outgrown its terms
            ledger.skip_agreements()
            if first or len(fed.present()) < self._quorum(len(fed.members)):
                raise
            self._stay(fed, number, asked, str(error))
            return
        # Then nobody has to hold it.
        given = fed.serves or (ledger.base == 0 and fed.initial is not None)
        held = given or any(fed.stands(node) == ledger.base for node in agreed.members)
        if ledger.chain and not held:
            catch_up.take_back(agreed)
            held = any(fed.stands(node) == ledger.base for node in agreed.members)
        if ledger.chain and not held:
            ledger.skip_agreements()
            if len(fed.present()) < self._quorum(len(fed.members)):
                raise QuorumError(
                    f"nobody who is connected holds the model of round {ledger.base}: start those "
                    "that do, then resume the run"
                )
            self._stay(fed, number, asked, "nobody in the new one holds the model")
            return
        ledger.change_epoch(agreed, number)
        membership.changed(number, asked, agreed.members)
        fed.confirmed.clear()
        self._check_sampling(fed)
        if ledger.layout is None:
            catch_up.fetch_initial()
        if not fed.serves and (ledger.base > 0 or fed.initial is None):
            catch_up.settle(fed.present())

    def _stay(self, fed: Federation, number: int, asked: list[int], why: str) -> None:
        """A new epoch came to nothing."""
        if self.terms.joint:
            self._membership.broken(number, asked, fed.members)
            log(WARNING, "the members' keys may be gone, they agree on new ones: %s", why)
        else:
            self._membership.failed(number, asked, fed.members)
            log(WARNING, "the epoch before goes on: %s", why)

    # --- training ---

    def _train(self, fed: Federation, number: int, timeout: float, config: ConfigRecord) -> None:
        """One round, asked for until enough answer."""
        again = fed.ledger.round == number and fed.ledger.phase == "training"
        start = fed.ledger.attempt if again else 0
        left = self.retries
        for attempt in itertools.count(start):
            self._prepare(fed, number)
            if attempt == start:
                self._count_progress(fed, number)
            if fed.ledger.spoiled == number:
                self._void(number)
                return
            fed.begin(number, attempt)
            try:
                self.aggregate_train(number, self._exchange(fed, number, timeout, config))
            except FlheError as error:
                if fed.ledger.spoiled == number:  # also what members released and does not fit
                    log(WARNING, "%s", error)
                    self._void(number)
                    return
                if not isinstance(error, QuorumError):
                    raise
                if self._passed_over(fed, number):
                    return
                # With keys of a new epoch they may answer: that is no retry, and comes once a round.
                left += fed.grants_another()
                # A group that becomes smaller does so a few times at most: that is no retry.
                hopeless = 2 * len(fed.app_failed) > fed.asked  # most apps did, and would again
                if hopeless or not (self.terms.joint and self._lose_members(fed, fed.missing)):
                    if hopeless or left == 0:
                        # Nodes send what they have sent again, so a resumed run asks for another.
                        fed.ledger.begin(number, attempt + 1)
                        raise
                    left -= 1
                log(WARNING, "%s; asking again (attempt %d)", error, attempt + 2)
            else:
                if fed.serves or not self.terms.masked:
                    self._lost = 0
                return

    @staticmethod
    def _passed_over(fed: Federation, number: int) -> bool:
        """Whether most nodes call a round over: then it is, and the next one is asked for."""
        if 2 * len(fed.spent) <= len(fed.members):
            return False
        log(ERROR, "round %d is over, most nodes say: the next one is asked for", number)
        fed.ledger.done()
        # Of their models, which had all sums, they have said nothing.
        fed.at |= dict.fromkeys(fed.spent, fed.ledger.base)
        return True

    def _count_progress(self, fed: Federation, number: int) -> None:
        """Where clients read: whether anybody opened the last sum is known when a round begins.

        Raises
        ------
        QuorumError
            So many rounds in a row came to nothing.
        """
        if not self.terms.masked or fed.serves:
            return
        if fed.ledger.base > self._reached or number == 1:
            self._lost, self._reached = 0, max(fed.ledger.base, 0)
        else:
            self._lose()

    def _lose(self) -> None:
        self._lost += 1
        if self._lost > self.retries:
            raise QuorumError(
                f"{self._lost} rounds in a row are void: start more nodes, then resume the run"
            )

    def _void(self, number: int) -> None:
        """Give a round up: nobody opens, or signs, a second sum of it. The next one trains again.

        Raises
        ------
        QuorumError
            So many rounds in a row were.
        """
        why = "the group changed in the middle of it"
        if self.terms.masked:
            why = "too few opened it to the end, and nobody signs two sets of survivors of a round"
        log(ERROR, "round %d is void: %s", number, why)
        self._running().ledger.done()  # or a run that is resumed would come upon it for ever
        if self._running().serves or not self.terms.masked:
            self._lose()

    def _release(self, fed: Federation, total: Sealed) -> Sequence[bytes]:
        """Have the senders of `total` agree on the key of their sum.

        Raises
        ------
        QuorumError
            Too few of them did; the round is void then.
        """
        agreed = fed.ledger.agreed
        assert agreed is not None
        fed.ledger.spoil(total.slot.round)  # before anybody may have signed its survivors
        ranks = {node: agreed.rank(node) for node in fed.shares}
        agreement = MaskingAgreement(
            fed.grid,
            fed.circle,
            total.slot,
            {node: rank for node, rank in ranks.items() if rank in total.senders},
            self._stage_fields(fed, ranks),
            not fed.serves,
            self.stage_timeout,
            self.retries,
            fed.explained,
        )
        try:
            answers = agreement.release(fed.shares)
        finally:
            for node in agreement.culprits:
                log(WARNING, "node %d is left out from now on: its shares do not open", node)
            fed.barred.update(agreement.culprits)
        for node, seconds in agreement.crypto_s.items():
            fed.crypto_s[node] = fed.crypto_s.get(node, 0.0) + seconds
        fed.shares = {}
        return answers

    def _exchange(
        self, fed: Federation, number: int, timeout: float, config: ConfigRecord
    ) -> Iterator[Message]:
        """All stages of a round up to the replies that hold updates."""
        fed.mode = self._mode(fed)
        self._exchanged = exchange = Exchange(fed, self._needed(len(fed.members)))
        asked = self.configure_train(number, ArrayRecord(), config, cast(Grid, fed.grid))
        messages = list(asked)
        fed.asked = len(messages)
        replies = fed.grid.send_and_receive(messages, timeout=timeout)
        if self.fraction_train == 0.0:
            return replies

        def ask(stage: str, nodes: list[int]) -> Iterator[Message]:
            fed.missing = set(fed.members)
            asked = fed.messages("train", stage, nodes, None, "")
            # Where it takes powers of large numbers, encrypting is no matter of a moment.
            limit = timeout if self.terms.keyed else min(timeout, self.stage_timeout)
            return fed.grid.send_and_receive(asked, timeout=limit)

        if fed.needs_ranges:
            nodes = exchange.add_ranges(replies)
            replies = ask("supports" if self.terms.sparse else "update", nodes)
        if self.terms.sparse:
            nodes = exchange.collect_supports(replies)
            replies = ask("update", nodes)
        return replies

    def _stage_fields(self, fed: Federation, nodes: Iterable[int]) -> dict[str, Any]:
        """What stages say that are not about a model."""
        agreed = fed.ledger.agreed
        assert agreed is not None
        return {
            "federation": records.federation_name(fed.ledger.federation),
            "terms": self.terms.to_bytes(),
            "epoch": agreed.epoch,
            "confirms": [] if fed.confirmed.issuperset(nodes) else list(agreed.confirms),
        }

    def _mode(self, fed: Federation) -> str:
        """Masking of a dense round by the dropout to be expected (FLASHE, Theorem 2)."""
        if self.terms.masking != "adaptive" or self.terms.sparse:
            return ""
        members = len(fed.members)
        asked = self._sample_size(members, self.fraction_train, self.min_train_nodes)
        dropout = 1 - asked / members if fed.dropout is None else fed.dropout
        return masking.for_dropout(members, dropout).masking

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send each sampled node what it lacks, and ask for an encrypted update."""
        if self.fraction_train == 0.0:
            return []
        fed = self._running()
        nodes = self._sample(self.fraction_train, self.min_train_nodes)
        log(INFO, "configure_train: Sampled %d nodes (out of %d)", len(nodes), len(fed.members))
        config["server-round"] = server_round - self.terms.mapped
        return fed.messages("train", "round", nodes, config, self.configrecord_key)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold ciphertexts as they arrive; the sum is kept sealed for the clients.

        Updates that start from different models are never added: those of most senders count, the
        other senders are named and caught up.

        Raises
        ------
        QuorumError
            Fewer valid updates than `min_replies` arrived in time.
        """
        fed = self._running()
        if self.fraction_train == 0.0:
            return None, None
        exchanged = self._exchanged or Exchange(fed, self._needed(len(fed.members)))
        views: dict[Start, Sealed] = {}
        senders: dict[Start, list[int]] = {}
        trouble: dict[int, str] = {}
        for reply in replies:
            node = fed.grid.node_of(reply)
            try:
                with fed.grid.meter.doing(ADD):
                    part, start = fed.receive(node, reply, exchanged.supports)
                    if start not in views and len(views) == MAX_VIEWS:
                        self._drop_view(fed, views, senders, trouble)
                    began = time.perf_counter()
                    views[start] = fed.scheme.add(views.get(start), part)
                    fed.adding_s += time.perf_counter() - began
                senders.setdefault(start, []).append(node)
                del part
            except FlheError as error:
                trouble[node] = str(error)
            del reply  # before the next one is unpacked
        for node in fed.grid.silent:
            trouble[node] = "no reply in time"
        # Most senders; of equals, those with the lowest rank.
        chosen = max(views, key=lambda s: (len(senders[s]), -min(views[s].senders)), default=None)
        for start, nodes in senders.items():
            if chosen is not None and start != chosen:
                trouble |= {node: fed.apart(node, start, chosen) for node in nodes}
        for node, why in trouble.items():
            log(WARNING, "aggregate_train: node %d is left out: %s", node, why)
            if fed.stands(node) != LOST or fed.ledger.attempt > 0:  # else it is caught up first
                fed.missing.add(node)
        total = None if chosen is None else views[chosen]
        survivors = len(total.senders) if total else 0
        log(INFO, "aggregate_train: Added %d updates, %d failures", survivors, len(trouble))
        needed = self._needed(len(fed.members))
        if total is None or chosen is None or survivors < needed:
            fed.answered |= {node for nodes in senders.values() for node in nodes}
            _too_few(f"round {server_round}: {survivors} updates", needed, trouble)
        for node in sorted(fed.answered - set(senders[chosen]) - set(trouble)):
            log(WARNING, "aggregate_train: node %d is left out: it answered only before", node)
        release: Sequence[bytes] = self._release(fed, total) if self.terms.masked else ()
        return fed.keep(total, release, chosen.told), None

    @staticmethod
    def _drop_view(
        fed: Federation,
        views: dict[Start, Sealed],
        senders: dict[Start, list[int]],
        trouble: dict[int, str],
    ) -> None:
        """Make room for another model's updates: what is alone goes first."""
        least = min(views, key=lambda start: len(senders[start]))
        for node in senders.pop(least):
            fed.at[node] = LOST
            trouble[node] = "its model is one of more than three different ones"
        del views[least]

    # --- evaluation ---

    def _evaluate_here(
        self, fed: Federation, number: int, evaluate_fn: EvaluateFn | None, result: Result
    ) -> None:
        """Evaluate the model on the server, where it reads the sums."""
        if evaluate_fn is None or fed.initial is None:
            return
        with fed.grid.meter.doing(EVALUATE):
            metrics = evaluate_fn(number, fed.initial)
        if metrics is not None:
            log(INFO, "\t└──> Server-side MetricRecord: %s", metrics)
            result.evaluate_metrics_serverapp[number] = metrics

    def _evaluate(
        self, fed: Federation, number: int, timeout: float, config: ConfigRecord
    ) -> MetricRecord | None:
        messages = self.configure_evaluate(number, ArrayRecord(), config, cast(Grid, fed.grid))
        replies = fed.grid.send_and_receive(list(messages), timeout=timeout)
        metrics = self.aggregate_evaluate(number, replies)
        if metrics is not None:
            log(INFO, "\t└──> Aggregated MetricRecord: %s", metrics)
        return metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the sealed sum; the clients open it and evaluate the model."""
        if self.fraction_evaluate == 0.0:
            return []
        nodes = self._sample(self.fraction_evaluate, self.min_evaluate_nodes)
        log(INFO, "configure_evaluate: Sampled %d nodes", len(nodes))
        config["server-round"] = server_round - self.terms.mapped
        fed = self._running()
        return fed.messages("evaluate", "evaluate", nodes, config, self.configrecord_key)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics that the nodes let leave, then report the round.

        Unweighted, unless every node's policy lets its example count leave.

        Raises
        ------
        QuorumError
            No node could evaluate the model.
        """
        fed = self._running()
        contents: list[RecordDict] = []
        trouble: dict[int, str] = {}
        for reply in replies:
            node = fed.grid.node_of(reply)
            if reply.has_error():
                trouble[node] = fed.refused(node, reply)
                continue
            fed.heard(node, reply.content)
            own = {n: r for n, r in reply.content.items() if not n.startswith(records.PREFIX)}
            contents.append(RecordDict(own))
        for node in fed.grid.silent:
            trouble[node] = "no reply in time"
        for node, why in trouble.items():
            log(WARNING, "aggregate_evaluate: node %d failed: %s", node, why)
        refused = any(fed.stands(node) == LOST for node in trouble)  # the sum, not the app
        if self.fraction_evaluate > 0 and not contents and not refused:
            _too_few(f"round {server_round}: no evaluations", 1, trouble)
        metrics = None
        if contents := comparable(contents, self.weighted_by_key):
            metrics = self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)
        if means := fed.means.get(server_round):
            log(INFO, "\t└──> Aggregated training MetricRecord: %s", means)
        if self.on_round is not None:
            self.on_round(fed.report(server_round, metrics))
        return metrics

    # --- the end of a round, and of all ---

    def _close(self, fed: Federation, number: int) -> None:
        """A round is over."""
        fed.ledger.done()
        if not fed.serves and self.checkpoint_every and number % self.checkpoint_every == 0:
            try:
                CatchUp(fed, self.stage_timeout).fetch_box()
            except QuorumError as error:
                log(WARNING, "no checkpoint after round %d: %s", number, error)
        fed.drop_sums()

    def _finish(self, fed: Federation) -> ArrayRecord:
        """Bring everybody who is there to the last model, and have it sealed."""
        if fed.serves:
            assert fed.initial is not None
            return fed.initial
        catch_up = CatchUp(fed, self.stage_timeout)
        behind = [n for n in fed.present() if fed.stands(n) != fed.ledger.base]
        if fed.ledger.base > 0 and behind:
            catch_up.settle(behind)
        return catch_up.fetch_box()


def _too_few(what: str, need: int, trouble: dict[int, str]) -> NoReturn:
    raise QuorumError(f"{what}, {need} needed ({reasons(trouble)})")
