"""Rounds of more than one stage: mean squares, supports, then the update.

    round      train, keep the draft             -> encrypted mean squares, or the support
    supports   the sum of mean squares           -> the support
    update     the masking mode that was chosen  -> ciphertext

The app is called in the first of them only. What a node tells in one attempt it tells once: each step
is claimed on disk first, with the support and the mode that it was told with, and a stage that is asked
for again gets the same bytes. A node goes by its own model and draft: which steps a round has is no
choice of the server's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict

from flhe.coding.base import State
from flhe.errors import ProtocolError, ReuseError
from flhe.mods import records, survivors
from flhe.mods.contribution import Contribution
from flhe.mods.follow import Follower, follow
from flhe.mods.stages import App
from flhe.node.node import Node
from flhe.schemes.sealed import Sealed, from_bytes
from flhe.sums.secure_sum import SecureSum
from flhe.training.draft import Draft
from flhe.training.kind import Kind
from flhe.training.mean_squares import MEAN_SQUARES, encode, fit
from flhe.training.model import Model
from flhe.training.session import Session


def begin(
    node: Node,
    record: ConfigRecord,
    follower: Follower,
    make: Callable[[], Draft],
) -> RecordDict:
    """First stage of a round: train, unless an attempt before did, and tell what comes first.

    `make` lets the app train and returns what it changed.
    """
    session, model = follower.session()
    session.sealer()  # without a key nothing is trained, and nothing sent again that nobody opens
    round_ = records.field(record, "round", int)
    attempt = records.field(record, "attempt", int)
    digest = node.claimed(session.place(model, round_, attempt)) or session.digest(model)
    draft = node.load_draft()
    if draft is None or not draft.is_of(round_, model, session.epoch.contract):
        if session.terms.scheme.opened_together:
            of = session.sum(model, round_, attempt, digest=digest)
            survivors.check_ready(node, session, of)
        if session.terms.noise is not None and not session.maps(model):
            node.check_unclaimed(session.epoch.id, round_, attempt)
            node.count_release()
        # Another round's from the same model came to nothing: this one is trained in its place.
        node.make_room(session.epoch.id, draft, round_, attempt)
        draft = make()
        with follower.watch:
            node.save_draft(draft)
    turn = _Turn(follower, session, model, draft, digest, attempt, _mean_squares(record))
    if session.needs_mean_squares(model) and turn.mean_squares is None:
        return turn.tell_mean_squares()
    return turn.tell_support() if session.terms.codec.sparse else turn.tell_update(_mode(record))


def supports(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Second stage where mean squares came first: say which coordinates the update has."""
    return _resumed(node, record, message, app).tell_support()


def update(node: Node, record: ConfigRecord, message: Message, app: App) -> RecordDict:
    """Last stage: encrypt, in the mode that was chosen for all."""
    return _resumed(node, record, message, app).tell_update(_mode(record))


def _resumed(node: Node, record: ConfigRecord, message: Message, app: App) -> _Turn:
    """What an earlier stage of the same attempt left."""
    follower = follow(node, record, message, app)
    session, model = follower.session()
    session.sealer()
    round_ = records.field(record, "round", int)
    follower.contract.check_round(round_)
    attempt = records.field(record, "attempt", int)
    if not session.staged(model):
        raise ProtocolError("a stage that this round does not have")
    digest = node.claimed(session.place(model, round_, attempt))
    draft = node.load_draft()
    if digest is None or draft is None or not draft.is_of(round_, model, session.epoch.contract):
        raise ProtocolError("nothing was trained here for this attempt: ask for the round first")
    return _Turn(follower, session, model, draft, digest, attempt, _mean_squares(record))


def _mean_squares(record: ConfigRecord) -> Sealed | None:
    """The sum of mean squares of the round under way, where the message brings one."""
    encoded = records.optional(record, "fitted-on", b"")
    return from_bytes(encoded) if encoded else None


def _mode(record: ConfigRecord) -> str:
    mode: str = records.optional(record, "mode", "")
    return mode


@dataclass(frozen=True, slots=True)
class _Turn:
    """One attempt of one node: what it may tell, and on what it depends."""

    follower: Follower
    session: Session
    model: Model
    draft: Draft
    digest: bytes
    attempt: int
    mean_squares: Sealed | None

    def tell_mean_squares(self) -> RecordDict:
        """The draft's mean squares, encrypted."""
        session = self.session
        own = self._own(self._sum(MEAN_SQUARES), session.terms.scheme.mode_ahead)
        if (again := own.again()) is not None:
            return again
        with self.follower.watch:
            encoded = encode(session, self.model, self.draft)
        sealer = session.sealer(own.of)
        return own.deliver(sealer, own.encrypt(sealer, encoded))

    def tell_support(self) -> RecordDict:
        """Which coordinates the update has, as the server knows them in this attempt."""
        session = self.session
        if not session.terms.codec.sparse:
            raise ProtocolError("asked for a support, and updates are dense")
        with self.follower.watch:
            self._fit()  # opens and checks the mean squares, before anything is told
            slot = self._sum().slot
            support = session.support(self.draft, slot)
        known, digest = self.follower.node.known_support(slot), support.digest()
        if known is None:
            self.follower.node.claim(session, slot, self.digest, step="supports", support=digest)
        elif known != digest:
            raise ReuseError("another support was told in this attempt: ask under a new one")
        return self._reply("supports", support=support.data)

    def tell_update(self, mode: str) -> RecordDict:
        """The update, encrypted in `mode`."""
        session, own = self.session, self._own(self._sum(), mode)
        if (again := own.again()) is not None:
            return again
        own.check_ready()
        with self.follower.watch:
            encoded, support = session.encode_draft(
                self.draft, self.model, self._fit(), own.of.slot
            )
        sealer = session.sealer(own.of)
        return own.deliver(sealer, own.encrypt(sealer, encoded, support))

    def _own(self, of: SecureSum, mode: str) -> Contribution:
        return Contribution(self.follower, self.session, of, self.digest, mode)

    def _sum(self, kind: Kind | None = None) -> SecureSum:
        """The sum of this attempt; of what ends the round unless said."""
        return self.session.sum(
            self.model,
            self.draft.round,
            self.attempt,
            None if kind else self.mean_squares,
            kind=kind,
            digest=self.digest,
        )

    def _fit(self) -> State:
        """The codecs' state in this round; see `flhe.training.mean_squares`."""
        if self.mean_squares is not None:
            self.follower.node.policy.check_survivors(len(self.mean_squares.senders))
        record, draft = self.follower.node.record_opening, self.draft
        return fit(self.session, self.model, draft.round, self.mean_squares, record, self.digest)

    def _reply(self, step: str, **fields: object) -> RecordDict:
        return self.follower.reply(step=step, digest=self.digest, **fields)
