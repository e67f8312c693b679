"""Strategies by the name of their scheme: aliases only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Unpack

from flhe.coding.laplace import Laplace
from flhe.coding.select import Select
from flhe.coding.sparsify import Normalize
from flhe.errors import ConfigError
from flhe.rounds.client_optimizer import ClientOptimizer
from flhe.rounds.optimizer import ServerOptimizer
from flhe.rounds.terms import TRAIN_METRICS, Batching, Terms
from flhe.schemes.eshe import Keys
from flhe.schemes.flashe import Masking
from flhe.schemes.paillier import DEFAULT_KEY_BITS
from flhe.schemes.presets import DEFAULT_CKKS, DEFAULT_ESHE, DEFAULT_SASH
from flhe.schemes.sash import Unmask
from flhe.strategies.he_strategy import HEStrategy
from flhe.strategies.options import RunOptions, StrategyOptions, check_names


def flashe_fedavg(
    *,
    bits: int = 16,
    clip: float | Mapping[str, float] | Literal["history", "exchange"] = 1.0,
    max_examples: int = 10_000,
    weighted: bool = True,
    masking: Masking = "double",
    top_k: float | None = None,
    warmup: int = 10,
    normalize: Normalize = "weight",
    permute: bool = True,
    train_metrics: tuple[str, ...] = TRAIN_METRICS,
    server_optimizer: ServerOptimizer | None = None,
    **strategy: Unpack[StrategyOptions],
) -> HEStrategy:
    """FedAvg under FLASHE.

    Members share one key: any of them, together with the server, opens the others' updates. Where a
    member may conspire with the server, take `sash_fedavg(unmask="clients")` instead.

    Parameters
    ----------
    bits : int
        Bits of one quantized value, sign included, 2 to 32.
    clip : float, mapping of str to float, "history" or "exchange"
        Clipping threshold alpha: largest change of one weight in a round, overall or by layer. Or have
        it fitted, layer by layer, on the updates of the rounds before, or in every round anew.
    max_examples : int
        Example count of the largest client. A client with fewer is quantized as much more coarsely; one
        with more has a clipping threshold as much lower.
    weighted : bool
        Weigh updates by example counts, as FedAvg does.
    masking : "double", "single" or "adaptive"
        See `Flashe`; adaptive takes what saves the clients more work.
    top_k : float, optional
        Share of each layer's values that a client sends, the largest ones; the rest waits for later
        rounds (error feedback). 0.1 saves 90% of the upload.
    warmup : int
        Rounds at shares of 0.8, 0.4 and 0.2 each, before `top_k`.
    normalize : "weight" or "count"
        Divide a sparse sum by the weight of all senders, or of those who sent the coordinate.
    permute : bool
        Hide from the server which coordinates were sent; see the documentation for what it still sees.
    train_metrics : tuple[str, ...]
        Training metrics that are averaged under encryption.
    server_optimizer : ServerOptimizer, optional
        What every client makes of the mean update, identically; by default it is added, as FedAvg does.
    **strategy
        FedAvg's own arguments, and those of `HEStrategy`; `StrategyOptions` lists them.
    """
    terms = Terms(
        "flashe",
        bits,
        clip,
        max_examples,
        weighted,
        masking,
        tuple(train_metrics),
        optimizer=server_optimizer or ServerOptimizer(),
        top_k=top_k,
        warmup=warmup,
        normalize=normalize,
        permute=permute,
    )
    return _strategy(flashe_fedavg, terms, strategy)


def sash_fedavg(
    *,
    bits: int = 0,
    clip: float | Mapping[str, float] = 1.0,
    max_examples: int = 10_000,
    weighted: bool = True,
    unmask: Unmask = "server",
    preset: str = DEFAULT_SASH,
    train_metrics: tuple[str, ...] = TRAIN_METRICS,
    server_optimizer: ServerOptimizer | None = None,
    **strategy: Unpack[StrategyOptions],
) -> HEStrategy:
    """FedAvg under SASH: for many clients, any of which may drop out at any time.

    A round needs t = (N + c) // 2 + 1 of N members to the end, c being (N - 1) // 3 unless a pinned
    roster says otherwise: 7 of 10, 67 of 100. Sample accordingly.

    Parameters
    ----------
    bits : int
        Bits of one quantized value, sign included; 0 takes as many as the number of members leaves room
        for: 24 for 10, 18 for 100, 12 for 1000. They cost nothing on the wire.
    clip : float or mapping of str to float
        Clipping threshold alpha: largest change of one weight in a round, overall or by layer.
    max_examples : int
        Example count of the largest client. A client with fewer is quantized as much more coarsely; one
        with more has a clipping threshold as much lower.
    weighted : bool
        Weigh updates by example counts, as FedAvg does.
    unmask : "server" or "clients"
        Who reads the sum of a round. The server: then it has the model, evaluates it
        (`evaluate_fn`) and returns it, as under FedAvg; it never sees an update. Or the clients:
        then it never sees the model either, and the result is sealed.
    preset : str
        Parameters of the generator of masks; see `flhe.schemes.presets`.
    train_metrics : tuple[str, ...]
        Training metrics that are averaged under encryption.
    server_optimizer : ServerOptimizer, optional
        What the readers make of the mean update; by default it is added, as FedAvg does.
    **strategy
        FedAvg's own arguments, and those of `HEStrategy`; `StrategyOptions` lists them.
    """
    terms = Terms(
        "sash",
        bits,
        clip,
        max_examples,
        weighted,
        metrics=tuple(train_metrics),
        optimizer=server_optimizer or ServerOptimizer(),
        unmask=unmask,
        preset=preset,
    )
    return _strategy(sash_fedavg, terms, strategy)


def batchcrypt_fedavg(
    *,
    bits: int = 16,
    clip: float | Mapping[str, float] | Literal["history", "exchange"] = "exchange",
    key_bits: int = DEFAULT_KEY_BITS,
    batching: Batching = "vector",
    advance: bool = False,
    max_examples: int = 10_000,
    weighted: bool = True,
    train_metrics: tuple[str, ...] = TRAIN_METRICS,
    server_optimizer: ServerOptimizer | None = None,
    **strategy: Unpack[StrategyOptions],
) -> HEStrategy:
    """FedAvg under BatchCrypt: model averaging with batched, quantized, clipped Paillier.

    Members share one key: any of them, together with the server, opens the others' updates. Where a
    member may conspire with the server, take `sash_fedavg(unmask="clients")` instead.

    Parameters
    ----------
    bits : int
        Bits of one quantized value, sign included, 2 to 32.
    clip : float, mapping of str to float, "history" or "exchange"
        Clipping threshold alpha: largest change of one weight in a round, overall or by layer. Or have
        dACIQ choose it by layer, in every round anew ("exchange"), on mean squares that are added up
        under the same encryption, or on the rounds before ("history").
    key_bits : int
        Length of Paillier's modulus: 3072 has 128 bits of security, 2048 has 112.
    batching : "vector" or "layer"
        Batch values across layers, or begin each layer with a ciphertext of its own, which takes more
        of them and gains nothing: thresholds are by layer either way.
    advance : bool
        Advance scaling: `bits` has room for the sum of all, so each value has ceil(log2 N) bits
        less and a ciphertext holds more of them.
    max_examples : int
        Example count of the largest client. A client with fewer is quantized as much more coarsely; one
        with more has a clipping threshold as much lower.
    weighted : bool
        Weigh updates by example counts, as FedAvg does.
    train_metrics : tuple[str, ...]
        Training metrics that are averaged under encryption.
    server_optimizer : ServerOptimizer, optional
        What every client makes of the mean update, identically; by default it is added, as FedAvg does.
    **strategy
        FedAvg's own arguments, and those of `HEStrategy`; `StrategyOptions` lists them.
    """
    terms = Terms(
        "batchcrypt",
        bits,
        clip,
        max_examples,
        weighted,
        metrics=tuple(train_metrics),
        optimizer=server_optimizer or ServerOptimizer(),
        key_bits=key_bits,
        batching=batching,
        advance=advance,
    )
    return _strategy(batchcrypt_fedavg, terms, strategy)


def batchcrypt_fedsgd(
    *,
    optimizer: ClientOptimizer | object,
    bits: int = 16,
    clip: float | Mapping[str, float] | Literal["history", "exchange"] = "exchange",
    key_bits: int = DEFAULT_KEY_BITS,
    batching: Batching = "vector",
    advance: bool = False,
    max_examples: int = 10_000,
    weighted: bool = True,
    train_metrics: tuple[str, ...] = TRAIN_METRICS,
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
    bits, clip, key_bits, batching, advance, max_examples, weighted, train_metrics
        As for `batchcrypt_fedavg`, of gradients.
    **strategy
        FedAvg's own arguments, and those of `HEStrategy`; `StrategyOptions` lists them.
    """
    own = optimizer if isinstance(optimizer, ClientOptimizer) else ClientOptimizer.like(optimizer)
    terms = Terms(
        "batchcrypt",
        bits,
        clip,
        max_examples,
        weighted,
        metrics=tuple(train_metrics),
        optimizer=own,
        key_bits=key_bits,
        batching=batching,
        advance=advance,
        sends="gradient",
    )
    return _strategy(batchcrypt_fedsgd, terms, strategy)


