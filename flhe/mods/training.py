"""Stages that call the app: a round of training, and an evaluation.

In the round for the map each node says which values of an update say most of the data, by its own
lights. The app says it by a function of its own, as `flhe.coding.sensitivity` computes it, or is let to
train once and judged by what that changed. What it says leaves encrypted as a whole: a sum of maps is
opened, and no single one.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from flhe.errors import ReplyError
from flhe.mods import records, staged, survivors
from flhe.mods.contribution import Contribution
from flhe.mods.follow import Follower, follow
from flhe.mods.stages import App, say_once
from flhe.node.node import Node
from flhe.training.draft import Draft
from flhe.training.due import check_ahead
from flhe.training.evaluation import ATTEMPT, EVALUATION
from flhe.training.sensitivity import map_of, map_of_change
from flhe.training.terms import Terms


def train(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """One round: bring the model up to date, let the app train, encrypt what changed.

    A round of several stages goes on in `flhe.mods.staged`.
    """
    follower = follow(node, record, message, app)
    message.content = RecordDict()  # sums and boxes: memory that training needs
    watch = follower.watch
    session, model = follower.session()
    node.policy.check_layers(session.terms, session.layout)
    round_ = records.field(record, "round", int)
    attempt = records.field(record, "attempt", int)
    follower.contract.check_round(round_)
    check_ahead(model, round_, node.reached(session.epoch.id))
    survivors.learn_voids(node, record, model.history)
    if session.staged(model):
        return staged.begin(node, record, follower, lambda: _draft(node, follower, app, round_))
    mode = records.optional(record, "mode", "")
    with watch:
        digest = node.claimed(session.place(model, round_, attempt)) or session.digest(model)
        of = session.sum(model, round_, attempt, digest=digest)
    own = Contribution(follower, session, of, digest, mode)
    if (again := own.again()) is not None:
        return again
    own.check_ready()
    node.check_unclaimed(of.slot.epoch, round_, attempt)  # before the app trains
    sealer = session.sealer(of)
    ahead = threading.Thread(
        target=sealer.prepare, args=(of.slot, of.length, mode), name="flhe-masks", daemon=True
    )
    ahead.start()  # while the app trains
    try:
        answer = app.train(follower.contract, model, round_)
    finally:
        with watch:
            ahead.join()
    trained, examples, metrics = _trained(node, session.terms, answer)
    with watch:
        encoded = session.encode(model, records.to_numpy(trained), examples, metrics)
        del answer, trained, model  # a model each, and no longer needed
        follower.model = None
        sealed = own.encrypt(sealer, encoded)
        del encoded
    return own.deliver(sealer, sealed)


def _draft(node: Node, follower: Follower, app: App, round_: int) -> Draft:
    """Let the app train; what it changed, and of it what is to be sent."""
    session, model = follower.session()
    if session.maps(model):
        found = _own_map(follower, app, round_)
        with follower.watch:
            return session.draft_map(model, found, round_)
    answer = app.train(follower.contract, model, round_)
    trained, examples, metrics = _trained(node, session.terms, answer)
    with follower.watch:
        residual = node.residual() if session.terms.codec.sparse else None
        arrays = records.to_numpy(trained)
        return session.draft(model, arrays, examples, metrics, round_, residual)


def _own_map(follower: Follower, app: App, round_: int) -> NDArray[np.float32]:
    """This node's map, as it is added up, shape (floats,).

    Raises ConfigError: the rule needs a function that this app does not have; AppError: the app
    failed; ReplyError, ProtocolError, RangeError: what it answered is no map of this model.
    """
    session, model = follower.session()
    asked = follower.contract, model, round_
    if session.terms.select.rule == "magnitude":
        answer = app.change(*asked)
        arrays = list(answer.array_records.values())
        if len(arrays) != 1:
            raise ReplyError("the app must reply with one ArrayRecord")
        values = map_of_change(session.terms, model, records.to_numpy(arrays[0]))
    else:
        found = app.sensitivity(*asked)
        arrays_found = {name: _array(value) for name, value in found.items()}
        values = map_of(session.terms.select, session.layout, arrays_found)
    return values


def _array(value: Any) -> NDArray[Any]:
    """A tensor of torch, or an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().float().numpy()
    return np.asarray(value, np.float32)


def evaluate(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Open the round's sum, let the app evaluate the model that it makes, once; encrypt what it found.

    Raises ClaimedError: this node has evaluated the model of this round, or has gone on from it.
    """
    follower = follow(node, record, message, app)
    message.content = RecordDict()
    session, model = follower.session()
    follower.contract.check_evaluated(model.round)
    place = session.place(model, model.round, ATTEMPT)
    with follower.watch:
        digest = node.claimed(place) or session.digest(model)
        of = session.sum(model, model.round, ATTEMPT, kind=EVALUATION, digest=digest)
    own = Contribution(follower, session, of, digest, session.terms.scheme.mode_ahead)
    if (again := own.again()) is not None:
        return again
    own.check_ready()
    node.check_unclaimed(of.slot.epoch, of.slot.round, ATTEMPT)
    node.check_unevaluated(model.round)
    sealer = session.sealer(of)
    answer = app.evaluate(follower.contract, model)
    _say_what_stays(answer, ("MetricRecord",))
    names = session.terms.evaluated, "evaluate_metrics"
    examples, metrics = _reported(node, session.terms, answer, *names)
    with follower.watch:
        sealed = own.encrypt(sealer, session.evaluation(examples, metrics))
    return own.deliver(sealer, sealed)


def _say_what_stays(answer: RecordDict, sent: tuple[str, ...]) -> None:
    """Warn of records that no reply of flhe carries: the server would see them in clear."""
    for name, record in answer.items():
        kind = type(record).__name__
        if kind not in sent:
            say_once(
                "the app's %s %r stays on this node: of a reply, only arrays leave it, encrypted, and "
                "metrics as its policy lists them",
                kind,
                name,
            )


def _trained(
    node: Node, terms: Terms, answer: RecordDict
) -> tuple[ArrayRecord, int, dict[str, float]]:
    """Arrays, example count and those metrics that may be averaged, out of the app's answer."""
    _say_what_stays(answer, ("ArrayRecord", "MetricRecord"))
    arrays = answer.array_records
    if len(arrays) != 1:
        raise ReplyError("the app must reply with one ArrayRecord and one MetricRecord")
    examples, metrics = _reported(node, terms, answer, terms.metrics, "train_metrics")
    if terms.codec.weighted and 8 * examples < terms.codec.max_examples:
        say_once(
            "max_examples=%d is far above this node's examples: updates are quantized coarsely",
            terms.codec.max_examples,
        )
    return next(iter(arrays.values())), examples, metrics


def _reported(
    node: Node, terms: Terms, answer: RecordDict, named: tuple[str, ...], option: str
) -> tuple[int, dict[str, float]]:
    """Example count and those metrics that may be averaged; `named` in the strategy's `option`."""
    if len(answer.metric_records) != 1:
        raise ReplyError("the app must reply with one MetricRecord")
    metrics = dict(next(iter(answer.metric_records.values())))
    examples = metrics.pop(terms.weight_key, None)
    if type(examples) is not int and not (type(examples) is float and examples.is_integer()):
        raise ReplyError(f"the app must report a whole number as {terms.weight_key!r}")
    allowed = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and node.policy.allows_metric(name)
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
    return int(examples), allowed
