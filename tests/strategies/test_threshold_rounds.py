"""Rounds under a key that nobody has: who drops out when, what a server may show, and who allows it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flhe.errors import ConfigError, NoKeyError, ProtocolError, QuorumError
from flhe.node.journal import Journal
from flhe.schemes.base import Spends
from flhe.schemes.sealed import Sealed
from flhe.strategies import SchemeFedAvg
from flhe.strategies.exchange import Exchange
from flhe.strategies.masking_agreement import MaskingAgreement
from flhe_lab.variants.threshold.adder import ThresholdRlwe
from flhe_lab.variants.threshold.scheme import ThresholdCkks
from tests.strategies.puppets import Patch, Puppets, play, same
from tests.strategies.reference import Reference, close, tolerance

pytestmark = pytest.mark.usefixtures("quick")

NODES = 5
"""One may collude: 4 sign whose updates are in a sum, and the first 3 of them open it."""
MAKE = partial(SchemeFedAvg, ThresholdCkks())


def nodes(path: Path, run_id: int = 7, **config: Any) -> Puppets:
    allowed = {"flhe-schemes": "threshold-ckks", **config}
    return Puppets(path, NODES, run_id=run_id, config=lambda _: allowed)


def check(grid: Puppets, rounds: list[set[int]], members: set[int] | None = None) -> None:
    """Members have the mean of rounds with these updates in them."""
    bound = 2 * sum(tolerance(list(senders), 1) for senders in rounds)
    close(same(grid, members or set(range(NODES))), Reference.of(rounds), bound)


def place(grid: Puppets, rank: int) -> int:
    """The node of a rank, as it is known once identities are."""
    return 100 + grid.ranked()[rank]


@pytest.mark.parametrize(("rank", "stage"), [(4, "consist"), (3, "unmask")])
def test_who_leaves_after_its_update_is_in_the_sum(tmp_path: Path, rank: int, stage: str) -> None:
    """But for those of the lowest ranks among its senders, who open it."""
    grid = nodes(tmp_path)
    grid.fate = lambda node, at, round_: (
        "dead" if (at, round_) == (stage, 1) and node == place(grid, rank) else None
    )
    play(MAKE, grid, 2)
    assert grid.survivors == [NODES] * 2
    check(grid, [set(range(NODES))] * 2)


def test_a_round_waits_for_who_leaves_before_it_opens(tmp_path: Path) -> None:
    grid = nodes(tmp_path)
    grid.fate = lambda node, stage, round_: (
        "dead" if (stage, round_) == ("unmask", 1) and node == place(grid, 0) else None
    )
    keep = {"state_dir": tmp_path / "server"}
    with pytest.raises(QuorumError, match="2 survivors released their part"):
        play(MAKE, grid, 2, **keep)
    again = nodes(tmp_path, run_id=8)
    again.federation = 7
    play(MAKE, again, 2, start={"resume": True}, **keep)
    check(again, [set(range(NODES))] * 2)


def test_as_many_open_as_the_scheme_says(tmp_path: Path) -> None:
    """A round waits for so many, more than its bounds ask for; with one away there is none."""
    all_five = partial(SchemeFedAvg, ThresholdCkks(threshold=5))
    grid = nodes(tmp_path / "all")
    play(all_five, grid, 2)
    check(grid, [set(range(NODES))] * 2)
    assert len(grid.stages("unmask")) == 2 * 2 * NODES  # of updates, and of evaluations

    grid = nodes(tmp_path / "four")
    grid.fate = lambda node, stage, _: "dead" if stage == "round" and node == 104 else None
    with pytest.raises(QuorumError, match="4 updates, 5 needed"):
        play(all_five, grid, 1, retries=0)
    assert not grid.stages("consist")


def test_an_answer_that_the_server_keeps_back(tmp_path: Path, monkeypatch: Patch) -> None:
    """Too little was released: nothing is said of the sum, and nobody has the model of the round."""
    grid, released = nodes(tmp_path), MaskingAgreement.unmask
    monkeypatch.setattr(MaskingAgreement, "unmask", lambda self: released(self)[:-1])
    with suppress(ProtocolError):
        play(MAKE, grid, 1, retries=0)
    assert [model.round for model in map(grid.model, range(NODES))] == [0] * NODES
    assert "partial decryptions of parties 2 are missing" in grid.log(0)


def other(total: Sealed, part: str) -> Sealed:
    """What a server shows in place of a sum."""
    data, slot, senders = total.data.copy(), total.slot, total.senders
    if part == "c0":
        data[0] ^= 1
    elif part == "c1":
        data[data.size // 2 + 64] ^= 1
    elif part == "length":
        return replace(total, length=total.length - 1)
    elif part == "slot":
        slot = replace(slot, layout_hash=bytes(32))
    else:
        senders = senders[1:]
    return Sealed(total.scheme, slot, senders, total.length, data, total.mode)


@pytest.mark.parametrize("part", ["c0", "c1", "senders", "slot", "length"])
@pytest.mark.parametrize("sends", [False, True])
def test_another_sum_than_that_of_the_senders(
    tmp_path: Path, monkeypatch: Patch, part: str, sends: bool
) -> None:
    """Nobody reads it: members refuse to decrypt it, or to take what comes of it.

    `sends` is whether the server sends the same to be opened, or the sum as it is.
    """
    grid, added = nodes(tmp_path), Exchange.add_updates

    def lied(self: Exchange, replies: Any) -> Sealed:
        total = added(self, replies)
        return other(total, part)

    def agreed(self: MaskingAgreement, fed: Any, adder: Any, total: Sealed, *more: Any) -> None:
        honest(self, fed, adder, other(total, part), *more)

    if sends:
        monkeypatch.setattr(Exchange, "add_updates", lied)
    else:
        honest = MaskingAgreement.__init__
        monkeypatch.setattr(MaskingAgreement, "__init__", agreed)
    with suppress(ProtocolError):
        play(MAKE, grid, 1, retries=0)
    assert [model.round for model in map(grid.model, range(NODES))] == [0] * NODES


def test_a_key_opens_so_much_and_no_more(tmp_path: Path, monkeypatch: Patch) -> None:
    """Then nobody trains or signs before members have agreed on another."""
    grid = nodes(tmp_path)
    monkeypatch.setattr("flhe_lab.variants.threshold.adder.ALLOWANCE", 100)
    play(MAKE, grid, 3)
    assert grid.survivors == [NODES] * 3
    assert len(grid.stages("advertise")) == 2 * NODES
    check(grid, [set(range(NODES))] * 3)


@pytest.mark.parametrize(("length", "refusal"), [(600, NoKeyError), (1001, ConfigError)])
def test_what_one_key_may_open_is_on_disk(tmp_path: Path, length: int, refusal: Any) -> None:
    journal = Journal(bytes(16), bytes(16), epoch=bytes(16), mark=(1, 0, 2))
    assert journal.spending(Spends(1000, 1000)).spent == 1000
    with pytest.raises(refusal):
        journal.spending(Spends(500, 1000)).spending(Spends(length, 1000))
    assert journal.spending(Spends(500, 1000)).begun(bytes(15) + b"1", 0).spent == 0


def test_a_key_stays_within_its_distance() -> None:
    """2^-20 for all that it opens, at 2^-41 for each coefficient."""
    adder = ThresholdRlwe(NODES, 3)
    takes, of = adder.spends(1_000_000)
    assert takes == adder.counts(1_000_000)[0] >= 1_000_000 / adder.slots.per
    hidden, flood = adder.slots.hidden, 1 << adder.slots.smudging
    assert Fraction(of * hidden, 2 * flood) <= Fraction(1, 1 << 20)
    assert of // takes == 14
