"""Facts of a round: what each member of an epoch knows of it, in public and under the group key.

A round starts from the model with the history that its slot names. Rounds that came to nothing leave no
trace in it: the next one starts from the same model under the next number. A round whose thresholds are
fitted on a sum of mean squares names that sum in its slot, so nobody's update is added to one that was
clipped otherwise.
"""

from __future__ import annotations

import functools
import hmac
import os
from dataclasses import dataclass, field
from typing import ClassVar

from flhe.coding.flatten import Layout
from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.keys.agreement.epoch import Epoch
from flhe.math.permutation import Permutation
from flhe.schemes.sealed import Sealed, Slot
from flhe.sums.secure_sum import SecureSum
from flhe.training.epoch_sums import EpochSums
from flhe.training.kind import Ending, Kind
from flhe.training.model import Model
from flhe.training.sensitivity import SENSITIVITY
from flhe.training.start import NO_APP_INPUTS, Start
from flhe.training.terms import Terms
from flhe.training.update import UPDATE
from flhe.wire.derive import hkdf

THREADS = min(4, os.cpu_count() or 1)


@functools.lru_cache(maxsize=2)
def fixed_mask(select: Select, layout: Layout) -> Support:
    """The selection of a rule that needs no map; see `Select.fixed`."""
    return select.fixed(layout)


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
    sums: EpochSums = field(init=False)
    """What the server knows of the epoch's sums, too."""
    threads: ClassVar[int] = THREADS

    def __post_init__(self) -> None:
        epoch = self.epoch
        sums = EpochSums(
            self.terms,
            self.layout,
            epoch.run_id,
            epoch.roster.hash,
            epoch.id,
            epoch.number,
            epoch.size,
            epoch.scheme_public,
        )
        object.__setattr__(self, "sums", sums)
        object.__setattr__(self, "terms", sums.terms)

    def place(self, model: Model, round_: int, attempt: int) -> Slot:
        """Which attempt at which round, whatever was told: for looking up claims, never for masks."""
        epoch = self.epoch
        sums = self.sums
        return Slot(
            epoch.run_id,
            epoch.roster.hash,
            epoch.id,
            round_,
            attempt,
            sums.layout_hash,
            model.history,
        )

    def sum(
        self,
        model: Model,
        round_: int,
        attempt: int,
        mean_squares: Sealed | None = None,
        *,
        kind: Kind | None = None,
        app_inputs_hash: bytes = NO_APP_INPUTS,
        digest: bytes | None = None,
    ) -> SecureSum:
        """A sum of one attempt at a round that starts from `model`.

        Parameters
        ----------
        model : Model
            The model before the round.
        round_, attempt : int
            Which.
        mean_squares : Sealed, optional
            The sum that the round's thresholds are fitted on, where they are.
        kind : Kind, optional
            What it is of; the one that ends the round unless said.
        app_inputs_hash : bytes
            Hash of what the app was told; see `flhe.training.start`.
        digest : bytes, optional
            `digest(model)`, where it is known; computed otherwise.
        """
        kind = kind or self.ending(model)
        return self.sums.sum(
            kind,
            round_,
            attempt,
            model.history,
            Start(app_inputs_hash, self.digest(model) if digest is None else digest),
            b"" if mean_squares is None else mean_squares.digest(),
            self.mask(model) if kind.partial and self.terms.select.partial else None,
        )

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

    def ending(self, model: Model) -> Ending:
        """What a round from `model` ends with."""
        return SENSITIVITY if self.maps(model) else UPDATE

    def maps(self, model: Model) -> bool:
        """Whether a round from `model` adds up the map that says what is selected."""
        return self.terms.select.mapped and model.mask is None

    def mask(self, model: Model) -> Support:
        """Which values of an update to `model` are encrypted, where a part is selected."""
        if self.terms.select.mapped:
            assert model.mask is not None
            return model.mask
        return fixed_mask(self.terms.select, self.layout)

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
