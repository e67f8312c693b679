"""Terms: the public parameters that all members of a federation share.

The strategy announces them; a node checks them against its own policy and hashes them into every key
and signature of a round, so members with different terms cannot even decrypt each other's sums.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from flhe.coding.base import Codec
from flhe.coding.chain import Chain, chain
from flhe.coding.clip import Clip
from flhe.coding.extras import FIXED, Extras
from flhe.coding.flatten import Layout
from flhe.coding.laplace import Laplace
from flhe.coding.permute import Permute
from flhe.coding.quantize import Quantize
from flhe.coding.select import Select
from flhe.coding.sparsify import TopK
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError
from flhe.math.permutation import Permutation
from flhe.schemes import sum_mac as sum_tags
from flhe.schemes.base import Reader, Scheme, fits
from flhe.schemes.batchcrypt.scheme import DEFAULT_KEY_BITS
from flhe.schemes.esafl.scheme import Esafl, Keys
from flhe.schemes.fedml_he.ring import FedmlHe
from flhe.schemes.flashe.scheme import Flashe, Masking
from flhe.schemes.presets import DEFAULT_CKKS, DEFAULT_ESHE, DEFAULT_SASH
from flhe.schemes.sash.scheme import Sash, Unmask
from flhe.schemes.selective import Selective
from flhe.schemes.shell import MAX_COHORT
from flhe.training import scheme_terms, select_terms
from flhe.training.optimizer import ServerOptimizer
from flhe.training.optimizers import Optimizer
from flhe.training.optimizers import from_parameters as optimizer_from
from flhe.wire.fields import As
from flhe.wire.record import Form, Record

VERSION = 7
MAX_BYTES = 1 << 20
MAX_METRICS = 64
MAX_NAME = 128
Sends = Literal["update", "gradient"]
FITTED = ("history", "exchange")
"""What clipping thresholds may be fitted on."""

BUILT = ("flashe", "sash", "batchcrypt", "esafl", "fedml-he")
"""Schemes of this version."""


Thresholds = float | Mapping[str, float] | Literal["history", "exchange"]
"""A clipping threshold, one for each layer, or what they are fitted on."""

TRAIN_METRICS = ("train_loss", "train_accuracy", "train_acc", "loss", "accuracy")
"""Training metrics that are averaged by default, where the app reports them."""


def _thresholds_fields(clip: Thresholds) -> Any:
    """Floats as exact text."""
    if isinstance(clip, Mapping):
        return [[name, float(alpha).hex()] for name, alpha in clip.items()]
    return clip if isinstance(clip, str) else float(clip).hex()


def _thresholds_from(stored: Any) -> Thresholds:
    if isinstance(stored, list):
        return {str(name): float.fromhex(alpha) for name, alpha in stored}
    return stored if stored in FITTED else float.fromhex(stored)


@dataclass(frozen=True, slots=True)
class Terms(Record):
    """Everything public that decides how updates are encoded and encrypted.

    Parameters
    ----------
    scheme : "flashe", "sash", "batchcrypt", "esafl" or "fedml-he"
        The system.
    bits : int
        Bits of one quantized value, sign included, 2 to 32; 0 with SASH and ESAFL takes as many as
        the members of an epoch leave room for at no cost.
    clip : float, mapping of str to float, "history" or "exchange"
        Clipping threshold alpha in the update's own units; or what it is fitted on, see `Clip`.
    max_examples : int
        Example count from which on a client uses the whole range of values; see `Weigh`.
    weighted : bool
        Weigh updates by example counts, as FedAvg does; False gives every client the same weight.
    masking : "double", "single" or "adaptive"
        FLASHE's masking; see `Flashe`.
    metrics : tuple[str, ...]
        Names of the training metrics that are averaged under encryption; at most 64.
    arrays_key, weight_key : str
        Where a message to the app holds the model, and a reply the example count. They are terms,
        because whoever may change them from message to message chooses what is trained and weighed.
    optimizer : ServerOptimizer or ClientOptimizer
        What every client makes of the mean update: FedAvg adds it. Of a mean gradient: a step of
        its own optimizer.
    top_k : float or None
        Share of each layer's values that a client sends; None sends all. See `TopK`.
    warmup : int
        Rounds at each larger share before `top_k`.
    permute : bool
        Hide from the server which coordinates a sparse update has; see `Permute`.
    unmask : "server" or "clients"
        Who reads SASH's sums; see `Sash`.
    preset : str
        Parameters of SASH's generator; see `flhe.schemes.presets`.
    key_bits : int
        BatchCrypt: length of Paillier's modulus; see `BatchCrypt`.
    advance : bool
        BatchCrypt: advance scaling (Sec. 4.3). `bits` then has room for the sum of all members, so each
        of them quantizes with ceil(log2 N) bits less and a slot is as many bits narrower.
    sends : "update" or "gradient"
        What a client's reply holds: the model after training, whose change is sent (model averaging);
        or a gradient, which every client then applies with its own optimizer (FedSGD).
    ring : str
        ESAFL: parameters of its ring; see `flhe.schemes.presets`.
    keys : "joint", "round" or "dealt"
        ESAFL: where keys come from. Members make them once an epoch, or agree on fresh ones in
        each round, or are dealt them offline; see `Esafl`.
    ckks_ring : str
        FedML-HE: parameters of CKKS; see `flhe.schemes.presets`.
    select : Select
        Which part of an update is encrypted, under any scheme; all of it by default.
    noise : Laplace or None
        Noise that each client adds to its update, after clipping.
    """

    FORM = Form("terms", MAX_BYTES, version=VERSION, error=ConfigError)

    scheme: str = "flashe"
    bits: int = 16
    clip: Annotated[Thresholds, As(_thresholds_fields, _thresholds_from, "thresholds")] = 1.0
    max_examples: int = 10_000
    weighted: bool = True
    masking: Masking = "double"
    metrics: tuple[str, ...] = TRAIN_METRICS
    arrays_key: str = "arrays"
    weight_key: str = "num-examples"
    optimizer: Annotated[
        Optimizer, As(lambda optimizer: optimizer.parameters(), optimizer_from, "an optimizer")
    ] = field(default_factory=ServerOptimizer)
    top_k: float | None = None
    warmup: int = 10
    permute: bool = True
    unmask: Unmask = "server"
    preset: str = DEFAULT_SASH
    key_bits: int = DEFAULT_KEY_BITS
    advance: bool = False
    sends: Sends = "update"
    ring: str = DEFAULT_ESHE
    keys: Keys = "joint"
    ckks_ring: str = DEFAULT_CKKS
    select: Select = field(default_factory=Select)
    noise: Laplace | None = None

    def _validate(self) -> None:
        if self.scheme not in BUILT:
            raise ConfigError(f"scheme {self.scheme!r}: this version builds {', '.join(BUILT)}")
        names = (*self.metrics, self.arrays_key, self.weight_key)
        if len(self.metrics) > MAX_METRICS or not all(1 <= len(n) <= MAX_NAME for n in names):
            raise ConfigError(
                f"Terms: at most {MAX_METRICS} metrics, names of 1 to {MAX_NAME} characters"
            )
        # Also what has no effect while updates are dense: terms must read back as they were written.
        TopK(self.top_k or 1.0, self.warmup)
        if type(self.permute) is not bool:
            raise ConfigError(f"Terms(permute={self.permute!r}): must be True or False")
        # Also what has no effect under this scheme, for the same reason.
        Flashe(2, 16, self.masking)
        Sash(2, 0, self.preset, self.unmask)
        Esafl(2, 16, self.ring, self.keys)
        FedmlHe(2, 16, self.ckks_ring)
        select_terms.check(self)
        scheme_terms.check_terms(self)
        self.for_cohort(2)
        Extras(self.metrics)

    def resolved(self, cohort: int) -> Terms:
        """These terms for an epoch of `cohort` members: with the bits that it leaves room for."""
        if self.advance and cohort >= 2:
            bits = self.bits - (cohort - 1).bit_length()
            if bits < 2:
                raise ConfigError(
                    f"advance scaling with bits={self.bits}: {cohort} members leave {bits} bits of "
                    "each value; use more bits, or leave advance out"
                )
            return replace(self, bits=bits, advance=False)
        if self.bits != 0 or not 2 <= cohort <= MAX_COHORT:
            return self
        if self.scheme == "esafl":
            return replace(self, bits=Esafl(cohort, 0, self.ring).bits)
        if self.scheme == "sash":
            return replace(self, bits=Sash(cohort, 0, self.preset, self.unmask).bits)
        return self

    @property
    def reader(self) -> Reader:
        """Who opens the sums of a round."""
        return self.unmask if self.scheme == "sash" else "clients"

    @property
    def per_sum_keys(self) -> bool:
        """Whether sums are opened by an agreement on masking keys, round by round."""
        return self.scheme == "sash" or (self.scheme, self.keys) == ("esafl", "round")

    @property
    def has_key_pair(self) -> bool:
        """Whether an epoch has a key pair of the scheme's own; see `flhe.keys.agreement.key_pair`."""
        return self.scheme in ("batchcrypt", "fedml-he")

    @property
    def needs_all_members(self) -> bool:
        """Whether each member of an epoch has a key of its own, and only sums of all are opened."""
        return self.scheme == "esafl" and self.keys != "round"

    @property
    def tagged(self) -> bool:
        """Whether what is encrypted ends with tags, by which members know a sum for what it is.

        Where the server reads the sums there is nothing that it could not make up. BatchCrypt's batches
        have tags of their own; a part in clear is beyond those.
        """
        return self.reader == "clients" and (self.scheme != "batchcrypt" or self.clear)

    @property
    def sparse(self) -> bool:
        """Whether a client sends some of its coordinates only."""
        return self.top_k is not None

    @property
    def clear(self) -> bool:
        """Whether a part of an update may travel in clear."""
        return self.select.clear

    @property
    def mapped(self) -> bool:
        """Whether a first round adds up the map that says what is selected."""
        return self.select.mapped

    @property
    def mean_squares_mode(self) -> str:
        """Masking of mean squares where that of updates is announced: they are few, and come before."""
        return "double" if self.masking == "adaptive" else ""

    @property
    def permuted(self) -> bool:
        """Whether the coordinates of an update are permuted before anything of it leaves."""
        return self.sparse and self.permute

    def codec(self, permutation: Permutation | None = None) -> Chain:
        """Sparsify, clip, weigh, quantize, permute; `permutation` is the one of an attempt."""
        codecs: list[Codec] = []
        if self.top_k is not None:
            codecs.append(TopK(self.top_k, self.warmup))
        codecs.append(self._clip())
        codecs.append(Weigh(self.max_examples if self.weighted else 1))
        codecs.append(Quantize(self.bits))
        if self.permuted:
            codecs.append(Permute(permutation))
        return chain(*codecs)

    def map_codec(self) -> Chain:
        """Quantize a member's map, which is within [-1, 1] and counts as much as everybody's."""
        return chain(Clip(1.0), Weigh(1), Quantize(self.bits))

    def _clip(self) -> Clip:
        if self.clip == "history":
            return Clip.history()
        if self.clip == "exchange":
            return Clip.exchange()
        if isinstance(self.clip, str):
            raise ConfigError(
                f"clip={self.clip!r}: a number, numbers by layer, 'history' or 'exchange'"
            )
        return Clip(self.clip)

    def for_cohort(self, cohort: int, public: bytes = b"") -> Scheme:
        """The scheme for `cohort` members, checked against the codec.

        Parameters
        ----------
        cohort : int
            N.
        public : bytes
            The epoch's public key, encoded, where the scheme has one: nothing is added without it. Or
            what its members call the sum of their keys.

        Raises
        ------
        ConfigError
            An unknown scheme, or parameters that it refuses.
        MisfitError
            Codec and scheme do not go together for so many members.
        ProtocolError
            A public key that is none, or has another length than these terms say.
        """
        terms = self.resolved(cohort)
        scheme = scheme_terms.build(terms, cohort, public)
        fits(terms.codec(), scheme, cohort)
        return scheme

    def selective(self, whole: Scheme, layout: Layout) -> Scheme:
        """The scheme of an update: `whole`, or that for the selected part of it.

        `whole` is what `for_cohort` gives, and what all else is encrypted under. ConfigError where
        nothing of this layout is selected.
        """
        if not self.select.partial:
            return whole
        count = self.select.count(layout)
        return Selective(whole, layout.floats, count, clear=self.clear)

    def elements(self, cohort: int) -> int:
        """Field elements of what members share, where they agree on masking keys."""
        return scheme_terms.elements(self, cohort)

    def extras(self, layout: Layout) -> Extras:
        """What travels beside the values."""
        return Extras(self.metrics, layout.integers)

    def lanes(self, layout: Layout) -> int:
        """Integers that are encrypted of a dense update: values, all or selected, extras, tags."""
        values = self.select.count(layout) if self.select.partial else layout.floats
        return values + self.trailer_lanes(layout)

    def map_lanes(self, layout: Layout) -> int:
        """Integers in an encoded map, with its extras and tags."""
        extras = self.map_codec().lanes(self.extras(layout).length, layout)
        return layout.floats + extras + self.tag_lanes

    def extra_lanes(self, layout: Layout) -> int:
        """Integers that carry the extras of an update."""
        return self.codec().lanes(self.extras(layout).length, layout)

    @property
    def tag_lanes(self) -> int:
        """Integers that carry the tags of a vector."""
        return sum_tags.lanes(self.bits) if self.tagged else 0

    def trailer_lanes(self, layout: Layout) -> int:
        """Integers behind the values of an update: extras, then tags."""
        return self.extra_lanes(layout) + self.tag_lanes

    def range_lanes(self, layout: Layout) -> int:
        """Integers in what a client sends in the `mean-squares` step."""
        quantize = Quantize(self.bits)
        squares = 2 * len(list(layout.segments()))
        return quantize.lanes(FIXED + squares, layout) + self.tag_lanes

    def layout_hash(self, layout: Layout, scheme: Scheme) -> bytes:
        """SHA-256 over names, shapes, dtypes, these terms, codec and scheme parameters."""
        return layout.hash(self.to_bytes(), self.codec().parameters(), scheme.parameters())

    def hash(self) -> bytes:
        """SHA-256 of the terms, 32 bytes: `policy_hash` in signed messages."""
        return hashlib.sha256(self.to_bytes()).digest()
