"""What apps are told, settled before the first round: schedules, overrides, and what may not change."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from flhe.errors import ConfigError
from flhe.node import audit
from flhe.node.store import Store
from flhe.strategies import FlasheFedAvg, HEStrategy, SashFedAvg
from flhe.strategies.report import RoundReport
from flhe.training.schedule import Step
from tests.strategies.puppets import Puppets, play, same

pytestmark = pytest.mark.usefixtures("quick")


def lrs(grid: Puppets) -> list[Any]:
    """The learning rate that each round's apps were told, once a round."""
    told = [config["lr"] for config in grid.app.configs]
    nodes = len(grid.homes)
    assert all(told[i] == told[i - i % nodes] for i in range(len(told)))
    return told[::nodes]


@pytest.mark.parametrize(
    ("lr", "told"),
    [(0.5, [0.5] * 3), (Step(0.5, 0.5, 1), [0.5, 0.25, 0.125]), ((0.3, 0.2), [0.3, 0.2, 0.2])],
    ids=["always", "rule", "table"],
)
def test_settings_by_round(tmp_path: Path, lr: Any, told: list[float]) -> None:
    grid = Puppets(tmp_path, 3)
    play(FlasheFedAvg, grid, start={"train_config": {"lr": lr}})
    assert lrs(grid) == told


class Halves(FlasheFedAvg):
    """Overrides what is asked, as Flower's users do."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        config["lr"] = config["lr"] / 2 ** (server_round - 1)
        messages = list(super().configure_train(server_round, arrays, config, grid))
        return self.changed(messages, server_round)

    def changed(self, messages: list[Message], server_round: int) -> Iterable[Message]:
        return messages


def test_an_override_is_asked_for_all_rounds_when_the_run_begins(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    play(Halves, grid, start={"train_config": ConfigRecord({"lr": 1.0})})
    assert lrs(grid) == [1.0, 0.5, 0.25]


class Adapts(Halves):
    """Says something else in a round than when the run began."""

    calls = 0

    def changed(self, messages: list[Message], server_round: int) -> Iterable[Message]:
        self.calls += 1
        messages[0].content["config"]["lr"] = 1.0 + (self.calls == 5)  # type: ignore[index]
        return messages


class Adds(Halves):
    def changed(self, messages: list[Message], server_round: int) -> Iterable[Message]:
        messages[0].content["more"] = ConfigRecord({"x": 1})
        return messages


def test_what_is_not_in_the_contract_is_not_sent(tmp_path: Path) -> None:
    start = {"train_config": ConfigRecord({"lr": 1.0})}
    grid = Puppets(tmp_path / "adapts", 3)
    with pytest.raises(ConfigError, match=r"round 2: configure_train .* all members have signed"):
        play(Adapts, grid, start=start)
    assert len(grid.stages("round")) == 3  # of round 1
    with pytest.raises(ConfigError, match="adds records to its messages"):
        play(Adds, Puppets(tmp_path / "adds", 3), start=start)
    with pytest.raises(ConfigError, match="no number, text or bytes"):
        play(FlasheFedAvg, Puppets(tmp_path / "none", 3), start={"train_config": {"lr": None}})


def test_another_learning_rate_in_mid_run_is_a_new_epoch_that_every_log_shows(
    tmp_path: Path,
) -> None:
    how = {"state_dir": tmp_path / "server"}
    grid = Puppets(tmp_path / "nodes", 3)
    play(FlasheFedAvg, grid, 2, start={"train_config": {"lr": 0.5}}, **how)
    epoch = grid.epoch(0).id
    again = Puppets(tmp_path / "nodes", 3, run_id=8)
    again.federation = 7
    changed = {"train_config": {"lr": 0.25}, "resume": True}
    play(FlasheFedAvg, again, 4, start=changed, **how)
    assert again.epoch(0).id != epoch
    assert lrs(again) == [0.25] * 2
    for home in again.homes:
        entries = [e for e in audit.last(Store(home), 99) if e is not None and e.stage == "round"]
        contracts = [entry.contract for entry in entries]
        assert contracts[0] == contracts[1] != contracts[2] == contracts[3]
        assert None not in contracts


class StoppedError(Exception):
    """The server is stopped."""


@pytest.mark.parametrize("make", [FlasheFedAvg, lambda **how: SashFedAvg(unmask="clients", **how)])
def test_a_run_stopped_before_its_sum_was_opened_goes_on_under_another_config(
    tmp_path: Path, make: Callable[..., HEStrategy]
) -> None:
    """The config of the run is signed too: nodes opened nothing more, and nobody held the model."""
    how: dict[str, Any] = {"state_dir": tmp_path / "server", "fraction_evaluate": 0.0}

    def stop(report: RoundReport) -> None:
        raise StoppedError

    def nodes(run_id: int, lr: float) -> Puppets:
        grid = Puppets(tmp_path / "nodes", 3, run_id=run_id)
        for context in grid.contexts.values():
            context.run_config = {"lr": lr}
        return grid

    with pytest.raises(StoppedError):
        play(make, nodes(7, 0.5), 3, start={"train_config": {"lr": 0.5}}, on_round=stop, **how)
    again = nodes(8, 0.25)
    again.federation = 7
    play(make, again, 3, start={"train_config": {"lr": 0.25}, "resume": True}, **how)
    assert lrs(again) == [0.25] * 2
    assert same(again, range(3)).round == 3
