"""Stages that call the app: a round of training, and an evaluation.

In a selection round each node reports parameter sensitivities: from an app's function, such as
`flhe.coding.sensitivity`, or from the change by one training. Only the sum of maps is opened.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from flhe.coding.base import PROMISED, Plain
from flhe.coding.extras import misfit
from flhe.coding.flatten import Arrays
from flhe.errors import ReplyError, logger
from flhe.keys.agreement.voids import Void
from flhe.mods import records, staged
from flhe.mods.app import App
from flhe.mods.contribution import Turn
from flhe.mods.follow import follow
from flhe.node.node import Node
from flhe.schemes.base import Sealer
from flhe.training.draft import Draft
from flhe.training.kind import EVALUATION, LAST, evaluation_part
from flhe.training.sensitivity import map_of
from flhe.training.warm import warm

say_once = functools.cache(logger.warning)
"""Log a warning here, once for each process."""


def train(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Take part in one round: update the model, let the app train, encrypt the change.

    A round of several stages continues in `flhe.mods.staged`.
    """
    follower = follow(node, record, message, app)
    message.content = RecordDict()  # frees sums and boxes, for training
    session, model = follower.session()
    node.policy.check_layers(session.terms, session.layout)
    round_ = records.field(record, "round", int)
    reached = node.journal(session.epoch.id).last_reached()
    follower.contract.check_due(model.round, round_, reached)
    for encoded in records.bytes_list(record, "voids"):  # it may sign another set than these
        node.forget_set(model.history, Void.from_bytes(encoded))
    turn = Turn.of(follower, round_, records.field(record, "attempt", int))
    if session.staged(model):
        return staged.begin(turn, record, lambda: _draft(turn, app))
    of, mode = turn.sum(), records.optional(record, "mode", "")
    del model  # the last reference goes once the update is encoded

    def make(sealer: Sealer) -> tuple[Plain, None]:
        turn.check_unclaimed()  # before the app trains
        if (mechanism := session.terms.codec.mechanism) is not None:
            # Before the app sees the data: any later failure reveals something, so it is charged.
            node.budget.spend(mechanism)
        ahead = threading.Thread(
            target=sealer.prepare, args=(of.slot, of.length, mode), name="flhe-masks", daemon=True
        )
        ahead.start()  # while the app trains
        warm(session.terms, session.epoch.size, if_new=True)
        try:
            answer = app.train(follower.contract, turn.model, round_)
        finally:
            with app.counted():  # the shorter the app trained, the longer this waits
                ahead.join()
        return session.encode(turn.model, *_trained(turn, answer)), None

    return turn.contribute(of, mode, make)


def _draft(turn: Turn, app: App) -> Draft:
    """Let the app train; return its change, with the part to send."""
    session, model, contract = turn.session, turn.model, turn.follower.contract
    if session.maps(model):
        return session.draft_map(model, _own_map(turn, app), turn.round)
    trained = _trained(turn, app.train(contract, model, turn.round))
    residual = turn.node.residual() if session.terms.codec.sparse else None
    return session.draft(model, *trained, turn.round, residual)


def _own_map(turn: Turn, app: App) -> NDArray[np.float32]:
    """Return this node's map, to be added, shape (floats,).

    Raises ConfigError: the rule needs a function that this app does not have; AppError: the app
    failed; ReplyError, ProtocolError, RangeError: its answer is not a map of this model.
    """
    session, model = turn.session, turn.model
    asked = turn.follower.contract, model, turn.round
    if session.terms.select.rule == "magnitude":
        arrays = list(app.train(*asked, keep=False).array_records.values())
        if len(arrays) != 1:
            raise ReplyError("the app must reply with one ArrayRecord")
        trained, gradients = records.to_numpy(arrays[0]), session.terms.optimizer.gradients
        change, _ = model.layout.change(trained, model.masters, gradients=gradients)
        return session.terms.select.normalized(change, reuse=True)
    found = {name: _array(value) for name, value in app.sensitivity(*asked).items()}
    return map_of(session.terms.select, session.layout, found)


