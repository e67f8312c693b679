"""Strategies by the name of their system: aliases, a scheme and the usual codec each.

What all of them take is in `StrategyOptions`. FedSGD is a choice of optimizer: with `Optimizer("adam")`
(or one of torch.optim, whose class and options are taken) apps return the gradient of one batch, under
the model's names, and every client steps alike with the mean of all.
"""

from __future__ import annotations

from typing import Any, Unpack

from flhe.coding.select import Select
from flhe.coding.update import update_codec
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import DEFAULT_KEY_BITS, BatchCrypt
from flhe.schemes.esafl.scheme import DEFAULT_ESHE, Esafl, Keys
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.scheme import Flashe, Masking
from flhe.schemes.presets import DEFAULT_SEAL
from flhe.schemes.sash.scheme import DEFAULT_SASH, Sash, Unmask
from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.options import CODING, StrategyOptions, check_names


class SchemeFedAvg(HEStrategy):
    """FedAvg under any scheme, with the codec of `update_codec`."""

    def __init__(self, scheme: Scheme, **options: Unpack[StrategyOptions]) -> None:
        given: dict[str, Any] = dict(options)
        check_names(next(kind for kind in type(self).__mro__ if kind.__module__ == __name__), given)
        coding = {name: given.pop(name) for name in CODING if name in given}
        super().__init__(scheme, update_codec(**{"bits": scheme.default_bits, **coding}), **given)


class FlasheFedAvg(SchemeFedAvg):
    """FedAvg under FLASHE; for `masking` see `Flashe`.

    Members share one key: any of them, together with the server, opens the others' updates. Where a
    member may conspire with the server, take `SashFedAvg(unmask="clients")`.
    """

    def __init__(self, *, masking: Masking = "double", **options: Unpack[StrategyOptions]) -> None:
        super().__init__(Flashe(masking), **options)


class SashFedAvg(SchemeFedAvg):
    """FedAvg under SASH, for many clients, any of which may drop out; for parameters see `Sash`.

    A round needs t = (N + c) // 2 + 1 of N members to the end, c being (N - 1) // 3 unless a pinned
    roster says otherwise: 7 of 10, 67 of 100. `bits` are 0 unless said: all that there is room for.
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
    """FedAvg under BatchCrypt; for parameters see `BatchCrypt`. `clip` is "exchange" unless said.

    Members share one key: any of them, together with the server, opens the others' updates. Where a
    member may conspire with the server, take `SashFedAvg(unmask="clients")`.
    """

    def __init__(
        self,
        *,
        key_bits: int = DEFAULT_KEY_BITS,
        advance: bool = False,
        **options: Unpack[StrategyOptions],
    ) -> None:
        options.setdefault("clip", "exchange")
        super().__init__(BatchCrypt(key_bits, advance), **options)


class EsaflFedAvg(SchemeFedAvg):
    """FedAvg under ESAFL, whose members have keys of their own; for parameters see `Esafl`."""

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

    Updates are `weighted` unless a part travels in clear: there, multiples of an example count show it.
    Members share one key: any of them, together with the server, opens the others' updates. Where a
    member may conspire with the server, take `SashFedAvg(unmask="clients")`.
    """

    def __init__(self, *, ring: str = DEFAULT_SEAL, **options: Unpack[StrategyOptions]) -> None:
        options.setdefault("weighted", not Select.of(options.get("select")).clear)
        super().__init__(FedmlHe(ring), **options)
