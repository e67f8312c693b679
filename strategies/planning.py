"""Planning: a strategy's settings of all rounds, found out before the first, for the contract.

What apps are told comes from `start`'s own arguments, and from `configure_train` and
`configure_evaluate`, which a subclass may override: they are asked for every round when the run begins,
and again in the round itself, where they have to say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from flhe.errors import ConfigError
from flhe.mods import records
from flhe.strategies.grid import StreamGrid
from flhe.training.contract import Contract
from flhe.training.schedule import Schedule, Settings, Value
from flhe.training.terms import Terms

Asked = Literal["train", "evaluate"]
Given = Mapping[str, Value | Schedule | tuple[Value | None, ...]]
"""What users give: a ConfigRecord, or a mapping of values, rules, or tuples of a value a round."""
Configure = Callable[[int, ArrayRecord, ConfigRecord, Grid], Iterable[Message]]

NUMBER = "server-round"
"""What every app is told beside its settings."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run tells apps."""

    terms: Terms
    key: str
    """Where messages hold it."""
    given: Mapping[Asked, Settings]
    """What was given to `start`."""
    configure: Mapping[Asked, Configure]
    """What makes messages of it."""
    shares: Mapping[Asked, float]
    """Share of the members that are asked."""

    @classmethod
    def of(
        cls, strategy: FedAvg, terms: Terms, train: Given | None, evaluate: Given | None
    ) -> Plan:
        """That of a strategy, which was given this to tell."""
        return cls(
            terms,
            strategy.configrecord_key,
            {"train": Settings(dict(train or {})), "evaluate": Settings(dict(evaluate or {}))},
            {"train": strategy.configure_train, "evaluate": strategy.configure_evaluate},
            {"train": strategy.fraction_train, "evaluate": strategy.fraction_evaluate},
        )

    def contract(self, rounds: int, least: int, grid: StreamGrid) -> Contract:
        """What the run does, for its members to sign."""
        run = grid.run
        train, evaluate = (self._settings(kind, rounds, grid) for kind in self.given)
        shares = float(self.shares["train"]), float(self.shares["evaluate"])
        app = " ".join(filter(None, (run.fab_id, run.fab_version, run.fab_hash)))
        return Contract(self.terms, rounds, train, evaluate, *shares, least, self.key, app)

    def asked(
        self, kind: Asked, number: int, contract: Contract, grid: StreamGrid
    ) -> list[Message]:
        """What a round sends, without what apps are told: nodes go by the contract.

        Raises ConfigError: it says something else than when the run began.
        """
        told = contract.told(kind, number)
        messages = self._configured(kind, number - self.terms.select.mapped, grid)
        for content in {id(m.content): m.content for m in messages}.values():  # some share theirs
            if self._taken(content) != {n: v for n, v in told.items() if n != NUMBER}:
                raise ConfigError(
                    f"round {number}: configure_train or configure_evaluate tells apps something else "
                    "than when the run began, and all members have signed that: what they say must "
                    "follow from the round alone"
                )
        return messages

    def _settings(self, kind: Asked, rounds: int, grid: StreamGrid) -> Settings:
        told = []
        for training in range(1, rounds + 1):
            messages = self._configured(kind, training, grid)
            told.append(self._taken(messages[0].content) if messages else {})
        return Settings.of_rounds(told)

    def _configured(self, kind: Asked, training: int, grid: StreamGrid) -> list[Message]:
        config = ConfigRecord(self.given[kind].at(training))
        number = training + self.terms.select.mapped
        return list(self.configure[kind](number, ArrayRecord(), config, cast(Grid, grid)))

    def _taken(self, content: RecordDict) -> dict[str, Value]:
        record = content.pop(self.key, None)
        if content.config_records.keys() - {records.STAGE} or content.metric_records:
            raise ConfigError(
                "configure_train or configure_evaluate adds records to its messages, which would reach "
                f"no app: put settings into {self.key!r}, the one that it is given"
            )
        told = dict(record) if isinstance(record, ConfigRecord) else {}
        told.pop(NUMBER, None)
        return told
