"""Session: one member's rounds within one epoch, as steps without Flower.

    sending    what the app trained -> ciphertext             see `flhe.training.sending`
    open       model, sealed sum -> next model                check, record, decrypt, decode, apply

Order is the point: a sum's hash is on disk before it is decrypted.
"""

from __future__ import annotations

from collections.abc import Sequence

from flhe.coding.extras import Totals
from flhe.coding.support import union_of
from flhe.errors import ProtocolError
from flhe.keys.roles import opener_for
from flhe.schemes.sealed import Sealed
from flhe.sums.verdict import open_verified
from flhe.training.due import SUM, Record, check_shape, check_slot
from flhe.training.mean_squares import fit
from flhe.training.model import Model
from flhe.training.reading import apply, choose
from flhe.training.sending import Sending
from flhe.training.start import NO_APP_INPUTS


class Session(Sending):
    """One member's side of the rounds of one epoch; for its parameters see `Facts`."""

    __slots__ = ()

    def open(
        self,
        model: Model,
        total: Sealed,
        record: Record,
        digest: bytes | None = None,
        mean_squares: Sealed | None = None,
        release: Sequence[bytes] = (),
        app_inputs_hash: bytes = NO_APP_INPUTS,
    ) -> tuple[Model, Totals]:
        """Open the sum of a round that started from `model` and apply its mean.

        Parameters
        ----------
        model : Model
            The model before the round.
        total : Sealed
            The round's sum.
        record : callable
            Called before anything is decrypted.
        digest : bytes, optional
            `digest(model)`, where it is known; computed otherwise.
        mean_squares : Sealed, optional
            The sum that the round's thresholds were fitted on, where they were.
        release : sequence of bytes
            What the senders' masking-key agreement released, where the scheme has one.
        app_inputs_hash : bytes
            Hash of what the senders' apps were told.

        Raises
        ------
        QuorumError
            Fewer senders than the roster's bound for opening.
        ReuseError
            Another sum of this round was opened before.
        AlteredError
            It is not the sum of what its senders encrypted.
        ProtocolError
            A sum of another round, epoch, layout or parameter set, one that does not decode, or one in
            which a sender started from another model.
        """
        base = self.digest(model) if digest is None else digest
        self.check(model, total, mean_squares, app_inputs_hash, base)
        state = fit(self, model, total.slot.round, mean_squares, record, base, app_inputs_hash)
        result = total.digest()
        record(total.slot.round, result, SUM)
        adder = self.adder_of(model)
        opener = opener_for(adder, self.epoch, total, release, threads=self.threads)
        values = union_of(total.supports)[1] if total.supports else self.layout.floats
        lanes = open_verified(opener, self.tags(total.slot), self.terms.bits, total, values)
        check = self._expected_check(base, total)
        if self.maps(model):
            return choose(self.terms, model, total, lanes, check)
        codec = self.terms.codec.keyed(self.permutation(total.slot))
        return apply(self.terms, codec, model, total, lanes, state, check)

    def _expected_check(self, base: bytes, total: Sealed) -> int:
        if not total.supports:
            return len(total.senders) * self.check_of(base)
        pairs = zip(total.senders, total.supports, strict=True)
        return sum(self.check_of(base, rank, support) for rank, support in pairs)

    def check(
        self,
        model: Model,
        total: Sealed,
        mean_squares: Sealed | None = None,
        app_inputs_hash: bytes = NO_APP_INPUTS,
        digest: bytes | None = None,
    ) -> None:
        """Refuse a sum that may not be opened; see `open`."""
        slot = total.slot
        expected = self.slot(
            model,
            slot.round,
            slot.attempt,
            mean_squares,
            app_inputs_hash=app_inputs_hash,
            digest=digest,
        )
        check_slot(model, slot, expected)
        length = self._lanes(model)
        if total.supports:
            if total.supports[0].length != self.layout.floats:
                raise ProtocolError(f"the sum of round {slot.round} is of another model")
            length = union_of(total.supports)[1] + self.terms.trailer_lanes(self.layout)
        need = self.epoch.roster.min_opening
        check_shape(total, self.adder_of(model), length, need, sparse=self.terms.codec.sparse)
