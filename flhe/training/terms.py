"""Terms: public parameters that all members of a federation share.

The strategy announces them. A node checks them against its own policy and hashes them into every
key and signature of a round. So members with different terms cannot decrypt each other's sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flhe.coding.extras import Extras
from flhe.coding.flatten import Layout
from flhe.coding.laplace import Laplace
from flhe.coding.registry import ChainField
from flhe.coding.select import Select, describe
from flhe.coding.update import update_codec
from flhe.errors import ConfigError
from flhe.schemes import DEFAULT, sum_mac
from flhe.schemes.base import MAX_COHORT, Adder, fits
from flhe.schemes.registry import SCHEMES, SchemeField
from flhe.schemes.selective import Selective
from flhe.training.optimizer import Optimizer
from flhe.wire.record import Form, Kept

VERSION = 9
MAX_BYTES = 1 << 17
MAX_METRICS = 64
MAX_NAME = 128

TRAIN_METRICS = ("train_loss", "train_accuracy", "train_acc", "loss", "accuracy")
"""Training metrics that are averaged by default, if the app reports them."""

EVALUATE_METRICS = tuple(
    prefix + name
    for prefix in ("", "eval_", "val_", "test_")
    for name in ("loss", "accuracy", "acc")
)
"""Likewise, for evaluation."""


@dataclass(frozen=True, slots=True)
class Terms(Kept):
    """Public parameters of an update's encoding and encryption.

    Parameters
    ----------
    scheme : Scheme
        The scheme with its own parameters.
    codec : Chain
        Codec between updates and integers; see `update_codec`.
    optimizer : Optimizer
        Step that every client takes with the mean update: FedAvg adds it. If apps reply with a
        gradient in place of the trained model, the optimizer steps with its mean (FedSGD).
    select : Select
        Encrypted part of an update, under any scheme; all of it by default.
    noise : Laplace or None
        Noise that each client adds to its update, after clipping.
    metrics, evaluated : tuple[str, ...]
        Names of the metrics that are averaged under encryption, of training and of evaluation; at most
        64 each.
    arrays_key, weight_key : str
        Names of the model in a message to the app, and of the example count in a reply. They are
        terms, because a server free to change them would choose what is trained and weighed.
    """

    FORM = Form("terms", MAX_BYTES, version=VERSION, error=ConfigError)

    scheme: SchemeField = field(default_factory=SCHEMES.named(DEFAULT))
    codec: ChainField = field(default_factory=update_codec)
    optimizer: Optimizer = field(default_factory=Optimizer)
    select: Select = field(default_factory=Select)
    noise: Laplace | None = None
    metrics: tuple[str, ...] = TRAIN_METRICS
    arrays_key: str = "arrays"
    weight_key: str = "num-examples"
    evaluated: tuple[str, ...] = EVALUATE_METRICS

    def _validate(self) -> None:
        names = (*self.metrics, *self.evaluated, self.arrays_key, self.weight_key)
        most = max(len(self.metrics), len(self.evaluated))
        if most > MAX_METRICS or not all(1 <= len(n) <= MAX_NAME for n in names):
            raise ConfigError(
                f"Terms: at most {MAX_METRICS} metrics, names of 1 to {MAX_NAME} characters"
            )
        if self.select.partial:
            self._check_select()
        if self.noise is not None:
            self._check_noise(self.noise)
        if self.codec.mechanism is not None:
            self._check_privacy()
        self._check_scheme()
        self.for_cohort(max(2, self.scheme.threshold_of(2)))  # the smallest cohort that it takes
        Extras(self.metrics)
        Extras(self.evaluated)

    def _check_select(self) -> None:
        if self.codec.sparse:
            raise ConfigError(
                "select with top_k: clients choose different values, and only those that all "
                'send are added; use Select(ratio, "magnitude", rest="drop") for one choice '
                "of the group, or leave one out"
            )
        if self.scheme.reader == "server":
            raise ConfigError(
                "select where the server reads sums: it reads all values anyway; let the clients "
                "read them, or leave select out"
            )
        if self.scheme.agreement == "shares":
            raise ConfigError(
                f"select with {self.scheme.title}: members decrypt whole sums only; leave select "
                "out, or use another scheme"
            )
        if self.select.clear and self.codec.weighted:
            raise ConfigError(
                "select with weighted=True: values in clear are multiples of a client's example "
                'count, and reveal it; use weighted=False, or rest="drop", or encrypt all'
            )

    def _check_noise(self, noise: Laplace) -> None:
        if self.codec.fitting:
            raise ConfigError(
                "noise with fitted clipping thresholds: the protection of noise depends on "
                "thresholds known beforehand; give clip as a number, or numbers by layer"
            )
        if self.codec.sparse:
            raise ConfigError(
                "noise with top_k: the choice of sent values would reveal them; leave top_k out"
            )
        if noise.scope == "clear" and not self.select.clear:
            raise ConfigError(
                'noise of scope "clear", and nothing travels in clear: use scope="all", or leave noise '
                "out"
            )

    def _check_privacy(self) -> None:
        if self.select.partial or self.noise is not None:
            raise ConfigError(
                "differential privacy with select or Laplace noise: a map or a part in clear has "
                "none of the accounted noise; leave them out"
            )
        if self.codec.sparse or self.codec.fitting:
            raise ConfigError(
                "differential privacy with top_k or fitted thresholds: the choice of values, and "
                "sums of squares, would reveal data without noise; leave them out"
            )
        if self.codec.of_gradients and not self.optimizer.gradients:
            raise ConfigError(
                f"differential privacy of records with optimizer {self.optimizer.name!r}: it is "
                "accounted for where apps send one clipped gradient a record; use "
                'Optimizer("sgd", lr=...), "adam" or "rmsprop"'
            )

    def _check_scheme(self) -> None:
        """Refuse combinations of scheme, codec and optimizer that do not work; ConfigError."""
        scheme, codec = self.scheme, self.codec
        if not codec.makes_integers:
            raise ConfigError(
                "the codec must give integers, because schemes add those: end the chain with "
                "Quantize(bits)"
            )
        if not codec.max_examples:
            raise ConfigError(
                "the codec must take a mean: put Weigh(max_examples) into the chain, or Weigh(1) "
                "for equal weights"
            )
        if self.optimizer.gradients and (codec.sparse or scheme.reader == "server"):
            raise ConfigError(
                f"optimizer {self.optimizer.name!r}: every client steps for itself with the sum of all "
                "gradients; leave sparsification out, and sums to the clients"
            )
        if codec.sparse and scheme.dense:
            raise ConfigError(
                f"sparse updates with {scheme.title}: {scheme.dense}, so all clients must send all "
                "values; leave top_k out, or use a scheme that carries sparse updates"
            )
        if codec.fitting and scheme.opened_together:
            raise ConfigError(
                f"fitted clipping thresholds with {scheme.title} and fresh keys for each sum: they are "
                "fitted on sums that members open among themselves; give clip as a number, or numbers "
                "by layer"
            )

    def clear_warning(self) -> str | None:
        """Return a warning about the part in clear, or None if all is encrypted."""
        if not self.select.clear:
            return None
        noise = self.noise
        what = f"with Laplace noise of scale {noise.scale:g}" if noise else "without noise"
        return (
            f"a part of each update leaves in clear {what} ({describe(self.select)}): this part "
            "is not private in any accounted sense, with noise or without. How much it reveals "
            "of the training data depends on model and data; measure it with an attack (`flhe "
            "audit`), or encrypt all (select=1.0)"
        )

    def resolved(self, cohort: int) -> Terms:
        """Return these terms for an epoch of `cohort` members, with the bits that fit it."""
        if not 2 <= cohort <= MAX_COHORT:
            return self
        scheme, bits = self.scheme.settle(cohort, self.bits)
        known = (scheme, bits) == (self.scheme, self.bits)
        return self if known else replace(self, scheme=scheme, codec=self.codec.settled(bits))

    @property
    def bits(self) -> int:
        """Bits of one value; 0 if they depend on the cohort."""
        return self.codec.bits

    @property
    def tagged(self) -> bool:
        """True if vectors end with tags, by which members authenticate a sum.

        No tags if the server reads the sums: it could forge any of them.
        """
        return self.scheme.reader == "clients"

    def for_cohort(self, cohort: int, public: bytes = b"") -> Adder:
        """Return the adder for `cohort` members, checked against the codec.

        `public` is the epoch's encoded public key, which schemes with one need for adding, or the
        name of the sum of its members' keys.

        Raises ConfigError: a cohort or bits that the scheme refuses; MisfitError: codec and scheme
        do not fit so many members; ProtocolError: an invalid public key, or one whose length
        differs from these terms.
        """
        terms = self.resolved(cohort)
        adder: Adder = terms.scheme.adder(cohort, terms.bits, public)
        fits(terms.codec, adder, cohort)
        return adder

    def selective(self, whole: Adder, layout: Layout) -> Adder:
        """Return the adder of an update: `whole`, or one for its selected part.

        `whole` comes from `for_cohort`, for all other sums. ConfigError if nothing of this layout
        is selected.
        """
        if not self.select.partial:
            return whole
        count = self.select.count(layout)
        return Selective(whole, layout.floats, count, clear=self.select.clear)

    def extras(self, layout: Layout) -> Extras:
        """Return the extras beside the values."""
        return Extras(self.metrics, layout.integers)

    def lanes(self, layout: Layout) -> int:
        """Return the encrypted integers of a dense update: values, all or selected, extras, tags."""
        values = self.select.count(layout) if self.select.partial else layout.floats
        return values + self.trailer_lanes(layout)

    def extra_lanes(self, layout: Layout) -> int:
        """Return the number of integers for the extras of an update."""
        return self.codec.lanes(self.extras(layout).length, layout)

    @property
    def tag_lanes(self) -> int:
        """Number of integers for the tags of a vector."""
        return sum_mac.lanes(self.bits) if self.tagged else 0

    def trailer_lanes(self, layout: Layout) -> int:
        """Return the number of integers after the values of an update: extras, then tags."""
        return self.extra_lanes(layout) + self.tag_lanes

    def layout_hash(self, layout: Layout, adder: Adder) -> bytes:
        """Return SHA-256 over names, shapes, dtypes, these terms, and the adder's parameters."""
        return layout.hash(self.to_bytes(), adder.parameters())
