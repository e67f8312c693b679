"""A member that spoils each sum that it is in: its ciphertexts have wrong tags."""

from __future__ import annotations

import secrets
from pathlib import Path
from random import Random
from typing import Any

import pytest

from flhe.coding.base import Plain
from flhe.errors import AlteredError, QuorumError
from flhe.schemes.sum_mac import SumMac
from flhe.strategies import FlasheFedAvg
from flhe.strategies.suspects import Suspects
from tests.strategies.puppets import Log, Puppets, play
from tests.strategies.test_sash_rounds import run as run_sash

pytestmark = pytest.mark.usefixtures("quick")

LIAR, ROUNDS = 1, 16


@pytest.fixture
def spoilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has this rank adds 1 to a tag."""
    honest = SumMac.tagged

    def tagged(self: SumMac, plain: Plain, rank: int, *rest: Any) -> Plain:
        made = honest(self, plain, rank, *rest)
        if rank == LIAR:
            made.extras[-2] += 1 if made.extras[-2] < 1 else -1
        return made

    monkeypatch.setattr(SumMac, "tagged", tagged)


def flashe(grid: Puppets, rounds: int) -> Any:
    return play(FlasheFedAvg, grid, rounds)[0]


def sash(grid: Puppets, rounds: int) -> Any:
    return run_sash(grid, rounds, "clients")[0]


@pytest.mark.usefixtures("spoilt")
def test_a_set_that_members_opened_together_has_no_second_one(tmp_path: Path) -> None:
    """To whoever colludes with the one who spoilt it, it was a sum."""
    grid = Puppets(tmp_path, 5)
    with pytest.raises(AlteredError, match=r"one of nodes \[100, 101, 102, 103, 104\] altered it"):
        sash(grid, ROUNDS)
    assert max(grid.stages("round").count(100 + i) for i in range(5)) == 1


@pytest.mark.usefixtures("spoilt")
def test_who_spoils_sums_is_named_and_left_out(tmp_path: Path, caplog: Log) -> None:
    """No sum ever opened, and nobody was named."""
    caplog.set_level("INFO")
    grid = Puppets(tmp_path, 5)
    fed = flashe(grid, ROUNDS)._fed
    [node] = [node for node in fed.members if fed.parameters.epoch.rank(node) == LIAR]
    assert fed.nodes_of(fed.barred) == [node]
    assert f"node {node} is left out from now on: its ciphertexts spoil sums" in caplog.text
    assert grid.model(next(i for i in range(5) if 100 + i != node)).round == ROUNDS


@pytest.mark.usefixtures("spoilt")
@pytest.mark.parametrize(("rounds", "retries"), [(8, 0), (8, 2), (1, 0), (3, 2)])
def test_a_run_whose_sums_are_all_refused_ends_with_an_error(
    rounds: int, retries: int, tmp_path: Path
) -> None:
    """It finished, with the model that it began with."""
    grid = Puppets(tmp_path, 4)
    with pytest.raises(QuorumError, match=f"{retries + 1} consecutive rounds are void"):
        play(FlasheFedAvg, grid, rounds, min_replies=4, retries=retries)
    assert len(grid.reports) == retries + 1
    assert {grid.model(i).round for i in range(4)} == {0}


# --- who is left ---


@pytest.mark.parametrize("always", [True, False], ids=["always", "now and then"])
@pytest.mark.parametrize("size", [3, 4, 10, 100])
def test_nobody_else_is_ever_named(
    size: int, always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, spare = Random(size), (2 * size) // 3 - 1
    monkeypatch.setattr(secrets, "SystemRandom", lambda: random)
    suspects, found, spoilt = Suspects(), None, 0
    for _ in range(50 * size):
        senders = set(range(size)) - suspects.left_out(spare)
        assert len(senders) >= size - spare
        if LIAR in senders and (always or random.random() < 0.5):
            spoilt += 1
            found = suspects.refused(senders)
        else:
            suspects.opened(senders)
        if found is not None:
            break
    assert found == LIAR
    assert spoilt <= 3 * size.bit_length()


def test_one_accident_leaves_nobody_out_for_long() -> None:
    suspects = Suspects()
    assert suspects.refused({1, 2, 3, 4}) is None
    for _ in range(64):
        suspects.opened({1, 2, 3, 4} - suspects.left_out(2))
    assert suspects.left_out(2) == set()


def test_a_sum_of_a_run_before_this_one() -> None:
    suspects = Suspects()
    assert suspects.refused(set()) is None
    assert suspects.left_out(9) == set()


def test_nobody_is_left_out_where_nobody_can_be_spared() -> None:
    suspects = Suspects()
    suspects.refused({1, 2, 3})
    assert suspects.left_out(0) == suspects.left_out(-1) == set()
