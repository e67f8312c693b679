"""Planning: a strategy's settings of all rounds, found out before the first, for the contract.

What apps are told comes from `start`'s own arguments, and from `configure_train` and
`configure_evaluate`, which a subclass may override: they are asked for every round when the run begins.
They are called again in the round itself, where they may choose nodes, and have to say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid

from flhe.errors import ConfigError
from flhe.training.schedule import Schedule, Settings, Value

Given = Mapping[str, Value | Schedule | tuple[Value | None, ...]]
"""What users give: a ConfigRecord, or a mapping of values, rules, or tuples of a value a round."""
Configure = Callable[[int, ArrayRecord, ConfigRecord, Grid], Iterable[Message]]

NUMBER = "server-round"
"""What every app is told beside its settings."""


def settings_of(
    given: Given | None, configure: Configure, key: str, numbers: range, grid: Grid
) -> Settings:
    """What `configure` makes of the `given` settings, round by round; rounds are named `numbers`.

    Raises ConfigError: a value that no contract can say.
    """
    settings = Settings(dict(given or {}))
    told = []
    for training, number in enumerate(numbers, 1):
        config = ConfigRecord(dict(settings.at(training)))
        found = {}
        for message in configure(number, ArrayRecord(), config, grid):
            found = told_in(message, key)
        told.append(found)
    return Settings.of_rounds(told)


def told_in(message: Message, key: str) -> dict[str, Value]:
    """What a message says to the app; it is taken out, for nodes go by the contract."""
    record = message.content.pop(key, None)
    if message.content.config_records.keys() - {"flhe.stage"} or message.content.metric_records:
        raise ConfigError(
            "configure_train or configure_evaluate adds records to its messages, which would reach no "
            f"app: put settings into {key!r}, the one that it is given"
        )
    told = dict(record) if isinstance(record, ConfigRecord) else {}
    told.pop(NUMBER, None)
    return told


def strip(
    messages: Iterable[Message], key: str, told: Mapping[str, Value], round_: int
) -> list[Message]:
    """Messages without their settings, which are those of the contract.

    Raises ConfigError: they say something else than when the run began.
    """
    out, seen = list(messages), set[int]()
    expected = {name: value for name, value in told.items() if name != NUMBER}
    for message in out:
        if id(message.content) in seen:
            continue  # nodes that lack the same get one content
        seen.add(id(message.content))
        if told_in(message, key) != expected:
            raise ConfigError(
                f"round {round_}: configure_train or configure_evaluate tells apps something else than "
                "when the run began, and all members have signed that: what they say must follow from "
                "the round alone"
            )
    return out