def esafl_fedavg(
    *,
    bits: int = 16,
    clip: float | Mapping[str, float] | Literal["history", "exchange"] = 1.0,
    ring: str = DEFAULT_ESHE,
    per_round_keys: bool = False,
    dealt_keys: bool = False,
    max_examples: int = 10_000,
    weighted: bool = True,
    train_metrics: tuple[str, ...] = TRAIN_METRICS,
    server_optimizer: ServerOptimizer | None = None,
    **strategy: Unpack[StrategyOptions],
) -> HEStrategy:
    """FedAvg under ESAFL: learning with errors over rings, one key a client.

    A client that conspires with a server that follows the protocol still reads no single update. Sums
    are of all members: who drops out of a round makes the others agree on new keys, and encrypt the
    same updates again.

    Parameters
    ----------
    bits : int
        Bits of one quantized value, sign included, 2 to 32; 0 takes all that cost no more than 16 do.
    clip : float, mapping of str to float, "history" or "exchange"
        Clipping threshold alpha: largest change of one weight in a round, overall or by layer; values
        are normalized by it. Or have it fitted, layer by layer, on the updates of the rounds before, or
        in every round anew.
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
    max_examples : int
        Example count of the largest client. A client with fewer is quantized as much more coarsely; one
        with more has a clipping threshold as much lower.
    weighted : bool
        Weigh updates by example counts, as FedAvg does.
    train_metrics : tuple[str, ...]
        Training metrics that are averaged under encryption.
    server_optimizer : ServerOptimizer, optional
        What every client makes of the mean update, identically; by default it is added, as FedAvg does.
    **strategy
        FedAvg's own arguments, and those of `HEStrategy`; `StrategyOptions` lists them.
    """
    terms = Terms(
        "esafl",
        bits,
        clip,
        max_examples,
        weighted,
        metrics=tuple(train_metrics),
        optimizer=server_optimizer or ServerOptimizer(),
        ring=ring,
        keys=_keys(per_round_keys=per_round_keys, dealt_keys=dealt_keys),
    )
    return _strategy(esafl_fedavg, terms, strategy)


