"""Evaluations that go wrong: each costs its own means, and never the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Error, Message

from flhe.errors import QuorumError
from flhe.strategies import FlasheFedAvg, SashFedAvg
from flhe.strategies.ledger import Ledger
from tests.strategies.puppets import Log, Puppets, initial, play, same
from tests.strategies.reference import MAX

pytestmark = pytest.mark.usefixtures("quick")

READERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "flashe": (FlasheFedAvg, {}),
    "clients read": (SashFedAvg, {"unmask": "clients", "clip": 8.0}),
    "server reads": (SashFedAvg, {"unmask": "server", "clip": 8.0}),
}


@pytest.mark.parametrize("rekey", [False, True])
@pytest.mark.parametrize("reader", READERS)
def test_a_server_that_dies_behind_an_evaluation_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str, *, rekey: bool
) -> None:
    """In another epoch nobody evaluates that model again: its means are lost, and the run goes on."""
    grid, (make, how) = Puppets(tmp_path, 4), READERS[reader]

    def run(*, resume: bool) -> Any:
        strategy = grid.timed(make(max_examples=MAX, state_dir=tmp_path / "state", **how))
        if resume and rekey:
            strategy.rekey()
        return strategy.start(grid, initial(), num_rounds=3, resume=resume)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "keep_evaluation", die)
        with pytest.raises(KeyboardInterrupt):
            run(resume=False)
    told = run(resume=True).evaluate_metrics_clientapp
    grid.close()
    assert set(told) == ({2, 3} if rekey else {1, 2, 3})


@pytest.mark.parametrize("how", ["silent", "dead"])
def test_nobody_is_there_to_evaluate(tmp_path: Path, how: str, caplog: Log) -> None:
    caplog.set_level("INFO")
    grid = Puppets(tmp_path, 4)
    grid.drop(2, "evaluate", how, range(4))  # type: ignore[arg-type]
    _, done = play(FlasheFedAvg, grid, 3)
    assert set(done.evaluate_metrics_clientapp) == {1, 3}
    assert "the evaluation of round 2 is lost: round 2: 0 evaluations, 3 needed" in caplog.text
    assert [report.loss is None for report in grid.reports] == [False, True, False]


def test_an_app_that_fails_everywhere_ends_the_run(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    grid.app.evaluated = lambda partition: {}[partition]  # type: ignore[misc]
    with pytest.raises(QuorumError, match="round 1: 0 evaluations, 2 needed"):
        play(FlasheFedAvg, grid, 3)


@pytest.mark.parametrize("every", [0, 1])
def test_the_teller_was_away(tmp_path: Path, every: int) -> None:
    """It tells what all found of the model that it was handed."""
    grid = Puppets(tmp_path, 4)
    grid.fate = lambda node, stage, round_: (
        "dead" if (stage, round_) == ("evaluate", 2) and node == 100 + grid.ranked()[0] else None
    )
    _, done = play(FlasheFedAvg, grid, 4, checkpoint_every=every)
    assert set(done.evaluate_metrics_clientapp) == {1, 2, 3, 4}


@pytest.mark.parametrize("code", [1023, 1011])
def test_silence_is_no_vote_against_a_sum(tmp_path: Path, code: int) -> None:
    """One refuses a sum, and what the others say is lost twice: it was void, and the run was over."""
    grid, seen = Puppets(tmp_path, 5), set[tuple[int, str]]()

    def lost(node: int, stage: str, reply: Message) -> Message:
        if grid.asked in (2, 3) and stage in ("evaluate", "sync") and (node, stage) not in seen:
            seen.add((node, stage))
            reply._content = None
            reply._error = Error(code=code if node == 104 else 4, reason="")
        return reply

    grid.forge = lost
    for turn in range(3):
        strategy = grid.timed(FlasheFedAvg(max_examples=MAX, state_dir=tmp_path / "state"))
        try:
            strategy.start(grid, initial(), num_rounds=5, resume=turn > 0)
        except QuorumError:
            continue
        break
    grid.close()
    assert same(grid, range(4)).round == 5
