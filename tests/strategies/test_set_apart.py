"""A relay that sets one node apart, by what its app is told: under every scheme, whoever reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict

from flhe.coding.laplace import Laplace
from flhe.strategies import HEStrategy, esafl_fedavg, flashe_fedavg, sash_fedavg
from tests.strategies.puppets import Reference, initial
from tests.strategies.test_he_strategy import MAX, close, same
from tests.strategies.test_membership import Changing

pytestmark = pytest.mark.usefixtures("quick")

Make = Callable[..., HEStrategy]
SCHEMES: dict[str, tuple[Make, dict[str, Any], int]] = {
    "flashe": (flashe_fedavg, {}, 5),
    "sash, the server reads": (sash_fedavg, {}, 5),
    "sash, the clients read": (sash_fedavg, {"unmask": "clients"}, 5),
    "esafl, keys of a round": (esafl_fedavg, {"per_round_keys": True}, 5),
}


STAGED: dict[str, tuple[Make, dict[str, Any], int]] = {
    "esafl": (esafl_fedavg, {}, 5),
    "flashe, sparse": (flashe_fedavg, {"top_k": 0.5, "warmup": 0}, 5),
    "flashe, with noise": (flashe_fedavg, {"noise": Laplace(1e-3, "all")}, 5),
}
"""Those whose updates are drafts first."""


class Partial(Changing):
    """It tells all but one node's app to stand still in round 2."""

    def __init__(self, path: Path, nodes: int, victims: set[int]) -> None:
        super().__init__(path, nodes)
        self.victims = victims
        self.app.examples = lambda p: 10  # type: ignore[attr-defined]

    def push_messages(self, messages: Any) -> list[str]:
        for message in messages:
            config = message.content.get("config")
            if isinstance(config, ConfigRecord) and self.round == 2:
                lr = 1.0 if message.metadata.dst_node_id in self.victims else 0.0
                own = {**message.content, "config": ConfigRecord({**config, "lr": lr})}
                message.content = RecordDict(own)
        return super().push_messages(messages)


@pytest.mark.parametrize("name", SCHEMES)
def test_one_that_is_told_otherwise_is_in_no_sum(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, how, size = SCHEMES[name]
    grid = Partial(tmp_path, size, {102})
    make(max_examples=MAX, on_round=grid.after, **how).start(grid, initial(), num_rounds=3)
    grid.close()
    assert "told other settings than most" in caplog.text
    assert [report.survivors for report in grid.reports] == [size, size - 1, size]


def test_settings_that_all_are_told_change_nothing(tmp_path: Path) -> None:
    grid = Partial(tmp_path, 4, {100, 101, 102, 103})
    flashe_fedavg(max_examples=MAX, on_round=grid.after).start(grid, initial(), num_rounds=3)
    grid.close()
    reference = Reference(dict.fromkeys(range(6), 10))
    for _ in range(3):
        reference.round(range(4))
    slack = 3 * 4 * (1 / (2**15 - 1)) / (40 / MAX) + 1e-5
    close(same(grid, range(4)), reference, slack)


class Cut(Partial):
    """Its server dies in round 2, with all answers on their way."""

    dead = False

    def pull_messages(self, message_ids: Any) -> Any:
        replies = list(super().pull_messages(message_ids))
        if self.round == 2 and replies and not self.dead:
            self.dead = True
            raise ConnectionError("cut off")
        return replies


@pytest.mark.parametrize("name", [*SCHEMES, "esafl", "flashe, sparse", "flashe, with noise"])
def test_a_round_that_was_answered_is_asked_for_again_under_other_settings(
    name: str, tmp_path: Path
) -> None:
    """A resumed run is one, and so is one that its user has changed: it costs an attempt."""
    make, how, size = (SCHEMES | STAGED)[name]
    grid = Cut(tmp_path / "nodes", size, set())
    how = {"max_examples": MAX, "state_dir": tmp_path / "server", **how}
    with pytest.raises(ConnectionError):
        make(on_round=grid.after, **how).start(grid, initial(), num_rounds=3)
    grid.close()
    assert [report.survivors for report in grid.reports] == [size]
    again = Partial(tmp_path / "nodes", size, set())
    changed = ConfigRecord({"momentum": 0.5})
    make(on_round=again.after, **how).start(
        again, initial(), num_rounds=3, train_config=changed, resume=True
    )
    again.close()
    assert [report.survivors for report in again.reports][-2:] == [size, size]
