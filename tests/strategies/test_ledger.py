"""Ledger: what a server that is started again knows of mean squares, and of rounds they spoiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.coding.flatten import Entry, Layout
from flhe.errors import FlheError, ProtocolError, StoreError
from flhe.keys import canonical
from flhe.sealed import Sealed, Slot, to_bytes
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.ledger import MAX_BYTES, Ledger

TERMS = b"terms"
LAYOUT = Layout((Entry("w", (5,), "float32"),))


def agreed(number: int = 0) -> Agreed:
    members = {100 + i: bytes([i + 1]) * 32 for i in range(3)}
    return Agreed(number, bytes([number]) * 16, bytes(32), members, (b"confirm",) * 3)


def sealed(round_: int, fill: int = 0) -> Sealed:
    slot = Slot(7, bytes(32), bytes(16), round_, 0, bytes(32), bytes(32))
    return Sealed("flashe", slot, (0, 1, 2), 4, np.full(9, fill, np.uint8), "double")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "state", 7, TERMS)
    made.change_epoch(agreed(), 1)
    made.layout = LAYOUT
    made.chain[0] = bytes(32)
    made.save()
    return made


def again(ledger: Ledger) -> Ledger:
    """The one that the next process loads."""
    assert ledger.directory is not None
    return Ledger.load(ledger.directory, TERMS)


def known(ledger: Ledger) -> tuple[Any, ...]:
    return ledger.ranges, ledger.spoiled, ledger.round, ledger.attempt, ledger.phase, ledger.chain


def test_mean_squares_are_on_disk_before_anybody_is_sent_them(ledger: Ledger) -> None:
    ledger.begin(1, 0)
    assert (ledger.ranges, ledger.spoiled) == ({}, 0)
    ledger.keep_ranges(sealed(1))
    assert ledger.ranges == {1: to_bytes(sealed(1))}
    assert known(again(ledger)) == known(ledger)
    ledger.begin(1, 1)  # another attempt goes by the same
    assert again(ledger).ranges == {1: to_bytes(sealed(1))}


def test_mean_squares_go_with_their_sum(ledger: Ledger) -> None:
    for round_ in (1, 2, 3):
        ledger.begin(round_, 0)
        ledger.keep_ranges(sealed(round_))
        ledger.keep(sealed(round_, 1), bytes([round_]) * 32)
        ledger.done()
    assert sorted(ledger.ranges) == [1, 2, 3]
    ledger.drop_sums(1)
    assert sorted(again(ledger).ranges) == [2, 3]
    assert ledger.void() == 3
    assert sorted(again(ledger).ranges) == [2]
    assert known(again(ledger)) == known(ledger)


def test_a_new_epoch_spoils_the_round_under_way(ledger: Ledger) -> None:
    """Its mean squares were opened under keys that are gone: there is no second sum of them."""
    ledger.begin(4, 0)
    ledger.keep_ranges(sealed(4))
    ledger.change_epoch(agreed(1), 4)
    assert (ledger.ranges, ledger.spoiled) == ({}, 4)
    assert known(again(ledger)) == known(ledger)


def test_a_new_epoch_spoils_no_other_round(ledger: Ledger) -> None:
    ledger.begin(4, 0)
    ledger.change_epoch(agreed(1), 4)  # nothing was added up yet
    assert ledger.spoiled == 0
    ledger.keep_ranges(sealed(4))
    ledger.keep(sealed(4, 1), bytes([4]) * 32)
    ledger.change_epoch(agreed(2), 5)  # the round has its sum
    assert (ledger.ranges, ledger.spoiled) == ({}, 0)
    ledger.begin(5, 0)
    ledger.change_epoch(agreed(3), 5)
    assert again(ledger).spoiled == 0


MALFORMED: dict[str, dict[str, Any]] = {
    "version 1": {"v": 1},
    "version 3": {"v": 3},
    "no mean squares told of": {"ranges": ...},
    "no spoiled round told of": {"spoiled": ...},
    "mean squares as map": {"ranges": {}},
    "spoiled as text": {"spoiled": "1"},
    "mean squares of one": {"ranges": [[1]]},
    "mean squares of three": {"ranges": [[1, b"", 1]]},
    "mean squares as text": {"ranges": [[1, "x"]]},
    "mean squares of no round": {"ranges": [["1", b"x"]]},
    "mean squares alone": {"ranges": [b"x"]},
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_damaged_ledger_is_not_resumed(ledger: Ledger, name: str) -> None:
    assert ledger.directory is not None
    path = ledger.directory / "ledger"
    body = canonical.loads(path.read_bytes(), MAX_BYTES, "ledger")
    body |= MALFORMED[name]
    path.write_bytes(canonical.dumps({k: v for k, v in body.items() if v is not ...}))
    with pytest.raises((ProtocolError, StoreError), match="damaged"):
        again(ledger)


def test_a_ledger_cut_short_is_not_resumed(ledger: Ledger) -> None:
    ledger.begin(1, 0)
    ledger.keep_ranges(sealed(1))
    assert ledger.directory is not None
    path = ledger.directory / "ledger"
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(FlheError):
            again(ledger)
