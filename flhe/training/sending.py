"""Sending: from what the app trained to integers that add, in two steps.

    draft      old model, trained arrays -> what is to be sent   select, on the client's own disk
    encode     draft -> integers, and their support             clip, weigh, quantize, permute

A vector is encoded, and NaN refused, before its mask is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.extras import CHECK
from flhe.coding.finite import raise_not_finite
from flhe.coding.flatten import Arrays
from flhe.coding.quantize import Quantize
from flhe.coding.support import Support
from flhe.coding.weigh import most_examples
from flhe.errors import ExamplesError, ProtocolError
from flhe.keys.roles import sealer_for
from flhe.schemes.base import Sealer
from flhe.schemes.sealed import Slot
from flhe.sums.secure_sum import SecureSum
from flhe.training.draft import Draft
from flhe.training.facts import Facts
from flhe.training.model import Model
from flhe.training.noising import add_noise
from flhe.training.start import NO_APP_INPUTS


class Sending(Facts):
    """What a client sends."""

    __slots__ = ()

    def sealer(self, of: SecureSum | None = None) -> Sealer:
        """This member's sealer of a sum, or of whole vectors."""
        adder = self.sums.whole if of is None else of.adder
        return sealer_for(adder, self.epoch, threads=self.threads)

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
        codec = self.terms.codec
        extras = self._extras(old, trained, examples, metrics, self.check_of(digest))
        gradients = self.terms.sends_gradients
        parts = self.layout.float_change(trained, old.masters, gradients=gradients)  # never whole
        state = codec.recall(self.layout, old.memory)
        encoded, _ = codec.encode_parts(parts, self.layout.floats, extras, state)
        return self._sent_only(encoded, old)

    def _extras(
        self,
        old: Model,
        trained: Arrays,
        examples: int,
        metrics: Mapping[str, float],
        check: int = 0,
    ) -> NDArray[np.int64]:
        integers = self.layout.integer_change(trained, old.masters)
        weight = examples if self.terms.codec.weighted else min(examples, 1)
        most = most_examples(self.epoch.size)
        if not 0 <= weight <= most:
            raise ExamplesError(f"the app reported a number of examples that is not 0 to {most}")
        if self.terms.noise is not None and weight > self.terms.codec.max_examples:
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
        app_inputs_hash: bytes = NO_APP_INPUTS,
    ) -> Draft:
        """What training changed, or a gradient, and of it, where updates are sparse, what is sent.

        As `encode`, for a round of several stages; `residual` is what earlier rounds did not send,
        `app_inputs_hash` the hash of what the app was told.
        """
        codec = self.terms.codec
        extras = self._extras(old, trained, examples, metrics)
        gradients = self.terms.sends_gradients
        change, _ = self.layout.change(trained, old.masters, gradients=gradients)
        state = codec.recall(self.layout, old.memory)
        if not self.terms.codec.sparse:
            if self.terms.noise is not None:
                # Here, and once: what is encrypted again is the same, noise and all.
                add_noise(self, old, change)
            if not np.all(np.isfinite(change)):
                raise_not_finite()
            base = old.fingerprint()
            return Draft(
                round_, old.history, change, extras, base=base, app_inputs_hash=app_inputs_hash
            )
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
            app_inputs_hash,
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
        kind, order = self.ending(model), self.permutation(slot)
        encoded = kind.encode(self.terms, self.layout, draft.plain(), state, order)
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
        select = self.terms.select
        if not select.partial or select.clear or self.maps(model):
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
