"""HEStrategy: FedAvg over ciphertext that the server cannot read.

Members share a key that the server does not have, so a round's sum stays sealed, and the model
lives on the clients. Under a scheme with masking-key agreement (SASH) members release one key a
round, that of the sum. A server that reads it has the model as under plain FedAvg, and never an
update.

Memory: one sum, one reply at a time, and the sums that some member has not received yet.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from logging import INFO, WARNING
from typing import Any, Unpack

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from flhe.coding.chain import Chain
from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.errors import ConfigError, ProtocolError, QuorumError
from flhe.mods import records
from flhe.schemes import DEFAULT
from flhe.schemes.base import Scheme
from flhe.schemes.registry import SCHEMES
from flhe.strategies.attempts import Attempts
from flhe.strategies.catch_up import CatchUp
from flhe.strategies.epochs import Epochs, begin
from flhe.strategies.exchange import Exchange
from flhe.strategies.federation import Federation
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import MIN_MEMBERS
from flhe.strategies.masking_agreement import MaskingAgreement
from flhe.strategies.membership import Membership
from flhe.strategies.options import RunOptions, RunSettings, check_names, check_scheme
from flhe.strategies.overhead import EVALUATE, Spent
from flhe.strategies.pending import Settling
from flhe.strategies.planning import Asked, Given, Plan
from flhe.strategies.report import RoundReport
from flhe.strategies.round_state import Attempt
from flhe.strategies.sampling import Sampling
from flhe.strategies.sealed_result import log_encryption, log_result, warn_of_clear
from flhe.strategies.trouble import log
from flhe.training import accountant
from flhe.training.kind import EVALUATION
from flhe.training.optimizer import Optimizer
from flhe.training.terms import EVALUATE_METRICS, TRAIN_METRICS, Terms

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class HEStrategy(FedAvg):
    """FedAvg over ciphertext.

    Raises ConfigError: a parameter that cannot work.

    Parameters
    ----------
    scheme : Scheme, optional
        The scheme with its own parameters; FLASHE by default.
    codec : Chain, optional
        Codec between updates and integers; `update_codec` makes the usual one.
    optimizer : Optimizer, or a torch.optim.Adam, RMSprop or SGD
        Step that all readers of sums take with the mean update; by default it is added, as FedAvg
        does. "sgd", "adam" and "rmsprop" step with a mean gradient, which apps return in place of a
        model (FedSGD). Of a torch optimizer, class and options are taken; the step itself is computed
        here, by torch's formulas, because all clients must come to the same bits.
    select : float or Select, optional
        Encrypt a part of each update only: a share of it, the most sensitive values by a map that a
        first round adds up under encryption (`HEMod(sensitivity=...)`). The server sees the
        rest of every client's update in every round. `Select` has other rules, and can leave the
        rest unsent.
    noise : Laplace, optional
        Noise that clients add, to the part in clear or to all.
    train_metrics, evaluate_metrics : tuple[str, ...]
        Metrics of training and evaluation, averaged under encryption and weighted by example counts.
        If clients read, means of an evaluation are reported in the next round.
    **options
        Timeouts, retries and state of the run (`RunSettings`), and FedAvg's own arguments.
    """

    def __init__(
        self,
        scheme: Scheme | None = None,
        codec: Chain | None = None,
        *,
        optimizer: Optimizer | object | None = None,
        select: float | Select | None = None,
        noise: Laplace | None = None,
        train_metrics: tuple[str, ...] = TRAIN_METRICS,
        evaluate_metrics: tuple[str, ...] = EVALUATE_METRICS,
        **options: Unpack[RunOptions],
    ) -> None:
        check_names(HEStrategy, options)
        metrics = {"train_metrics": train_metrics, "evaluate_metrics": evaluate_metrics}
        for name, said in metrics.items():
            if isinstance(said, str):  # each of its letters would be a name
                raise ConfigError(f"{name}={said!r}: must be a tuple of names: write ({said!r},)")
        given: dict[str, Any] = dict(options)
        for name in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
            if given.get(name) is not None:
                log(
                    WARNING,
                    "%s is not called: the server never sees one member's metrics, they are averaged "
                    "by example counts under encryption",
                    name,
                )
        running = {field.name for field in fields(RunSettings)} & given.keys()
        self.settings = RunSettings(**{name: given.pop(name) for name in running})
        super().__init__(**given)
        scheme = scheme or SCHEMES.named(DEFAULT)()
        self.terms = Terms(
            scheme,
            codec or update_codec(bits=scheme.default_bits),
            Optimizer.of(optimizer),
            Select.of(select),
            noise,
            tuple(train_metrics),
            # The app's names of its arrays and its weight are among the terms of all members.
            self.arrayrecord_key,
            self.weighted_by_key,
            tuple(evaluate_metrics),
        )
        check_scheme(scheme, self.fraction_train)
        if self.terms.codec.mechanism is not None:
            accountant.check_package()
        self.ending: Spent | None = None
        """Costs after the last round's report: the run's end, and the sealed checkpoint."""
        self._membership = Membership(self.settings.patience, self.settings.rekey_every)
        self._fed: Federation | None = None
        self._exchanged: Exchange | None = None
        self._plan: Plan | None = None
        self._report: tuple[RoundReport, int] | None = None
        """Report of the last round, with its model's round, until its evaluation is reported."""

    def rekey(self) -> None:
        """Have the group agree on fresh keys before the next round."""
        self._membership.asked = True

    def summary(self) -> None:
        """Log the configuration."""
        members = 0 if self._fed is None else len(self._fed.members)
        log_encryption(self.terms, members, self.sampling.needed(self._fed))
        super().summary()
        warn_of_clear(self.terms)

    @property
    def sampling(self) -> Sampling:
        """Return the requirements of a round, by the strategy's current settings."""
        replies = self.settings.min_replies
        return Sampling(self.terms, replies, self.fraction_train, self.min_train_nodes)

    # --- the run ---

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | Given | None = None,
        evaluate_config: ConfigRecord | Given | None = None,
        evaluate_fn: EvaluateFn | None = None,
        *,
        resume: bool = False,
    ) -> Result:
        """Agree on keys, run rounds up to `num_rounds`, return a sealed checkpoint of the model.

        Arguments are FedAvg's, except:

        Raises ConfigError: `evaluate_fn` is given and the server has no model, the model has an
        array that cannot be averaged, there is nothing to resume, or `state_dir` holds a federation
        without `resume`; QuorumError: too few nodes connected, agreed or replied.

        Parameters
        ----------
        num_rounds : int
            Rounds of training. A selection by map adds a first round without training; apps
            are told `server-round` without it. Failed rounds count.
        initial_arrays : ArrayRecord or None
            The initial model; None if a member's app makes it (`HEMod(initial=...)`), so that the
            server does not see even that.
        timeout : float
            Limit of each round if shorter than `round_timeout`.
        train_config, evaluate_config : ConfigRecord or mapping
            Settings of apps; a value may be a `Schedule`, or a tuple with one value for each round.
            They are fixed when the run begins, in the contract that members sign.
        resume : bool
            Go on with the federation in `state_dir`, where an earlier run stopped.
        """
        if evaluate_fn is not None and self.terms.scheme.reader == "clients":
            raise ConfigError(
                "evaluate_fn would see ciphertext, the server has no model: evaluate on the clients "
                "with @app.evaluate(), or run `flhe open` on the result and evaluate that"
            )
        if self._fed is not None:
            raise ConfigError("this strategy has run before: make a new one, in a run of its own")
        stream = StreamGrid(grid)
        given: dict[Asked, Given | None] = {"train": train_config, "evaluate": evaluate_config}
        self._plan = plan = Plan(self, self.terms, stream, given)
        contract = plan.contract(num_rounds, self.settings.min_replies or 0)
        made = contract, self._membership, initial_arrays, self.settings.state_dir
        self._fed = fed = begin(stream, *made, resume=resume, of=Federation)
        epochs = Epochs(fed, self)
        fewest = max(self.min_available_nodes, self.min_train_nodes, self.min_evaluate_nodes)
        epochs.connect(max(fewest, MIN_MEMBERS))
        log(INFO, "Starting %s strategy:", type(self).__name__)
        first = fed.ledger.round + (fed.ledger.phase == "done")
        epochs.prepare(first)
        self.summary()
        began, result = time.monotonic(), Result()
        if first == 1:
            self._evaluate_here(fed, 0, evaluate_fn, result)
        attempts = Attempts(fed, epochs)
        seconds = min(timeout, self.settings.round_timeout)
        try:
            for number in range(first, contract.last + 1):
                log(INFO, "")
                what = " the selection map" if fed.parameters.maps else ""
                log(INFO, "[ROUND %s/%s]%s", number, contract.last, what)
                if fed.ledger.phase != "summed":
                    attempts.run(number, partial(self._train, fed, number, seconds))
                self._hand_on(fed, result)
                self._evaluate_here(fed, number, evaluate_fn, result)
                self._evaluate(fed, number, seconds, result)
                self._close(fed, number)
            self._finish(fed, result, max(first, 1 + self.terms.select.mapped))
        finally:
            self._hand_on(fed, result)
        log(INFO, "")
        log(INFO, "Finished in %.2f s", time.monotonic() - began)
        log_result(self.terms, fed.means, result)
        return result

    def _running(self) -> Federation:
        if self._fed is None:
            raise ConfigError(
                "a strategy of flhe runs its rounds itself, and this one was asked for a part of one "
                "before its own start(): a wrapper around it (Flower's DifferentialPrivacy...) and a "
                "start() of your own would work on updates that the server cannot read. Call its own "
                "start(); for noise, put a mod behind HEMod: @app.train(mods=[LocalDpMod(...)])"
            )
        return self._fed

    def _configured(self, kind: Asked, server_round: int, config: ConfigRecord) -> list[Message]:
        """Send each sampled node its missing sums, and ask it to train or to evaluate."""
        fraction, minimum, stage = {
            "train": (self.fraction_train, self.min_train_nodes, "round"),
            "evaluate": (self.fraction_evaluate, self.min_evaluate_nodes, "evaluate"),
        }[kind]
        if fraction == 0.0:
            return []
        config["server-round"] = server_round - self.terms.select.mapped
        if self._plan is not None and self._fed is None:  # for the contract: no node receives it
            return [Message(RecordDict({self.configrecord_key: config}), 1, kind)]
        fed, nodes = self._running(), self._sample(fraction, minimum)
        log(INFO, "configure_%s: Sampled %d nodes (out of %d)", kind, len(nodes), len(fed.members))
        messages = fed.messages(kind, stage, nodes)
        for message in messages:
            message.content[self.configrecord_key] = config
        return messages

    def _sample(self, fraction: float, minimum: int) -> list[int]:
        return self.sampling.sample(self._running(), fraction, minimum)

    # --- training ---

    def _train(self, fed: Federation, number: int, timeout: float) -> None:
        sampling, plan = self.sampling, self._plan
        assert plan is not None
        fed.attempt.mode = sampling.mode(fed)
        self._exchanged = exchange = Exchange(fed, sampling.needed(fed))
        messages = plan.asked("train", number, fed.contract)
        fed.attempt.asked = len(messages)
        replies: Iterable[Message] = fed.grid.send_and_receive(messages, timeout=timeout)
        limit = timeout if self.terms.scheme.slow else min(timeout, self.settings.stage_timeout)
        if self.fraction_train > 0.0:
            replies = exchange.updates(replies, limit)
        self.aggregate_train(number, replies)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask sampled nodes for encrypted updates."""
        return self._configured("train", server_round, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add ciphertexts as they arrive; keep the sum sealed for the clients.

        Raises QuorumError: fewer valid updates than `min_replies` arrived in time.
        """
        fed = self._running()
        if self.fraction_train == 0.0:
            return None, None
        assert self._exchanged is not None
        return Settling(fed, self.settings).keep(self._exchanged.add_updates(replies)), None

    # --- evaluation, and the end of a round ---

    def _evaluate_here(
        self, fed: Federation, number: int, evaluate_fn: EvaluateFn | None, result: Result
    ) -> None:
        """Evaluate the model on the server, if it reads the sums."""
        if evaluate_fn is None or fed.initial is None:
            return
        with fed.grid.meter.doing(EVALUATE):
            metrics = evaluate_fn(number, fed.initial)
        if metrics is not None:
            log(INFO, "\t└──> Server-side MetricRecord: %s", metrics)
            result.evaluate_metrics_serverapp[number] = metrics

    def _evaluate(self, fed: Federation, number: int, timeout: float, result: Result) -> None:
        """Have the model of this round evaluated, if it made one, and report the round's costs."""
        ledger, plan = fed.ledger, self._plan
        assert plan is not None
        # Nodes evaluate no model that they have already moved on from.
        newest = ledger.base == number or self.fraction_train == 0.0
        if newest and ledger.base > ledger.evaluated:
            messages = plan.asked("evaluate", number, fed.contract)
            fed.attempt = Attempt(set(fed.members), len(messages))
            replies = fed.grid.send_and_receive(messages, timeout=timeout)
            self.aggregate_evaluate(number, replies)
        if means := fed.means.get(number):
            log(INFO, "\t└──> Aggregated training MetricRecord: %s", means)
        mechanism = self.terms.codec.mechanism
        spent = accountant.spent(mechanism, len(ledger.chain) - 1, self.settings.delta)
        self._report = replace(fed.report(number), **spent), ledger.base
        if not ledger.evaluation:
            self._hand_on(fed, result)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask sampled nodes to evaluate the model, as many as a sum needs at least."""
        return self._configured("evaluate", server_round, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Add the evaluations of the model; return their means if the server reads them.

        If clients read, one of them reports the means with its next reply.

        Raises QuorumError: the apps of all nodes failed.
        """
        fed, release = self._running(), list[bytes]()
        if self.fraction_evaluate == 0.0:
            return None
        try:
            total, _ = Exchange(fed, self.sampling.needed(fed)).add_whole(EVALUATION, replies)
            if self.terms.scheme.opened_together:
                agreement = MaskingAgreement(fed, fed.parameters.sums.whole, total, self.settings)
                agreement.sign()
                release = agreement.unmask()
            fed.keep_evaluation(total, release)
        except (QuorumError, ProtocolError) as error:
            if 0 < fed.attempt.asked <= len(fed.attempt.app_failed):
                raise  # and would again
            log(WARNING, "the evaluation of round %d is lost: %s", server_round, error)
        return fed.evaluations.get(fed.ledger.base)

    def _hand_on(self, fed: Federation, result: Result) -> None:
        """Pass on the report that waits for an evaluation: nothing more will come."""
        waiting, self._report = self._report, None
        if waiting is None:
            return
        report, made = waiting
        metrics = fed.evaluations.pop(made, None)
        for earlier, late in fed.evaluations.items():  # reported after its round's report had left
            result.evaluate_metrics_clientapp.setdefault(earlier, late)
        if metrics is not None:
            log(INFO, "\t└──> Aggregated MetricRecord of round %d: %s", report.round, metrics)
            result.evaluate_metrics_clientapp[report.round] = metrics
        if self.settings.on_round is not None:
            self.settings.on_round(report.told(metrics))

    def _close(self, fed: Federation, number: int) -> None:
        fed.ledger.done()
        every = self.settings.checkpoint_every
        if not fed.server_reads and every and number % every == 0:
            try:
                CatchUp(fed, self.settings.stage_timeout).fetch_box()
            except QuorumError as error:
                log(WARNING, "no checkpoint after round %d: %s", number, error)
        fed.drop_sums()

    def _finish(self, fed: Federation, result: Result, first: int) -> None:
        """Put the last model into the result; QuorumError if all rounds from `first` were void."""
        box = None if fed.server_reads else CatchUp(fed, self.settings.stage_timeout).finish()
        if fed.ledger.base < first:  # a few are fine behind a trained model
            trained = fed.ledger.base > self.terms.select.mapped
            fed.check_voids(self.settings.retries if trained else 0, every=True)
        arrays = fed.initial if box is None else records.SealedArrays(dict(box))
        assert arrays is not None
        result.arrays = arrays
        self.ending = fed.grid.meter.take()
        result.train_metrics_clientapp.update(fed.means)