def fedml_he_fedavg(
    *,
    select: float | Select = 1.0,
    noise: Laplace | None = None,
    bits: int = 16,
    clip: float | Mapping[str, float] | Literal["history", "exchange"] = 1.0,
    ckks_ring: str = DEFAULT_CKKS,
    max_examples: int = 10_000,
    weighted: bool | None = None,
    train_metrics: tuple[str, ...] = TRAIN_METRICS,
    server_optimizer: ServerOptimizer | None = None,
    **strategy: Unpack[RunOptions],
) -> HEStrategy:
    """FedAvg under FedML-HE: CKKS, for all of an update or for its most sensitive part.

    Members share one key: any of them, together with the server, opens the others' updates. Where a
    member may conspire with the server, take `sash_fedavg(unmask="clients")` instead.

    Parameters
    ----------
    select : float or Select
        Share of an update that is encrypted: the most sensitive values, by a map that a first round
        adds up under encryption (`HEMod(sensitivity=...)`). Whatever is not selected the server sees,
        of every client and in every round. `Select` has other rules, and can leave the rest unsent.
    noise : Laplace, optional
        Noise that clients add to what travels in clear, or to everything.
    bits : int
        Bits of one quantized value, sign included, 2 to 32.
    clip : float, mapping of str to float, "history" or "exchange"
        Clipping threshold alpha: largest change of one weight in a round, overall or by layer. Or have
        it fitted, layer by layer, on the updates of the rounds before, or in every round anew.
    ckks_ring : str
        Parameters of CKKS; see `flhe.schemes.presets`.
    max_examples : int
        Example count of the largest client. A client with fewer is quantized as much more coarsely; one
        with more has a clipping threshold as much lower.
    weighted : bool, optional
        Weigh updates by example counts, as FedAvg does. By default where nothing travels in clear:
        values in clear that are multiples of an example count show it.
    train_metrics : tuple[str, ...]
        Training metrics that are averaged under encryption.
    server_optimizer : ServerOptimizer, optional
        What every client makes of the mean update, identically; by default it is added, as FedAvg does.
    **strategy
        FedAvg's own arguments, and those of `HEStrategy`; `RunOptions` lists them.
    """
    part = select if isinstance(select, Select) else Select(select)
    terms = Terms(
        "fedml-he",
        bits,
        clip,
        max_examples,
        not part.clear if weighted is None else weighted,
        metrics=tuple(train_metrics),
        optimizer=server_optimizer or ServerOptimizer(),
        ckks_ring=ckks_ring,
        select=part,
        noise=noise,
    )
    return _strategy(fedml_he_fedavg, terms, strategy)


