"""Relay: messages of a key agreement to members, and what each of them answers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.errors import ProtocolError
from flhe.mods import records
from flhe.strategies.grid import StreamGrid
from flhe.strategies.trouble import most_common, reasons
from flhe.training.contract import Contract
from flhe.training.terms import Terms
from flhe.wire.codes import explain

T = TypeVar("T", bound=Hashable)
Reader = Callable[[int, ConfigRecord], Any]
"""(node, our record in its reply) -> what it tells, checked."""

REFUSALS = (1013, 1014)
"""Codes of `flhe.wire.codes` by which a node says that what came to it is wrong."""
RAISED = 2
"""Flower's code for an exception in the app, which HEMod lets nobody see."""
NOTHING: Mapping[int, Mapping[str, Any]] = {}
NO_MOD = "its app has no HEMod: put HEMod() first in ClientApp(mods=[...])"


@dataclass(slots=True)
class Relay:
    """One exchange of messages."""

    grid: StreamGrid
    contract: Contract
    """What the key is for."""
    run_id: int
    """The federation's id."""
    number: int
    """The server's count of agreements."""
    timeout: float
    """Seconds that each stage waits."""
    trouble: dict[int, str]
    """Which nodes to leave out of the next exchange, and why."""
    refused: set[int] = field(default_factory=set)
    """Nodes that found something wrong with what a stage brought."""

    @property
    def terms(self) -> Terms:
        """How updates are encoded and encrypted."""
        return self.contract.terms

    def ask(
        self,
        stage: str,
        to: list[int],
        read: Reader,
        own: Mapping[int, Mapping[str, Any]] = NOTHING,
        **fields: Any,
    ) -> dict[int, Any]:
        """Send one stage to all of `to`, read the replies, note who had trouble.

        `own` is what goes to one node each, `fields` what goes to all.
        """

        def content(node: int) -> RecordDict:
            record = records.stage_record(
                stage,
                federation=records.federation_name(self.run_id),
                number=self.number,
                **fields,
                **own.get(node, {}),
            )
            return RecordDict({records.STAGE: record})

        common = RecordDict() if own else content(0)
        messages = [Message(content(node) if own else common, node, "train") for node in to]

        def checked(node: int, message: Message) -> Any:
            if message.has_error() and message.error.code in REFUSALS:
                self.refused.add(node)
            return read(node, _reply_in(message))

        sent = self.grid.send_and_receive(messages, timeout=self.timeout)
        silent = f"no answer within {self.timeout:g} s"
        return dict(self.grid.fold(sent, self.trouble, checked, silent))

    def ask_all(
        self,
        stage: str,
        order: list[int],
        read: Reader,
        own: Mapping[int, Mapping[str, Any]] = NOTHING,
        **fields: Any,
    ) -> dict[int, Any]:
        """As `ask`, where all of `order` must answer."""
        before = set(self.trouble)
        replies = self.ask(stage, order, read, own, **fields)
        if missing := [node for node in order if node not in replies]:
            why = {node: self.trouble[node] for node in missing if node in self.trouble}
            raise ProtocolError(
                f"{len(missing)} of {len(order)} nodes did not answer {stage!r} ({reasons(why)})"
            )
        for node in set(self.trouble) - before:  # a late reply of an earlier exchange is no reason
            del self.trouble[node]
        return replies

    def acquit(self, nodes: list[int]) -> int:
        """Where most of `nodes` refused, it is not they who are at fault; returns how many they are."""
        refusers = self.refused & set(nodes)
        if 2 * len(refusers) <= len(nodes):
            return 0
        for node in refusers:
            self.trouble.pop(node, None)
        return len(refusers)

    def same(self, told: dict[int, T], odd: str, what: str) -> T:
        """What all members say; those that say something else than most are left out next time."""
        common = most_common(told.values())
        if others := [node for node, value in told.items() if value != common]:
            self.trouble |= dict.fromkeys(others, odd)
            raise ProtocolError(f"members {what} ({reasons(self.trouble)})")
        return common


def _reply_in(message: Message) -> ConfigRecord:
    """Our record in a reply; ProtocolError saying what there is instead."""
    if message.has_error():
        code = message.error.code
        raise ProtocolError(NO_MOD if code == RAISED else explain(code, message.error.reason))
    reply = records.find_reply(message.content)
    if reply is None:
        raise ProtocolError(NO_MOD)
    return reply


def message_in(_node: int, reply: ConfigRecord) -> bytes:
    """The one message of a key agreement in a reply."""
    message: bytes = records.field(reply, "envelope", bytes)
    return message
