"""The app's run config, read and checked once: on the server, on a client, and by `flhe run`.

Imports neither flwr nor torch, so that a wrong option is refused before anything starts.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, cast

from flhe.apps import checks, fedsgd, selection
from flhe.apps.checks import MIN_ENCRYPTED_NODES, key_of, one_of
from flhe.apps.tasks.fair import FAIR_BITS, Fair
from flhe.coding.laplace import Laplace, Scope
from flhe.coding.select import Rest, Select
from flhe.errors import ConfigError
from flhe.rounds.optimizer import Name, ServerOptimizer
from flhe.rounds.optimizers import Optimizer
from flhe.schemes.paillier import DEFAULT_KEY_BITS
from flhe.schemes.presets import DEFAULT_CKKS, DEFAULT_ESHE

SCHEMES = ("flashe", "sash", "batchcrypt", "esafl", "fedml-he", "plain")
"""Every name that `scheme` may take."""

CLASSES = {
    "digits": 10,
    "cifar10": 10,
    "fashion-mnist": 10,
    "fcn": 10,
    "alexnet": 10,
    "lstm": 97,
    "resnet20": 10,
    "gru": 97,
    "cnn": 62,
    "fcn-digits": 10,
    "cnn-digits": 62,
}
"""What the model of each task tells apart: guessing costs ln(classes)."""

TASKS = tuple(CLASSES)
PARTITIONS = ("iid", "dirichlet")

BITS = 16
"""Bits of one encrypted value, where `bits` does not say; under SASH as many as there is room for."""

FAIR_LIMIT = 1 << 20
"""Largest weight under q-FedAvg, where `max_examples` does not say: fine steps, up to 4,096 nodes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the app. Field `local_epochs` is the key `local-epochs`, and so on.

    Parameters
    ----------
    scheme, task, partition : str
        One of SCHEMES, TASKS and PARTITIONS. Where "one of" is said of others, see `flhe.apps.checks`.
    nodes : int
        Nodes that take part; at least 3 when encrypted.
    clip : float
        Largest change of one weight in one round, or its gradient under fedsgd; encrypted updates are
        clipped to it.
    max_examples : int
        Most examples that one node may count when encrypted; 0 lets the task decide. With fair_q it
        is the largest weight, under any scheme.
    bits : int
        Bits of one encrypted value; with fair_q at least FAIR_BITS are used. 0 is BITS, and under
        SASH as many as the number of nodes leaves room for.
    server_optimizer : str
        What is made of the mean update; one of SERVER_OPTIMIZERS.
    server_eta : float
        The server optimizer's learning rate; 0 takes Flower's default for it.
    server_momentum : float
        Momentum of fedavgm; the others do not use it.
    proximal_mu : float
        Weight of FedProx's proximal term in the nodes' training; 0 trains without it.
    fair_q : float
        Fairness q of q-FedAvg; 0 is FedAvg.
    state_dir : str
        Directory in which the server keeps what it needs to go on after a crash; "" for none.
    resume : bool
        Go on with the run in `state_dir`.
    report : str
        File that receives a JSON line per event while the run goes on; "" for none.
    tensorboard : str
        Directory for TensorBoard's event files; "" for none.
    secret_initial : bool
        Have a node make the initial model and seal it, so that the server is not sent it.
    rekey_every, checkpoint_every, patience, retries : int
        As HEStrategy's.
    fair_lipschitz : float
        L of q-FedAvg; 0 takes 1 / learning_rate. Training here has momentum 0.9, which moves ten times
        as far as its learning rate says: 0.1 / learning_rate makes larger steps.
    clipping : str
        What clips an encrypted update: "fixed" at clip, or thresholds fitted layer by layer, on the
        rounds before ("history") or on each round ("exchange").
    masking : str
        FLASHE's masking; one of MASKINGS.
    top_k : float
        Share of each layer's values that a node sends, the largest; 0 sends all.
    warmup : int
        Rounds at shares of 0.8, 0.4 and 0.2 each before top_k.
    permute : bool
        Hide from the server which values of an update were sent.
    unmask : str
        Who reads the sums of SASH; one of UNMASKS.
    neighbours : int
        Nodes among whom each one shares its SASH seed (SASH+); 0 for all.
    key_bits : int
        Length of BatchCrypt's Paillier modulus: 2048 (112 bits of security), 3072 (128) or 4096.
    advance : bool
        BatchCrypt's advance scaling: `bits` has room for the sum of all nodes.
    ring : str
        Parameters of ESAFL's ring; see `flhe.schemes.presets`.
    per_round_keys : bool
        ESAFL: fresh keys in each round, instead of keys that last until the group changes.
    drops : int
        Nodes that drop out of each round, at random stages; see `flhe.apps.dropouts`.
    kill : int
        Round in whose training one node is killed, for good; 0 for none.
    ckks_ring : str
        Parameters of FedML-HE's CKKS; see `flhe.schemes.presets`.
    select : float
        Share of each update that is encrypted, under any encrypted scheme; 1 is all of it. Example
        counts then weigh nothing, unless `rest` is "drop": in clear they would show.
    rule : str
        What chooses it: "sensitivity", "magnitude", "random" or "layers:REGEX"; see
        `flhe.coding.select`. The first two take a round of their own, before those of training.
    rest : str
        What happens to the rest: it travels in "clear", or "drop": it is not sent, and stays as it was.
    noise : float
        Scale of the Laplace noise that a node adds, in units of the update; 0 adds none.
    noise_scope : str
        What gets noise: what travels in "clear", or "all".
    algorithm : str
        "fedavg", model averaging; or "fedsgd": in a round a node computes the gradient of one batch of
        batch_size, and every node steps with the mean. local_epochs and learning_rate are FedAvg's.
    client_optimizer : str
        What nodes step with under fedsgd: "sgd", "adam" or "rmsprop"; "" is adam.
    client_lr, client_momentum, client_decay : float
        Its learning rate, 0 takes PyTorch's default for it; momentum of sgd and rmsprop; and how the
        rate falls: lr / (1 + decay * steps before).
    """

    scheme: str = "flashe"
    task: str = "digits"
    num_rounds: int = 5
    seed: int = 0
    nodes: int = 5
    join_timeout: float = 60.0
    fraction_train: float = 1.0
    round_timeout: float = 600.0
    partition: str = "iid"
    dirichlet_alpha: float = 0.5
    local_epochs: int = 5
    learning_rate: float = 0.05
    batch_size: int = 32
    device: str = "cpu"
    bits: int = 0
    clip: float = 1.0
    max_examples: int = 0
    data_dir: str = ""
    download: bool = False
    report: str = ""
    tensorboard: str = ""
    sealed_model: str = ""
    server_optimizer: str = "fedavg"
    server_eta: float = 0.0
    server_momentum: float = 0.9
    proximal_mu: float = 0.0
    fair_q: float = 0.0
    fair_lipschitz: float = 0.0
    state_dir: str = ""
    resume: bool = False
    secret_initial: bool = False
    rekey_every: int = 0
    checkpoint_every: int = 10
    patience: int = 3
    retries: int = 2
    clipping: str = "fixed"
    masking: str = "double"
    top_k: float = 0.0
    warmup: int = 10
    permute: bool = True
    unmask: str = "server"
    neighbours: int = 0
    drops: int = 0
    key_bits: int = DEFAULT_KEY_BITS
    advance: bool = False
    ring: str = DEFAULT_ESHE
    per_round_keys: bool = False
    kill: int = 0
    ckks_ring: str = DEFAULT_CKKS
    select: float = 1.0
    rule: str = "sensitivity"
    rest: str = "clear"
    noise: float = 0.0
    noise_scope: str = "clear"
    algorithm: str = "fedavg"
    client_optimizer: str = ""
    client_lr: float = 0.0
    client_momentum: float = 0.0
    client_decay: float = 0.0

    def __post_init__(self) -> None:
        one_of("scheme", self.scheme, SCHEMES)
        one_of("task", self.task, TASKS)
        one_of("partition", self.partition, PARTITIONS)
        checks.numbers(self)
        if self.encrypted and self.cohort < MIN_ENCRYPTED_NODES:
            raise ConfigError(
                f"scheme={self.scheme!r} with {self.cohort} node(s) a round: a sum of two shows "
                f"each member the other's update; use {MIN_ENCRYPTED_NODES} nodes or more, "
                'or scheme="plain"'
            )
        checks.dropouts(self)
        checks.state(self)
        fedsgd.check(self)
        checks.methods(self)
        checks.encoding(self)
        selection.check(self)

    @property
    def selects(self) -> Select:
        """What is encrypted of an update."""
        return Select(self.select, self.rule, cast(Rest, self.rest))

    @property
    def laplace(self) -> Laplace | None:
        """What is added to an update; None for nothing."""
        return Laplace(self.noise, cast(Scope, self.noise_scope)) if self.noise else None

    @property
    def weighted(self) -> bool:
        """Whether example counts weigh."""
        return not self.selects.clear

    @property
    def total_rounds(self) -> int:
        """Rounds in all: those of training, and one for the map where there is one."""
        return self.num_rounds + self.selects.mapped

    @property
    def server_reads(self) -> bool:
        """Whether the server has the model, though never an update."""
        return self.scheme == "sash" and self.unmask == "server"

    @property
    def model_suffix(self) -> str:
        """Suffix of the final model's file: .flhe if it is sealed, .npz if the server reads it."""
        return ".npz" if self.server_reads or not self.encrypted else ".flhe"

    @property
    def threshold(self) -> float | Literal["history", "exchange"]:
        """What clips an encrypted update, as strategies take it."""
        return self.clip if self.clipping == "fixed" else cast(Any, self.clipping)

    @property
    def encrypted(self) -> bool:
        """Whether the server sees ciphertext only."""
        return self.scheme != "plain"

    @property
    def optimizer(self) -> Optimizer:
        """The server optimizer, or that of every node under fedsgd, with its parameters."""
        if self.algorithm == "fedsgd":
            return fedsgd.optimizer_of(self)
        return ServerOptimizer(
            cast(Name, self.server_optimizer),
            eta=self.server_eta or None,
            momentum=self.server_momentum if self.server_optimizer == "fedavgm" else None,
        )

    @property
    def fair(self) -> Fair | None:
        """Parameters of q-FedAvg, from public figures alone; None without it."""
        if not self.fair_q:
            return None
        return Fair(
            self.fair_q,
            self.fair_lipschitz or 1 / self.learning_rate,
            self.clip,
            math.log(CLASSES[self.task]),
            self.max_examples or FAIR_LIMIT,
        )

    @property
    def value_bits(self) -> int:
        """Bits of one encrypted value."""
        bits = self.bits or (0 if self.scheme == "sash" else BITS)
        return max(bits, FAIR_BITS) if self.fair_q and bits else bits

    @property
    def cohort(self) -> int:
        """Nodes that train in one round."""
        return max(1, round(self.nodes * self.fraction_train))

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Read a Flower run config; keys that are not the app's own are left alone."""
        found: dict[str, Any] = {}
        for field in fields(cls):
            if key_of(field.name) in config:
                found[field.name] = _typed(field.name, field.default, config[key_of(field.name)])
        return cls(**found)

    def to_config(self) -> dict[str, Any]:
        """Return every setting under its key in the run config."""
        return {key_of(field.name): getattr(self, field.name) for field in fields(self)}

    def to_toml(self) -> str:
        """Write every setting as the TOML that `flwr run --run-config FILE.toml` reads."""
        lines = (
            f"{key} = {json.dumps(value, ensure_ascii=False)}"
            for key, value in self.to_config().items()
        )
        return "\n".join(lines) + "\n"


def _typed(name: str, default: object, value: object) -> object:
    """Return `value` in the type of `default`, or refuse it."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise ConfigError(
            f"{key_of(name)}={value!r}: must be {type(default).__name__}, got {type(value).__name__}"
        )
    return value
