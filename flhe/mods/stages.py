"""What all stages share.

Each stage is a function (node, stage record, message, app) -> content of the reply. All that is not
Flower's is done in `flhe.keys` and `flhe.training`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from flhe.errors import ConfigError
from flhe.math.buffers import give_back
from flhe.mods import records
from flhe.mods.app_message import app_message
from flhe.mods.app_state import AppState
from flhe.node.node import Node
from flhe.training.contract import Contract
from flhe.training.model import Model

logger = logging.getLogger("flhe")

Sensitivity = Callable[[Message, Context], Mapping[str, Any]]
"""(message with the model, Context) -> sensitivity of each parameter, by the model's names."""

Initial = Callable[[Context], ArrayRecord]
"""Context -> the initial model, for federations whose server must not see even that."""

_said: set[tuple[object, ...]] = set()


def say_once(*text: object) -> None:
    """Warn in this node's own log, once a process."""
    if text not in _said:
        _said.add(text)
        logger.warning(*text)


class AppError(Exception):
    """The app's own code failed; its exception is the cause."""


@dataclass(frozen=True, slots=True)
class App:
    """What is inside the mod: the app and the mods that come after."""

    context: Context
    call_next: Callable[[Message, Context], Message]
    state: AppState
    make_initial: Initial | None = None
    find_sensitivity: Sensitivity | None = None

    def pass_on(self, message: Message) -> RecordDict:
        """Call it; AppError when it fails or answers with an error."""
        with _failing():
            reply = self.call_next(message, self.context)
        if reply.has_error():
            raise AppError("the app answered with an error")
        return reply.content

    def train(self, contract: Contract, model: Model, round_: int) -> RecordDict:
        """Have it train from `model` in a round, as the contract says; AppError as above."""
        with self.state.tentative(round_), self._shown("train", contract, model, round_) as shown:
            return self.pass_on(shown)

    def change(self, contract: Contract, model: Model, round_: int) -> RecordDict:
        """Have it train, only to see what that changes; AppError as above."""
        with self.state.unchanged(), self._shown("train", contract, model, round_) as shown:
            return self.pass_on(shown)

    def evaluate(self, contract: Contract, model: Model) -> RecordDict:
        """Have it evaluate `model`, as the contract says; AppError as above."""
        with self.state.unchanged(), self._shown("evaluate", contract, model, model.round) as shown:
            return self.pass_on(shown)

    def sensitivity(self, contract: Contract, model: Model, round_: int) -> Mapping[str, Any]:
        """Ask it for the sensitivity of each parameter; AppError when it fails.

        Raises ConfigError: it was given no function for that.
        """
        if self.find_sensitivity is None:
            raise ConfigError(
                "the strategy selects by sensitivity, and this app has no function for it: give one, "
                "HEMod(sensitivity=...), or use another rule"
            )
        with (
            self.state.unchanged(),
            self._shown("train", contract, model, round_) as shown,
            _failing(),
        ):
            return dict(self.find_sensitivity(shown, self.context))

    @contextmanager
    def _shown(
        self, kind: Literal["train", "evaluate"], contract: Contract, model: Model, round_: int
    ) -> Iterator[Message]:
        """What it is shown; its copy of the model is freed afterwards."""
        shown = app_message(kind, self.context, contract, model, round_)
        try:
            yield shown
        finally:
            shown.content = RecordDict()
            give_back()


@contextmanager
def _failing() -> Iterator[None]:
    """Whatever the app raises is its own."""
    try:
        yield
    except Exception as error:
        raise AppError from error


@dataclass(slots=True)
class Stopwatch:
    """Adds up the seconds spent in cryptography and encoding."""

    seconds: float = 0.0
    _since: float = 0.0

    def __enter__(self) -> None:
        self._since = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._since


Stage = Callable[[Node, ConfigRecord, Message, App], RecordDict]


def reply(watch: Stopwatch | None = None, **fields: object) -> RecordDict:
    """The record of ours in a reply, with what a `watch` says."""
    timed = {} if watch is None else {"crypto-s": watch.seconds}
    return RecordDict({records.REPLY: records.reply_record(**fields, **timed)})
