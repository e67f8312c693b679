"""HEStrategy: FedAvg that adds what it cannot read.

The server agrees on nothing but the order of messages: members share a key that it does not have, the
sum of a round stays sealed, and the model lives on the clients. What `start` returns is a sealed
checkpoint that only the group opens (`flhe open`).

Memory: one sum, plus one reply at a time, plus those sums that some node has not received yet.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from logging import INFO, WARNING, getLogger
from typing import Any, NoReturn, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from flhe import records
from flhe.errors import ConfigError, FlheError, QuorumError
from flhe.mods.codes import explain
from flhe.policy import default_root
from flhe.rounds.model import Model
from flhe.rounds.terms import Terms
from flhe.sealed import Sealed
from flhe.strategies.evaluations import comparable
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import MIN_MEMBERS, agree, reasons
from flhe.strategies.report import RoundReport
from flhe.strategies.run import Run

log = getLogger("flwr").log  # Flower's own log: one place to read a run

OnRound = Callable[[RoundReport], None]


class HEStrategy(FedAvg):
    """FedAvg over ciphertext.

    Parameters
    ----------
    terms : Terms
        Public parameters of encoding and encryption.
    round_timeout : float
        Seconds that a round waits for updates, and an evaluation for metrics.
    stage_timeout : float
        Seconds that each relay of the key agreement, and the final checkpoint, waits.
    connect_timeout : float
        Seconds to wait for `min_available_nodes`.
    min_replies : int, optional
        Updates that a round needs; fewer end the run with an error. By default (N - 1) // 3 + 2 of N
        members, the number that clients of an unpinned roster insist on anyway.
    on_round : callable, optional
        Receives a RoundReport after each round.
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
        on_round: OnRound | None = None,
        **fedavg: Any,
    ) -> None:
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
        if min_replies is not None and min_replies < 2:
            raise ConfigError(f"min_replies={min_replies}: a sum of one is that client's update")
        # What the app calls its arrays and its weight is part of what everybody agrees on.
        self.terms = replace(
            terms or Terms(), arrays_key=self.arrayrecord_key, weight_key=self.weighted_by_key
        )
        self.round_timeout = round_timeout
        self.stage_timeout = stage_timeout
        self.connect_timeout = connect_timeout
        self.min_replies = min_replies
        self.on_round = on_round
        self._run = Run()

    # --- the run ---

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Agree on keys, run `num_rounds` rounds, return a sealed checkpoint of the model.

        As FedAvg's; `timeout` bounds each round where it is shorter than `round_timeout`.

        Raises
        ------
        ConfigError
            `evaluate_fn` is given, or the model has an array that cannot be averaged.
        QuorumError
            Too few nodes connected, agreed or replied.
        """
        if evaluate_fn is not None:
            raise ConfigError(
                "evaluate_fn would see ciphertext, the server has no model: evaluate on the clients "
                "with @app.evaluate(), or run `flhe open` on the result and evaluate that"
            )
        if self._run.members:
            raise ConfigError("this strategy has run before: make a new one, in a run of its own")
        model = Model.initial(records.to_numpy(initial_arrays))
        stream = StreamGrid(grid)
        nodes = self._connected(stream)
        agreed = agree(
            stream, nodes, self.terms, run_id=grid.run.run_id, timeout=self.stage_timeout
        )
        self._run = Run(stream, agreed, self.terms, model, initial_arrays)
        self._check_sampling()
        result = super().start(
            cast(Grid, stream),
            initial_arrays,
            num_rounds,
            min(timeout, self.round_timeout),
            train_config,
            evaluate_config,
        )
        result.arrays = self._checkpoint()
        result.train_metrics_clientapp.update(self._run.means)
        log(
            INFO,
            "The result is sealed. Keep it: flhe.strategies.save_sealed(result, 'model.flhe'). "
            "Open it: flhe open model.flhe --key DIR, DIR being a member's state directory (of a "
            "simulation here: %s)",
            default_root() / str(grid.run.run_id),
        )
        log(INFO, "Train metrics, averaged under encryption: %s", dict(self._run.means))
        return result

    def summary(self) -> None:
        """Log the configuration."""
        log(INFO, "\t├──> Encryption:")
        log(INFO, "\t│\t├──Scheme: %s, %d members", self.terms.scheme, len(self._run.members))
        log(INFO, "\t│\t├──Quantization: %d bits, clipped at %s", self.terms.bits, self.terms.clip)
        log(INFO, "\t│\t└──Replies needed: %d", self._needed())
        super().summary()

    def _connected(self, grid: StreamGrid) -> list[int]:
        deadline = time.monotonic() + self.connect_timeout
        need = max(
            self.min_available_nodes, self.min_train_nodes, self.min_evaluate_nodes, MIN_MEMBERS
        )
        while len(nodes := list(grid.get_node_ids())) < need:
            if time.monotonic() >= deadline:
                raise QuorumError(
                    f"{len(nodes)} nodes connected within {self.connect_timeout:g} s, {need} are "
                    "needed: start the others, or lower min_available_nodes (to 3 at least; in a "
                    f'simulation: --federation-config "num-supernodes={need}")'
                )
            time.sleep(0.2)
        return nodes

    def _needed(self) -> int:
        return self.min_replies or (len(self._run.members) - 1) // 3 + 2

    def _check_sampling(self) -> None:
        size = self._sample_size(self.fraction_train, self.min_train_nodes)
        if self.fraction_train > 0 and size < self._needed():
            raise ConfigError(
                f"fraction_train={self.fraction_train} samples {size} of "
                f"{len(self._run.members)} members, a round needs {self._needed()} updates: "
                "raise fraction_train or min_train_nodes"
            )

    def _sample_size(self, fraction: float, minimum: int) -> int:
        members = len(self._run.members)
        return min(max(int(members * fraction), minimum), members)

    def _sample(self, fraction: float, minimum: int) -> list[int]:
        members = sorted(self._run.members)
        return secrets.SystemRandom().sample(members, self._sample_size(fraction, minimum))

    # --- training ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send each sampled node what it lacks, and ask for an encrypted update."""
        run = self._run
        run.begin(server_round)
        if self.fraction_train == 0.0:
            return []
        nodes = self._sample(self.fraction_train, self.min_train_nodes)
        log(INFO, "configure_train: Sampled %d nodes (out of %d)", len(nodes), len(run.members))
        return self._messages("train", "round", nodes, server_round, config)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold ciphertexts as they arrive; the sum is kept sealed for the clients.

        Raises
        ------
        QuorumError
            Fewer valid updates than `min_replies` arrived in time.
        """
        run = self._run
        if self.fraction_train == 0.0:
            return None, None
        total: Sealed | None = None
        trouble: dict[int, str] = {}
        for reply in replies:
            node = run.grid.node_of(reply)
            try:
                part = run.receive(node, reply)
                began = time.perf_counter()
                total = run.scheme.add(total, part)
                run.adding_s += time.perf_counter() - began
            except FlheError as error:
                trouble[node] = str(error)
        for node in run.grid.silent:
            trouble[node] = "no reply in time"
        for node, why in trouble.items():
            log(WARNING, "aggregate_train: node %d is left out: %s", node, why)
        survivors = len(total.senders) if total else 0
        log(INFO, "aggregate_train: Added %d updates, %d failures", survivors, len(trouble))
        if total is None or survivors < self._needed():
            _too_few(f"round {server_round}: {survivors} updates", self._needed(), trouble)
        return run.keep(total), None

    # --- evaluation ---

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the sealed sum; the clients open it and evaluate the model."""
        if self.fraction_evaluate == 0.0:
            return []
        nodes = self._sample(self.fraction_evaluate, self.min_evaluate_nodes)
        log(INFO, "configure_evaluate: Sampled %d nodes", len(nodes))
        return self._messages("evaluate", "evaluate", nodes, server_round, config)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Average the metrics that the nodes let leave, then report the round.

        Unweighted, unless every node's policy lets its example count leave.

        Raises
        ------
        QuorumError
            No node could open and evaluate the model.
        """
        run = self._run
        contents: list[RecordDict] = []
        trouble: dict[int, str] = {}
        for reply in replies:
            node = run.grid.node_of(reply)
            if reply.has_error():
                trouble[node] = explain(reply.error.code, reply.error.reason)
                continue
            run.heard(node, reply.content)
            own = {n: r for n, r in reply.content.items() if not n.startswith(records.PREFIX)}
            contents.append(RecordDict(own))
        for node in run.grid.silent:
            trouble[node] = "no reply in time"
        for node, why in trouble.items():
            log(WARNING, "aggregate_evaluate: node %d failed: %s", node, why)
        if self.fraction_evaluate > 0 and not contents:
            _too_few(f"round {server_round}: no evaluations", 1, trouble)
        metrics = None
        if contents := comparable(contents, self.weighted_by_key):
            metrics = self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)
        if means := run.means.get(server_round):
            log(INFO, "\t└──> Aggregated training MetricRecord: %s", means)
        if self.on_round is not None:
            self.on_round(run.report(server_round, metrics))
        return metrics

    # --- messages ---

    def _messages(
        self, kind: str, stage: str, nodes: Iterable[int], server_round: int, config: ConfigRecord
    ) -> list[Message]:
        config["server-round"] = server_round
        shared: dict[int, RecordDict] = {}
        messages = []
        for node in nodes:
            have = self._run.have[node]
            if have not in shared:  # nodes that lack the same share one content, and its bytes
                shared[have] = self._content(stage, server_round, have, config)
            messages.append(Message(shared[have], node, kind))
        return messages

    def _content(
        self, stage: str, server_round: int, have: int, config: ConfigRecord | None
    ) -> RecordDict:
        """What a node that stands at round `have` (-1: nothing yet) needs for a stage."""
        run = self._run
        lacking = [(r, s) for r, s in sorted(run.sums.items()) if r > have]
        content = RecordDict(
            {
                records.STAGE: records.stage_record(
                    stage,
                    round=server_round,
                    attempt=0,
                    terms=self.terms.to_bytes(),
                    confirms=list(run.agreed.confirms) if have < 0 else [],
                    sums=[header for _, (header, _) in lacking],
                )
            }
        )
        if have < 0:
            content[self.arrayrecord_key] = run.initial
        for i, (_, (_, arrays)) in enumerate(lacking):
            content[f"{records.SUM}.{i}"] = arrays
        if config is not None:
            content[self.configrecord_key] = config
        return content

    def _checkpoint(self) -> ArrayRecord:
        """Ask members in order of rank until one seals its model; that is the result."""
        run = self._run
        trouble: dict[int, str] = {}
        for node in sorted(run.members, key=run.agreed.rank):
            content = self._content("checkpoint", run.round, run.have[node], None)
            message = Message(content, node, "train")
            for reply in run.grid.send_and_receive([message], timeout=self.stage_timeout):
                if reply.has_error():
                    trouble[node] = explain(reply.error.code, reply.error.reason)
                    continue
                run.heard(node, reply.content)
                arrays = reply.content.get(records.UPDATE)
                if isinstance(arrays, ArrayRecord):
                    return arrays
            trouble.setdefault(node, "no sealed checkpoint in time")
        return _too_few("no member sealed a checkpoint", 1, trouble)


def _too_few(what: str, need: int, trouble: dict[int, str]) -> NoReturn:
    raise QuorumError(f"{what}, {need} needed ({reasons(trouble)})")
