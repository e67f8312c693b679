"""Session: one member's rounds within one epoch, as steps without Flower.

    draft      old model, trained arrays -> values to send       select, on the client's own disk
    encode     draft -> integers, and their support             clip, weigh, quantize, permute
    open       model, sealed sum -> next model                  check, record, decrypt, decode, apply

The order matters. A vector is encoded, and NaN refused, before its mask is claimed. A sum's hash is
on disk before it is decrypted.

A round starts from the model with the history in its slot. Failed rounds leave no trace in the
model: the next round starts from the same model under the next number.
"""

from __future__ import annotations

import functools
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.clip import WARN_CLIPPED
from flhe.coding.extras import Totals
from flhe.coding.flatten import Arrays, Layout, raise_not_finite
from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.coding.weigh import most_examples
from flhe.errors import ExamplesError, ProtocolError, logger
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.thresholds import Thresholds
from flhe.keys.roles import sealer_for
from flhe.keys.roster.roster import Roster
from flhe.math.permutation import Permutation
from flhe.schemes.base import Scheme, Sealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.sums.secure_sum import Record, SecureSum
from flhe.training import sensitivity, update
from flhe.training.chain import link_of
from flhe.training.draft import Draft
from flhe.training.epoch_sums import EpochSums
from flhe.training.kind import EVALUATION, MEAN_SQUARES, Kind, evaluated, fitted
from flhe.training.model import Model
from flhe.training.sensitivity import SENSITIVITY
from flhe.training.terms import Terms
from flhe.training.update import UPDATE
from flhe.training.vouching import Holding
from flhe.wire.derive import hkdf

THREADS = min(4, os.cpu_count() or 1)


fixed_mask = functools.lru_cache(maxsize=2)(Select.fixed)
"""(select, layout) -> the selection of a rule that needs no map."""


def counted_on(roster: Roster, scheme: Scheme, members: int, least: int) -> int:
    """Return how many members' noise is in every opened sum and unknown to colluding members.

    By the contract a sum has `least` senders or more. Each member knows its own noise, so at least
    one is subtracted even if the roster assumes no collusion.
    """
    fewest = max(least, roster.min_opening)
    if scheme.opened_together:
        fewest = max(fewest, Thresholds(len(roster.members), roster.collusion).min_set)
    if scheme.needs_all_members:
        fewest = max(fewest, members)
    return fewest - max(roster.collusion, 1)


