"""Contract: a whole run's settings, fixed before its first round and signed by every member.

A server free to choose settings, frequency or participants in each message could adapt its requests
to earlier results. So one document holds them all. Members bind its hash into the epoch that they
sign. In a round the server sends only a number and ciphertext, and each node passes the contract's
settings to its own app. Another contract needs a new epoch, which every site's log shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from flhe.errors import ProtocolError
from flhe.training.schedule import Settings, SettingsField, Value
from flhe.training.terms import Terms
from flhe.wire.canonical import dumps
from flhe.wire.derive import hash_of
from flhe.wire.fields import U32, Rule, at_most, within
from flhe.wire.printable import printable
from flhe.wire.record import Form, Kept

MAX_BYTES = 1 << 18
MAX_ROUNDS = 1 << 24
MAX_AHEAD = 32
"""Maximum number of consecutive failed rounds: numbers that were claimed or opened are not used
again."""

_Share = Annotated[float, Rule("0 to 1", lambda value: 0 <= value <= 1)]


@dataclass(frozen=True, slots=True)
class Contract(Kept):
    """Settings of one run.

    Parameters
    ----------
    terms : Terms
        How updates are encoded and encrypted; fixed for the whole federation.
    rounds : int
        Rounds of training; a selection by map adds one round before them.
    train, evaluate : Settings
        Settings that apps get in each round of training or evaluation.
    train_share, evaluate_share : float
        Share of the members that train or evaluate, 0 to 1.
    least : int
        Fewest senders of a sum; rosters and policies may demand more.
    config_key : str
        Record of a message to the app that holds its settings.
    app : str
        Name of the app in Flower.
    asks : bool
        Whether its rounds are queries (`flhe.training.query`), which the server chooses as it goes and
        each site answers by its own policy.
    """

    FORM = Form("contract", MAX_BYTES, version=2)

    terms: Terms = field(default_factory=Terms)
    rounds: Annotated[int, within(0, MAX_ROUNDS)] = MAX_ROUNDS
    train: SettingsField = field(default_factory=lambda: Settings({}))
    evaluate: SettingsField = field(default_factory=lambda: Settings({}))
    train_share: _Share = 1.0
    evaluate_share: _Share = 1.0
    least: U32 = 0
    config_key: Annotated[str, at_most(128, "characters")] = "config"
    app: Annotated[str, at_most(512, "characters")] = ""
    asks: bool = False

    @property
    def last(self) -> int:
        """Number of the last round."""
        return self.rounds + self.terms.select.mapped

    def check_round(self, round_: int) -> None:
        """Refuse a round outside this run; ProtocolError."""
        if not 0 < round_ <= self.last:
            raise ProtocolError(f"the contract has {self.last} rounds, got round {round_}")

    def check_due(self, model: int, round_: int, reached: int = 0) -> None:
        """Refuse a round that is not one of the next after a model of round `model`; ProtocolError.

        `reached` is the last round that succeeded here: its successors are always permitted.
        """
        self.check_round(round_)
        last = max(model, reached)
        if not model < round_ <= last + MAX_AHEAD:
            raise ProtocolError(
                f"round {round_} is not one of the {MAX_AHEAD} after this node's, {last}"
            )

    def check_evaluated(self, round_: int) -> None:
        """Refuse to evaluate if the contract has no evaluation, or no such round; ProtocolError."""
        if round_:  # the first model is of no round
            self.check_round(round_)
        if not self.evaluate_share:
            raise ProtocolError("the contract has no evaluation")

    def config_at(self, kind: Literal["train", "evaluate"], round_: int) -> dict[str, Value]:
        """Return the app's settings in a round, in order."""
        training = max(round_ - self.terms.select.mapped, 0)
        settings = self.train if kind == "train" else self.evaluate
        return dict(sorted({**settings.at(training), "server-round": training}.items()))

    def hash(self) -> bytes:
        """SHA-256 of the contract, 32 bytes, for administrators to compare and accept."""
        return hashlib.sha256(self.to_bytes()).digest()

    def bound(self, run_config: Mapping[str, Value]) -> bytes:
        """Return the hash that members sign, SHA-256 over the contract and the run's config.

        Apps read that config too. ConfigError: one of its values is not a number, text or bytes.
        """
        config = hashlib.sha256(dumps(Settings(run_config).to_fields())).digest()
        return hash_of("contract", self.hash(), config)

    def lines(self) -> list[str]:
        """Return the contract as printable lines, without control characters."""
        terms, codec = self.terms, self.terms.codec
        steps = " > ".join(step.name for step in codec.codecs)
        train, evaluate = (f"{100 * share:g}%" for share in (self.train_share, self.evaluate_share))
        who = f"{train} of the members train, {evaluate} evaluate"
        said = [
            f"scheme {terms.scheme.name}, codec {steps}, optimizer {terms.optimizer.name}",
            f"{self.rounds} rounds; {who}; sums of {self.least} or more",
            *([codec.summary()] if codec.mechanism else []),
            *(f"train: {line}" for line in self.train.lines()),
            *(f"evaluate: {line}" for line in self.evaluate.lines()),
        ]
        if self.asks:
            said = [f"scheme {terms.scheme.name}, up to {self.rounds} queries; no model is trained"]
        if self.app:
            said.append(f"app {self.app}")
        return [printable(line) for line in said]
