"""Session: one member's rounds within one epoch, as steps without Flower.

    sending    what the app trained -> ciphertext             see `flhe.training.sending`
    open       model, sealed sum -> next model                check, record, decrypt, decode, apply

Order is the point: a sum's hash is on disk before it is decrypted.
"""

from __future__ import annotations

from collections.abc import Sequence

from flhe.coding.extras import Totals
from flhe.schemes.sealed import Sealed
from flhe.sums.secure_sum import Record, SecureSum
from flhe.training.due import check_due
from flhe.training.mean_squares import fit
from flhe.training.model import Model
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
        of = self.check(model, total, mean_squares, app_inputs_hash, base)
        state = fit(self, model, total.slot.round, mean_squares, record, base, app_inputs_hash)
        lanes = of.open(self.epoch, total, record, release, threads=self.threads)
        check, order = self._expected_check(base, total), self.permutation(total.slot)
        return self.ending(model).read(self.terms, model, total, lanes, state, check, order)

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
    ) -> SecureSum:
        """What `total` is the sum of; refuses one that may not be opened, as `open` says."""
        slot = total.slot
        of = self.sum(
            model,
            slot.round,
            slot.attempt,
            mean_squares,
            app_inputs_hash=app_inputs_hash,
            digest=digest,
        )
        check_due(model, total)
        of.check(total, self.epoch.roster.min_opening)
        return of
