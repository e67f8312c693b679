"""App: what is inside the mod, and what it is told.

A server must not make one site's app behave otherwise than the rest. So an app gets its model and what
the contract says of the round, in one order, and nothing that the server sent: no other records, and
no metadata (ids, group, times).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from flwr.app import DEFAULT_TTL, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from numpy.typing import NDArray

from flhe.errors import ConfigError, PolicyError, ReplyError
from flhe.math.buffers import give_back
from flhe.mods import records
from flhe.mods.app_state import AppState
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.training.query import Bounded, Query

Initial = Callable[[Context], ArrayRecord]
Sensitivity = Callable[[Message, Context], Mapping[str, Any]]
Answer = Callable[[ConfigRecord, Context], ArrayRecord]
"""Functions that an app may give; see `HEMod`."""
Next = Callable[[Message, Context], Message]
"""The next mod, or the app."""


def bounded(answer: Answer, bound: float, resolution: float = 0.0) -> Bounded:
    """Have a query answered with floats: `HEMod(queries={"costs": bounded(costs, 1e6)})`.

    For bound and resolution see `flhe.training.query.Bounded`, which raises ConfigError.
    """
    return Bounded(answer, bound, resolution)


class AppError(Exception):
    """The app's own code failed; its exception is the cause."""


@dataclass(slots=True)
class App:
    """The app and the mods that come after; `seconds` is how long they took for this message.

    Its methods raise AppError when it fails, or answers with an error.
    """

    context: Context
    call_next: Next
    state: AppState
    make_initial: Initial | None = None
    find_sensitivity: Sensitivity | None = None
    queries: Mapping[str, Answer | Bounded] = field(default_factory=dict)
    seconds: float = 0.0

    def pass_on(self, message: Message) -> RecordDict:
        """Call it."""
        with _failing():
            reply = self.call_next(message, self.context)
        if reply.has_error():
            raise AppError("the app answered with an error")
        return reply.content

    def train(
        self, contract: Contract, model: Model, round_: int, *, keep: bool = True
    ) -> RecordDict:
        """Have it train from `model` in a round, as the contract says.

        Without `keep`, what it leaves in its Context is forgotten: only to see what training changes.
        """
        state = self.state.tentative(round_) if keep else self.state.unchanged()
        with self._shown("train", contract, model, round_) as shown, state:
            return self.pass_on(shown)

    def evaluate(self, contract: Contract, model: Model) -> RecordDict:
        """Have it evaluate `model`, as the contract says."""
        with self._shown("evaluate", contract, model, model.round) as shown, self.state.unchanged():
            return self.pass_on(shown)

    def sensitivity(self, contract: Contract, model: Model, round_: int) -> Mapping[str, Any]:
        """Ask it for the sensitivity of each parameter; ConfigError without a function for that."""
        if self.find_sensitivity is None:
            raise ConfigError(
                "the strategy selects by sensitivity, and this app has no function for it: give one, "
                "HEMod(sensitivity=...), or use another rule"
            )
        state = self.state.unchanged()
        with self._shown("train", contract, model, round_) as shown, state, _failing():
            return dict(self.find_sensitivity(shown, self.context))

    def initial(self) -> ArrayRecord:
        """Ask it for the first model; ConfigError where it has no function for that, or no such one."""
        if self.make_initial is None:
            raise ConfigError(
                "the strategy has no initial_arrays and this node's app makes none: "
                "HEMod(initial=...), or give start() initial_arrays"
            )
        with _failing():
            arrays = self.make_initial(self.context)
        if not isinstance(arrays, ArrayRecord):
            raise ConfigError("HEMod(initial=...) must return an ArrayRecord")
        return arrays

    def answer(self, query: Query) -> tuple[Mapping[str, NDArray[Any]], Bounded | None]:
        """Ask it a query; its arrays, and what it promises of floats.

        Raises PolicyError: it answers no query of that name; ReplyError: an answer that is no arrays.
        """
        found = self.queries.get(query.name)
        if found is None:
            raise PolicyError(
                f"this site's app answers no query {query.name!r}: HEMod(queries=...)"
            )
        bounds = found if isinstance(found, Bounded) else None
        answer = found.answer if isinstance(found, Bounded) else found
        began = time.perf_counter()
        with self.state.unchanged(), _failing():
            arrays = answer(ConfigRecord(dict(query.parameters)), self.context)
        self.seconds += time.perf_counter() - began
        if not isinstance(arrays, ArrayRecord) or not arrays:
            raise ReplyError("a query is answered with an ArrayRecord that holds an array at least")
        return records.to_numpy(arrays), bounds

    @contextmanager
    def _shown(
        self, kind: Literal["train", "evaluate"], contract: Contract, model: Model, round_: int
    ) -> Iterator[Message]:
        """What it is shown; its copy of the model is freed afterwards, and its time counted."""
        began = time.perf_counter()
        told = ConfigRecord(dict(contract.told(kind, round_)))
        metadata = Metadata(
            run_id=self.context.run_id,
            message_id="",
            src_node_id=0,
            dst_node_id=self.context.node_id,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=DEFAULT_TTL,
            message_type=kind,
        )
        shown: Message = Message(  # type: ignore[call-overload]  # Flower has it
            RecordDict(
                {
                    contract.terms.arrays_key: records.from_numpy(model.arrays()),
                    contract.config_key: told,
                }
            ),
            metadata=metadata,
        )
        try:
            yield shown
        finally:
            shown.content = RecordDict()
            give_back()
            self.seconds += time.perf_counter() - began


@contextmanager
def _failing() -> Iterator[None]:
    """Whatever the app raises is its own."""
    try:
        yield
    except Exception as error:
        raise AppError from error
