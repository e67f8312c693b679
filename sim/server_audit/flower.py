"""Flower's own: plain FedAvg, and SecAgg+ as it is installed, with a server that does what it likes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from flwr.app import Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import (
    EvaluateIns,
    FitIns,
    Parameters,
    bytes_to_ndarray,
    ndarrays_to_parameters,
)
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.compat.common import recorddict_compat as compat
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState

from flhe_lab.bench.flower_secagg import Strategy, configs_of, legacy_context
from flhe_lab.bench.flower_secagg import grid as replies_of
from flhe_lab.server_audit.grid import FIRST, LyingGrid
from flhe_lab.server_audit.script import Ask, Probe, Script, Seen, View
from flhe_lab.server_audit.task import (
    VICTIM,
    Floats,
    Setting,
    client_app,
    flat,
    in_clear,
    legacy_app,
)

SHARES, THRESHOLD = 1.0, 0.5
"""Of SecAgg+: every client has shares of all, and half of them give a secret."""
OWN = 2
"""SecAgg+ clients of the server's own: nothing tells them from sites."""

Told = Callable[[Floats, float], RecordDict]
"""(model, learning rate) -> the message that asks for training."""


@dataclass(frozen=True, slots=True)
class PlainFedAvg:
    """FedAvg without encryption: the server has every update."""

    name: str = "FedAvg"
    signs: bool = False

    def run(self, setting: Setting, script: Script) -> View:
        """See `System`."""
        grid, training = LyingGrid(client_app(setting), setting.sites), setting.training

        def round_(ask: Ask, model: Floats) -> Seen:
            updates: dict[int, Floats] = {}
            weights: dict[int, float] = {}
            for site in _asked(ask, setting):
                rate = ask.rates.get(site, setting.rate)
                answer = grid.ask(site, training(model, rate), "train")
                if (update := in_clear(answer, model)) is not None:
                    updates[site] = update
                    [metrics] = answer.content.metric_records.values()
                    weights[site] = float(metrics["num-examples"])  # type: ignore[arg-type]
            kept = [site for site in updates if site != ask.dropped]
            total = sum(weights[site] for site in kept)
            mean = sum((updates[s] * weights[s] for s in kept), np.zeros(model.size)) / total
            return Seen(mean, total, updates.get(VICTIM))

        evaluation = partial(training, rate=0.0)
        return _play(grid, setting, script, training, evaluation, round_)


@dataclass(frozen=True, slots=True)
class FlowerSecAgg:
    """Flower's SecAgg+: its installed mod on the sites, its installed workflow on the server."""

    name: str = "SecAgg+"
    signs: bool = False

    def run(self, setting: Setting, script: Script) -> View:
        """See `System`."""

        def training(model: Floats, rate: float) -> RecordDict:
            return compat.fitins_to_recorddict(
                FitIns(_parameters(setting, model), {"lr": rate}), True
            )

        def evaluation(model: Floats) -> RecordDict:
            asked = EvaluateIns(_parameters(setting, model), {})
            return compat.evaluateins_to_recorddict(asked, True)

        grid = LyingGrid(legacy_app(setting, secaggplus_mod), setting.sites + OWN)
        round_ = partial(_secagg_round, grid, setting)
        return _play(grid, setting, script, training, evaluation, round_)


def _secagg_round(grid: LyingGrid, setting: Setting, ask: Ask, model: Floats) -> Seen:
    sites = list(_asked(ask, setting))
    if len(sites) < 2:
        sites += range(setting.sites, setting.sites + OWN)
    parameters = _parameters(setting, model)
    rates = {site: ask.rates.get(site, setting.rate) for site in sites}
    strategy = Strategy({FIRST + s: FitIns(parameters, {"lr": rates[s]}) for s in sites})
    context = legacy_context(strategy)
    workflow = SecAggPlusWorkflow(SHARES, THRESHOLD)
    since = len(grid.heard)

    def kept(reply: Message) -> bool:
        """Whether the server lets its own workflow know of a reply."""
        masked = not reply.has_error() and Key.MASKED_PARAMETERS in configs_of(reply)
        return not masked or reply.metadata.src_node_id != dropped

    dropped = None if ask.dropped is None else FIRST + ask.dropped
    state, proxy = WorkflowState(), replies_of(lambda m: [*filter(kept, grid.send_and_receive(m))])
    stages = (
        workflow.setup_stage,
        workflow.share_keys_stage,
        workflow.collect_masked_vectors_stage,
        workflow.unmask_stage,
    )
    done = all(stage(proxy, context, state) for stage in stages)
    masked = None
    for each in grid.heard[since:]:
        if each.site == VICTIM and each.content is not None:
            found = configs_of(each).get(Key.MASKED_PARAMETERS)
            if isinstance(found, list):
                # The first one is the weight.
                masked = flat([bytes_to_ndarray(data) for data in found[1:]])
    if masked is not None:
        masked -= masked.mean()
    if not done or not strategy.found:
        return Seen(masked=masked)
    return Seen(flat(strategy.found) - model, strategy.weight, None, masked)


def _parameters(setting: Setting, model: Floats) -> Parameters:
    return ndarrays_to_parameters(list(setting.arrays(model).values()))


def _asked(ask: Ask, setting: Setting) -> tuple[int, ...]:
    return tuple(range(setting.sites)) if ask.sites is None else ask.sites


def _play(
    grid: LyingGrid,
    setting: Setting,
    script: Script,
    training: Told,
    evaluation: Callable[[Floats], RecordDict],
    round_: Callable[[Ask, Floats], Seen],
) -> View:
    """Play a script: rounds, and after each one an evaluation by all."""

    def loss(model: Floats) -> float | None:
        answer = grid.ask(VICTIM, evaluation(model), "evaluate")
        if answer.has_error():
            return None
        told = [r["loss"] for r in answer.content.metric_records.values() if "loss" in r]
        return float(told[0]) if told else None  # type: ignore[arg-type]

    def plain(model: Floats) -> Floats | None:
        return in_clear(grid.ask(VICTIM, training(model, setting.rate), "train"), model)

    view, first, probe = View(), setting.first(), Probe(loss, plain)
    model = first
    with grid:
        if script.before is not None:
            script.before(probe)
        for number, ask in enumerate(script.rounds, 1):
            grid.round = number
            start = first if ask.again else model
            seen = round_(ask, start)
            view.rounds.append(seen)
            if seen.mean is not None:
                model = (start + seen.mean).astype(np.float32).astype(np.float64)
            if number == 1 and script.aside is not None:
                script.aside(probe)
            for site in range(setting.sites):
                grid.ask(site, evaluation(model), "evaluate")
        grid.note(view)
    return view
