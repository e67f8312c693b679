"""Ledger: what a server that is started again knows of mean squares, and of rounds they spoiled."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flhe.coding.flatten import Entry, Layout
from flhe.errors import ConfigError, FlheError, ProtocolError, StoreError
from flhe.keys.agreement.circle import SharingParameters
from flhe.keys.agreement.voids import Void
from flhe.keys.seal import ModelKey, seal
from flhe.mods import records
from flhe.schemes.sealed import Sealed, Slot, to_bytes
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.ledger import MAX_BYTES, Ledger, PendingSet, _chunks
from flhe.training.model import Model
from flhe.training.update import served
from flhe.wire import canonical, files

TERMS = b"terms"
LAYOUT = Layout((Entry("w", (5,), "float32"),))


def agreed(number: int = 0) -> Agreed:
    members = {100 + i: bytes([i + 1]) * 32 for i in range(3)}
    return Agreed(
        number,
        bytes([number]) * 16,
        bytes(32),
        members,
        (b"confirm",) * 3,
        bytes(32),
        bytes(32),
        3,
        1,
    )


def sealed(round_: int, fill: int = 0) -> Sealed:
    slot = Slot(7, bytes(32), bytes(16), round_, 0, bytes(32), bytes(32))
    return Sealed("flashe", slot, (0, 1, 2), 4, np.full(9, fill, np.uint8), "double")


def pending_for(total: Sealed) -> PendingSet:
    return PendingSet(Void(total.slot, SharingParameters(1, (bytes(32),), 1, 0)))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.create(tmp_path / "state", 7, TERMS)
    made.change_epoch(agreed(), 1)
    made.layout = LAYOUT
    made.chain[0] = bytes(32)
    made.save()
    return made


def again(ledger: Ledger) -> Ledger:
    return Ledger.load(ledger.directory, TERMS)


def encoded(model: Model | None) -> bytes:
    return b"".join(model.chunks())


def same(ledger: Ledger) -> bool:
    def known(one: Ledger) -> tuple[Any, ...]:
        where = one.round, one.attempt, one.phase, one.chain, one.agreed.colluders
        return one.mean_squares, one.spoiled, one.releases, sorted(one.sums), *where

    return known(again(ledger)) == known(ledger)


def play(ledger: Ledger, round_: int) -> None:
    """A round with all that there may be of one."""
    ledger.begin(round_, 0)
    ledger.keep_mean_squares(sealed(round_))
    ledger.keep(sealed(round_, 1), bytes([round_]) * 32, b"release %d" % round_)
    ledger.done()


def test_mean_squares_are_on_disk_before_anybody_is_sent_them(ledger: Ledger) -> None:
    ledger.begin(1, 0)
    assert (ledger.mean_squares, ledger.spoiled) == ({}, 0)
    ledger.keep_mean_squares(sealed(1))
    assert ledger.mean_squares == {1: to_bytes(sealed(1))}
    assert same(ledger)
    ledger.begin(1, 1)  # another attempt goes by the same
    assert again(ledger).mean_squares == {1: to_bytes(sealed(1))}


def test_what_opens_a_sum_is_on_disk_with_it_and_goes_with_it(ledger: Ledger) -> None:
    for round_ in (1, 2, 3):
        play(ledger, round_)
    assert ledger.releases == {1: b"release 1", 2: b"release 2", 3: b"release 3"}
    assert sorted(ledger.mean_squares) == [1, 2, 3]
    assert same(ledger)
    ledger.drop_sums(1)
    assert sorted(ledger.mean_squares) == sorted(again(ledger).releases) == [2, 3]
    assert ledger.void() == 3
    assert again(ledger).releases == {2: b"release 2"}
    assert sorted(ledger.mean_squares) == [2]
    assert same(ledger)
    ledger.change_epoch(agreed(1), 3)
    assert (again(ledger).releases, again(ledger).mean_squares) == ({}, {})
    assert not list(ledger.directory.glob("*-*"))


def test_a_new_epoch_spoils_the_round_under_way_and_no_other(ledger: Ledger) -> None:
    """Its mean squares were opened under keys that are gone: there is no second sum of them."""
    ledger.begin(4, 0)
    ledger.change_epoch(agreed(1), 4)  # nothing was added up yet
    assert ledger.spoiled == 0
    ledger.keep_mean_squares(sealed(4))
    ledger.keep(sealed(4, 1), bytes([4]) * 32)
    ledger.change_epoch(agreed(2), 5)  # the round has its sum
    assert (ledger.mean_squares, ledger.spoiled) == ({}, 0)
    ledger.begin(5, 0)
    ledger.change_epoch(agreed(3), 5)
    assert again(ledger).spoiled == 0
    ledger.keep_mean_squares(sealed(5))
    ledger.change_epoch(dataclasses.replace(agreed(4), colluders=0), 5)
    assert (ledger.mean_squares, ledger.spoiled) == ({}, 5)
    assert same(ledger)


def test_a_set_that_may_be_signed_stays_until_its_end(ledger: Ledger) -> None:
    total = sealed(3, 1)
    pending = pending_for(total)
    ledger.begin(3, 1)
    ledger.hold(pending, total)
    ledger.hold(dataclasses.replace(pending, signatures={0: bytes(64)}))
    kept = again(ledger)
    assert (kept.pending, kept.pending_sum.digest()) == (ledger.pending, total.digest())
    ledger.give_up()
    kept = again(ledger)
    assert (kept.pending, kept.voids, kept.spoiled) == (None, (pending.void,), 3)
    ledger.hold(pending, total)
    ledger.keep(total, bytes([3]) * 32)
    kept = again(ledger)
    assert (kept.pending, kept.voids, kept.phase) == (None, (), "summed")
    assert not (ledger.directory / "pending").exists()


@pytest.fixture
def reading(tmp_path: Path) -> Ledger:
    """Of a server that reads, in its first round."""
    made = Ledger.create(tmp_path / "state", 7, TERMS)
    made.change_epoch(agreed(), 1)
    made.start_model(served({"w": np.arange(5, dtype=np.float32)}, 0))
    made.begin(1, 0)
    return made


AFTER = served({"w": np.ones(5, np.float32)}, 1)


def test_a_model_written_just_before_a_crash_is_the_rounds_result(reading: Ledger) -> None:
    reading.hold(pending_for(sealed(1)), sealed(1))
    before = (reading.directory / "ledger").read_bytes()
    reading.keep_model(AFTER)
    (reading.directory / "ledger").write_bytes(before)
    files.replace(reading.directory / "pending", _chunks(sealed(1)))
    found = again(reading)
    assert encoded(found.model) == encoded(AFTER)
    assert (found.phase, found.base, found.survivors) == ("summed", 1, 3)
    reading.done()
    reading.begin(2, 0)
    other = served({"w": np.zeros(5, np.float32)}, 1)
    files.replace(reading.directory / "model", other.chunks())
    with pytest.raises(StoreError, match="not the ledger's"):
        again(reading)


# --- damaged ---

MALFORMED: dict[str, dict[str, Any]] = {
    "no mean squares told of": {"mean_squares": ...},
    "a sum of no round": {"sums": ["../../secret"]},
    "a sum twice": {"sums": [3, 3]},
    "a member without a key": {"agreed": [0, bytes(16), bytes(32), [1], [], 1, 3, b""]},
}
"""What else its declaration does not allow is refused by `tests.fuzz.test_decoders`."""


@pytest.mark.parametrize("name", MALFORMED)
def test_a_damaged_ledger_is_not_resumed(ledger: Ledger, name: str) -> None:
    path = ledger.directory / "ledger"
    body = canonical.loads(path.read_bytes(), MAX_BYTES, "ledger")
    body |= MALFORMED[name]
    path.write_bytes(canonical.dumps({k: v for k, v in body.items() if v is not ...}))
    with pytest.raises((ProtocolError, StoreError), match="damaged"):
        again(ledger)


@pytest.mark.parametrize(
    ("name", "size"), [("sum-1", 2), ("sum-1", 40), ("checkpoint", -1), ("release-1", None)]
)
def test_what_is_gone_or_cut_short_is_named(ledger: Ledger, name: str, size: int | None) -> None:
    box = b"".join(seal(ModelKey(bytes(16), 7, bytes(32), bytes(32)), 0, 0, b"model", os.urandom))
    ledger.keep_box(records.from_pieces([box]), 0, (b"voucher",))
    play(ledger, 1)
    kept = again(ledger)
    assert records.to_pieces(kept.box) == [box]
    assert (kept.box_round, kept.vouchers) == (0, (b"voucher",))
    path = ledger.directory / name
    if size is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(FlheError, match="was cut short" if size else "cannot read"):
        again(ledger)


def test_a_ledger_of_other_terms_is_not_resumed(ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match="a federation under other terms"):
        Ledger.load(ledger.directory, b"others")


def test_a_new_run_does_not_begin_over_another(ledger: Ledger) -> None:
    with pytest.raises(ConfigError, match="holds a federation already"):
        Ledger.create(ledger.directory, 7, TERMS)
