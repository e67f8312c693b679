"""Session: one member's rounds within one epoch, as steps without Flower.

    seal   old model, trained arrays -> ciphertext     encode, claim, encrypt
    open   model, sealed sum -> next model             check, record, decrypt, decode, apply

Order is the point. A vector is encoded, and NaN refused, before its mask is claimed; the claim is on
disk before anything is encrypted; a sum's hash is on disk before it is decrypted.

A round starts from the model with the history that its slot names. Rounds that came to nothing leave no
trace in it: the next one starts from the same model under the next number.
"""

from __future__ import annotations

import hmac
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from flhe.coding.base import Plain
from flhe.coding.extras import Totals
from flhe.coding.flatten import Arrays, Layout
from flhe.errors import ProtocolError, QuorumError, RangeError
from flhe.keys.derive import hkdf
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

MAX_AHEAD = 1024
"""Most rounds that may have come to nothing in between: a number far ahead, once claimed or recorded as
opened, would leave none for the rounds to come."""

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

    def slot(self, model: Model, round_: int, attempt: int) -> Slot:
        """The slot of one attempt at a round that starts from `model`."""
        epoch = self.epoch
        return Slot(
            epoch.run_id,
            epoch.roster.hash,
            epoch.id,
            round_,
            attempt,
            self.layout_hash,
            model.history,
        )

    def digest(self, model: Model) -> bytes:
        """Keyed digest of a model, 32 bytes: equal for members that have the same, to the last bit.

        HMAC-SHA256 over the model's encoding (round, history, layout, arrays, moments) under a key of
        the group. The server sees which members agree and cannot test guesses.
        """
        epoch = self.epoch
        key = hkdf(epoch.group_key, "digest", epoch.run_id, epoch.roster.hash, epoch.id)
        mac = hmac.new(key, digestmod="sha256")
        for chunk in model.chunks():
            mac.update(chunk)
        return mac.digest()

    def _check(self, digest: bytes) -> int:
        """What stands for a digest inside the sum: 31 bits that nobody outside the group knows.

        The digest itself travels in clear; a relay that knew this would mend a sum over two models.
        """
        epoch = self.epoch
        derived = hkdf(epoch.group_key, "check", epoch.run_id, epoch.roster.hash, epoch.id, digest)
        return int.from_bytes(derived[:4], "big") >> 1

    def sealer(self) -> Sealer:
        """This member's sealer."""
        return sealer_for(self.scheme, self.epoch, threads=THREADS)

    def prepare(self, sealer: Sealer, slot: Slot) -> None:
        """Compute a round's masks ahead of time; meant for another thread."""
        sealer.prepare(slot, self.terms.lanes(self.layout))

    def encode(
        self,
        old: Model,
        trained: Arrays,
        examples: int,
        metrics: Mapping[str, float],
        digest: bytes,
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
        digest : bytes
            `digest(old)`.

        Raises
        ------
        ProtocolError
            Arrays that do not match the layout.
        RangeError
            NaN, infinity, too many clipped values, an example count out of range.
        """
        codec = self.terms.codec()
        integers = self.layout.integer_change(trained, old.masters)
        weight = examples if self.terms.weighted else min(examples, 1)
        if not 0 <= weight < 1 << 31:
            raise RangeError("the app reported an impossible number of examples")
        extras = self.terms.extras(self.layout).encode(
            weight, metrics, integers.tolist(), self._check(digest)
        )
        parts = self.layout.float_change(trained, old.masters)  # never as a whole
        state = codec.init(self.layout)
        encoded, _ = codec.encode_parts(parts, self.layout.floats, extras, state)
        return encoded

    def seal(self, sealer: Sealer, encoded: Plain, slot: Slot, claim: Claim) -> Sealed:
        """Encrypt an encoded update; `claim` is called first and must have reached the disk."""
        claim(slot.round, slot.attempt)
        return sealer.encrypt(encoded, slot)

    def open(
        self, model: Model, total: Sealed, record: Record, digest: bytes | None = None
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

        Raises
        ------
        QuorumError
            Fewer senders than the roster's bound for opening.
        ReuseError
            Another sum of this round was opened before.
        ProtocolError
            A sum of another round, epoch, layout or parameter set, one that does not decode, or one in
            which a sender started from another model.
        """
        self.check(model, total)
        base = self.digest(model) if digest is None else digest
        result = total.digest()
        record(total.slot.round, result)
        lanes = opener_for(self.scheme, self.epoch, threads=THREADS).decrypt(total)
        codec = self.terms.codec()
        length = self.layout.floats
        opened, _ = codec.decode(
            Plain(lanes[:length], lanes[length:]),
            total.senders,
            codec.init(self.layout),
            reuse=True,
        )
        totals = self.terms.extras(self.layout).decode(opened.extras)
        if totals.check != totals.count * self._check(base):
            raise ProtocolError("a sender of the sum started from another model; it is refused")
        optimizer = self.terms.optimizer
        moments = model.moments or optimizer.init(length)
        change, moments = optimizer.step(
            opened.values, moments, total.slot.round, out=opened.values
        )
        masters = self.layout.apply(model.masters, change, totals.integers, reuse=True)
        return model.after(total.slot.round, result, masters, moments), totals

    def check(self, model: Model, total: Sealed) -> None:
        """Refuse a sum that may not be opened; see `open`."""
        slot = total.slot
        if slot.round <= model.round:
            raise ProtocolError(
                f"got the sum of round {slot.round}, this node's model is at round {model.round}"
            )
        check_ahead(model, slot.round)
        if slot != self.slot(model, slot.round, slot.attempt):
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


def check_ahead(model: Model, round_: int) -> None:
    """Refuse a round that is not one of the next after the model's; ProtocolError."""
    if not model.round < round_ <= model.round + MAX_AHEAD:
        raise ProtocolError(
            f"round {round_} is not one of the {MAX_AHEAD} after this node's, {model.round}"
        )


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics that somebody reported: NaN marks those that nobody did."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
