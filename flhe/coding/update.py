"""The codec of an update in the usual order: sparsify, clip, weigh, quantize, permute."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Literal

from flhe.coding.base import Codec
from flhe.coding.chain import Chain, chain
from flhe.coding.clip import Clip
from flhe.coding.clip_norm import ClipNorm
from flhe.coding.discrete_gaussian import DiscreteGaussian
from flhe.coding.permute import Permute
from flhe.coding.quantize import Quantize
from flhe.coding.sparsify import SMALL, WHOLE, TopK
from flhe.coding.weigh import Weigh
from flhe.errors import ConfigError

PRIVATE_BITS = 28
"""Bits of values with noise: rounding steps then cost less than 1% up to millions of values."""

Thresholds = float | Mapping[str, float] | Literal["history", "exchange"]
"""One clipping threshold, one for each layer, or the source that they are fitted on."""


def update_codec(
    *,
    bits: int = 16,
    clip: Thresholds = 1.0,
    max_examples: int = 10_000,
    weighted: bool = True,
    top_k: float | None = None,
    warmup: int = 10,
    whole: tuple[str, ...] = WHOLE,
    small: int = SMALL,
    permute: bool = True,
) -> Chain:
    """Return the codecs of an update.

    Raises ConfigError: a parameter that cannot work.

    Parameters
    ----------
    bits : int
        Bits of one quantized value, sign included, 2 to 32; 0, if the scheme takes it, uses as many
        as the members of an epoch leave room for at no cost.
    clip : float, mapping of str to float, "history" or "exchange"
        Clipping threshold alpha: largest change of one weight in a round, overall or by layer; or
        its source: the rounds before, or this round's mean squares. See `Clip`.
    max_examples : int
        Example count of the largest client. A client with fewer is quantized proportionally more
        coarsely; one with more has a proportionally lower clipping threshold.
    weighted : bool
        Weigh updates by example counts, as FedAvg does; False gives every client the same weight.
    top_k : float, optional
        Share of each layer's values that a client sends, the largest ones; the rest waits for later
        rounds (error feedback). 0.1 saves 90% of the upload.
    warmup : int
        Rounds at shares of 0.8, 0.4 and 0.2 each, before `top_k`.
    whole, small : tuple of str, int
        Arrays that travel whole in sparse rounds, by name and by size; see `TopK`.
    permute : bool
        Hide from the server which coordinates were sent.
    """
    if type(permute) is not bool or type(weighted) is not bool:
        raise ConfigError(f"permute={permute!r}, weighted={weighted!r}: each is True or False")
    codecs: list[Codec] = []
    if top_k is not None:
        if isinstance(top_k, bool) or not isinstance(top_k, numbers.Real):
            raise ConfigError(f"top_k={top_k!r}: must be a share of the values, as in 0.1")
        codecs.append(TopK(float(top_k), warmup, whole, small))
    codecs += [_clip(clip), Weigh(max_examples if weighted else 1), Quantize(bits)]
    if top_k is not None and permute:
        codecs.append(Permute())
    return chain(*codecs)


def record_codec(
    multiplier: float, norm: float, sampling: float, expected_batch: float, bits: int
) -> Chain:
    """Return the codec of gradient sums with noise that hides a record; see `DiscreteGaussian`."""
    return chain(DiscreteGaussian(norm, multiplier, "record", sampling, expected_batch, bits=bits))


def member_codec(multiplier: float, norm: float, bits: int) -> Chain:
    """Return the codec of norm-clipped updates with noise that hides one; see `DiscreteGaussian`."""
    return chain(ClipNorm(norm), DiscreteGaussian(norm, multiplier, bits=bits))


def private_bits(default: int) -> int:
    """Return the bits of noisy values under a scheme with that default: fine steps, or all bits."""
    return PRIVATE_BITS if default else 0


def _clip(clip: Thresholds) -> Clip:
    if not isinstance(clip, str):
        return Clip(clip)
    if clip not in ("history", "exchange"):
        raise ConfigError(f"clip={clip!r}: a number, numbers by layer, 'history' or 'exchange'")
    return Clip(rule=clip)
