"""Contract: what a whole run does, said before its first round and signed by every member.

A server that may choose from message to message what apps are told, how often they are asked or who is,
adapts what it asks to what it has learned. So all of that is one document. Members bind its hash into
the epoch that they sign; in a round, the server sends a number and ciphertext, and each node tells its
own app what the contract says. Another contract needs a new epoch, which every site's log shows.
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
from flhe.wire.derive import PREFIX
from flhe.wire.fields import U32, Rule, at_most, within
from flhe.wire.printable import printable
from flhe.wire.record import Form, Record

MAX_BYTES = 1 << 18
MAX_ROUNDS = 1 << 24
MAX_AHEAD = 32
"""Most rounds that may have come to nothing in between: each number that is claimed or recorded as
opened is one that no later round has."""

_Share = Annotated[float, Rule("0 to 1", lambda value: 0 <= value <= 1)]


@dataclass(frozen=True, slots=True)
class Contract(Record):
    """One run.

    Parameters
    ----------
    terms : Terms
        How updates are encoded and encrypted. They are a federation's for good, whatever else changes.
    rounds : int
        Rounds of training; where a map says what is selected, that is one more, before them.
    train, evaluate : Settings
        What apps are told when they train and when they evaluate, in each round.
    train_share, evaluate_share : float
        Share of the members that are asked to, 0 to 1.
    least : int
        Fewest senders of a sum, beside what rosters and policies say.
    config_key : str
        Where a message to the app holds what it is told.
    app : str
        Which app Flower says that it runs.
    asks : bool
        Whether its rounds are queries (`flhe.training.query`), which each site answers by its own
        policy: they are the one thing that a server makes up as it goes.
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
        """Refuse a round that this run does not have; ProtocolError."""
        if not 0 < round_ <= self.last:
            raise ProtocolError(f"round {round_} of a contract for {self.last}")

    def check_due(self, model: int, round_: int, reached: int = 0) -> None:
        """Refuse a round that is not one of the next after a model of that round; ProtocolError.

        `reached` is the last round that came to anything here: those that follow are never out of
        reach.
        """
        self.check_round(round_)
        last = max(model, reached)
        if not model < round_ <= last + MAX_AHEAD:
            raise ProtocolError(
                f"round {round_} is not one of the {MAX_AHEAD} after this node's, {last}"
            )

    def check_evaluated(self, round_: int) -> None:
        """Refuse to evaluate a model where nobody does, or that no round makes; ProtocolError."""
        if round_:  # the first model is that of no round
            self.check_round(round_)
        if not self.evaluate_share:
            raise ProtocolError("by the contract nobody evaluates")

    def told(self, kind: Literal["train", "evaluate"], round_: int) -> dict[str, Value]:
        """What an app is told in a round, in order."""
        training = max(round_ - self.terms.select.mapped, 0)
        settings = self.train if kind == "train" else self.evaluate
        return dict(sorted({**settings.at(training), "server-round": training}.items()))

    def hash(self) -> bytes:
        """SHA-256 of the contract, 32 bytes: what an administrator compares and accepts."""
        return hashlib.sha256(self.to_bytes()).digest()

    def bound(self, run_config: Mapping[str, Value]) -> bytes:
        """What members sign: SHA-256 over the contract and the run's config, which apps read too.

        ConfigError: a value of the run's config that is no number, text or bytes.
        """
        config = hashlib.sha256(dumps(Settings(run_config).to_fields())).digest()
        return hashlib.sha256(dumps([PREFIX + "contract", self.hash(), config])).digest()

    def lines(self) -> list[str]:
        """What it says, a line each, for people; nothing that a terminal would act on."""
        terms, codec = self.terms, self.terms.codec
        if self.asks:
            said = [f"scheme {terms.scheme.name}, up to {self.rounds} queries; no model is trained"]
            return [printable(line) for line in [*said, *([f"app {self.app}"] if self.app else [])]]
        steps = " > ".join(step.name for step in codec.codecs)
        who = f"{self.train_share:.0%} of the members train, {self.evaluate_share:.0%} evaluate"
        said = [
            f"scheme {terms.scheme.name}, codec {steps}, optimizer {terms.optimizer.name}",
            f"{self.rounds} rounds; {who}; sums of {self.least} or more",
            *([codec.summary()] if codec.mechanism else []),
            *(f"train: {line}" for line in self.train.lines()),
            *(f"evaluate: {line}" for line in self.evaluate.lines()),
            *([f"app {self.app}"] if self.app else []),
        ]
        return [printable(line) for line in said]