def _array(value: Any) -> NDArray[Any]:
    """Return a torch tensor or an array as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    return np.asarray(value, np.float32)


def evaluate(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Open the round's sum, let the app evaluate its model once, and encrypt the metrics.

    Raises ClaimedError: this node has evaluated the model of this round, or has a later one.
    """
    follower = follow(node, record, message, app)
    message.content = RecordDict()
    session, model = follower.session()
    follower.contract.check_evaluated(model.round)
    turn = Turn.of(follower, model.round, LAST)

    def make(_: Sealer) -> tuple[Plain, None]:
        turn.check_unclaimed()
        node.check_unevaluated(model.round)
        answer = app.evaluate(follower.contract, model)
        _say_what_stays(answer, ("MetricRecord",))
        names = session.terms.evaluated, "evaluate_metrics"
        examples, metrics = _reported(turn, answer, *names)
        return evaluation_part(session.terms, session.weight(examples), metrics), None

    return turn.contribute(turn.sum(EVALUATION), session.terms.scheme.mode_ahead, make)


def _say_what_stays(answer: RecordDict, sent: tuple[str, ...]) -> None:
    """Warn of records that flhe never sends: the server would see them in clear."""
    for name, record in answer.items():
        kind = type(record).__name__
        if kind not in sent and name != PROMISED:
            say_once(
                "the app's %s %r stays on this node: of a reply, only arrays leave it, encrypted, and "
                "metrics as its policy lists them",
                kind,
                name,
            )


def _trained(turn: Turn, answer: RecordDict) -> tuple[Arrays, int, dict[str, float]]:
    """Return arrays, example count and permitted metrics from the app's answer."""
    terms = turn.session.terms
    _say_what_stays(answer, ("ArrayRecord", "MetricRecord"))
    arrays = answer.array_records
    if len(arrays) != 1:
        raise ReplyError("the app must reply with one ArrayRecord and one MetricRecord")
    if promised := terms.codec.promised:
        said = answer.config_records.get(PROMISED)
        # The server names the gradients' parameters. Only the app knows its own.
        if said is None or dict(said) != dict(promised):
            raise ReplyError(
                f"this run's noise is for gradients with {dict(promised)}, and the app's reply says "
                f"{said and dict(said)}: reply by flhe.dpsgd.reply, with the same numbers as the "
                "strategy"
            )
    examples, metrics = _reported(turn, answer, terms.metrics, "train_metrics")
    if terms.codec.weighted and 8 * examples < terms.codec.max_examples:
        say_once(
            "max_examples=%d is far above this node's examples, so updates are quantized coarsely: "
            "have the strategy name the largest site's count",
            terms.codec.max_examples,
        )
    return records.to_numpy(next(iter(arrays.values()))), examples, metrics


def _reported(
    turn: Turn, answer: RecordDict, named: tuple[str, ...], option: str
) -> tuple[int, dict[str, float]]:
    """Return example count and permitted metrics; `named` lists those in the strategy's `option`."""
    if len(answer.metric_records) != 1:
        raise ReplyError("the app must reply with one MetricRecord")
    metrics = dict(next(iter(answer.metric_records.values())))
    weight_key, policy = turn.session.terms.weight_key, turn.node.policy
    examples = metrics.pop(weight_key, None)
    if type(examples) is not int and not (type(examples) is float and examples.is_integer()):
        raise ReplyError(f"the app must report a whole number as {weight_key!r}")
    allowed = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and policy.allows_metric(name)
    }
    for name in set(metrics) - set(allowed):
        say_once(
            "metric %r stays on this node: allow it with flhe-metrics (or $FLHE_METRICS), which lists "
            "all that may leave, and name it in the strategy's %s",
            name,
            option,
        )
    for name in set(allowed) - set(named):
        say_once("metric %r is not averaged: name it in the strategy's %s", name, option)
    for name in set(allowed) & set(named):
        if why := misfit(allowed[name]):
            say_once("metric %r %s: report it in another unit", name, why)
    return int(examples), allowed
