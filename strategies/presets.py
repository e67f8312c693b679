"""Strategies by the name of their scheme: aliases only.

What all of them take is in `StrategyOptions`: how updates are encoded, how a run waits and repeats, and
FedAvg's own arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from flhe.coding.select import Select
from flhe.errors import ConfigError
from flhe.schemes.batchcrypt.scheme import DEFAULT_KEY_BITS
from flhe.schemes.esafl.scheme import Keys
from flhe.schemes.flashe.scheme import Masking
from flhe.schemes.presets import DEFAULT_CKKS, DEFAULT_ESHE, DEFAULT_SASH
from flhe.schemes.sash.scheme import Unmask
from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.options import AverageOptions, StrategyOptions, check_names
from flhe.training.client_optimizer import ClientOptimizer
from flhe.training.terms import TRAIN_METRICS, Terms


def flashe_fedavg(
    *,
    masking: Masking = "double",
    top_k: float | None = None,
    warmup: int = 10,
    permute: bool = True,
    **strategy: Unpack[AverageOptions],
) -> HEStrategy:
    """FedAvg under FLASHE.

    Members share one key: any of them, together with the server, opens the others' updates. Where a
    member may conspire with the server, take `sash_fedavg(unmask="clients")` instead.

    Parameters
    ----------
    masking : "double", "single" or "adaptive"
        See `Flashe`; adaptive takes what saves the clients more work.
    top_k : float, optional
        Share of each layer's values that a client sends, the largest ones; the rest waits for later
        rounds (error feedback). 0.1 saves 90% of the upload.
    warmup : int
        Rounds at shares of 0.8, 0.4 and 0.2 each, before `top_k`.
    permute : bool
        Hide from the server which coordinates were sent; see the documentation for what it still sees.
    **strategy
        What all take; `AverageOptions` lists it.
    """
    own: dict[str, Any] = {"masking": masking, "top_k": top_k, "warmup": warmup, "permute": permute}
    return _strategy(flashe_fedavg, "flashe", strategy, **own)


def sash_fedavg(
    *,
    unmask: Unmask = "server",
    preset: str = DEFAULT_SASH,
    **strategy: Unpack[AverageOptions],
) -> HEStrategy:
    """FedAvg under SASH: for many clients, any of which may drop out at any time.

    A round needs t = (N + c) // 2 + 1 of N members to the end, c being (N - 1) // 3 unless a pinned
    roster says otherwise: 7 of 10, 67 of 100. Sample accordingly.

    Parameters
    ----------
    unmask : "server" or "clients"
        Who reads the sum of a round. The server: then it has the model, evaluates it
        (`evaluate_fn`) and returns it, as under FedAvg; it never sees an update. Or the clients:
        then it never sees the model either, and the result is sealed.
    preset : str
        Parameters of the generator of masks; see `flhe.schemes.presets`.
    **strategy
        What all take; `AverageOptions` lists it. By default `bits` are 0: as many as the number of
        members leaves room for, 24 for 10, 18 for 100, 12 for 1000. They cost nothing on the wire.
        `clip` is a number, or numbers by layer.
    """
    return _strategy(sash_fedavg, "sash", {"bits": 0, **strategy}, unmask=unmask, preset=preset)


def batchcrypt_fedavg(
    *,
    key_bits: int = DEFAULT_KEY_BITS,
    advance: bool = False,
    **strategy: Unpack[AverageOptions],
) -> HEStrategy:
    """FedAvg under BatchCrypt: model averaging with batched, quantized, clipped Paillier.

    Members share one key: any of them, together with the server, opens the others' updates. Where a
    member may conspire with the server, take `sash_fedavg(unmask="clients")` instead.

    Parameters
    ----------
    key_bits : int
        Length of Paillier's modulus: 3072 has 128 bits of security, 2048 has 112.
    advance : bool
        Advance scaling: `bits` has room for the sum of all, so each value has ceil(log2 N) bits
        less and a ciphertext holds more of them.
    **strategy
        What all take; `AverageOptions` lists it. By default `clip` is "exchange": dACIQ chooses
        thresholds in every round.
    """
    own: dict[str, Any] = {"key_bits": key_bits, "advance": advance}
    return _strategy(batchcrypt_fedavg, "batchcrypt", {"clip": "exchange", **strategy}, **own)


def batchcrypt_fedsgd(
    *,
    optimizer: ClientOptimizer | object,
    key_bits: int = DEFAULT_KEY_BITS,
    advance: bool = False,
    **strategy: Unpack[StrategyOptions],
) -> HEStrategy:
    """FedSGD under BatchCrypt, the paper's Algorithm 1.

    In each round a client's app returns the gradient of one batch, under the model's names, instead
    of a trained model. Every client opens the mean of all gradients and steps with its own
    optimizer on its own copy of the model; whoever joins later receives model and optimizer state,
    sealed.

    Members share one key: any of them, together with the server, opens the others' updates. Where a
    member may conspire with the server, take `sash_fedavg(unmask="clients")` instead.

    Parameters
    ----------
    optimizer : ClientOptimizer, or a torch.optim.Adam, RMSprop or SGD
        How clients step. Of a torch optimizer, class and options are taken; the step itself is computed
        by `ClientOptimizer`, by torch's formulas, because all clients must come to the same bits.
    key_bits, advance
        As for `batchcrypt_fedavg`.
    **strategy
        What all take, of gradients; `StrategyOptions` lists it. By default `clip` is "exchange".
    """
    own: dict[str, Any] = {"key_bits": key_bits, "advance": advance, **_stepping(optimizer)}
    return _strategy(batchcrypt_fedsgd, "batchcrypt", {"clip": "exchange", **strategy}, **own)


def esafl_fedavg(
    *,
    ring: str = DEFAULT_ESHE,
    per_round_keys: bool = False,
    dealt_keys: bool = False,
    **strategy: Unpack[AverageOptions],
) -> HEStrategy:
    """FedAvg under ESAFL: learning with errors over rings, one key a client.

    A client that conspires with a server that follows the protocol still reads no single update. Sums
    are of all members: who drops out of a round makes the others agree on new keys, and encrypt the
    same updates again.

    Parameters
    ----------
    ring : str
        Parameters of the ring: "goldilocks-4096" is fast, "rns-8192" and "rns-16384" take a third
        fewer bytes; see `flhe.schemes.presets`.
    per_round_keys : bool
        Fresh keys in each round, whose sum members agree on by masking-key agreement: two relays more a
        round, and a round of some members, or without those that dropped out, opens as it is. The
        choice where a member may conspire with a server that lies: with keys that last, the two of them
        open any update that the server calls lost. As many may conspire as the roster says, which is
        (N - 1) // 3 unless it says otherwise.
    dealt_keys : bool
        Keys are dealt offline, by somebody whom all trust (`flhe keygen --scheme eshe`), instead of
        made by the members.
    **strategy
        What all take; `AverageOptions` lists it. 0 `bits` take all that cost no more than 16 do.
    """
    keys = _keys(per_round_keys=per_round_keys, dealt_keys=dealt_keys)
    return _strategy(esafl_fedavg, "esafl", strategy, ring=ring, keys=keys)


def esafl_fedsgd(
    *,
    optimizer: ClientOptimizer | object,
    ring: str = DEFAULT_ESHE,
    per_round_keys: bool = False,
    dealt_keys: bool = False,
    **strategy: Unpack[StrategyOptions],
) -> HEStrategy:
    """FedSGD under ESAFL, as its paper trains (ESAFL, Sec. 4.2 and Fig. 2).

    In each round a client's app returns the gradient of one batch, under the model's names, instead
    of a trained model; see `batchcrypt_fedsgd`.

    Parameters
    ----------
    optimizer : ClientOptimizer, or a torch.optim.Adam, RMSprop or SGD
        How clients step; the paper's step is `ClientOptimizer("sgd", lr)`.
    ring, per_round_keys, dealt_keys
        As for `esafl_fedavg`.
    **strategy
        What all take, of gradients; `StrategyOptions` lists it. By default `clip` is "exchange"; with
        `per_round_keys` thresholds cannot be fitted: give it as a number.
    """
    keys = _keys(per_round_keys=per_round_keys, dealt_keys=dealt_keys)
    own: dict[str, Any] = {"ring": ring, "keys": keys, **_stepping(optimizer)}
    return _strategy(esafl_fedsgd, "esafl", {"clip": "exchange", **strategy}, **own)


def fedml_he_fedavg(
    *, ckks_ring: str = DEFAULT_CKKS, **strategy: Unpack[AverageOptions]
) -> HEStrategy:
    """FedAvg under FedML-HE: CKKS, for all of an update or for its most sensitive part.

    Members share one key: any of them, together with the server, opens the others' updates. Where a
    member may conspire with the server, take `sash_fedavg(unmask="clients")` instead.

    Parameters
    ----------
    ckks_ring : str
        Parameters of CKKS; see `flhe.schemes.presets`.
    **strategy
        What all take; `AverageOptions` lists it. By default updates are `weighted` where nothing
        travels in clear: values in clear that are multiples of an example count show it.
    """
    if strategy.get("weighted") is None:
        strategy["weighted"] = not _selected(strategy.get("select")).clear
    return _strategy(fedml_he_fedavg, "fedml-he", strategy, ckks_ring=ckks_ring)


def _keys(*, per_round_keys: bool, dealt_keys: bool) -> Keys:
    if per_round_keys and dealt_keys:
        raise ConfigError(
            "per_round_keys and dealt_keys: choose one, dealt keys are for all rounds"
        )
    return "round" if per_round_keys else "dealt" if dealt_keys else "joint"


def _stepping(optimizer: ClientOptimizer | object) -> dict[str, Any]:
    """Terms of FedSGD."""
    own = optimizer if isinstance(optimizer, ClientOptimizer) else ClientOptimizer.like(optimizer)
    return {"optimizer": own, "sends": "gradient"}


def _selected(part: float | Select | None) -> Select:
    return part if isinstance(part, Select) else Select(1.0 if part is None else part)


def _strategy(
    alias: Callable[..., HEStrategy],
    scheme: str,
    options: StrategyOptions | AverageOptions,
    **own: Any,
) -> HEStrategy:
    """Return the strategy; TypeError where `alias` was called with a name that it does not have."""
    check_names(alias, options)
    run: dict[str, Any] = dict(options)
    names = ("bits", "clip", "max_examples", "weighted", "noise")
    given = {name: run.pop(name) for name in names if name in run}
    if (optimizer := run.pop("server_optimizer", None)) is not None:
        own["optimizer"] = optimizer
    terms = Terms(
        scheme,
        metrics=tuple(run.pop("train_metrics", TRAIN_METRICS)),
        select=_selected(run.pop("select", None)),
        **given,
        **own,
    )
    return HEStrategy(terms, **run)
