"""Rounds of more than one stage: mean squares, supports, then the update.

    round      train, keep the draft             -> encrypted mean squares, or the support
    supports   the sum of mean squares           -> the support
    update     the masking mode that was chosen  -> ciphertext

Only the first stage calls the app. A node answers each step once in an attempt. Each is claimed on
disk first, with the sent support, and a repeated stage gets the same bytes. The node's own model
and draft decide which steps a round has, never the server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.coding.base import Plain, State
from flhe.coding.support import Support
from flhe.errors import ProtocolError, ReuseError
from flhe.mods import records, survivors
from flhe.mods.app import App
from flhe.mods.contribution import Turn
from flhe.mods.follow import follow
from flhe.node.node import Node
from flhe.schemes.sealed import Sealed, Slot, from_bytes
from flhe.training.draft import Draft
from flhe.training.kind import MEAN_SQUARES, mean_squares_part


def begin(turn: Turn, record: ConfigRecord, make: Callable[[], Draft]) -> RecordDict:
    """First stage of a round: train, unless an earlier attempt did, and send the first part.

    `make` lets the app train and returns its change.
    """
    node, session, model = turn.node, turn.session, turn.model
    session.sealer()  # without a key, do not train or resend in vain
    draft = node.load_draft()
    if draft is None or not draft.is_of(turn.round, model, session.epoch.contract):
        if session.terms.scheme.opened_together:
            survivors.check_ready(node, turn.sum())
        turn.check_unclaimed()
        if session.terms.noise is not None and not session.maps(model):
            node.count_release()
        # Another round from the same model failed: this one is trained in its place, and no sum of
        # the other is opened, because the sent part of its draft would be unknown.
        if draft is not None and draft.round < turn.round:
            node.skip_openings(draft.round)
        draft = make()
        node.save_draft(draft)
    stage = _Stage.of(turn, draft, record)
    if session.needs_mean_squares(model) and stage.mean_squares is None:
        return stage.tell_mean_squares()
    return stage.tell_support() if session.terms.codec.sparse else stage.tell_update()


def supports(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Second stage after mean squares: send the update's support."""
    return _resumed(node, record, message, app).tell_support()


def update(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Last stage: encrypt, in the mode chosen for all."""
    return _resumed(node, record, message, app).tell_update()


def _resumed(node: Node, record: ConfigRecord, message: Message, app: App) -> _Stage:
    """Return the kept result of an earlier stage of the same attempt."""
    follower = follow(node, record, message, app)
    session, model = follower.session()
    session.sealer()
    round_ = records.field(record, "round", int)
    follower.contract.check_round(round_)
    attempt = records.field(record, "attempt", int)
    if not session.staged(model):
        raise ProtocolError("this round has no such stage")
    begun = node.claimed(session.place(model, round_, attempt)) is not None
    draft = node.load_draft()
    if not begun or draft is None or not draft.is_of(round_, model, session.epoch.contract):
        raise ProtocolError("nothing was trained here for this attempt: ask for the round first")
    return _Stage.of(Turn.of(follower, round_, attempt), draft, record)


@dataclass(frozen=True, slots=True)
class _Stage:
    """A turn with its kept update; `mean_squares` is the sum of all, if it came."""

    turn: Turn
    draft: Draft
    mean_squares: Sealed | None
    mode: str

    @classmethod
    def of(cls, turn: Turn, draft: Draft, record: ConfigRecord) -> _Stage:
        encoded = records.optional(record, "fitted-on", b"")
        fitted_on = from_bytes(encoded) if encoded else None
        return cls(turn, draft, fitted_on, records.optional(record, "mode", ""))

    def tell_mean_squares(self) -> RecordDict:
        """Return the draft's mean squares, encrypted."""
        turn = self.turn
        return turn.contribute(
            turn.sum(MEAN_SQUARES),
            turn.session.terms.scheme.mode_ahead,
            lambda _: (mean_squares_part(turn.session.terms, turn.model, self.draft), None),
        )

    def tell_support(self) -> RecordDict:
        """Return the update's support, as the server sees it in this attempt."""
        turn, session = self.turn, self.turn.session
        if not session.terms.codec.sparse:
            raise ProtocolError("a support was requested, and updates are dense")
        self._fit()  # opens and checks the mean squares before any reply
        slot = turn.sum(mean_squares=self.mean_squares).slot
        support = session.support(self.draft, slot)
        if turn.node.known_support(slot) is None:
            told = support.digest()
            turn.node.claim(session, slot, turn.digest, step="supports", support=told)
        self._check_told(slot, support)
        return turn.follower.reply(step="supports", digest=turn.digest, support=support.data)

    def tell_update(self) -> RecordDict:
        """Return the update, encrypted in the chosen mode."""
        turn = self.turn
        of = turn.sum(mean_squares=self.mean_squares)

        def make(_: object) -> tuple[Plain, Support | None]:
            state = self._fit()
            encoded, support = turn.session.encode_draft(self.draft, turn.model, state, of.slot)
            if support is not None:
                self._check_told(of.slot, support)
            return encoded, support

        return turn.contribute(of, self.mode, make)

    def _check_told(self, slot: Slot, support: Support) -> None:
        """Refuse a second support in an attempt; ReuseError."""
        if self.turn.node.known_support(slot) != support.digest():
            raise ReuseError("another support was sent in this attempt: ask under a new one")

    def _fit(self) -> State:
        """Return the codecs' state in this round; see `flhe.training.kind`."""
        turn, node, sent = self.turn, self.turn.node, self.mean_squares
        if sent is not None:
            node.policy.check_survivors(len(sent.senders), turn.follower.contract)
        return turn.session.fit(turn.model, turn.round, sent, node.record_opening, turn.digest)
