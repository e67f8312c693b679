"""Session: one member's rounds within one epoch, as steps without Flower.

    draft      old model, trained arrays -> what is to be sent   select, on the client's own disk
    encode     draft -> integers, and their support             clip, weigh, quantize, permute
    seal       integers -> ciphertext                           claim, encrypt
    open       model, sealed sum -> next model              check, record, decrypt, decode, apply

Order is the point. A vector is encoded, and NaN refused, before its mask is claimed; the claim is on
disk before anything is encrypted; a sum's hash is on disk before it is decrypted.

A round starts from the model with the history that its slot names. Rounds that came to nothing leave no
trace in it: the next one starts from the same model under the next number. A round whose thresholds are
fitted on a sum of mean squares names that sum in its slot, so nobody's update is added to one that was
clipped otherwise.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.clip import raise_not_finite
from flhe.coding.extras import CHECK, Totals
from flhe.coding.flatten import Arrays, Layout
from flhe.coding.quantize import Quantize
from flhe.coding.support import Support
from flhe.coding.weigh import most_examples
from flhe.errors import ExamplesError, ProtocolError, QuorumError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.roles import opener_for, sealer_for
from flhe.math.permutation import Permutation
from flhe.schemes.base import Scheme, Sealer
from flhe.schemes.flashe.sparse import union_of
from flhe.schemes.sealed import Sealed, Slot, check_senders
from flhe.schemes.sum_mac import SumTags
from flhe.sums.verdict import open_verified, tagged
from flhe.training.draft import Draft
from flhe.training.mean_squares import fit, fitted_layout, own_layout
from flhe.training.model import Model
from flhe.training.noising import add_noise
from flhe.training.reading import apply, choose
from flhe.training.selection import fixed_mask, map_of
from flhe.training.start import UNTOLD, start_layout
from flhe.training.terms import Terms
from flhe.wire.derive import hkdf

Claim = Callable[[int, int], None]
"""(round, attempt) -> None once it is on disk; ReuseError when it was there before."""

Record = Callable[[int, bytes, str], None]
"""(round, digest of the sum, what of) -> None once on disk; ReuseError for another such sum.

