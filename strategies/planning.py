"""Planning: find a strategy's settings of all rounds before the first, for the contract.

Settings of apps come from `start`'s own arguments, and from `configure_train` and
`configure_evaluate`, which a subclass may override. Both are called for every round when the run
begins, and again in the round itself, where the settings must be the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from flhe.errors import ConfigError
from flhe.mods import records
from flhe.strategies.grid import StreamGrid
from flhe.training.contract import Contract
from flhe.training.schedule import Schedule, Settings, Value
from flhe.training.terms import Terms

Asked = Literal["train", "evaluate"]
Given = Mapping[str, Value | Schedule | tuple[Value | None, ...]]
"""Settings by users: a ConfigRecord, or a mapping of values, rules, or tuples of a value a round."""

NUMBER = "server-round"
"""Name of the round's number among every app's settings."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Settings of apps in a run."""

    strategy: FedAvg
    terms: Terms
    grid: StreamGrid
    given: Mapping[Asked, Given | None]
    """Settings passed to `start`."""

    def contract(self, rounds: int, least: int) -> Contract:
        """Return the run's contract for its members to sign."""
        run, strategy = self.grid.run, self.strategy
        train, evaluate = self._settings("train", rounds), self._settings("evaluate", rounds)
        shares = float(strategy.fraction_train), float(strategy.fraction_evaluate)
        key, app = strategy.configrecord_key, (run.fab_id, run.fab_version, run.fab_hash)
        named = " ".join(filter(None, app))
        return Contract(self.terms, rounds, train, evaluate, *shares, least, key, named)

    def asked(self, kind: Asked, number: int, contract: Contract) -> list[Message]:
        """Return a round's messages without the apps' settings: nodes use the contract's.

        Raises ConfigError: the settings differ from those when the run began.
        """
        told = contract.config_at(kind, number)
        training = max(1, number - self.terms.select.mapped)  # the map trains nobody
        messages = self._configured(kind, training)
        for content in {id(m.content): m.content for m in messages}.values():  # some share theirs
            if self._taken(content) != {n: v for n, v in told.items() if n != NUMBER}:
                raise ConfigError(
                    f"round {number}: configure_train or configure_evaluate gives apps other "
                    "settings than when the run began, and all members have signed those: "
                    "settings must follow from the round alone"
                )
        return messages

    def _settings(self, kind: Asked, rounds: int) -> Settings:
        told = []
        for training in range(1, rounds + 1):
            messages = self._configured(kind, training)
            told.append(self._taken(messages[0].content) if messages else {})
        return Settings.of_rounds(told)

    def _configured(self, kind: Asked, training: int) -> list[Message]:
        config = ConfigRecord(Settings(dict(self.given[kind] or {})).at(training))
        number, strategy = training + self.terms.select.mapped, self.strategy
        made = strategy.configure_train if kind == "train" else strategy.configure_evaluate
        return list(made(number, ArrayRecord(), config, self.grid))

    def _taken(self, content: RecordDict) -> dict[str, Value]:
        key = self.strategy.configrecord_key
        record = content.pop(key, None)
        if content.config_records.keys() - {records.STAGE} or content.metric_records:
            raise ConfigError(
                "configure_train or configure_evaluate adds records to its messages, which would "
                f"reach no app: put settings into {key!r}, the one that it is given"
            )
        told = dict(record) if isinstance(record, ConfigRecord) else {}
        told.pop(NUMBER, None)
        return told
