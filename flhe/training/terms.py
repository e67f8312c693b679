"""Terms: the public parameters that all members of a federation share.

The strategy announces them; a node checks them against its own policy and hashes them into every key
and signature of a round, so members with different terms cannot even decrypt each other's sums.
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
from flhe.wire.record import Form, Record

VERSION = 9
MAX_BYTES = 1 << 17
MAX_METRICS = 64
MAX_NAME = 128

TRAIN_METRICS = ("train_loss", "train_accuracy", "train_acc", "loss", "accuracy")
"""Training metrics that are averaged by default, where the app reports them."""

EVALUATE_METRICS = tuple(
    prefix + name
    for prefix in ("", "eval_", "val_", "test_")
    for name in ("loss", "accuracy", "acc")
)
"""Likewise, of what it reports when it evaluates."""


@dataclass(frozen=True, slots=True)
class Terms(Record):
    """Everything public that decides how updates are encoded and encrypted.

    Parameters
    ----------
    scheme : Scheme
        The system, with its own parameters.
    codec : Chain
        From an update to integers that add, and back; see `update_codec`.
    optimizer : Optimizer
        What every client makes of the mean update: FedAvg adds it. Of a mean gradient, which an app's
        reply then holds in place of the model after training: a step of its own optimizer (FedSGD).
    select : Select
        Which part of an update is encrypted, under any scheme; all of it by default.
    noise : Laplace or None
        Noise that each client adds to its update, after clipping.
    metrics, evaluated : tuple[str, ...]
        Names of the metrics that are averaged under encryption, of training and of evaluation; at most
        64 each.
    arrays_key, weight_key : str
        Where a message to the app holds the model, and a reply the example count. They are terms,
        because whoever may change them from message to message chooses what is trained and weighed.
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
        self.for_cohort(max(2, self.scheme.threshold_of(2)))  # the smallest that it takes
        Extras(self.metrics)
        Extras(self.evaluated)

    def _check_select(self) -> None:
        if self.codec.sparse:
            raise ConfigError(
                "select with top_k: clients choose other values each, and only what all send is added "
                'up; use Select(ratio, "magnitude", rest="drop") for one choice of the group, or leave '
                "one out"
            )
        if self.scheme.reader == "server":
            raise ConfigError(
                "select where the server reads sums: it reads the sum of everything anyway; let the "
                "clients read them, or leave select out"
            )
        if self.scheme.agreement == "shares":
            raise ConfigError(
                f"select with {self.scheme.title}: members decrypt whole sums, and do not know "
                "a part of one; leave select out, or use another scheme"
            )
        if self.select.clear and self.codec.weighted:
            raise ConfigError(
                "select with weighted=True: values in clear are multiples of a client's example count, "
                'and show it; use weighted=False, or rest="drop", or encrypt all'
            )

    def _check_noise(self, noise: Laplace) -> None:
        if self.codec.fitting:
            raise ConfigError(
                "noise with clipping thresholds that are fitted: what noise is worth depends on "
                "thresholds that are known beforehand; give clip as a number, or numbers by layer"
            )
        if self.codec.sparse:
            raise ConfigError(
                "noise with top_k: which values are sent would tell of them; leave top_k out"
            )
        if noise.scope == "clear" and not self.select.clear:
            raise ConfigError(
                'noise of scope "clear", and nothing travels in clear: use scope="all", or leave noise '
                "out"
            )

    def _check_privacy(self) -> None:
        if self.select.partial or self.noise is not None:
            raise ConfigError(
                "differential privacy with select or Laplace noise: what a map or a part in clear "
                "tells has none of the noise that is accounted for; leave them out"
            )
        if self.codec.sparse or self.codec.fitting:
            raise ConfigError(
                "differential privacy with top_k or fitted thresholds: which values are sent, and sums "
                "of squares, would tell of the data without noise; leave them out"
            )

    def _check_scheme(self) -> None:
        """Refuse what scheme, codec and optimizer do not go together with; ConfigError."""
        scheme, codec = self.scheme, self.codec
        if not codec.makes_integers:
            raise ConfigError(
                "the codec gives no integers, and schemes add those: end the chain with Quantize(bits)"
            )
        if not codec.max_examples:
            raise ConfigError(
                "the codec takes no mean of what is added: put Weigh(max_examples) into the chain, or "
                "Weigh(1) for equal weights"
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
        """Return what a user must know of a part that travels in clear; None where all is encrypted."""
        if not self.select.clear:
            return None
        noise = self.noise
        what = f"with Laplace noise of scale {noise.scale:g}" if noise else "without noise"
        return (
            f"a part of each update leaves in clear {what} ({describe(self.select)}): what is in "
            "clear is not private in any accounted sense, with noise or without. What it shows of the "
            "training data depends on model and data; measure it with an attack (`flhe audit`), or "
            "encrypt all (select=1.0)"
        )

    def resolved(self, cohort: int) -> Terms:
        """These terms for an epoch of `cohort` members: with the bits that it leaves room for."""
        if not 2 <= cohort <= MAX_COHORT:
            return self
        scheme, bits = self.scheme.settle(cohort, self.bits)
        known = (scheme, bits) == (self.scheme, self.bits)
        return self if known else replace(self, scheme=scheme, codec=self.codec.settled(bits))

    @property
    def bits(self) -> int:
        """Bits of one value; 0 where the cohort is to say."""
        return self.codec.bits

    @property
    def tagged(self) -> bool:
        """Whether what is encrypted ends with tags, by which members know a sum for what it is.

        Where the server reads the sums there is nothing that it could not make up.
        """
        return self.scheme.reader == "clients"

    def for_cohort(self, cohort: int, public: bytes = b"") -> Adder:
        """The adder for `cohort` members, checked against the codec.

        `public` is the epoch's public key, encoded, where the scheme has one: nothing is added without
        it. Or what its members call the sum of their keys.

        Raises ConfigError: a cohort or bits that the scheme refuses; MisfitError: codec and scheme do
        not go together for so many members; ProtocolError: a public key that is none, or has another
        length than these terms say.
        """
        terms = self.resolved(cohort)
        adder = terms.scheme.adder(cohort, terms.bits, public)
        fits(terms.codec, adder, cohort)
        return adder

    def selective(self, whole: Adder, layout: Layout) -> Adder:
        """The adder of an update: `whole`, or that for the selected part of it.

        `whole` is what `for_cohort` gives, and what all else is encrypted under. ConfigError where
        nothing of this layout is selected.
        """
        if not self.select.partial:
            return whole
        count = self.select.count(layout)
        return Selective(whole, layout.floats, count, clear=self.select.clear)

    def extras(self, layout: Layout) -> Extras:
        """What travels beside the values."""
        return Extras(self.metrics, layout.integers)

    def lanes(self, layout: Layout) -> int:
        """Integers that are encrypted of a dense update: values, all or selected, extras, tags."""
        values = self.select.count(layout) if self.select.partial else layout.floats
        return values + self.trailer_lanes(layout)

    def extra_lanes(self, layout: Layout) -> int:
        """Integers that carry the extras of an update."""
        return self.codec.lanes(self.extras(layout).length, layout)

    @property
    def tag_lanes(self) -> int:
        """Integers that carry the tags of a vector."""
        return sum_mac.lanes(self.bits) if self.tagged else 0

    def trailer_lanes(self, layout: Layout) -> int:
        """Integers behind the values of an update: extras, then tags."""
        return self.extra_lanes(layout) + self.tag_lanes

    def layout_hash(self, layout: Layout, adder: Adder) -> bytes:
        """SHA-256 over names, shapes, dtypes, these terms, and the adder's parameters."""
        return layout.hash(self.to_bytes(), adder.parameters())
