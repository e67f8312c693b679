"""Who is caught up, and who is not: a server collects vouchers for checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Message

from flhe.strategies import FlasheFedAvg
from flhe.strategies.ledger import Ledger
from tests.strategies.puppets import Log, Puppets, play, same, told

pytestmark = pytest.mark.usefixtures("quick")


def run(grid: Puppets, rounds: int) -> Ledger:
    strategy, _ = play(FlasheFedAvg, grid, rounds)
    return strategy._fed.ledger


def lose_model(grid: Puppets, round_: int) -> int:
    """The member of the highest rank finds no model before a round; returns its partition."""
    last = len(grid.contexts) - 1
    grid.app.examples = lambda p: 10
    grid.before[round_] = lambda: (grid.run_dir(last) / "model").write_bytes(b"?")
    return last


@pytest.mark.parametrize(("size", "need"), [(3, 1), (4, 2), (7, 3)])
def test_more_vouch_for_a_checkpoint_than_may_collude(
    tmp_path: Path, size: int, need: int, caplog: Log
) -> None:
    """One more than the sealer is asked in any case."""
    caplog.set_level("INFO", "flwr")
    grid = Puppets(tmp_path, size)
    late = lose_model(grid, 3)
    ledger = run(grid, 4)
    assert f"node {100 + late} has caught up by a checkpoint" in caplog.text
    assert len(set(ledger.vouchers)) == max(need, 2)
    assert same(grid, range(size)).round == 4


def test_nobody_is_caught_up_by_too_few(tmp_path: Path, caplog: Log) -> None:
    """The run goes on with those who have the model, and the last model is theirs."""
    grid, asked = Puppets(tmp_path, 7), list[int]()
    late = lose_model(grid, 3)

    def shy(node: int, reply: Message) -> None:
        asked.append(node)
        if node != asked[0]:
            told(reply).pop("voucher", None)

    grid.lies(range(100, 107), "verify", shy)
    ledger = run(grid, 4)
    assert f"nodes [{100 + late}] stay behind: no member sealed a checkpoint" in caplog.text
    assert "too few find their model in its checkpoint" in caplog.text
    assert grid.survivors == [7, 7, 6, 6]
    assert ledger.box is None
    assert same(grid, [i for i in range(7) if i != late]).round == 4


def test_a_false_voucher_does_not_count(tmp_path: Path, caplog: Log) -> None:
    grid = Puppets(tmp_path, 4)
    late = lose_model(grid, 3)

    def forge(_: int, reply: Message) -> None:
        voucher = told(reply)["voucher"]
        told(reply)["voucher"] = voucher[:-1] + bytes([voucher[-1] ^ 1])  # type: ignore[index, operator]

    lied = grid.lies(lambda node: node == 100 + grid.ranked()[1], "verify", forge)
    ledger = run(grid, 4)
    assert lied
    assert "the signature does not verify" in caplog.text
    assert len(ledger.vouchers) == 2
    assert same(grid, range(4)).round == 4
    assert grid.model(late).round == 4


def test_who_opened_a_sum_that_is_void_is_named_and_asked(tmp_path: Path, caplog: Log) -> None:
    """The others go on; it comes back once its administrator takes their result."""
    grid = Puppets(tmp_path, 5)

    def move_away() -> None:
        assert grid.model(0).round == 2
        (grid.run_dir(0) / "model").rename(grid.run_dir(0) / "model-before")

    grid.damage_sum(2, spared=100)
    grid.before[5] = move_away
    run(grid, 6)
    assert "the sum of round 2 opened for nobody: the round is void" in caplog.text
    assert "node 100: flhe/two-stories" in caplog.text
    assert "round 2: the result here is" in grid.log(0)
    # Until all have been in sums that opened, some are left out: it might have been one of them.
    assert grid.survivors[:2] == [5, 5]
    assert set(grid.survivors[2:]) <= {3, 4, 5}
    assert [link.round for link in same(grid, range(5)).chain] == [1, 3, 4, 5, 6]
