"""Facts of a round: what each member of an epoch knows of it, in public and under the group key.

A round starts from the model with the history that its slot names. Rounds that came to nothing leave no
trace in it: the next one starts from the same model under the next number. A round whose thresholds are
fitted on a sum of mean squares names that sum in its slot, so nobody's update is added to one that was
clipped otherwise.
"""

from __future__ import annotations

import hmac
import os
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

from flhe.coding.flatten import Layout
from flhe.coding.support import Support
from flhe.keys.agreement.epoch import Epoch
from flhe.math.permutation import Permutation
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Sealed, Slot
from flhe.schemes.selective import Selective
from flhe.schemes.sum_mac import SumMac
from flhe.training.model import Model
from flhe.training.selection import fixed_mask
from flhe.training.start import NO_APP_INPUTS, fitted_layout, mean_squares_layout, start_layout
from flhe.training.terms import Terms
from flhe.wire.derive import hkdf

THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Facts:
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
    whole: Adder = field(init=False)
    """The adder of whole vectors, and of all that is no update."""
    adder: Adder = field(init=False)
    """The adder of an update: that of the selected part of it, where a part is selected."""
    layout_hash: bytes = field(init=False)
    threads: ClassVar[int] = THREADS

    def __post_init__(self) -> None:
        terms = self.terms.resolved(self.epoch.size)
        whole = terms.for_cohort(self.epoch.size, self.epoch.scheme_public)
        adder = terms.selective(whole, self.layout)
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "whole", whole)
        object.__setattr__(self, "adder", adder)
        object.__setattr__(self, "layout_hash", self.terms.layout_hash(self.layout, adder))

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
        mean_squares: Sealed | None = None,
        *,
        app_inputs_hash: bytes = NO_APP_INPUTS,
        digest: bytes | None = None,
    ) -> Slot:
        """The slot of one attempt at a round that starts from `model`.

        Parameters
        ----------
        model : Model
            The model before the round.
        round_, attempt : int
            Which.
        mean_squares : Sealed, optional
            The sum that the round's thresholds are fitted on, where they are.
        app_inputs_hash : bytes
            Hash of what the app was told; see `flhe.training.start`.
        digest : bytes, optional
            `digest(model)`, where it is known; computed otherwise.
        """
        base = self.digest(model) if digest is None else digest
        layout_hash = start_layout(self.layout_hash, app_inputs_hash, base)
        if mean_squares is not None:
            layout_hash = fitted_layout(layout_hash, mean_squares.digest())
        return replace(self.place(model, round_, attempt), layout_hash=layout_hash)

    def mean_squares_slot(
        self,
        model: Model,
        round_: int,
        attempt: int,
        *,
        app_inputs_hash: bytes = NO_APP_INPUTS,
        digest: bytes | None = None,
    ) -> Slot:
        """The slot of an attempt's mean squares: they have masks of their own."""
        slot = self.slot(model, round_, attempt, app_inputs_hash=app_inputs_hash, digest=digest)
        return replace(slot, layout_hash=mean_squares_layout(slot.layout_hash))

    def permutation(self, slot: Slot) -> Permutation | None:
        """The secret order of coordinates in one attempt; None where they keep their places."""
        if not self.terms.codec.hides:
            return None
        key = hkdf(self.epoch.group_key, "permutation", *slot.context())
        return Permutation(key, self.layout.floats)

    def digest(self, model: Model) -> bytes:
        """Keyed digest of a model, 32 bytes: equal for members that have the same, to the last bit.

        HMAC-SHA256 over the model's encoding (round, history, layout, arrays, moments) under a key of
        the group. The server sees which members agree and cannot test guesses. Where it reads the sums,
        it has the model anyway: then this is the model's public history.
        """
        if self.terms.scheme.reader == "server":
            return model.history
        epoch = self.epoch
        key = hkdf(epoch.group_key, "digest", epoch.run_id, epoch.roster.hash, epoch.id)
        mac = hmac.new(key, digestmod="sha256")
        for chunk in model.chunks():
            mac.update(chunk)
        return mac.digest()

    def tags(self, slot: Slot) -> SumMac | None:
        """Tags of one sum; None where these terms have none."""
        if not self.terms.tagged:
            return None
        return SumMac(self.epoch.group_key, slot, self.layout.floats, self.threads)

    def check_of(self, digest: bytes, rank: int = 0, support: Support | None = None) -> int:
        """What stands for a digest inside the sum: 31 bits that nobody outside the group knows.

        The digest itself travels in clear; a relay that knew this would mend a sum over two models. Of
        a sparse vector it stands for the sender's support too, which a relay might otherwise change.
        Where the server reads, it is 0: nobody keeps anything from it.
        """
        if self.terms.scheme.reader == "server":
            return 0
        epoch = self.epoch
        bound = () if support is None else (rank, support.digest())
        scope = (epoch.run_id, epoch.roster.hash, epoch.id)
        derived = hkdf(epoch.group_key, "check", *scope, digest, *bound)
        return int.from_bytes(derived[:4], "big") >> 1

    # --- which part of an update is encrypted ---

    def maps(self, model: Model) -> bool:
        """Whether a round from `model` adds up the map that says what is selected."""
        return self.terms.select.mapped and model.mask is None

    def mask(self, model: Model) -> Support:
        """Which values of an update to `model` are encrypted, where a part is selected."""
        if self.terms.select.mapped:
            assert model.mask is not None
            return model.mask
        return fixed_mask(self.terms.select, self.layout)

    def _selects(self, model: Model) -> bool:
        return self.terms.select.partial and not self.maps(model)

    def adder_of(self, model: Model) -> Adder:
        """The adder of a round from `model`, with the mask of what is selected."""
        if not self._selects(model):
            return self.whole
        return replace(cast(Selective, self.adder), mask=self.mask(model))

    def _lanes(self, model: Model) -> int:
        """Integers that are encrypted in a dense round from `model`."""
        lanes = self.terms.map_lanes if self.maps(model) else self.terms.lanes
        return lanes(self.layout)

    # --- what is fitted on earlier sums ---

    def needs_mean_squares(self, model: Model) -> bool:
        """Whether a round from `model` begins with a sum of mean squares."""
        if self.maps(model):
            return False
        codec = self.terms.codec
        return codec.needs_mean_squares(codec.recall(self.layout, model.memory))

    def staged(self, model: Model) -> bool:
        """Whether a round from `model` has more than one stage, or may have to be encrypted again.

        Where only sums of all members open, one that drops out makes the others agree on new keys, and
        encrypt the same update under those. And an update with noise is drawn once: asked for anew in
        every attempt, the same update under fresh noise would be shown by the mean of all. A map is
        made once too: it takes longer than anything.
        """
        terms = self.terms
        once = terms.noise is not None or self.maps(model)
        return (
            terms.codec.sparse
            or terms.scheme.needs_all_members
            or once
            or self.needs_mean_squares(model)
        )