@dataclass(frozen=True, slots=True)
class Session:
    """One member's side of the rounds of one epoch.

    The epoch has the group key, the members and the member's rank; the layout is the model's. By
    the contract a sum has `least` senders or more.
    """

    epoch: Epoch
    terms: Terms
    layout: Layout
    least: int = 0
    sums: EpochSums = field(init=False)
    """Facts of the epoch's sums that the server knows too."""
    threads: ClassVar[int] = THREADS

    def __post_init__(self) -> None:
        epoch = self.epoch
        of = epoch.run_id, epoch.roster.hash, epoch.id, epoch.number, epoch.contract, epoch.size
        sums = EpochSums(self.terms, self.layout, *of, epoch.scheme_public)
        object.__setattr__(self, "sums", sums)
        object.__setattr__(self, "terms", sums.terms)

    def place(self, model: Model, round_: int, attempt: int) -> Slot:
        """Return the slot of an attempt at a round, for looking up claims, never for masks."""
        return self.sums.slot(round_, attempt, self.sums.layout_hash, model.history)

    def sum(
        self,
        model: Model,
        round_: int,
        attempt: int,
        fitted_on: Sealed | None = None,
        *,
        kind: Kind | None = None,
        digest: bytes | None = None,
    ) -> SecureSum:
        """Return the sum of one attempt at a round that starts from `model`.

        The default `kind` is the one that ends the round. `fitted_on` is the sum for fitted
        thresholds, if any; `digest` is `digest(model)`, if known.
        """
        kind = kind or self.ending(model)
        return self.sums.sum(
            kind,
            round_,
            attempt if kind.attempt is None else kind.attempt,
            model.history,
            self.digest(model) if digest is None else digest,
            b"" if fitted_on is None else fitted_on.digest(),
            self.mask(model) if kind.partial and self.terms.select.partial else None,
        )

    def permutation(self, slot: Slot) -> Permutation | None:
        """Return the secret order of coordinates in one attempt; None if they keep their places."""
        if not self.terms.codec.hides:
            return None
        key = hkdf(self.epoch.group_key, "permutation", *slot.context())
        return Permutation(key, self.layout.floats)

    def digest(self, model: Model) -> bytes:
        """Return the keyed digest of a model, 32 bytes: equal for members with equal models.

        HMAC-SHA256 over the model's encoding (round, history, layout, arrays, moments) under a key
        of the group. The server sees which members agree, but cannot test guesses. If it reads the
        sums, it has the model anyway: then this is the model's public history.
        """
        if self.terms.scheme.reader == "server":
            return model.history
        epoch = self.epoch
        key = hkdf(epoch.group_key, "digest", epoch.run_id, epoch.roster.hash, epoch.id)
        mac = hmac.new(key, digestmod="sha256")
        for chunk in model.chunks():
            mac.update(chunk)
        return mac.digest()

    def holding(self, model: Model, digest: bytes) -> Holding:
        """Return the statement that a member signs to vouch for `model` with this keyed digest."""
        return Holding(self.sums, self.epoch.members, model.round, model.history, digest)

    # --- encrypted part of an update ---

    def ending(self, model: Model) -> Kind:
        """Return the kind of sum that ends a round from `model`."""
        return SENSITIVITY if self.maps(model) else UPDATE

    def maps(self, model: Model) -> bool:
        """Return whether a round from `model` adds up the map for the selection."""
        return self.terms.select.mapped and model.mask is None

    def mask(self, model: Model) -> Support:
        """Return the encrypted values of an update to `model`, if a part is selected."""
        if self.terms.select.mapped:
            assert model.mask is not None
            return model.mask
        return fixed_mask(self.terms.select, self.layout)

    # --- thresholds from earlier sums ---

    def needs_mean_squares(self, model: Model) -> bool:
        """Return whether a round from `model` begins with a sum of mean squares."""
        if self.maps(model):
            return False
        codec = self.terms.codec
        return codec.needs_mean_squares(codec.recall(self.layout, model.memory))

    def staged(self, model: Model) -> bool:
        """Return whether a round from `model` has several stages, or may be encrypted again.

        If only sums of all members open, a dropout makes the others agree on new keys and encrypt
        the same update again. An update with noise is drawn once: fresh noise in every attempt
        would average out. A map is computed once too, because it takes long.

        Differentially private updates are never drafts: a file would hold them without noise. They
        are trained again in each attempt, and each attempt is charged.
        """
        terms = self.terms
        return terms.codec.mechanism is None and (
            terms.codec.sparse
            or terms.scheme.needs_all_members
            or terms.noise is not None
            or self.maps(model)
            or self.needs_mean_squares(model)
        )

    # --- sending ---

    def sealer(self, of: SecureSum | None = None) -> Sealer:
        """Return this member's sealer of a sum, or of whole vectors."""
        adder = self.sums.whole if of is None else of.adder
        return sealer_for(adder, self.epoch, threads=self.threads)

    def encode(
        self,
        old: Model,
        trained: Arrays,
        examples: int,
        metrics: Mapping[str, float],
    ) -> Plain:
        """Encode the change by training, or a gradient, in a round of one stage.

        The app started from `old`, and `trained` are its arrays after training; if the terms ask
        for gradients, those take the floats' place under the same names. Only metrics in the terms
        leave.

        Raises ProtocolError: arrays that do not match the layout, or noise, which needs a draft to
        be drawn once; NotFiniteError: NaN or infinity; ExamplesError: an example count that cannot
        be weighed; ReplyError: tied weights that are not selected alike.
        """
        if self.terms.noise is not None:
            raise ProtocolError(
                "an update with noise must be a draft first: otherwise its noise would be drawn "
                "again"
            )
        codec = self.terms.codec.counting_on(
            counted_on(self.epoch.roster, self.terms.scheme, self.epoch.size, self.least)
        )
        extras = self._extras(old, trained, examples, metrics)
        gradients = self.terms.optimizer.gradients
        parts = self.layout.float_change(trained, old.masters, gradients=gradients)  # in pieces
        state = codec.recall(self.layout, old.memory)
        encoded, _ = codec.encode_parts(parts, self.layout.floats, extras, state)
        return self._sent_only(encoded, old)

    def _extras(
        self, old: Model, trained: Arrays, examples: int, metrics: Mapping[str, float]
    ) -> NDArray[np.int64]:
        if (select := self.terms.select).partial:
            gradients = self.terms.optimizer.gradients
            tied = self.layout.tied(trained, old.masters, gradients=gradients)
            select.check_tied(self.layout, self.mask(old), tied)
        integers = self.layout.integer_change(trained, old.masters)
        extras = self.terms.extras(self.layout)
        weight = self.weight(examples, capped=self.terms.codec.caps_weight)
        return extras.encode(weight, metrics, integers.tolist())

    def weight(self, examples: int, *, capped: bool = False) -> int:
        """Return the weight of an example count; ExamplesError if it is below 1.

        With `capped` it is at most the codec's maximum.
        """
        codec = self.terms.codec
        weight = examples if codec.weighted else min(examples, 1)
        if codec.mechanism is not None:
            return 1  # an empty batch, or a negative number, would reveal data
        if weight < 1:
            raise ExamplesError("the app reported no examples; a weight must be positive")
        # Never refused: the server would learn on which side of its bound a count lies.
        most = most_examples(self.epoch.size)
        if self.terms.noise is not None or capped:  # noise fits this maximum weight
            most = min(most, codec.max_examples)
        if weight > most:
            logger.warning("this node has more examples than the bound: it counts with fewer")
            weight = most
        return weight

    def draft(
        self,
        old: Model,
        trained: Arrays,
        examples: int,
        metrics: Mapping[str, float],
        round_: int,
        residual: NDArray[np.float32] | None,
    ) -> Draft:
        """Return the change by training, or a gradient; of sparse updates, the part to be sent.

        As `encode`, for a round of several stages; `residual` is the unsent rest of earlier rounds.
        """
        codec = self.terms.codec
        extras = self._extras(old, trained, examples, metrics)
        gradients = self.terms.optimizer.gradients
        change, _ = self.layout.change(trained, old.masters, gradients=gradients)
        if codec.sparse:
            state = codec.recall(self.layout, old.memory)
            start = State(state.shared, (residual, *state.local[1:]))
            sent, after = codec.select(Plain(change, extras), start)
            return self._drafted(old, round_, sent, after.local[0])
        if self.terms.noise is not None:
            # Here, and once: a second encryption has the same noise.
            self._add_noise(old, change)
        if not np.all(np.isfinite(change)):
            raise_not_finite()
        return self._drafted(old, round_, Plain(change, extras))

    def draft_map(self, model: Model, values: NDArray[np.float32], round_: int) -> Draft:
        """Return the draft of a map, shape (floats,), for repeated encryption."""
        extras = self.terms.extras(self.layout).encode(1, {}, [0] * self.layout.integers)
        return self._drafted(model, round_, Plain(values, extras))

    def _drafted(
        self, old: Model, round_: int, sent: Plain, residual: NDArray[np.float32] | None = None
    ) -> Draft:
        known = sent.coords, residual, old.fingerprint(), self.epoch.contract
        return Draft(round_, old.history, sent.values, sent.extras, *known)

    def _add_noise(self, model: Model, values: NDArray[np.float32]) -> None:
        """Clip an update to its thresholds and add the terms' noise, in place, shape (floats,).

        Any excess is clipped: a refusal, visible to the server, would reveal the update without
        noise. Clipping is counted here, because the codec finds nothing left to clip. RangeError
        for NaN or infinity.
        """
        terms = self.terms
        assert terms.noise is not None
        segments = terms.codec.segments(self.layout)
        spare = self.mask(model).coords if terms.noise.scope == "clear" else None
        beyond = terms.noise.add(values, segments, spare=spare)
        for start, stop, alpha in segments:  # also values without noise, or the codec would refuse
            np.clip(values[start:stop], -alpha, alpha, out=values[start:stop])
        if beyond > WARN_CLIPPED * values.size:
            logger.warning("more than 1% of the update was clipped; raise the clipping threshold")

    def encode_draft(
        self, draft: Draft, model: Model, state: State, slot: Slot
    ) -> tuple[Plain, Support | None]:
        """Return a draft as integers, and its coordinates as the server sees them.

        `model` is its starting model, `state` comes from `fit`, and `slot` is the current attempt.
        """
        if self.maps(model):
            encoded = sensitivity.encode(self.terms, self.layout, draft.plain())
        else:
            codec = self.terms.codec.keyed(self.permutation(slot))
            encoded, _ = codec.finish(draft.plain(), state)
        support = None
        if encoded.coords is not None:
            support = Support.of(encoded.coords, self.layout.floats)
        return self._sent_only(encoded, model), support

    def _sent_only(self, encoded: Plain, model: Model) -> Plain:
        """Return an encoded update with zeros in places that its scheme omits, as tags expect."""
        select = self.terms.select
        if not select.partial or select.clear or self.maps(model):
            return encoded
        coords = self.mask(model).coords
        values = np.zeros_like(encoded.values)
        values[coords] = encoded.values[coords]
        return encoded._replace(values=values)

    def support(self, draft: Draft, slot: Slot) -> Support:
        """Return a draft's coordinates as the server sees them in one attempt."""
        assert draft.coords is not None
        coords = draft.coords
        if (permutation := self.permutation(slot)) is not None:
            coords = np.sort(permutation.forward(coords))
        return Support.of(coords, self.layout.floats)

    # --- opening ---

    def open(
        self,
        model: Model,
        total: Sealed,
        record: Record,
        digest: bytes | None = None,
        fitted_on: Sealed | None = None,
        release: Sequence[bytes] = (),
    ) -> tuple[Model, Totals]:
        """Open the sum of a round that started from `model` and apply its mean.

        `record` is called before decryption; `release` holds the unmasking material of the senders'
        masking-key agreement, if the scheme has one. For the others see `sum`.

        Raises QuorumError: fewer senders than the roster's bound for opening; ReuseError: another
        sum of this round was opened before; AlteredError: it is not the sum of its senders'
        ciphertexts; ProtocolError: the sum has another round, epoch, layout or parameter set, does
        not decode, or one of its senders started from another model.
        """
        base = self.digest(model) if digest is None else digest
        of = self.check(model, total, fitted_on, base)
        state = self.fit(model, total.slot.round, fitted_on, record, base)
        lanes = of.open(self.epoch, total, record, release, threads=self.threads)
        if self.maps(model):
            after, totals = sensitivity.read(self.terms, model, total, lanes)
        else:
            order = self.permutation(total.slot)
            after, totals = update.read(self.terms, model, total, lanes, state, order)
        link = link_of(model.history, total, total.digest(), self.epoch.members)
        return after.linked(link), totals

    def open_evaluation(
        self, model: Model, total: Sealed, record: Record, release: Sequence[bytes] = ()
    ) -> Totals:
        """Open the evaluations of `model`; `record` and `release` as in `open`.

        Raises ProtocolError: evaluations of another model, or another sum; others as `open`.
        """
        digest = self.digest(model)
        of = self.sum(model, model.round, 0, kind=EVALUATION, digest=digest)
        return evaluated(self.terms, total, self.opened(of, total, record, release))

    def fit(
        self, model: Model, round_: int, total: Sealed | None, record: Record, base: bytes
    ) -> State:
        """Return the codecs' state in a round from `model`, fitted on its mean squares if due.

        `total` is the sum of those, `base` the keyed digest of `model`; `record` as in `open`.

        Raises ProtocolError: a sum that is missing, not due, or not this round's; others as `open`.
        """
        state = self.terms.codec.recall(self.layout, model.memory)
        if not self.needs_mean_squares(model):
            if total is not None:
                raise ProtocolError("a sum of mean squares in a round that needs none")
            return state
        if total is None:
            raise ProtocolError(
                "the sum of mean squares that this round's thresholds need is missing"
            )
        of = self.sum(model, round_, total.slot.attempt, kind=MEAN_SQUARES, digest=base)
        return fitted(self.terms, total, self.opened(of, total, record), state)

    def opened(
        self, of: SecureSum, total: Sealed, record: Record, release: Sequence[bytes] = ()
    ) -> NDArray[Any]:
        """Check and open a sum; see `SecureSum`."""
        of.check(total, self.epoch.roster.min_opening)
        return of.open(self.epoch, total, record, release, threads=self.threads)

    def check(
        self,
        model: Model,
        total: Sealed,
        fitted_on: Sealed | None = None,
        digest: bytes | None = None,
    ) -> SecureSum:
        """Return the expected sum of `total`; refuses one that may not be opened, as `open` says."""
        slot = total.slot
        of = self.sum(model, slot.round, slot.attempt, fitted_on, digest=digest)
        if slot.round <= model.round:
            raise ProtocolError(
                f"got the sum of round {slot.round}, this node's model is at round {model.round}"
            )
        of.check(total, self.epoch.roster.min_opening)
        return of