def esafl_fedsgd(
    *,
    optimizer: ClientOptimizer | object,
    bits: int = 16,
    clip: float | Mapping[str, float] | Literal["history", "exchange"] = "exchange",
    ring: str = DEFAULT_ESHE,
    per_round_keys: bool = False,
    dealt_keys: bool = False,
    max_examples: int = 10_000,
    weighted: bool = True,
    train_metrics: tuple[str, ...] = TRAIN_METRICS,
    **strategy: Unpack[StrategyOptions],
) -> HEStrategy:
    """FedSGD under ESAFL, as its paper trains (ESAFL, Sec. 4.2 and Fig. 2).

    In each round a client's app returns the gradient of one batch, under the model's names, instead
    of a trained model; see `batchcrypt_fedsgd`.

    Parameters
    ----------
    optimizer : ClientOptimizer, or a torch.optim.Adam, RMSprop or SGD
        How clients step; the paper's step is `ClientOptimizer("sgd", lr)`.
    bits, clip, ring, per_round_keys, dealt_keys, max_examples, weighted, train_metrics
        As for `esafl_fedavg`, of gradients. With `per_round_keys` thresholds cannot be fitted: give
        `clip` as a number.
    **strategy
        FedAvg's own arguments, and those of `HEStrategy`; `StrategyOptions` lists them.
    """
    own = optimizer if isinstance(optimizer, ClientOptimizer) else ClientOptimizer.like(optimizer)
    terms = Terms(
        "esafl",
        bits,
        clip,
        max_examples,
        weighted,
        metrics=tuple(train_metrics),
        optimizer=own,
        sends="gradient",
        ring=ring,
        keys=_keys(per_round_keys=per_round_keys, dealt_keys=dealt_keys),
    )
    return _strategy(esafl_fedsgd, terms, strategy)


def _keys(*, per_round_keys: bool, dealt_keys: bool) -> Keys:
    if per_round_keys and dealt_keys:
        raise ConfigError(
            "per_round_keys and dealt_keys: choose one, dealt keys are for all rounds"
        )
    return "round" if per_round_keys else "dealt" if dealt_keys else "joint"


def _strategy(
    alias: Callable[..., HEStrategy], terms: Terms, options: StrategyOptions | RunOptions
) -> HEStrategy:
    """Return the strategy; TypeError where `alias` was called with a name that it does not have."""
    check_names(alias, options)
    return HEStrategy(terms, **options)
