"""SASH+ on a node: stages before and after the update in which neighbours add up their seeds.

    mask-key     -> a fresh key for this attempt
    mask-share   neighbours' keys                    -> shares of the key and of a seed, for each
    round        ... and neighbours' shares          -> the update, and its SASH seed, masked
    consist      a set of survivors                  -> a signature on it, one a round
    unmask       neighbours' signatures              -> shares that open the sum of the seeds

The state of an attempt is kept from one message to the next, each step once; the update's own claim
comes before the seed is masked, and a set is claimed before its signature leaves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from flhe import records
from flhe.errors import ProtocolError, QuorumError, ReuseError
from flhe.keys import masking, pairwise
from flhe.keys.epoch import Epoch
from flhe.keys.pairwise_plan import Plan
from flhe.keys.seed_plan import degree_of, seed_plan
from flhe.mods.node import Kept, Node
from flhe.mods.stages import reply
from flhe.rounds.start import shared_start
from flhe.rounds.terms import Terms
from flhe.schemes.shprg import Seed
from flhe.sealed import Slot

State = pairwise.Advertised | pairwise.Shared | pairwise.Masked | pairwise.Signed | pairwise.Opened
_STATES: dict[str, type[State]] = {
    "advertised": pairwise.Advertised,
    "shared": pairwise.Shared,
    "masked": pairwise.Masked,
    "signed": pairwise.Signed,
    "opened": pairwise.Opened,
}


@dataclass(frozen=True, slots=True)
class Turn:
    """One attempt of this node, where its seed is added up among neighbours.

    Parameters
    ----------
    node, epoch
        The node, and its epoch.
    plan : Plan
        Of the attempt; its layout_hash says what the round starts from, model and settings.
    told : bytes
        Hash of what the app was told, where that is known by now.
    """

    node: Node
    epoch: Epoch
    plan: Plan
    told: bytes = b""

    @classmethod
    def of(
        cls,
        node: Node,
        epoch: Epoch,
        terms: Terms,
        round_: int,
        attempt: int,
        start: bytes,
        told: bytes = b"",
    ) -> Turn | None:
        """The node's turn; None where all members share with all."""
        degree = degree_of(terms.neighbours, epoch.size, epoch.roster.collusion)
        if degree is None:
            return None
        circle = masking.Circle.of(epoch, terms.elements(epoch.size))
        plan = seed_plan(circle, epoch.id, round_, attempt, start, degree)
        return cls(node, epoch, plan, told)

    @classmethod
    def of_slot(
        cls, node: Node, epoch: Epoch, terms: Terms, slot: Slot, told: bytes
    ) -> Turn | None:
        """The same for the slot of an update, of an app that was told this."""
        start = shared_start(slot.history, told)
        return cls.of(node, epoch, terms, slot.round, slot.attempt, start, told)

    def load(self, *kinds: str) -> tuple[State, bytes]:
        """The kept state, which must be one of `kinds` of this very attempt, and the masked seed.

        Raises
        ------
        ProtocolError
            It stands at another step, or at another attempt.
        """
        kept = self.node.load_pairwise()
        if kept is not None and kept.kind in kinds and kept.plan == self.plan.hash:
            read = _STATES[kept.kind].from_bytes
            return read(kept.state, self.node.identity, self.epoch, self.plan), kept.seed
        raise ProtocolError("a stage of the masking out of order: ask for it under a new attempt")

    def save(self, state: State, slot: Slot | None = None, seed: bytes = b"") -> None:
        """Keep a state in the place of the one before; from the update on, with its slot."""
        kind = next(name for name, each in _STATES.items() if type(state) is each)
        self.node.save_pairwise(Kept(kind, self.plan.hash, state.to_bytes(), slot, seed, self.told))

    def check_ready(self) -> None:
        """Refuse to train for an attempt whose seed could not be masked; ProtocolError."""
        self.load("shared")

    def mask(self, seed: Seed, slot: Slot, record: ConfigRecord) -> Masked:
        """Mask the seed of the update that was just encrypted, with what neighbours sent."""
        state, _ = self.load("shared")
        assert isinstance(state, pairwise.Shared)
        ranks = ranks_in(record, "mask-ranks")
        boxes = records.bytes_list(record, "mask-boxes")
        if len(ranks) != len(boxes) or len(set(ranks)) != len(ranks):
            raise ProtocolError("shares of neighbours without a sender, or two of one")
        masked, lanes = pairwise.mask(state, dict(zip(ranks, boxes, strict=True)), seed)
        assert isinstance(lanes, np.ndarray)
        out = Masked(masking.pack_elements(lanes.astype(np.uint64, copy=False)), masked.message)
        self.save(masked, slot, out.seed)
        return out

    def masked(self) -> Masked:
        """What was sent with an update that is sent again."""
        state, seed = self.load("masked")
        assert isinstance(state, pairwise.Masked)
        return Masked(seed, state.message)


