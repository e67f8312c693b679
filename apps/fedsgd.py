"""FedSGD, as the run config asks for it: a node sends the gradient of one batch, and all step alike.

Imports neither flwr nor torch, as `flhe.apps.settings`, which it is a part of.

Source: BatchCrypt (Zhang et al., USENIX ATC 2020), Alg. 1; FedSGD: McMahan et al. (AISTATS 2017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from flhe.apps.checks import key_of, one_of
from flhe.errors import ConfigError
from flhe.rounds.client_optimizer import DEFAULTS, ClientOptimizer, Name

if TYPE_CHECKING:
    from flhe.apps.settings import Settings

ALGORITHMS = ("fedavg", "fedsgd")
OPTIMIZERS = tuple(DEFAULTS)

DEFAULT = "adam"
"""The optimizer, where `client_optimizer` does not say."""


def optimizer_of(settings: Settings) -> ClientOptimizer:
    """What every node steps with; ConfigError where a parameter does not go with it."""
    return ClientOptimizer(
        cast(Name, settings.client_optimizer or DEFAULT),
        lr=settings.client_lr or None,
        momentum=settings.client_momentum or None,
        decay=settings.client_decay or None,
    )


def check(settings: Settings) -> None:
    """Refuse what the algorithm cannot do, and what has no effect under it, by the names of keys."""
    one_of("algorithm", settings.algorithm, ALGORITHMS)
    own = ("client_optimizer", "client_lr", "client_momentum", "client_decay")
    if settings.algorithm == "fedavg":
        if given := [name for name in own if getattr(settings, name)]:
            raise ConfigError(
                f"{key_of(given[0])} with algorithm='fedavg', in which nodes send models: leave it "
                "out, or use algorithm='fedsgd'"
            )
        return
    others = ("server_eta", "proximal_mu", "fair_q", "top_k")
    given = [name for name in others if getattr(settings, name)]
    if settings.server_optimizer != "fedavg":
        given.append("server_optimizer")
    if given:
        raise ConfigError(
            f"{key_of(given[0])} with algorithm='fedsgd', in which nodes send gradients, whole, and "
            "step with client-optimizer: leave it out, or use algorithm='fedavg'"
        )
    if settings.server_reads:
        raise ConfigError(
            "algorithm='fedsgd' with unmask='server': every node steps for itself, so nodes read the "
            "sums; use unmask='clients'"
        )
    one_of("client-optimizer", settings.client_optimizer or DEFAULT, OPTIMIZERS)
    try:
        optimizer_of(settings)
    except ConfigError as error:
        raise ConfigError(
            f"client-optimizer={settings.client_optimizer or DEFAULT!r} with client-lr="
            f"{settings.client_lr}, client-momentum={settings.client_momentum} and client-decay="
            f"{settings.client_decay}: {error}"
        ) from None
