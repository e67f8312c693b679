"""Session: one member's rounds within one epoch, as steps without Flower.

    seal   old model, trained arrays -> ciphertext     encode, claim, encrypt
    open   model, sealed sum -> next model             check, record, decrypt, decode, apply

Order is the point. A vector is encoded, and NaN refused, before its mask is claimed; the claim is on
disk before anything is encrypted; a sum's hash is on disk before it is decrypted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flhe.coding.base import Plain
from flhe.coding.extras import Totals
from flhe.coding.flatten import Arrays, Layout
from flhe.errors import ProtocolError, QuorumError, RangeError
from flhe.keys.epoch import Epoch
from flhe.keys.roles import opener_for, sealer_for
from flhe.rounds.model import Model
from flhe.rounds.terms import Terms
from flhe.schemes.base import Scheme, Sealer
from flhe.sealed import Sealed, Slot, check_senders

Claim = Callable[[int, int], None]
"""(round, attempt) -> None once it is on disk; ReuseError when it was there before."""

Record = Callable[[int, bytes], None]
"""(round, digest of the sum) -> None once on disk; ReuseError for another sum of that round."""

THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Session:
    """What a member needs for the rounds of one epoch.

    Parameters
    ----------
    epoch : Epoch
        Group key, members and own rank.
    terms : Terms
        Public parameters.
    layout : Layout
        The model's arrays.
    """

    epoch: Epoch
    terms: Terms
    layout: Layout
    scheme: Scheme = field(init=False)
    layout_hash: bytes = field(init=False)

    def __post_init__(self) -> None:
        scheme = self.terms.for_cohort(self.epoch.size)
        object.__setattr__(self, "scheme", scheme)
        object.__setattr__(self, "layout_hash", self.terms.layout_hash(self.layout, scheme))

    def slot(self, model: Model, attempt: int) -> Slot:
        """The slot of one attempt at the round that starts from `model`."""
        epoch = self.epoch
        return Slot(
            epoch.run_id,
            epoch.roster.hash,
            epoch.id,
            model.round + 1,
            attempt,
            self.layout_hash,
            model.history,
        )

    def sealer(self) -> Sealer:
        """This member's sealer."""
        return sealer_for(self.scheme, self.epoch, threads=THREADS)

    def prepare(self, sealer: Sealer, slot: Slot) -> None:
        """Compute a round's masks ahead of time; meant for another thread."""
        sealer.prepare(slot, self.terms.lanes(self.layout))

    def encode(
        self, old: Model, trained: Arrays, examples: int, metrics: Mapping[str, float]
    ) -> Plain:
        """Encode what training changed.

        Parameters
        ----------
        old : Model
            The global model that the app started from.
        trained : mapping of str to NDArray
            The app's arrays after training.
        examples : int
            How many examples it trained on.
        metrics : mapping of str to float
            Training metrics; those that the terms do not name stay here.

        Raises
        ------
        ProtocolError
            Arrays that do not match the layout.
        RangeError
            NaN, infinity, too many clipped values, an example count out of range.
        """
        codec = self.terms.codec()
        floats, integers = self.layout.change(trained, old.masters)
        weight = examples if self.terms.weighted else min(examples, 1)
        if not 0 <= weight < 1 << 31:
            raise RangeError("the app reported an impossible number of examples")
        extras = self.terms.extras(self.layout).encode(weight, metrics, integers.tolist())
        encoded, _ = codec.encode(Plain(floats, extras), codec.init(self.layout))
        return encoded

    def seal(self, sealer: Sealer, encoded: Plain, slot: Slot, claim: Claim) -> Sealed:
        """Encrypt an encoded update; `claim` is called first and must have reached the disk."""
        claim(slot.round, slot.attempt)
        return sealer.encrypt(encoded, slot)

    def open(self, model: Model, total: Sealed, record: Record) -> tuple[Model, Totals]:
        """Open the sum of the round after `model.round` and apply its mean.

        Raises
        ------
        QuorumError
            Fewer senders than the roster's bound for opening.
        ReuseError
            Another sum of this round was opened before.
        ProtocolError
            A sum of another round, epoch, layout or parameter set, or one that does not decode.
        """
        self.check(model, total)
        digest = total.digest()
        record(total.slot.round, digest)
        lanes = opener_for(self.scheme, self.epoch, threads=THREADS).decrypt(total)
        codec = self.terms.codec()
        length = self.layout.floats
        opened, _ = codec.decode(
            Plain(lanes[:length], lanes[length:]), total.senders, codec.init(self.layout)
        )
        totals = self.terms.extras(self.layout).decode(opened.extras)
        masters = self.layout.apply(model.masters, opened.values, totals.integers)
        return model.after(digest, masters), totals

    def check(self, model: Model, total: Sealed) -> None:
        """Refuse a sum that may not be opened; see `open`."""
        slot = total.slot
        if slot.round != model.round + 1:
            raise ProtocolError(
                f"got the sum of round {slot.round}, this node needs that of round "
                f"{model.round + 1} next"
            )
        if slot != self.slot(model, slot.attempt):
            raise ProtocolError(
                f"the sum of round {slot.round} belongs to another run, epoch, parameter set, or to "
                "a model with another history"
            )
        if total.scheme != self.scheme.name:
            raise ProtocolError(f"the sum of round {slot.round} is of another scheme")
        check_senders(total.senders, self.scheme.cohort)
        if total.length != self.terms.lanes(self.layout):
            raise ProtocolError(f"the sum of round {slot.round} has another length than the model")
        if total.data.size != self.scheme.nbytes(total.length):
            raise ProtocolError(f"the sum of round {slot.round} was cut short or extended")
        need = self.epoch.roster.min_opening
        if len(total.senders) < need:
            raise QuorumError(
                f"the sum of round {slot.round} has {len(total.senders)} senders, this roster "
                f"opens none of fewer than {need}"
            )


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics that somebody reported: NaN marks those that nobody did."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
