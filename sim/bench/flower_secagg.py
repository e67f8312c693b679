"""Flower's own SecAgg+, timed as it is installed: what users of Flower have without flhe.

Called is the installed code and nothing in its place: the stages of `SecAggPlusWorkflow` with a
`LegacyContext`, and the whole of `secaggplus_mod` for every client. Only the grid between them is ours:
it hands each message to the mod and each reply back, so no network, no serialisation and no waiting for
the next poll (three seconds a stage) is in the times.

    client   the mod's four stages for one client: keys, shares of both secrets, sealing and opening
             them, quantizing, masking, the shares it gives away
    server   `unmask_stage` after the last reply has come: shares to secrets, secrets to masks, masks
             off the sum, sum to mean

Source: Bell et al., CCS 2020 (SecAgg+); flwr. Its masks come from 32 bits of each seed by a
Mersenne Twister, it signs nothing, and it uploads 8 bytes a value: a baseline of speed alone.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat as compat
from flwr.server import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow, constant
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from flhe.errors import FlheError
from flhe_lab.bench.contender import Laps, Setting, worst
from flhe_lab.bench.host import quiet

MAX_WEIGHT = 1000.0
CLIP = 8.0
LEVELS = 1 << 22
"""Flower's defaults: largest weight and value, and steps between such values."""


class FlowerSecAgg:
    """A whole round, every client of it real; everybody shares both secrets with all others.

    Making one runs it up to its end, which takes N clients' time. `client` and `server` then give the
    seconds of one of them; the mean is checked each time that `server` ends.

    Raises FlheError: the workflow halted, or the mean is not the mean.
    """

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        work: Any = SecAggPlusWorkflow(setting.cohort, setting.cohort // 2 + 1)
        self._workflow = work
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # of all messages
        self._strategy = Strategy(dict.fromkeys(range(FIRST, FIRST + setting.cohort)))
        self._context = legacy_context(self._strategy)
        clients, state = Clients(setting), WorkflowState()
        replies, stages = grid(clients), (work.setup_stage, work.share_keys_stage)
        with quiet():
            for stage in (*stages, work.collect_masked_vectors_stage):
                need(stage(replies, self._context, state))
            self._state = copy.deepcopy(state)
            need(work.unmask_stage(replies, self._context, state))
        self._replies = clients.replies
        self._seconds = [clients.seconds[node] for node in stayed(setting)]

    def client(self) -> Laps:
        """Seconds of one client that stayed, all stages; each call gives another client's."""
        self._seconds.append(self._seconds.pop(0))
        return Laps(client=self._seconds[-1])

    def server(self) -> Laps:
        """Seconds of `unmask_stage` on the replies that were collected."""
        state = copy.deepcopy(self._state)  # the stage uses it up
        with quiet():
            began = time.perf_counter()
            done = self._workflow.unmask_stage(
                grid(lambda _all: self._replies), self._context, state
            )
            seconds = time.perf_counter() - began
        need(done)
        self._check()
        return Laps(server=seconds)

    def _check(self) -> None:
        updates = [update_of(self.setting, node) for node in stayed(self.setting)]
        error = worst(self._strategy.found[0], updates)
        # Each client's rounding errs by less than a level, of a value times its weight's rounding.
        if not error <= 2 * CLIP / LEVELS * 1.5:
            raise FlheError(f"legacy SecAgg+: its mean is off by {error:.3g}: times mean nothing")


FIRST = 1000
"""Node id of the first client."""


def update_of(setting: Setting, node: int) -> NDArray[np.float32]:
    """What a client uploads, shape (values,): Gaussian, sigma 0.02, always the same."""
    rng = np.random.default_rng(node)  # test data; keys and masks never come from here
    return rng.standard_normal(setting.values, np.float32) * np.float32(0.02)


def stayed(setting: Setting) -> list[int]:
    """Node ids of the clients that upload; the others shared their keys."""
    return [FIRST + rank for rank in setting.survivors]


Replies = Callable[[Iterable[Any]], list[Any]]
"""Messages -> their replies."""


def grid(replies: Replies) -> Any:
    """Of Flower's Grid the one method that the workflow calls: all replies at once."""
    return SimpleNamespace(send_and_receive=lambda messages, timeout=None: replies(messages))


class Clients:
    """Flower's mod of every client, around a training function that trains nothing.

    Clients that dropped out answer with an error from the third stage on. `seconds` of a node are the
    mod's, all stages together.
    """

    def __init__(self, setting: Setting) -> None:
        nodes = range(FIRST, FIRST + setting.cohort)
        self._setting, self._stage = setting, 0
        self._contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in nodes}
        self.seconds = dict.fromkeys(nodes, 0.0)
        self.replies: list[Any] = []

    def __call__(self, messages: Iterable[Any]) -> list[Any]:
        """Replies of one stage."""
        self._stage += 1
        there = set(self.seconds) if self._stage < 3 else set(stayed(self._setting))
        self.replies = [
            self._handle(message)
            if message.metadata.dst_node_id in there
            else Message(Error(5, "gone"), reply_to=message)
            for message in messages
        ]
        return self.replies

    def _handle(self, message: Any) -> Any:
        node = message.metadata.dst_node_id
        # The mod takes fields out of what it is given, and the workflow gives all clients one record.
        records: dict[str, Any] = dict(message.content)
        for name, found in message.content.config_records.items():
            records[name] = ConfigRecord(dict(found), False)
        message.content = RecordDict(records)
        trained: Any = None
        if configs_of(message)[Key.STAGE] == Stage.COLLECT_MASKED_VECTORS:
            update = ndarrays_to_parameters([update_of(self._setting, node)])
            # As many examples as the largest weight, so that the weight costs no precision.
            result = FitRes(Status(Code.OK, ""), update, int(MAX_WEIGHT), {})
            trained = Message(compat.fitres_to_recorddict(result, False), reply_to=message)
        began = time.perf_counter()
        out = secaggplus_mod(message, self._contexts[node], lambda _msg, _ctx: trained)
        self.seconds[node] += time.perf_counter() - began
        return out


