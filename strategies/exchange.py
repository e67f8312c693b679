"""Exchange: the stages of a round between training and the update, as the server sees them.

Mean squares are added, supports collected, and the cheaper masking is announced. Nodes whose models
differ, or whose apps were told different things, never come into one sum: those of most of them go on,
the others are named and caught up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from logging import INFO, WARNING, getLogger
from typing import TypeVar

from flwr.app import ConfigRecord, Message

from flhe.coding.support import Support
from flhe.errors import FlheError, ProtocolError, QuorumError
from flhe.mods import records
from flhe.schemes.flashe import masking
from flhe.schemes.sealed import Sealed, from_bytes
from flhe.strategies.federation import LOST, Federation
from flhe.strategies.key_agreement import reasons
from flhe.strategies.overhead import ADD
from flhe.training.start import Start

log = getLogger("flwr").log

T = TypeVar("T")
Reader = Callable[[int, ConfigRecord], T]
"""(node, its answer) -> what it tells, checked."""


@dataclass(slots=True)
class Exchange:
    """One attempt at a round of several stages.

    Parameters
    ----------
    fed : Federation
        What the server knows.
    needed : int
        Nodes without which the attempt is given up.
    """

    fed: Federation
    needed: int
    supports: dict[int, Support] = field(default_factory=dict)
    """What each node told of its coordinates."""

    def add_ranges(self, replies: Iterable[Message]) -> list[int]:
        """Add the mean squares in `replies` and keep their sum; returns the nodes in it.

        Raises
        ------
        QuorumError
            Too few of them.
        """
        fed = self.fed
        assert fed.ledger.layout is not None
        length = fed.resolved.range_lanes(fed.ledger.layout)

        def read(node: int, answer: ConfigRecord) -> Sealed:
            part = from_bytes(records.field(answer, "sealed", bytes))
            if part.supports:
                raise ProtocolError("its mean squares are sparse")
            if part.mode != fed.terms.ranges_mode:
                raise ProtocolError(
                    "its mean squares are masked in another mode than they should be"
                )
            slot = fed.ranges_slot(fed.start_in(answer))
            fed.check_part(node, answer, part, slot, length, "ranges")
            fed.whole.add(None, part)  # what is refused here costs its sender alone
            return part

        parts = self._collect("ranges", replies, read)
        total = None
        with fed.grid.meter.doing(ADD):
            for part in parts.values():
                total = fed.whole.add(total, part)
        assert total is not None
        fed.ledger.keep_ranges(fed.whole.close(total))
        log(INFO, "ranges: Added %d mean squares", len(parts))
        return list(parts)

    def collect_supports(self, replies: Iterable[Message]) -> list[int]:
        """Collect the supports in `replies`, and choose the masking; returns the nodes.

        Raises
        ------
        QuorumError
            Too few of them.
        """
        fed = self.fed
        assert fed.ledger.layout is not None
        assert fed.ledger.agreed is not None
        length = fed.ledger.layout.floats

        def read(_node: int, answer: ConfigRecord) -> Support:
            return Support.from_bytes(records.field(answer, "support", bytes), length)

        self.supports = self._collect("supports", replies, read)
        if fed.terms.masking == "adaptive":
            rank = fed.ledger.agreed.rank
            nodes = sorted(self.supports, key=rank)
            bitmaps = [(rank(node), self.supports[node].bitmap()) for node in nodes]
            trailer = fed.resolved.trailer_lanes(fed.ledger.layout)
            choice = masking.for_supports(bitmaps, trailer, len(fed.members))
            fed.mode = choice.masking
            log(
                INFO,
                "supports: %d told; %s masking takes %d masks, %s %d",
                len(nodes),
                choice.masking,
                min(choice.single, choice.double),
                "double" if choice.masking == "single" else "single",
                max(choice.single, choice.double),
            )
        return list(self.supports)

    def _collect(self, stage: str, replies: Iterable[Message], read: Reader[T]) -> dict[int, T]:
        """What nodes with one model tell in a stage; the others are named."""
        fed = self.fed
        told: dict[Start, dict[int, T]] = {}
        trouble: dict[int, str] = {}
        for reply in replies:
            node = fed.grid.node_of(reply)
            try:
                content, answer = fed.opened(node, reply)
                if records.field(answer, "step", str) != stage:
                    raise ProtocolError("it answered with another stage of the round")
                start = fed.start_in(answer)
                with fed.grid.meter.doing(ADD):
                    value = read(node, answer)
                fed.heard(node, content)
                told.setdefault(start, {})[node] = value
            except FlheError as error:
                trouble[node] = str(error)
            del reply
        for node in fed.grid.silent:
            trouble[node] = "no reply in time"
        agreed = fed.ledger.agreed
        assert agreed is not None
        chosen = max(
            told, key=lambda s: (len(told[s]), -min(map(agreed.rank, told[s]))), default=None
        )
        for start, nodes in told.items():
            if chosen is not None and start != chosen:
                trouble |= {node: fed.apart(node, start, chosen) for node in nodes}
        for node, why in trouble.items():
            log(WARNING, "%s: node %d is left out: %s", stage, node, why)
            if fed.stands(node) != LOST or fed.ledger.attempt > 0:
                fed.missing.add(node)
        found = {} if chosen is None else told[chosen]
        if len(found) < self.needed:
            raise QuorumError(
                f"round {fed.ledger.round}: {len(found)} nodes answered stage {stage!r}, "
                f"{self.needed} needed ({reasons(trouble)})"
            )
        return found
