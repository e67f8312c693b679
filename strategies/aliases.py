"""Strategies by the name of their scheme, each with its usual codec.

`StrategyOptions` lists their common options. For FedSGD choose `Optimizer("adam")`, or one of
torch.optim for its class and options. Apps then return the gradient of one batch, under the model's
names, and every client takes the same step with the mean.

Sums of `dp_fedsgd` and `dp_fedavg` are differentially private, under any scheme.
"""

from __future__ import annotations

from typing import Any, Unpack

from flhe.coding.select import Select
from flhe.coding.update import member_codec, private_bits, record_codec, update_codec
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import DEFAULT_KEY_BITS, BatchCrypt
from flhe.schemes.esafl.scheme import DEFAULT_ESHE, Esafl, Keys
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.scheme import Flashe, Masking
from flhe.schemes.presets import DEFAULT_SEAL
from flhe.schemes.sash.scheme import DEFAULT_SASH, Sash, Unmask
from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.options import CODING, StrategyOptions, TrainingOptions, check_names
from flhe.training.optimizer import Optimizer


class SchemeFedAvg(HEStrategy):
    """FedAvg under any scheme, with the codec of `update_codec`."""

    def __init__(self, scheme: Scheme, **options: Unpack[StrategyOptions]) -> None:
        given: dict[str, Any] = dict(options)
        check_names(next(kind for kind in type(self).__mro__ if kind.__module__ == __name__), given)
        coding = {name: given.pop(name) for name in CODING if name in given}
        super().__init__(scheme, update_codec(**{"bits": scheme.default_bits, **coding}), **given)


class FlasheFedAvg(SchemeFedAvg):
    """FedAvg under FLASHE; for `masking` see `Flashe`.

    Members share one key: any of them, together with the server, can decrypt the others' updates.
    If a member may conspire with the server, use `SashFedAvg(unmask="clients")`.
    """

    def __init__(self, *, masking: Masking = "double", **options: Unpack[StrategyOptions]) -> None:
        super().__init__(Flashe(masking), **options)


class SashFedAvg(SchemeFedAvg):
    """FedAvg under SASH, for many clients, any of which may drop out; for parameters see `Sash`.

    A round needs t = (N + c) // 2 + 1 of N members to the end: 7 of 10, 67 of 100. The bound c is
    (N - 1) // 3 unless a pinned roster sets another one. `bits` are 0 by default: all that fit.
    """

    def __init__(
        self,
        *,
        unmask: Unmask = "server",
        preset: str = DEFAULT_SASH,
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(Sash(unmask, preset), **options)


class BatchCryptFedAvg(SchemeFedAvg):
    """FedAvg under BatchCrypt; for parameters see `BatchCrypt`. `clip` is "exchange" by default.

    Members share one key: any of them, together with the server, can decrypt the others' updates.
    If a member may conspire with the server, use `SashFedAvg(unmask="clients")`.
    """

    def __init__(
        self,
        *,
        key_bits: int = DEFAULT_KEY_BITS,
        advance: bool = False,
        subgroup: bool = False,
        **options: Unpack[StrategyOptions],
    ) -> None:
        options.setdefault("clip", "exchange")
        super().__init__(BatchCrypt(key_bits, advance, subgroup), **options)


class EsaflFedAvg(SchemeFedAvg):
    """FedAvg under ESAFL, where each member has its own key; for parameters see `Esafl`."""

    def __init__(
        self,
        *,
        ring: str = DEFAULT_ESHE,
        keys: Keys = "round",
        **options: Unpack[StrategyOptions],
    ) -> None:
        super().__init__(Esafl(ring, keys), **options)


class FedmlHeFedAvg(SchemeFedAvg):
    """FedAvg under FedML-HE, for all of an update or its most sensitive part (`select`).

    Updates are `weighted` unless a part travels in clear: its multiples would reveal an example
    count. Members share one key: any of them, together with the server, can decrypt the others'
    updates. If a member may conspire with the server, use `SashFedAvg(unmask="clients")`.
    """

    def __init__(self, *, ring: str = DEFAULT_SEAL, **options: Unpack[StrategyOptions]) -> None:
        options.setdefault("weighted", not Select.of(options.get("select")).clear)
        super().__init__(FedmlHe(ring), **options)


# --- with differential privacy ---

_QUIET: dict[str, Any] = {"train_metrics": (), "evaluate_metrics": (), "fraction_evaluate": 0.0}
"""No metrics: they would be averaged without noise."""


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
    """Return the strategy of DP-SGD across sites: a round is one step with all gradients.

    Apps reply with the sum of their batch's gradients, each clipped (`flhe.dpsgd`), and 1 as the number
    of examples.

    Raises ConfigError: a parameter that cannot work; PackageError: dp-accounting is missing.

    Parameters
    ----------
    scheme : Scheme, optional
        A scheme whose members read; `Sash("clients")` by default.
    noise_multiplier : float
        Standard deviation of the noise in a sum over `max_grad_norm`; `flhe advise --epsilon` finds it.
    max_grad_norm : float
        Largest L2 norm of one record's gradient.
    sampling : float
        Probability of each record of each site to be in a batch.
    expected_batch : float
        `sampling` times the number of all sites' records: the divisor of every round's sum.
    bits : int, optional
        Bits of one value; 28 by default, or all that the scheme has room for.
    **options
        As for `HEStrategy`; the default optimizer is SGD with a learning rate of 0.1.
    """
    scheme = scheme or Sash("clients")
    bits = private_bits(scheme.default_bits) if bits is None else bits
    codec = record_codec(noise_multiplier, max_grad_norm, sampling, expected_batch, bits)
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
    """Return the strategy of DP-FedAvg: updates have equal weight and a clipped L2 norm.

    The server chooses a round's members, so sampling them amplifies no privacy.

    Raises ConfigError: a parameter that cannot work; PackageError: dp-accounting is missing.

    Parameters
    ----------
    scheme : Scheme, optional
        `Sash()` by default, which lets the server read the noisy sums.
    noise_multiplier : float
        Standard deviation of the noise in a sum over `clipping_norm`.
    clipping_norm : float
        Largest L2 norm of one member's update.
    bits : int, optional
        Bits of one value; 28 by default, or all that the scheme has room for.
    **options
        As for `HEStrategy`.
    """
    scheme = scheme or Sash()
    bits = private_bits(scheme.default_bits) if bits is None else bits
    codec = member_codec(noise_multiplier, clipping_norm, bits)
    given: dict[str, Any] = {**_QUIET, **options}
    return HEStrategy(scheme, codec, **given)