class Strategy:
    """What the workflow calls of a strategy; keeps the mean that it hands over, and its weight.

    `nodes` says what each node is told; the workflow's own parameters where it has no instructions.
    """

    def __init__(self, nodes: Mapping[int, FitIns | None]) -> None:
        self._nodes = nodes
        self.found: list[NDArray[Any]] = []
        self.weight = 0.0

    def configure_fit(self, _round: int, parameters: Any, _manager: Any) -> list[Any]:
        """Every node, with its instructions."""
        same = FitIns(parameters, {})
        return [(SimpleNamespace(node_id=n), told or same) for n, told in self._nodes.items()]

    def aggregate_fit(self, _round: int, results: Any, _failures: Any) -> Any:
        """Take the mean, which stands in every result, and the counts, which are told in clear."""
        if results:
            self.found = parameters_to_ndarrays(results[0][1].parameters)
            self.weight = float(sum(result.num_examples for _, result in results))
        return None, {}


def legacy_context(strategy: Any) -> Any:
    """A LegacyContext in round 1 around what the workflow takes for a strategy."""
    state = RecordDict()
    round_ = ConfigRecord({constant.Key.CURRENT_ROUND: 1})
    state.config_records[constant.MAIN_CONFIGS_RECORD] = round_
    arrays = ArrayRecord([np.zeros(1, np.float32)])
    state.array_records[constant.MAIN_PARAMS_RECORD] = arrays
    manager: Any = SimpleNamespace(num_available=lambda: 0)  # nobody counts them here
    return LegacyContext(Context(1, 0, {}, state, {}), strategy=strategy, client_manager=manager)


def configs_of(message: Any) -> Any:
    """The workflow's fields of a message."""
    return message.content.config_records[RECORD_KEY_CONFIGS]


def need(done: bool) -> None:
    """FlheError unless a stage went through."""
    if not done:
        raise FlheError("legacy SecAgg+: the workflow halted, see Flower's log")
