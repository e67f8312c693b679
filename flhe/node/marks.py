"""Marks: which rounds are over on this node, in whatever epoch.

runs/<id>/floor     rounds that are over
runs/<id>/missed    last round whose sum lacked this node's update
"""

from __future__ import annotations

from collections.abc import Iterable

from flhe.errors import NoKeyError
from flhe.node.claims import CONSIST, Claims
from flhe.node.high_water_marks import Floor
from flhe.training.due import RANGES, SUM
from flhe.training.session import Session


class Marks(Claims):
    """What a node has opened, given up or reached."""

    __slots__ = ()

    def floor(self) -> Floor:
        """Rounds that are over here, in whatever epoch."""
        data = self._kept("floor")
        return Floor() if data is None else Floor.from_bytes(data)

    def _raise_floor(self, epochs: Iterable[bytes], *, masked: bool) -> None:
        """Keep what is over in `epochs`, before their marks go with their keys."""
        marks = Floor()
        for epoch_id in epochs:
            opened = self.store.opened(epoch_id)
            if masked:
                opened = max(opened, self._signed_in(epoch_id))
            here = Floor(opened, self.store.ranged(epoch_id), self._claimed_in(epoch_id))
            marks = marks.raised(here)
        self._keep_floor(marks)

    def _keep_floor(self, marks: Floor) -> None:
        """Keep that rounds up to these marks are over."""
        before = self.floor()
        after = before.raised(marks)
        if after != before:
            self.store.write(self._name("floor"), after.to_bytes())

    def reached(self, epoch_id: bytes) -> int:
        """Last round that this node has opened, given up or encrypted in, in whatever epoch."""
        floor, opened = self.floor(), self.store.opened(epoch_id)
        return max(floor.opened, floor.reached, opened, self._claimed_in(epoch_id))

    def _claimed_in(self, epoch_id: bytes) -> int:
        try:
            return self.store.last_claim(epoch_id)[0]
        except NoKeyError:
            return self.store.claimed_round(epoch_id)

    def _signed_in(self, epoch_id: bytes) -> int:
        """Last round of an epoch whose survivors may have been signed, and its sum be known.

        Of the rounds before the last one nothing is kept any more, so they count as signed.
        """
        try:
            round_, _, step = self.store.last_claim(epoch_id)
        except NoKeyError:
            return self.store.claimed_round(epoch_id)
        return round_ if step == CONSIST else max(round_ - 1, 0)

    def record_opening(self, session: Session, round_: int, digest: bytes, what: str = SUM) -> None:
        """Record the one sum of a round, on disk, before it is decrypted; mean squares likewise."""
        record = self.store.record_ranges if what == RANGES else self.store.record_opening
        record(session.epoch.id, round_, digest)

    def skip_openings(self, epoch_id: bytes, round_: int) -> None:
        """A model of `round_` was taken from another member: no sum up to there is opened here."""
        self.store.raise_opened(epoch_id, round_, round_)
        self._keep_floor(Floor(round_, round_))

    def note_missed(self, round_: int) -> None:
        """Keep that this node's update was left out of a round's sum: its receipts say so."""
        self.store.write(self._name("missed"), round_.to_bytes(4, "big"))

    def missed(self) -> int:
        """Last round whose sum lacked this node's update, 0 if none did."""
        return self._number("missed")