@dataclass(frozen=True, slots=True)
class Masked:
    """What goes with an update under SASH+: its seed, masked, and whom it is masked with, signed."""

    seed: bytes = field(repr=False)
    statement: bytes

    def fields(self) -> dict[str, object]:
        """As fields of a reply."""
        return {"masked-seed": self.seed, "masked-with": self.statement}


def mask_key(node: Node, epoch: Epoch, terms: Terms, record: ConfigRecord) -> RecordDict:
    """Begin an attempt: a fresh key."""
    turn = _turn(node, epoch, terms, record)
    plan = turn.plan
    node.check_unsigned(epoch.id, plan.round)
    node.check_unclaimed(epoch.id, plan.round, plan.attempt)
    kept = node.load_pairwise()
    if kept is not None and kept.plan == plan.hash:
        state, _ = turn.load("advertised")  # one key an attempt: beyond that step there is no other
    else:
        state, _ = pairwise.advertise(node.identity, epoch, plan)
        turn.save(state)
    assert isinstance(state, pairwise.Advertised)
    return reply(step="mask-key", key=state.message)


def mask_share(node: Node, epoch: Epoch, terms: Terms, record: ConfigRecord) -> RecordDict:
    """Share the key and a seed among neighbours."""
    turn = _turn(node, epoch, terms, record)
    state, _ = turn.load("advertised")
    assert isinstance(state, pairwise.Advertised)
    shared, boxes = pairwise.share(state, records.bytes_list(record, "keys"))
    turn.save(shared)
    return reply(step="mask-share", ranks=list(boxes), boxes=list(boxes.values()))


def consist(turn: Turn, slot: Slot, record: ConfigRecord) -> RecordDict:
    """Sign the set of survivors that the server proposes."""
    node, proposed = turn.node, ranks_in(record, "survivors")
    if len(proposed) < turn.epoch.roster.min_opening:
        raise QuorumError(
            f"{len(proposed)} survivors, this roster opens no sum of fewer than "
            f"{turn.epoch.roster.min_opening}"
        )
    state, _ = turn.load("masked", "signed")
    assert isinstance(state, (pairwise.Masked, pairwise.Signed))
    signed, message = pairwise.consist(state, proposed, records.bytes_list(record, "statements"))
    node.claim_set(slot, set_digest(proposed), lambda: turn.save(signed, slot))
    return reply(step="consist", signature=message)


def unmask(turn: Turn, slot: Slot, record: ConfigRecord) -> RecordDict:
    """Release shares that open the sum of the survivors' seeds."""
    state, _ = turn.load("signed", "opened")
    assert isinstance(state, (pairwise.Signed, pairwise.Opened))
    if turn.node.signed(slot) != set_digest(state.senders):
        raise ReuseError("the survivors that are kept here are not those that were signed")
    opened, message = pairwise.unmask(state, records.bytes_list(record, "signatures"))
    turn.save(opened, slot)
    return reply(step="unmask", answer=message)


def set_digest(survivors: Sequence[int]) -> bytes:
    """What a claim keeps of a set of survivors."""
    return hashlib.sha256(masking.statement(survivors)).digest()


def ranks_in(record: ConfigRecord, name: str) -> list[int]:
    """A field that is a list of ranks; missing means empty. ProtocolError for anything else."""
    ranks = record.get(name, [])
    if not isinstance(ranks, list) or not all(type(rank) is int for rank in ranks):
        raise ProtocolError(f"field {name!r} of a stage must be a list of ranks")
    return [rank for rank in ranks if isinstance(rank, int)]


def _turn(node: Node, epoch: Epoch, terms: Terms, record: ConfigRecord) -> Turn:
    round_, attempt = records.field(record, "round", int), records.field(record, "attempt", int)
    turn = Turn.of(node, epoch, terms, round_, attempt, records.field(record, "start", bytes))
    if turn is None:
        raise ProtocolError("a stage that this group does not have: all members share with all")
    return turn