What of: SUM of updates, or RANGES, of mean squares."""

SUM = "sum"

MAX_AHEAD = 32
"""Most rounds that may have come to nothing in between: each number that is claimed or recorded as
opened is one that no later round has."""

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
    whole: Scheme = field(init=False)
    """The scheme for all of a vector, and for all that is no update."""
    scheme: Scheme = field(init=False)
    """The scheme of an update: that for the selected part of it, where a part is selected."""
    layout_hash: bytes = field(init=False)
    threads: ClassVar[int] = THREADS

    def __post_init__(self) -> None:
        terms = self.terms.resolved(self.epoch.size)
        whole = terms.for_cohort(self.epoch.size, self.epoch.scheme_public)
        scheme = terms.selective(whole, self.layout)
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "whole", whole)
        object.__setattr__(self, "scheme", scheme)
        object.__setattr__(self, "layout_hash", self.terms.layout_hash(self.layout, scheme))

    def place(self, model: Model, round_: int, attempt: int) -> Slot:
        """Which attempt at which round, whatever was told: for looking up claims, never for masks."""
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

    def slot(
        self,
        model: Model,
        round_: int,
        attempt: int,
        ranges: Sealed | None = None,
        *,
        told: bytes = UNTOLD,
        digest: bytes | None = None,
    ) -> Slot:
        """The slot of one attempt at a round that starts from `model`.

        Parameters
        ----------
        model : Model
            The model before the round.
        round_, attempt : int
            Which.
        ranges : Sealed, optional
            The sum that the round's thresholds are fitted on, where they are.
        told : bytes
            Hash of what the app was told; see `flhe.training.start`.
        digest : bytes, optional
            `digest(model)`, where it is known; computed otherwise.
        """
        base = self.digest(model) if digest is None else digest
        layout_hash = start_layout(self.layout_hash, told, base)
        if ranges is not None:
            layout_hash = fitted_layout(layout_hash, ranges.digest())
        return replace(self.place(model, round_, attempt), layout_hash=layout_hash)

    def ranges_slot(
        self,
        model: Model,
        round_: int,
        attempt: int,
        *,
        told: bytes = UNTOLD,
        digest: bytes | None = None,
    ) -> Slot:
        """The slot of an attempt's mean squares: they have masks of their own."""
        slot = self.slot(model, round_, attempt, told=told, digest=digest)
        return replace(slot, layout_hash=own_layout(slot.layout_hash))

    def permutation(self, slot: Slot) -> Permutation | None:
        """The secret order of coordinates in one attempt; None where they keep their places."""
        if not self.terms.permuted:
            return None
        key = hkdf(self.epoch.group_key, "permutation", *slot.context())
        return Permutation(key, self.layout.floats)

    def digest(self, model: Model) -> bytes:
        """Keyed digest of a model, 32 bytes: equal for members that have the same, to the last bit.

        HMAC-SHA256 over the model's encoding (round, history, layout, arrays, moments) under a key of
        the group. The server sees which members agree and cannot test guesses. Where it reads the sums,
        it has the model anyway: then this is the model's public history.
        """
        if self.terms.reader == "server":
            return model.history
        epoch = self.epoch
        key = hkdf(epoch.group_key, "digest", epoch.run_id, epoch.roster.hash, epoch.id)
        mac = hmac.new(key, digestmod="sha256")
        for chunk in model.chunks():
            mac.update(chunk)
        return mac.digest()

    def tags(self, slot: Slot) -> SumTags | None:
        """Tags of one sum; None where these terms have none."""
        if not self.terms.tagged:
            return None
        return SumTags(self.epoch.group_key, slot, self.layout.floats, self.threads)

    def check_of(self, digest: bytes, rank: int = 0, support: Support | None = None) -> int:
        """What stands for a digest inside the sum: 31 bits that nobody outside the group knows.

        The digest itself travels in clear; a relay that knew this would mend a sum over two models. Of
        a sparse vector it stands for the sender's support too, which a relay might otherwise change.
        Where the server reads, it is 0: nobody keeps anything from it.
        """
        if self.terms.reader == "server":
            return 0
        epoch = self.epoch
        bound = () if support is None else (rank, support.digest())
        scope = (epoch.run_id, epoch.roster.hash, epoch.id)
        derived = hkdf(epoch.group_key, "check", *scope, digest, *bound)
        return int.from_bytes(derived[:4], "big") >> 1

    def sealer(self, model: Model | None = None) -> Sealer:
        """This member's sealer: of updates to `model`, or of all that is none."""
        if model is None or not self._selects(model):
            return sealer_for(self.whole, self.epoch, threads=self.threads)
        mask = self.mask(model)
        return sealer_for(self.scheme, self.epoch, mask=mask, threads=self.threads)

    def prepare(self, sealer: Sealer, model: Model, slot: Slot, mode: str) -> None:
        """Compute a dense round's masks ahead of time; meant for another thread."""
        sealer.prepare(slot, self._lanes(model), mode)

    # --- which part of an update is encrypted ---

    def maps(self, model: Model) -> bool:
        """Whether a round from `model` adds up the map that says what is selected."""
        return self.terms.mapped and model.mask is None

    def mask(self, model: Model) -> Support:
        """Which values of an update to `model` are encrypted, where a part is selected."""
        if self.terms.mapped:
            assert model.mask is not None
            return model.mask
        return fixed_mask(self.terms.select, self.layout)

    def _selects(self, model: Model) -> bool:
        return self.terms.select.partial and not self.maps(model)

    def _lanes(self, model: Model) -> int:
        """Integers that are encrypted in a dense round from `model`."""
        lanes = self.terms.map_lanes if self.maps(model) else self.terms.lanes
        return lanes(self.layout)

    # --- what is fitted on earlier sums ---

    def needs_ranges(self, model: Model) -> bool:
        """Whether a round from `model` begins with a sum of mean squares."""
        if self.maps(model):
            return False
        codec = self.terms.codec()
        return codec.needs_ranges(codec.recall(self.layout, model.memory))

    def staged(self, model: Model) -> bool:
        """Whether a round from `model` has more than one stage, or may have to be encrypted again.

        Where only sums of all members open, one that drops out makes the others agree on new keys, and
        encrypt the same update under those. And an update with noise is drawn once: asked for anew in
        every attempt, the same update under fresh noise would be shown by the mean of all. A map is
        made once too: it takes longer than anything.
        """
        terms = self.terms
        once = terms.noise is not None or self.maps(model)
        return terms.sparse or terms.joint or once or self.needs_ranges(model)

    # --- what a client sends ---

    def encode(
        self,
        old: Model,
        trained: Arrays,
        examples: int,
        metrics: Mapping[str, float],
        digest: bytes,
    ) -> Plain:
        """Encode what training changed, or a gradient, in a round of one stage.

        Parameters
        ----------
        old : Model
            The global model that the app started from.
        trained : mapping of str to NDArray
            The app's arrays after training; where the terms say that gradients are sent, those in
            place of the floats, under the same names.
        examples : int
            How many examples it trained on.
        metrics : mapping of str to float
            Training metrics; those that the terms do not name stay here.
        digest : bytes
            `digest(old)`.

        Raises
        ------
        ProtocolError
            Arrays that do not match the layout; noise, which a draft has, once.
        NotFiniteError
            NaN or infinity.
        ClippedError
            Too many clipped values.
        ExamplesError
            An example count that cannot be weighed.
        """
        if self.terms.noise is not None:
            raise ProtocolError("an update with noise is a draft first, or it would be drawn anew")
        codec = self.terms.codec()
        extras = self._extras(old, trained, examples, metrics, self.check_of(digest))
        gradients = self.terms.sends == "gradient"
        parts = self.layout.float_change(trained, old.masters, gradients=gradients)  # never whole
        state = codec.recall(self.layout, old.memory)
        encoded, _ = codec.encode_parts(parts, self.layout.floats, extras, state)
        return self._sent_only(encoded, old)

    # --- what a client sends in the round for the map ---

    def map_of(self, found: Arrays) -> NDArray[np.float32]:
        """A member's sensitivities, by the model's names, as they are added up; see `map_of`."""
        return map_of(self.terms.select, self.layout, found)

    def map_of_change(self, model: Model, trained: Arrays) -> NDArray[np.float32]:
        """How much training changed each value, as such maps are added up; errors as `encode`."""
        gradients = self.terms.sends == "gradient"
        change, _ = self.layout.change(trained, model.masters, gradients=gradients)
        return self.terms.select.normalized(change, reuse=True)

    def draft_map(
        self, model: Model, values: NDArray[np.float32], round_: int, told: bytes = UNTOLD
    ) -> Draft:
        """A map, shape (layout.floats,), as it is encrypted, however often it is asked for."""
        zeros = [0] * self.layout.integers
        extras = self.terms.extras(self.layout).encode(1, {}, zeros)
        base = model.fingerprint()
        return Draft(round_, model.history, values, extras, base=base, told=told)

    def _extras(
        self,
        old: Model,
        trained: Arrays,
        examples: int,
        metrics: Mapping[str, float],
        check: int = 0,
    ) -> NDArray[np.int64]:
        integers = self.layout.integer_change(trained, old.masters)
        weight = examples if self.terms.weighted else min(examples, 1)
        most = most_examples(self.epoch.size)
        if not 0 <= weight <= most:
            raise ExamplesError(f"the app reported a number of examples that is not 0 to {most}")
        if self.terms.noise is not None and weight > max(self.terms.max_examples, 1):
            raise ExamplesError(
                "noise is made for updates that weigh max_examples at most, and this node has more "
                "examples: raise max_examples in the strategy"
            )
        extras = self.terms.extras(self.layout)
        return extras.encode(weight, metrics, integers.tolist(), check)

    def draft(
        self,
        old: Model,
        trained: Arrays,
        examples: int,
        metrics: Mapping[str, float],
        round_: int,
        residual: NDArray[np.float32] | None,
        told: bytes = UNTOLD,
    ) -> Draft:
        """What training changed, or a gradient, and of it, where updates are sparse, what is sent.

        As `encode`, for a round of several stages; `residual` is what earlier rounds did not send,
        `told` the hash of what the app was told.
        """
        codec = self.terms.codec()
        extras = self._extras(old, trained, examples, metrics)
        gradients = self.terms.sends == "gradient"
        change, _ = self.layout.change(trained, old.masters, gradients=gradients)
        state = codec.recall(self.layout, old.memory)
        if not self.terms.sparse:
            if self.terms.noise is not None:
                # Here, and once: what is encrypted again is the same, noise and all.
                add_noise(self, old, change)
            if not np.all(np.isfinite(change)):
                raise_not_finite()
            base = old.fingerprint()
            return Draft(round_, old.history, change, extras, base=base, told=told)
        _, *rest = state.local
        selected, after = codec.select(
            Plain(change, extras), State(state.shared, (residual, *rest))
        )
        return Draft(
            round_,
            old.history,
            selected.values,
            extras,
            selected.coords,
            after.local[0],
            old.fingerprint(),
            told,
        )

    def encode_draft(
        self, draft: Draft, model: Model, state: State, slot: Slot, digest: bytes
    ) -> tuple[Plain, Support | None]:
        """A draft as integers, and which coordinates they are of as the server knows them.

        Parameters
        ----------
        model : Model
            What the draft starts from.
        draft : Draft
            What is to be sent.
        state : State
            From `fit`.
        slot : Slot
            The attempt that it is sent in.
        digest : bytes
            Keyed digest of the model that the draft starts from.
        """
        if self.maps(model):
            codec = self.terms.map_codec()
            encoded, _ = codec.encode(draft.plain(), codec.init(self.layout))
        else:
            codec = self.terms.codec(self.permutation(slot))
            encoded, _ = codec.finish(draft.plain(), state)
        support = None
        if encoded.coords is not None:
            support = Support.of(encoded.coords, self.layout.floats)
        # The check depends on the support; until here its digits were zero.
        quantize = Quantize(self.terms.bits)
        check = np.array([self.check_of(digest, self.epoch.rank, support)], np.int64)
        digits = slice(CHECK * quantize.limbs, (CHECK + 1) * quantize.limbs)
        extras = encoded.extras.copy()
        extras[digits] = quantize.split(check)
        return self._sent_only(encoded._replace(extras=extras), model), support

    def _sent_only(self, encoded: Plain, model: Model) -> Plain:
        """An encoded update with zeros where its scheme sends nothing: tags are of what is sent."""
        if not self._selects(model) or self.terms.clear:
            return encoded
        coords = self.mask(model).coords
        values = np.zeros_like(encoded.values)
        values[coords] = encoded.values[coords]
        return encoded._replace(values=values)

    def support(self, draft: Draft, slot: Slot) -> Support:
        """Which coordinates a draft has, as the server is told in one attempt."""
        assert draft.coords is not None
        coords = draft.coords
        if (permutation := self.permutation(slot)) is not None:
            coords = np.sort(permutation.forward(coords))
        return Support.of(coords, self.layout.floats)

    def seal(
        self,
        sealer: Sealer,
        encoded: Plain,
        slot: Slot,
        claim: Claim,
        mode: str = "",
        support: Support | None = None,
    ) -> Sealed:
        """Encrypt an encoded update, tagged; `claim` is called first and must have reached the disk."""
        whole = tagged(encoded, self.tags(slot), self.epoch.rank, self.terms.bits, support)
        claim(slot.round, slot.attempt)
        return sealer.encrypt(whole, slot, mode=mode, support=support)

    # --- what everybody opens ---

    def open(
        self,
        model: Model,
        total: Sealed,
        record: Record,
        digest: bytes | None = None,
        ranges: Sealed | None = None,
        release: Sequence[bytes] = (),
        told: bytes = UNTOLD,
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
        ranges : Sealed, optional
            The sum that the round's thresholds were fitted on, where they were.
        release : sequence of bytes
            What the senders' masking-key agreement released, where the scheme has one.
        told : bytes
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
        self.check(model, total, ranges, told, base)
        state = fit(self, model, total.slot.round, ranges, record, base, told)
        result = total.digest()
        record(total.slot.round, result, SUM)
        scheme, mask = self._opened_with(model)
        opener = opener_for(scheme, self.epoch, total, release, mask=mask, threads=self.threads)
        values = union_of(total.supports)[1] if total.supports else self.layout.floats
        lanes = open_verified(opener, self.tags(total.slot), self.terms.bits, total, values)
        check = self._expected_check(base, total)
        if self.maps(model):
            return choose(self.terms, model, total, lanes, check)
        codec = self.terms.codec(self.permutation(total.slot))
        return apply(self.terms, codec, model, total, lanes, state, check)

    def _opened_with(self, model: Model) -> tuple[Scheme, Support | None]:
        """The scheme of a round from `model`, and the mask where it has one."""
        if not self._selects(model):
            return self.whole, None
        return self.scheme, self.mask(model)

    def scheme_of(self, model: Model) -> Scheme:
        """The scheme of a round from `model`."""
        return self.scheme if self._selects(model) else self.whole

    def _expected_check(self, base: bytes, total: Sealed) -> int:
        if not total.supports:
            return len(total.senders) * self.check_of(base)
        pairs = zip(total.senders, total.supports, strict=True)
        return sum(self.check_of(base, rank, support) for rank, support in pairs)

    def check(
        self,
        model: Model,
        total: Sealed,
        ranges: Sealed | None = None,
        told: bytes = UNTOLD,
        digest: bytes | None = None,
    ) -> None:
        """Refuse a sum that may not be opened; see `open`."""
        slot = total.slot
        expected = self.slot(model, slot.round, slot.attempt, ranges, told=told, digest=digest)
        self.check_slot(model, slot, expected)
        length = self._lanes(model)
        if total.supports:
            if total.supports[0].length != self.layout.floats:
                raise ProtocolError(f"the sum of round {slot.round} is of another model")
            length = union_of(total.supports)[1] + self.terms.trailer_lanes(self.layout)
        self.check_shape(total, self.scheme_of(model), length, sparse=self.terms.sparse)

    def check_slot(self, model: Model, slot: Slot, expected: Slot) -> None:
        """Refuse a sum of another round, or of what is not expected; ProtocolError."""
        if slot.round <= model.round:
            raise ProtocolError(
                f"got the sum of round {slot.round}, this node's model is at round {model.round}"
            )
        if slot != expected:
            raise ProtocolError(
                f"the sum of round {slot.round} belongs to another run, epoch, parameter set, or to "
                "a model with another history or other weights, or its senders were told otherwise"
            )

    def check_shape(self, total: Sealed, scheme: Scheme, length: int, *, sparse: bool) -> None:
        """Refuse a sum that has another scheme, form or length, or too few senders; see `open`."""
        round_ = total.slot.round
        if total.scheme != scheme.name:
            raise ProtocolError(f"the sum of round {round_} is of another scheme")
        scheme.check_mode(total.mode)
        check_senders(total.senders, scheme.cohort)
        if bool(total.supports) != sparse:
            raise ProtocolError(f"the sum of round {round_} is sparse, or should be")
        if total.length != length:
            raise ProtocolError(f"the sum of round {round_} has another length than the model")
        if total.data.size != scheme.nbytes(total.length):
            raise ProtocolError(f"the sum of round {round_} was cut short or extended")
        need = self.epoch.roster.min_opening
        if len(total.senders) < need:
            raise QuorumError(
                f"the sum of round {round_} has {len(total.senders)} senders, this roster "
                f"opens none of fewer than {need}"
            )


def check_ahead(model: Model, round_: int, reached: int = 0) -> None:
    """Refuse a round that is not one of the next after the model's; ProtocolError.

    `reached` is the last round that came to anything here: those that follow are never out of reach.
    """
    last = max(model.round, reached)
    if not model.round < round_ <= last + MAX_AHEAD:
        raise ProtocolError(
            f"round {round_} is not one of the {MAX_AHEAD} after this node's, {last}"
        )
