"""What the parts of Flower's SecAgg+ need around them to run in one process; see `flower_secagg`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ConfigError, FlheError

EXAMPLES = 1000
"""Of every client: as many as Flower's default max_weight, so that the weight costs no precision."""

FIRST = 1000
"""Node id of the first client."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of Flower's SecAgg+.

    Parameters
    ----------
    clients : int
        N, at least 3.
    values : int
        M, length of an update.
    num_shares : int
        Clients among whom a secret is shared, its owner included: N for the complete graph, else odd
        (Flower's SecAgg+ needs an even number of neighbours).
    threshold : int
        Shares that give a secret; below `num_shares`.
    dropouts : int
        Clients that shared their keys and upload nothing.
    """

    clients: int
    values: int
    num_shares: int
    threshold: int
    dropouts: int = 0

    def __post_init__(self) -> None:
        if self.clients < 3 or self.values < 1:
            raise ConfigError(
                f"Round: {self.clients} clients, {self.values} values: at least 3 and 1"
            )
        shares = self.num_shares
        if not 3 <= shares <= self.clients or (shares < self.clients and shares % 2 == 0):
            raise ConfigError(
                f"Round(num_shares={shares}): 3 to {self.clients}, odd or all of them"
            )
        if not 2 <= self.threshold < shares:
            raise ConfigError(f"Round(threshold={self.threshold}): 2 to {shares - 1}")
        if not 0 <= self.dropouts <= self.clients - self.threshold:
            raise ConfigError(
                f"Round(dropouts={self.dropouts}): {self.threshold} of {self.clients} "
                "clients must remain"
            )

    @property
    def gone(self) -> frozenset[int]:
        """Node ids of the clients that drop out, spread evenly."""
        step = self.clients / max(self.dropouts, 1)
        return frozenset(FIRST + int(i * step) for i in range(self.dropouts))

    def update(self, node: int) -> NDArray[np.float32]:
        """What a client uploads, shape (values,): Gaussian, sigma 0.02, always the same."""
        rng = np.random.default_rng(node)  # test data; keys and masks never come from here
        return rng.standard_normal(self.values, np.float32) * np.float32(0.02)

    def mean(self) -> NDArray[np.float64]:
        """What the server must arrive at, shape (values,)."""
        total = np.zeros(self.values)
        for node in range(FIRST, FIRST + self.clients):
            if node not in self.gone:
                total += self.update(node)
        return total / (self.clients - self.dropouts)


class Client:
    """One client: Flower's mod around a training function that trains nothing."""

    def __init__(self, setting: Round, node: int) -> None:
        from flwr.app import Context, RecordDict

        self._setting = setting
        self._context = Context(1, node, {}, RecordDict(), {})
        self._update: NDArray[np.float32] | None = None
        self.seconds = 0.0

    def handle(self, message: Any) -> Any:
        """Give the message to the mod; its seconds add up, training's are not among them."""
        from flwr.app import ConfigRecord, RecordDict
        from flwr.client.mod import secaggplus_mod

        # The mod takes fields out of what it is given, and the workflow gives all clients one record.
        records: dict[str, Any] = dict(message.content)
        for name, found in message.content.config_records.items():
            records[name] = ConfigRecord(dict(found), False)
        message.content = RecordDict(records)
        trained = self._train if self._collects(message) else None
        reply = trained(message) if trained is not None else None
        began = time.perf_counter()
        out = secaggplus_mod(message, self._context, lambda _msg, _ctx: reply)  # type: ignore[arg-type, return-value]
        self.seconds += time.perf_counter() - began
        return out

    @staticmethod
    def _collects(message: Any) -> bool:
        from flwr.common.secure_aggregation.secaggplus_constants import (
            RECORD_KEY_CONFIGS,
            Key,
            Stage,
        )

        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        return bool(stage == Stage.COLLECT_MASKED_VECTORS)

    def _train(self, message: Any) -> Any:
        from flwr.app import Message
        from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
        from flwr.compat.common import recorddict_compat as compat

        update = self._setting.update(self._context.node_id)
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([update]), EXAMPLES, {})
        return Message(compat.fitres_to_recorddict(result, False), reply_to=message)


class Grid:
    """Hands each message to its client's mod; clients that dropped out answer with an error.

    Of Flower's Grid it has the one method that the workflow calls.
    """

    def __init__(self, clients: dict[int, Client], gone: frozenset[int]) -> None:
        self.clients = clients
        self.replies: list[Any] = []
        self._gone = gone
        self._stage = 0

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        """All replies at once."""
        from flwr.app import Error, Message

        del timeout
        self._stage += 1
        self.replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            if self._stage >= 3 and node in self._gone:
                self.replies.append(Message(Error(5, "gone"), reply_to=message))
            else:
                self.replies.append(self.clients[node].handle(message))
        return self.replies


class Recorded:
    """Replies that came before."""

    def __init__(self, replies: list[Any]) -> None:
        self._replies = replies

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        """The replies, whatever was sent."""
        del messages, timeout
        return self._replies


class _Proxy:
    """What the workflow wants to know of a client."""

    def __init__(self, node: int) -> None:
        self.node_id = node


class Strategy:
    """What the workflow calls of a strategy; keeps the mean that it hands over."""

    def __init__(self, setting: Round) -> None:
        self._setting = setting
        self.found: NDArray[np.float64] = np.empty(0)

    def configure_fit(self, round_: int, parameters: Any, manager: Any) -> list[Any]:
        """Every client, no instructions."""
        from flwr.common import FitIns

        del round_, manager
        nodes = range(FIRST, FIRST + self._setting.clients)
        return [(_Proxy(node), FitIns(parameters, {})) for node in nodes]

    def aggregate_fit(
        self, round_: int, results: Any, failures: Any
    ) -> tuple[None, dict[str, Any]]:
        """All results have one and the same mean."""
        from flwr.common import parameters_to_ndarrays

        del round_, failures
        if results:
            (self.found,) = parameters_to_ndarrays(results[0][1].parameters)
        return None, {}


class _Manager:
    def num_available(self) -> int:
        """Nobody counts them here."""
        return 0


def context_for(setting: Round) -> tuple[Any, Strategy]:
    """A LegacyContext, and the strategy in it."""
    from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
    from flwr.server import LegacyContext
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # messages need them
    state = RecordDict()
    state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord([np.zeros(1, np.float32)])
    strategy = Strategy(setting)
    context = Context(1, 0, {}, state, {})
    made: Any = LegacyContext(context, strategy=strategy, client_manager=_Manager())  # type: ignore[arg-type]
    return made, strategy


def message_to(node: int, fields: dict[str, Any]) -> Any:
    """A message of the workflow to a client."""
    from flwr.app import ConfigRecord, Message, RecordDict
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

    content = RecordDict({RECORD_KEY_CONFIGS: ConfigRecord(fields, False)})
    return Message(content=content, dst_node_id=node, message_type="train", group_id="1")


def configs_of(message: Any) -> Any:
    """The workflow's fields of a message."""
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS

    return message.content.config_records[RECORD_KEY_CONFIGS]


def workflow_state() -> Any:
    """A fresh state of the workflow."""
    from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState

    return WorkflowState()


def need(done: bool) -> None:
    """FlheError unless a stage went through."""
    if not done:
        raise FlheError("legacy SecAgg+: the workflow halted, see Flower's log")
