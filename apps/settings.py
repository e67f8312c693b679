"""The app's run config, read and checked once: on the server, on a client, and by `flhe run`.

It imports neither flwr, torch nor numpy: `flhe --help` lists the settings, and a wrong one is
refused before anything starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from flhe.errors import ConfigError
from flhe.schemes import DEFAULT, PLAIN
from flhe_app.option import GROUPS, check, key_of, option
from flhe_app.tasks import TASKS, task_named

if TYPE_CHECKING:
    from flhe.coding.chain import Chain
    from flhe.coding.laplace import Laplace
    from flhe.coding.select import Select
    from flhe.schemes.base import Scheme
    from flhe.training.optimizer import Optimizer
    from flhe.training.terms import Terms
    from flhe_app.tasks.fair import Fair

SERVER_OPTIMIZERS = ("fedavg", "fedavgm", "fedadagrad", "fedadam", "fedyogi")
CLIENT_OPTIMIZERS = ("sgd", "adam", "rmsprop")
FAIR_LIMIT = 1 << 20
"""Largest weight under q-FedAvg by default: fine steps, up to 4,096 nodes."""
MIN_LIMIT = 1 << 10
"""Smallest one: below this, rounding weights to whole numbers changes q-FedAvg."""
FAIR_BITS = 24
"""Fewest bits of an encrypted value: q-FedAvg's updates are small beside the clip."""

FILE, DIR = {"metavar": "FILE"}, {"metavar": "DIR"}
_DATA = {"metavar": "DIR", "envvar": "FLHE_DATA_DIR", "show_envvar": False}
_ENCRYPTED, _FEDAVG, _FEDSGD = ("encrypted", True), ("algorithm", "fedavg"), ("algorithm", "fedsgd")
_CLEAR, _NOISY = ("noise_multiplier", 0.0), ("noise_multiplier", None)

