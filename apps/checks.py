"""Checks of the run config beyond single numbers: what cannot go together, and what would do nothing.

Each refuses by ConfigError, in the words of the run config.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from flhe.apps.tasks.fair import FAIR_BITS, MIN_LIMIT
from flhe.errors import ConfigError
from flhe.rounds.optimizer import DEFAULTS
from flhe.schemes.eshe import Eshe
from flhe.schemes.paillier import DEFAULT_KEY_BITS
from flhe.schemes.paillier_keys import KEY_BITS
from flhe.schemes.presets import DEFAULT_ESHE, ESHE
from flhe.schemes.sash import most_bits

if TYPE_CHECKING:
    from flhe.apps.settings import Settings

SERVER_OPTIMIZERS = tuple(DEFAULTS)
CLIPPINGS = ("fixed", "history", "exchange")
MASKINGS = ("double", "single", "adaptive")
UNMASKS = ("server", "clients")
RINGS = tuple(ESHE)

MIN_ENCRYPTED_NODES = 3
"""Nodes that keys are agreed among."""


def key_of(name: str) -> str:
    """Return the run config's key of a field."""
    return name.replace("_", "-")


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a value that is not among those known."""
    if value not in known:
        raise ConfigError(f"{name}={value!r} is unknown; use one of {', '.join(known)}")


def numbers(settings: Settings) -> None:
    """Refuse numbers outside their ranges, one by one."""
    for name in ("num_rounds", "nodes", "local_epochs", "batch_size"):
        if getattr(settings, name) < 1:
            raise ConfigError(f"{key_of(name)}={getattr(settings, name)}: must be 1 or more")
    counts = ("seed", "max_examples", "rekey_every", "checkpoint_every", "patience", "retries")
    for name in (*counts, "warmup", "bits", "drops", "kill", "neighbours"):
        if getattr(settings, name) < 0:
            raise ConfigError(f"{key_of(name)}={getattr(settings, name)}: must be 0 or more")
    for name in ("join_timeout", "round_timeout", "dirichlet_alpha", "learning_rate", "clip"):
        value = getattr(settings, name)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{key_of(name)}={value}: must be finite and positive")
    rates = ("server_eta", "server_momentum", "client_lr", "client_momentum", "client_decay")
    for name in (*rates, "proximal_mu", "fair_q", "fair_lipschitz"):
        value = getattr(settings, name)
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{key_of(name)}={value}: must be finite and 0 or more")
    if not 0 < settings.fraction_train <= 1:
        raise ConfigError(
            f"fraction-train={settings.fraction_train}: must be more than 0 and at most 1"
        )


def dropouts(settings: Settings) -> None:
    """Refuse to lose more nodes than a sum can spare, and to kill one in a round that never is."""
    if settings.kill > settings.num_rounds:
        raise ConfigError(
            f"kill={settings.kill}: the run has num-rounds={settings.num_rounds}; name one of those, "
            "or 0 to kill nobody"
        )
    left = settings.nodes - settings.drops - bool(settings.kill)
    if settings.drops and left < 2:
        beside = " and one killed" if settings.kill else ""
        raise ConfigError(
            f"drops={settings.drops} of {settings.nodes} nodes{beside}: two must remain"
        )
    agrees_anew = settings.scheme == "esafl" and not settings.per_round_keys
    if agrees_anew and left < min(settings.nodes, MIN_ENCRYPTED_NODES):
        raise ConfigError(
            f"scheme='esafl' with {left} of {settings.nodes} nodes left by drops or kill: those that "
            f"are left agree on new keys, and {MIN_ENCRYPTED_NODES} must; use more nodes"
        )


def encoding(settings: Settings) -> None:
    """Refuse what `Terms` would, in the words of the run config, and what has no effect."""
    one_of("clipping", settings.clipping, CLIPPINGS)
    one_of("masking", settings.masking, MASKINGS)
    one_of("unmask", settings.unmask, UNMASKS)
    if settings.neighbours and not (settings.server_reads and settings.neighbours > 1):
        raise ConfigError(
            f"neighbours={settings.neighbours}: 2 or more, among whom SASH's seeds are shared where "
            "the server reads the sums (scheme='sash', unmask='server'); leave it out otherwise"
        )
    _batches(settings)
    if settings.scheme == "sash":
        _sash(settings)
    _eshe(settings)
    if not 0 <= settings.top_k <= 1:
        raise ConfigError(f"top-k={settings.top_k}: must be a share of 0 (send all) to 1")
    if settings.top_k and not settings.encrypted:
        raise ConfigError(
            "top-k with scheme='plain': plain FedAvg sends everything; leave it out, or use an "
            "encrypted scheme"
        )


def _batches(settings: Settings) -> None:
    """Refuse what BatchCrypt cannot do, and what only it can, in the words of the run config."""
    if settings.key_bits not in KEY_BITS:
        raise ConfigError(
            f"key-bits={settings.key_bits}: use one of {', '.join(map(str, KEY_BITS))}"
        )
    if settings.scheme == "batchcrypt":
        if settings.top_k:
            raise ConfigError(
                "scheme='batchcrypt' sends all values, in batches: leave top-k out, or use "
                "scheme='flashe'"
            )
        headroom = (settings.nodes - 1).bit_length() if settings.advance else 0
        if settings.advance and settings.value_bits - headroom < 2:
            raise ConfigError(
                f"advance with bits={settings.value_bits}: {settings.nodes} nodes leave no bits of a "
                "value; use more, or leave advance out"
            )
        return
    if (settings.key_bits, settings.advance) != (DEFAULT_KEY_BITS, False):
        raise ConfigError(
            f"key-bits and advance are BatchCrypt's: leave them out with scheme={settings.scheme!r}"
        )


def _sash(settings: Settings) -> None:
    """Refuse what a sum of seeds cannot open, in the words of the run config."""
    if settings.top_k or settings.clipping != "fixed":
        raise ConfigError(
            "scheme='sash' sends all values, clipped at a fixed threshold: leave top-k and "
            "clipping out, or use scheme='flashe'"
        )
    most = most_bits(settings.nodes)
    if settings.bits > most:
        raise ConfigError(
            f"bits={settings.bits} with scheme='sash': a sum of {settings.nodes} nodes has room for "
            f"{most}; use fewer, or 0 for all of them"
        )
    if settings.fair_q and most < FAIR_BITS:
        raise ConfigError(
            f"fair-q with scheme='sash' and {settings.nodes} nodes: {most} bits a value are left, "
            f"q-FedAvg's small updates need {FAIR_BITS}; use scheme='flashe'"
        )
    if settings.secret_initial and settings.server_reads:
        raise ConfigError(
            "secret-initial with unmask='server': who reads the sums has the model; use "
            "unmask='clients'"
        )


def _eshe(settings: Settings) -> None:
    """Refuse what ESAFL cannot do, and what only it can, in the words of the run config."""
    one_of("ring", settings.ring, RINGS)
    if settings.scheme != "esafl":
        if settings.per_round_keys or settings.ring != DEFAULT_ESHE:
            raise ConfigError(
                "ring and per-round-keys are ESAFL's: leave them out with scheme="
                f"{settings.scheme!r}"
            )
        return
    if settings.top_k:
        raise ConfigError(
            "scheme='esafl' sends all values, as coefficients of polynomials: leave top-k out, or use "
            "scheme='flashe'"
        )
    if settings.per_round_keys and settings.clipping != "fixed":
        raise ConfigError(
            f"clipping={settings.clipping!r} with per-round-keys: thresholds are fitted on a sum of "
            "its own, and keys open one a round; use clipping='fixed', or leave per-round-keys out"
        )
    if settings.fraction_train < 1 and not settings.per_round_keys:
        raise ConfigError(
            f"fraction-train={settings.fraction_train} with scheme='esafl': keys that last longer "
            "than a round open sums of all nodes only; use per-round-keys=true, or fraction-train=1.0"
        )
    try:
        Eshe(settings.nodes, settings.value_bits, settings.ring)
    except ConfigError as error:
        raise ConfigError(
            f"bits={settings.value_bits} with scheme='esafl' and {settings.nodes} nodes: {error}"
        ) from None


def state(settings: Settings) -> None:
    """Refuse what only an encrypted run can do, and a resumption without a state."""
    for name in ("resume", "state_dir", "secret_initial"):
        if getattr(settings, name) and not settings.encrypted:
            raise ConfigError(
                f"{key_of(name)} with scheme='plain': plain FedAvg keeps no state and hides "
                "nothing; leave it out, or use an encrypted scheme"
            )
    if settings.resume and not settings.state_dir:
        raise ConfigError("resume=true needs state-dir: name the directory of the run before")


def methods(settings: Settings) -> None:
    """Refuse what the server optimizer or q-FedAvg would, in the words of the run config."""
    one_of("server-optimizer", settings.server_optimizer, SERVER_OPTIMIZERS)
    try:
        _ = settings.optimizer
    except ConfigError as error:
        raise ConfigError(
            f"server-optimizer={settings.server_optimizer!r} with server-eta={settings.server_eta} and "
            f"server-momentum={settings.server_momentum}: {error}"
        ) from None
    if settings.fair_q and 0 < settings.max_examples < MIN_LIMIT:
        raise ConfigError(
            f"max-examples={settings.max_examples} with fair-q={settings.fair_q}: weights are rounded "
            f"to whole numbers up to it; use {MIN_LIMIT} or more, or 0"
        )
    try:
        _ = settings.fair
    except ConfigError as error:
        raise ConfigError(f"fair-q={settings.fair_q}: {error}") from None
