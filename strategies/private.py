"""Strategies whose sums are differentially private: a codec and an optimizer each, under any scheme.

    dp_fedsgd    hides a record: DP-SGD on all sites' data, with the noise of one
    dp_fedavg    hides a member's update: DP-FedAvg, for hundreds of clients

Metrics would be averaged without noise, so none are unless they are named.
"""

from __future__ import annotations

from typing import Any, Unpack

from flhe.coding.chain import Chain, chain
from flhe.coding.clip_norm import ClipNorm
from flhe.coding.discrete_gaussian import DiscreteGaussian
from flhe.schemes.base import Scheme
from flhe.schemes.sash.scheme import Sash
from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.options import TrainingOptions
from flhe.training.optimizer import Optimizer


def dp_fedsgd(
    scheme: Scheme | None = None,
    *,
    noise_multiplier: float,
    max_grad_norm: float,
    sampling: float,
    expected_batch: float,
    bits: int | None = None,
    **options: Unpack[TrainingOptions],
) -> HEStrategy:
    """Return the strategy of DP-SGD across sites: a round is one step with the gradients of all.

    Apps reply with the sum of their batch's gradients, each clipped (`flhe.dpsgd`), and 1 as the number
    of examples.

    Raises ConfigError: a parameter that cannot work; PackageError: dp-accounting is missing.

    Parameters
    ----------
    scheme : Scheme, optional
        One whose members read; `Sash("clients")` unless said.
    noise_multiplier : float
        Standard deviation of the noise in a sum over `max_grad_norm`; `flhe advise --epsilon` finds it.
    max_grad_norm : float
        Largest L2 norm of one record's gradient.
    sampling : float
        Probability with which each record of each site is in a batch.
    expected_batch : float
        `sampling` times the number of all sites' records: what sums are divided by, in every round.
    bits : int, optional
        Bits of one value; 28 unless said, or all that the scheme has room for.
    **options
        As `HEStrategy` takes them; the optimizer is SGD with a learning rate of 0.1 unless said.
    """
    scheme = scheme or Sash("clients")
    codec = record_codec(scheme, noise_multiplier, max_grad_norm, sampling, expected_batch, bits)
    given: dict[str, Any] = {"optimizer": Optimizer("sgd", lr=0.1), **_QUIET, **options}
    return HEStrategy(scheme, codec, **given)


def dp_fedavg(
    scheme: Scheme | None = None,
    *,
    noise_multiplier: float,
    clipping_norm: float,
    bits: int | None = None,
    **options: Unpack[TrainingOptions],
) -> HEStrategy:
    """Return the strategy of DP-FedAvg: every member's update weighs the same, clipped in L2.

    Which members take part in a round is the server's choice, so nothing is gained by sampling them.

    Raises ConfigError: a parameter that cannot work; PackageError: dp-accounting is missing.

    Parameters
    ----------
    scheme : Scheme, optional
        `Sash()` unless said, which lets the server read the noisy sums.
    noise_multiplier : float
        Standard deviation of the noise in a sum over `clipping_norm`.
    clipping_norm : float
        Largest L2 norm of one member's update.
    bits : int, optional
        Bits of one value; 28 unless said, or all that the scheme has room for.
    **options
        As `HEStrategy` takes them.
    """
    scheme = scheme or Sash()
    codec = member_codec(scheme, noise_multiplier, clipping_norm, bits)
    given: dict[str, Any] = {**_QUIET, **options}
    return HEStrategy(scheme, codec, **given)


def record_codec(
    scheme: Scheme,
    multiplier: float,
    norm: float,
    sampling: float,
    expected_batch: float,
    bits: int | None = None,
) -> Chain:
    """Return the codec of `dp_fedsgd`, which says what its parameters are."""
    of = norm, multiplier, "record", sampling, expected_batch
    return chain(DiscreteGaussian(*of, bits=_bits(scheme, bits)))  # type: ignore[arg-type]


def member_codec(scheme: Scheme, multiplier: float, norm: float, bits: int | None = None) -> Chain:
    """Return the codec of `dp_fedavg`, which says what its parameters are."""
    return chain(ClipNorm(norm), DiscreteGaussian(norm, multiplier, bits=_bits(scheme, bits)))


def _bits(scheme: Scheme, said: int | None) -> int:
    if said is not None:
        return said
    return 28 if scheme.default_bits else 0


_QUIET: dict[str, Any] = {"train_metrics": (), "evaluate_metrics": (), "fraction_evaluate": 0.0}
