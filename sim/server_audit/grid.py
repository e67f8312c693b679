"""A network in the server's hand: it changes messages on the way, and keeps all that it hears."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from flhe.mods import records
from flhe.testing import InProcessGrid
from flhe_lab.server_audit.script import View

FIRST = 100
"""Node id of the first site."""
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Heard:
    """A reply as it arrived."""

    round: int
    site: int
    content: RecordDict | None  # None of an error
    error: str = ""


class LyingGrid(InProcessGrid):
    """Nodes of this process behind a server that does what it likes.

    `rewrite` may change each message on its way down, given the site.
    """

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self.heard: list[Heard] = []
        self.round = 0
        self.rewrite: Callable[[int, Message], None] = lambda site, message: None

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Start the nodes on messages, changed as the server likes."""
        ids = []
        for message in messages:
            self.rewrite(message.metadata.dst_node_id - FIRST, message)
            ids += super().push_messages([message])
        return ids

    def ask(self, site: int, content: RecordDict, kind: str) -> Message:
        """Ask one site, and wait for its answer; TimeoutError where none comes."""
        for reply in self.send_and_receive([Message(content, FIRST + site, kind)], timeout=WAIT_S):
            return reply
        raise TimeoutError(f"site {site} did not answer")

    def _put(self, message_id: str, reply: Message) -> None:
        site = reply.metadata.src_node_id - FIRST
        if reply.has_error():
            reason = reply.error.reason or ""
            error = reason if reason.startswith("flhe/") else "failed"
            self.heard.append(Heard(self.round, site, None, error))
        else:
            self.heard.append(Heard(self.round, site, reply.content))
        super()._put(message_id, reply)

    def note(self, view: View) -> None:
        """Put numbers that sites told in clear, and their refusals, into a view."""
        for each in self.heard:
            if each.content is None:
                view.refusals[each.error] = view.refusals.get(each.error, 0) + 1
                continue
            for record, found in each.content.items():
                if not isinstance(found, MetricRecord | ConfigRecord) or record == records.REPLY:
                    continue
                means = record.startswith((records.MEANS, records.EVALUATION))
                mean = "mean of " if means else ""
                for name, value in found.items():
                    if isinstance(value, int | float):
                        view.told.append((each.round, each.site, f"{mean}{name}", float(value)))
