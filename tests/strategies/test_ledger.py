"""Ledger: what a server that is started again knows of mean squares, and of rounds they spoiled."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.coding.flatten import Entry, Layout
from flhe.errors import ConfigError, FlheError, ProtocolError, StoreError
from flhe.schemes.sealed import Sealed, Slot, to_bytes
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.ledger import MAX_BYTES, Ledger
from flhe.training.model import Model
from flhe.training.reading import served
from flhe.wire import canonical, files

TERMS = b"terms"
LAYOUT = Layout((Entry("w", (5,), "float32"),))


def agreed(number: int = 0) -> Agreed:
    members = {100 + i: bytes([i + 1]) * 32 for i in range(3)}
    return Agreed(number, bytes([number]) * 16, bytes(32), members, (b"confirm",) * 3, 1)


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


def encoded(model: Model | None) -> bytes:
    assert model is not None
    return b"".join(model.chunks())


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


def test_what_opens_a_sum_is_on_disk_with_it_and_goes_with_it(ledger: Ledger) -> None:
    assert ledger.directory is not None
    for round_ in (1, 2, 3):
        ledger.begin(round_, 0)
        ledger.keep(sealed(round_), bytes([round_]) * 32, b"release %d" % round_)
        ledger.done()
    assert ledger.releases == {1: b"release 1", 2: b"release 2", 3: b"release 3"}
    assert again(ledger).releases == ledger.releases
    ledger.drop_sums(1)
    assert sorted(again(ledger).releases) == [2, 3]
    assert ledger.void() == 3
    assert again(ledger).releases == {2: b"release 2"}
    ledger.change_epoch(agreed(1), 3)
    assert again(ledger).releases == {}
    assert not list(ledger.directory.glob("release-*"))


def test_a_release_that_is_gone_is_not_resumed_without(ledger: Ledger) -> None:
    assert ledger.directory is not None
    ledger.begin(1, 0)
    ledger.keep(sealed(1), bytes([1]) * 32, b"release")
    (ledger.directory / "release-1").unlink()
    with pytest.raises((FlheError, OSError)):
        again(ledger)


@pytest.mark.parametrize("size", [2, 40])
def test_a_sum_cut_short_in_its_header_is_named(ledger: Ledger, size: int) -> None:
    assert ledger.directory is not None
    ledger.begin(1, 0)
    ledger.keep(sealed(1), bytes([1]) * 32)
    path = ledger.directory / "sum-1"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreError, match="a kept sum was cut short"):
        again(ledger)


def test_a_round_whose_survivors_may_be_signed_stays_spoiled(ledger: Ledger) -> None:
    ledger.begin(3, 1)
    ledger.spoil(3)
    assert again(ledger).spoiled == 3
    assert known(again(ledger)) == known(ledger)


def test_the_bound_on_collusion_is_kept_with_the_epoch(ledger: Ledger) -> None:
    kept = again(ledger).agreed
    assert kept is not None
    assert (kept.colluders, kept.number) == (1, 0)
    ledger.change_epoch(dataclasses.replace(agreed(1), colluders=0), 1)
    assert again(ledger).agreed.colluders == 0  # type: ignore[union-attr]


def test_the_model_of_a_server_that_reads(tmp_path: Path) -> None:
    made = Ledger.create(tmp_path / "state", 7, TERMS)
    made.change_epoch(agreed(), 1)
    start = served({"w": np.arange(5, dtype=np.float32)}, 0)
    made.start_model(start)
    made.save()
    assert encoded(again(made).model) == encoded(start)
    made.begin(1, 0)
    after = served({"w": np.ones(5, np.float32)}, 1)
    made.keep_model(after)
    for ledger in (made, again(made)):
        assert encoded(ledger.model) == encoded(after)
        assert (ledger.phase, ledger.base, ledger.history) == ("summed", 1, after.history)
        assert ledger.sums == {}


def test_a_model_written_just_before_a_crash_is_the_rounds_result(tmp_path: Path) -> None:
    made = Ledger.create(tmp_path / "state", 7, TERMS)
    assert made.directory is not None
    made.change_epoch(agreed(), 1)
    made.start_model(served({"w": np.zeros(5, np.float32)}, 0))
    made.begin(1, 0)
    before = (made.directory / "ledger").read_bytes()
    after = served({"w": np.ones(5, np.float32)}, 1)
    made.keep_model(after)
    (made.directory / "ledger").write_bytes(before)
    found = again(made)
    assert encoded(found.model) == encoded(after)
    assert (found.phase, found.base) == ("summed", 1)
    made.done()
    made.begin(2, 0)
    files.replace(made.directory / "model", served({"w": np.zeros(5, np.float32)}, 1).chunks())
    with pytest.raises(StoreError, match="not the ledger's"):
        again(made)


MALFORMED: dict[str, dict[str, Any]] = {
    "version 7": {"v": 7},
    "what apps were told, cut short": {"told": [[1, bytes(31)]]},
    "no mean squares told of": {"ranges": ...},
    "mean squares out of order": {"ranges": [[2, b"x"], [1, b"y"]]},
    "mean squares twice": {"ranges": [[1, b"x"], [1, b"y"]]},
    "releases out of order": {"releases": [2, 1]},
    "an epoch without its bound on collusion": {
        "agreed": [0, bytes(16), bytes(32), [b"k"], [b"c"]]
    },
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


def test_a_ledger_of_other_terms_is_not_resumed(ledger: Ledger) -> None:
    assert ledger.directory is not None
    with pytest.raises(ConfigError, match="a federation under other terms"):
        Ledger.load(ledger.directory, b"others")


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
