"""App: the inside of the mod, and the app's inputs.

A server must not be able to treat one site's app differently. So an app gets its model and the
contract's settings for the round, in fixed order. It gets nothing else from the server: no other
records, and no metadata (ids, group, times).
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
from flhe.math.buffers import give_back, let_go
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
    """Answer a query with floats: `HEMod(queries={"costs": bounded(costs, 1e6)})`.

    For bound and resolution see `flhe.training.query.Bounded`, which raises ConfigError.
    """
    return Bounded(answer, bound, resolution)


class AppError(Exception):
    """Failure of the app's own code; its exception is the cause."""


@dataclass(slots=True)
class App:
    """The app and the mods after this one; `seconds` is their time for this message.

    Its methods raise AppError if it fails or answers with an error.
    """

    context: Context
    call_next: Next
    state: AppState
    make_initial: Initial | None = None
    find_sensitivity: Sensitivity | None = None
    queries: Mapping[str, Answer | Bounded] = field(default_factory=dict)
    seconds: float = 0.0

    def give_back(self, dropped: int) -> None:
        """Give memory of `dropped` bytes back; the seconds are the app's.

        They grow with all that it keeps in memory, and so with its data.
        """
        with self.counted():
            give_back(dropped)

    def pass_on(self, message: Message) -> RecordDict:
        """Call the app with the message, and count its time."""
        with self.counted():
            return self._called(message)

    def _called(self, message: Message) -> RecordDict:
        with _failing():
            reply = self.call_next(message, self.context)
        if reply.has_error():
            raise AppError("the app answered with an error")
        return reply.content

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the time inside as the app's."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def train(
        self, contract: Contract, model: Model, round_: int, *, keep: bool = True
    ) -> RecordDict:
        """Train from `model` in a round, as the contract says.

        Without `keep`, the app's changes to its Context are discarded, as for a map.
        """
        state = self.state.tentative(round_) if keep else self.state.unchanged()
        with self._shown("train", contract, model, round_) as shown, state:
            return self._called(shown)

    def evaluate(self, contract: Contract, model: Model) -> RecordDict:
        """Evaluate `model`, as the contract says."""
        with self._shown("evaluate", contract, model, model.round) as shown, self.state.unchanged():
            return self._called(shown)

    def sensitivity(self, contract: Contract, model: Model, round_: int) -> Mapping[str, Any]:
        """Return the app's sensitivity of each parameter; ConfigError without a function for it."""
        if self.find_sensitivity is None:
            raise ConfigError(
                "the strategy selects by sensitivity, and this app has no function for it: give "
                "one, HEMod(sensitivity=...), or use another rule"
            )
        state = self.state.unchanged()
        with self._shown("train", contract, model, round_) as shown, state, _failing():
            return dict(self.find_sensitivity(shown, self.context))

    def initial(self) -> ArrayRecord:
        """Return the app's first model; ConfigError without a valid function for it."""
        if self.make_initial is None:
            raise ConfigError(
                "the strategy has no initial_arrays and this node's app makes none: "
                "HEMod(initial=...), or give start() initial_arrays"
            )
        with self.state.unchanged(), _failing():
            arrays = self.make_initial(self.context)
        if not isinstance(arrays, ArrayRecord):
            raise ConfigError("HEMod(initial=...) must return an ArrayRecord")
        return arrays

    def answer(self, query: Query) -> tuple[Mapping[str, NDArray[Any]], Bounded | None]:
        """Return the app's answer to a query: its arrays, and the declared range of floats.

        Raises PolicyError: it answers no query of that name; ReplyError: the answer is not arrays.
        """
        found = self.queries.get(query.name)
        if found is None:
            raise PolicyError(
                f"this site's app answers no query {query.name!r}: HEMod(queries=...)"
            )
        bounds = found if isinstance(found, Bounded) else None
        answer = found.answer if isinstance(found, Bounded) else found
        with self.counted(), self.state.unchanged(), _failing():
            arrays = answer(ConfigRecord(dict(query.parameters)), self.context)
        if not isinstance(arrays, ArrayRecord) or not arrays:
            raise ReplyError("a query needs an ArrayRecord with at least one array as its answer")
        return records.to_numpy(arrays), bounds

    @contextmanager
    def _shown(
        self, kind: Literal["train", "evaluate"], contract: Contract, model: Model, round_: int
    ) -> Iterator[Message]:
        """Yield the app's message; free its copy of the model afterwards, and count its time."""
        began = time.perf_counter()
        told = ConfigRecord(dict(contract.config_at(kind, round_)))
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
                    contract.terms.arrays_key: _copy(model),
                    contract.config_key: told,
                }
            ),
            metadata=metadata,
        )
        try:
            yield shown
        finally:
            shown.content = RecordDict()
            give_back(model.layout.nbytes)
            self.seconds += time.perf_counter() - began


def _copy(model: Model) -> ArrayRecord:
    """Return the app's own copy of a model; of one on disk, one array at a time is in memory."""
    shown = ArrayRecord()
    for name, array in model.layout.each(model.masters):
        shown[name] = records.from_array(array)
        let_go(model.masters[name])
    return shown


@contextmanager
def _failing() -> Iterator[None]:
    """Turn any exception of the app into AppError."""
    try:
        yield
    except Exception as error:
        raise AppError from error