_fedavg, _fedsgd, _encrypted = (
    partial(option, only=(each,)) for each in (_FEDAVG, _FEDSGD, _ENCRYPTED)
)
_federation, _training, _updates, _files, _ = (partial(option, group=each) for each in GROUPS)


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of the app. Field `local_epochs` is the key `local-epochs`, and so on.

    Each field declares its help, its place in `flhe run --help`, and its permitted values.

    Raises ConfigError: settings that are out of range, conflict, or have no effect.
    """

    scheme: str = option(
        DEFAULT, f"Scheme and its own parameters, as in {DEFAULT!r}; {PLAIN} for ordinary FedAvg."
    )
    task: str = _federation("digits", "Model and data; a wrong name lists all.", known=TASKS)
    nodes: int = _federation(5, "Number of nodes; at least 3 if encrypted.", least=1)
    num_rounds: int = _federation(5, "Rounds of training.", flag="--rounds", least=1)
    seed: int = option(0, "Seed of the model, the split and the batches.", most=(1 << 32) - 1)
    report: str = option(
        "", "File that receives a JSON line per event while the run goes on.", internal=True
    )
    tensorboard: str = option(
        "", "Write the time of each phase for TensorBoard into DIR.", extra=DIR
    )
    partition: str = _federation(
        "iid", "Split of the data: iid or dirichlet.", known=("iid", "dirichlet")
    )
    dirichlet_alpha: float = option(
        0.5, "Evenness of a dirichlet split.", positive=True, only=(("partition", "dirichlet"),)
    )
    local_epochs: int = _training(5, "Epochs a node trains in a round.", least=1, only=(_FEDAVG,))
    learning_rate: float = _fedavg(0.05, "Learning rate of a node's training.", positive=True)
    batch_size: int = option(32, "Examples of a batch.", least=1)
    algorithm: str = _training(
        "fedavg",
        "fedavg, or fedsgd on gradients.",
        known=("fedavg", "fedsgd"),
        only=(_ENCRYPTED,),
    )
    client_optimizer: str = _training(
        "adam",
        "Optimizer of fedsgd: adam, rmsprop or sgd.",
        flag="--optimizer",
        known=CLIENT_OPTIMIZERS,
        only=(_FEDSGD,),
    )
    client_lr: float = _fedsgd(0.0, "Its learning rate; 0: PyTorch's default.", flag="--lr")
    client_momentum: float = _fedsgd(0.0, "Momentum of sgd and rmsprop.")
    client_decay: float = _fedsgd(0.0, "Decay of its rate: lr / (1 + decay * steps before).")
    server_optimizer: str = _fedavg(
        "fedavg", "fedavg, fedavgm, fedadagrad, fedadam or fedyogi.", known=SERVER_OPTIMIZERS
    )
    server_eta: float = _fedavg(0.0, "Its learning rate; 0: Flower's default.")
    server_momentum: float = option(
        0.9, "Momentum of fedavgm.", only=(("server_optimizer", "fedavgm"),)
    )
    proximal_mu: float = _fedavg(0.0, "Weight of FedProx's proximal term; 0 trains without it.")
    fair_q: float = option(
        0.0, "Fairness q of q-FedAvg; 0 is FedAvg.", most=20, only=(_FEDAVG, _CLEAR)
    )
    fair_lipschitz: float = option(
        0.0,
        "L of q-FedAvg; 0 takes 1 / learning-rate. Training has momentum 0.9, which makes steps ten "
        "times as large: 0.1 / learning-rate allows for that.",
        only=(("fair_q", None),),
    )
    fraction_train: float = option(
        1.0, "Share of the nodes that train in a round.", positive=True, most=1
    )
    join_timeout: float = option(300.0, "Longest wait for the nodes, in seconds.", positive=True)
    round_timeout: float = option(600.0, "Longest stage of a round, in seconds.", positive=True)
    device: str = option("cpu", "Device on which nodes train: cpu or cuda.")
    bits: int = _encrypted(
        0, "Bits of one encrypted value; 0: 16, or all that the scheme can hold."
    )
    clip: float = option(
        1.0,
        "Largest change of one weight in one round, or its gradient under fedsgd.",
        positive=True,
        only=(_CLEAR, ("clipping", "fixed")),
    )
    max_examples: int = option(
        0,
        "Maximum number of examples that one node may count; 0 lets the task decide. With fair-q: "
        "the largest weight.",
        only=(_CLEAR,),
    )
    clipping: str = _training(
        "fixed",
        "Clip: fixed, history or exchange.",
        known=("fixed", "history", "exchange"),
        only=(_ENCRYPTED, _CLEAR),
    )
    top_k: float = _updates(
        0.0, "Share of values that a node sends; 0: all.", most=1, only=(_ENCRYPTED, _CLEAR)
    )
    warmup: int = option(
        10, "Rounds at shares of 0.8, 0.4 and 0.2 each before --top-k.", only=(("top_k", None),)
    )
    permute: bool = option(
        True, "Hide from the server which values were sent.", only=(("top_k", None),)
    )
    select: float = _updates(1.0, "Share to encrypt; the rest is clear.", only=(_ENCRYPTED,))
    rule: str = _encrypted(
        "sensitivity", "Rule that chooses it: sensitivity, magnitude, random or layers:REGEX."
    )
    rest: str = _encrypted(
        "clear", "The rest is sent in clear (clear), or not at all (drop).", known=("clear", "drop")
    )
    noise: float = _encrypted(0.0, "Scale of Laplace noise on updates, in their units; 0: none.")
    noise_scope: str = option(
        "clear",
        "Values that get noise: clear (those in clear), or all.",
        known=("clear", "all"),
        only=(_ENCRYPTED, ("noise", None)),
    )
    noise_multiplier: float = _updates(
        0.0, "Noise of differential privacy; 0: none.", most=1000, only=(_ENCRYPTED,)
    )
    clip_norm: float = option(
        1.0,
        "Largest L2 norm that it hides: of a record's gradient (fedsgd), or of a node's update.",
        positive=True,
        only=(_NOISY,),
    )
    sampling: float = option(
        0.1,
        "Probability with which each record is in a batch.",
        positive=True,
        most=1,
        only=(_FEDSGD, _NOISY),
    )
    delta: float = option(
        1e-5, "Delta at which epsilon is shown.", positive=True, most=0.5, only=(_NOISY,)
    )
    plot: str = option("", "Draw accuracy and epsilon by round into FILE.", extra=FILE)
    drops: int = _federation(0, "Nodes that drop out of each round, at random stages.")
    kill: int = _federation(0, "Round in which one node is killed for good; 0: none.")
    data_dir: str = _files("", "Directory of the data set; default: $FLHE_DATA_DIR.", extra=_DATA)
    download: bool = option(False, "Fetch the data set into --data-dir when it is missing.")
    state_dir: str = _encrypted(
        "", "Directory in which the server keeps what it needs to go on.", internal=True
    )
    resume: bool = option(
        False, "Go on with the run in state-dir.", internal=True, only=(("state_dir", None),)
    )
    rekey_every: int = _encrypted(0, "Rounds after which the nodes agree on fresh keys; 0: never.")
    sealed_model: str = _files(
        "",
        "File of the final model; default: in the run's directory.",
        flag="--output",
        extra=FILE,
    )

    def __post_init__(self) -> None:
        from flhe_app import checks

        check(self)
        checks.check(self)

    @property
    def selects(self) -> Select:
        """Encrypted part of an update."""
        from flhe.coding.select import Select

        return Select(self.select, self.rule, cast(Any, self.rest))

    @property
    def laplace(self) -> Laplace | None:
        """Noise on an update, or None."""
        from flhe.coding.laplace import Laplace

        return Laplace(self.noise, cast(Any, self.noise_scope)) if self.noise else None

    @property
    def total_rounds(self) -> int:
        """Number of all rounds: those of training, and one for a map."""
        return self.num_rounds + self.selects.mapped

    @property
    def system(self) -> Scheme:
        """The encryption scheme with its parameters; ConfigError for plain."""
        from flhe.schemes.registry import parse

        return parse(self.scheme)

    @property
    def model_suffix(self) -> str:
        """Suffix of the final model's file: .flhe if it is sealed, .npz if the server reads it."""
        return ".flhe" if self.encrypted and self.system.reader != "server" else ".npz"

    @property
    def encrypted(self) -> bool:
        """True if the server sees ciphertext only."""
        return self.scheme != PLAIN

    @property
    def gradients(self) -> bool:
        """True if nodes send gradients, and all take the same step (FedSGD)."""
        return self.algorithm == "fedsgd"

    @property
    def optimizer(self) -> Optimizer:
        """The server optimizer, or that of every node under fedsgd, with its parameters."""
        from flhe.training.optimizer import Optimizer

        if self.gradients:
            return Optimizer(
                cast(Any, self.client_optimizer),
                lr=self.client_lr or None,
                momentum=self.client_momentum or None,
                decay=self.client_decay or None,
            )
        return Optimizer(
            cast(Any, self.server_optimizer),
            eta=self.server_eta or None,
            momentum=self.server_momentum if self.server_optimizer == "fedavgm" else None,
        )

    @property
    def fair(self) -> Fair | None:
        """Parameters of q-FedAvg, from public figures only; None without it."""
        if not self.fair_q:
            return None
        from flhe_app.tasks.fair import Fair

        return Fair(
            self.fair_q,
            self.fair_lipschitz or 1 / self.learning_rate,
            self.clip,
            math.log(task_named(self.task).source.classes),
            self.max_examples or FAIR_LIMIT,
        )

    @property
    def cohort(self) -> int:
        """Number of nodes that train in one round."""
        return max(1, round(self.nodes * self.fraction_train))

    def codec(self, max_examples: int) -> Chain:
        """Return the codec of an update, for weights of at most `max_examples`."""
        from flhe.coding.update import member_codec, private_bits, record_codec, update_codec

        if self.noise_multiplier:
            bits = self.bits or private_bits(self.system.default_bits)
            if not self.gradients:
                return member_codec(self.noise_multiplier, self.clip_norm, bits)
            batch = self.sampling * task_named(self.task).source.train_size
            return record_codec(self.noise_multiplier, self.clip_norm, self.sampling, batch, bits)
        bits = self.bits or self.system.default_bits
        return update_codec(
            bits=max(bits, FAIR_BITS) if self.fair_q and bits else bits,
            clip=self.clip if self.clipping == "fixed" else cast(Any, self.clipping),
            max_examples=max_examples,
            weighted=not self.selects.clear,  # example counts in clear would show
            top_k=self.top_k or None,
            warmup=self.warmup,
            permute=self.permute,
        )

    def terms(self, max_examples: int) -> Terms:
        """Return the terms of an encrypted federation; `max_examples` as for `codec`."""
        from flhe.training.terms import Terms

        codec = self.codec(max_examples)
        return Terms(self.system, codec, self.optimizer, self.selects, self.laplace)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """Read a Flower run config; other apps' keys are ignored."""
        named = ((f, key_of(f.name)) for f in fields(cls))
        given = {f.name: typed(key, f.default, config[key]) for f, key in named if key in config}
        return cls(**given)

    def to_config(self) -> dict[str, Any]:
        """Return every setting under its key in the run config."""
        return {key_of(field.name): getattr(self, field.name) for field in fields(self)}


def typed(key: str, default: object, value: Any) -> Any:
    """Return `value` in the type of `default`, or refuse it."""
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise ConfigError(
            f"{key}={value!r}: must be {type(default).__name__}, got {type(value).__name__}"
        )
    return value
