"""BatchCrypt's rounds: the real strategy and nodes, keys of 2048 bits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
import pytest

from flhe.math.bigint import from_rows, to_rows
from flhe.node.store import Store
from flhe.schemes.batchcrypt.adder import BatchCryptAdder, BatchCryptSealer
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.sealed import Sealed
from flhe.strategies import HEStrategy
from tests.strategies.puppets import Fate, Puppets, fail_once, same
from tests.strategies.variants import VARIANTS

pytestmark = pytest.mark.usefixtures("quick")

REFUSED = "is not that of what its 3 senders encrypted"


def nodes(path: Path, count: int) -> Puppets:
    return VARIANTS["batchcrypt"].nodes(path, count)


def run(grid: Puppets, rounds: int, **how: Any) -> HEStrategy:
    return VARIANTS["batchcrypt"].play(grid, rounds, **how)[0]


def members(strategy: HEStrategy) -> set[int]:
    assert strategy._fed is not None
    return set(strategy._fed.members)


# --- keys ---


@pytest.mark.parametrize(("stage", "fate"), [("key-pair", "silent"), ("take-pair", "dead")])
def test_who_fails_at_the_key_pair_is_left_out(tmp_path: Path, stage: str, fate: Fate) -> None:
    grid = nodes(tmp_path, 5)
    failed = fail_once(grid, stage, 0, fate=fate)
    left = members(run(grid, 1, min_available_nodes=5))
    assert left == set(range(100, 105)) - set(failed)
    same(grid, [node - 100 for node in left])
    assert not Store(grid.homes[failed[0] - 100]).names("epochs/*")


def first_pair(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[BatchCryptAdder, Any], Any]
) -> None:
    """The first member that makes a key pair makes this one."""
    honest, made = BatchCryptAdder.new_pair, list[int]()

    def new_pair(adder: BatchCryptAdder, random: Any) -> Any:
        made.append(len(made))
        return make(adder, random) if len(made) == 1 else honest(adder, random)

    monkeypatch.setattr(BatchCryptAdder, "new_pair", new_pair)


def test_a_pair_that_is_not_sound_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that makes keys of a wrong form is left out, not those who refuse them."""

    def weak(adder: BatchCryptAdder, random: Any) -> tuple[bytes, bytes]:
        key = SecretKey.generate(2048)
        p = int(gmpy2.next_prime(key.p))
        while p % 4 != 1 or math.gcd(p - 1, key.q - 1) != 2:
            p = int(gmpy2.next_prime(p))
        bad = SecretKey(p, key.q)
        return bad.public.to_bytes(), bad.to_bytes()

    first_pair(monkeypatch, weak)
    grid = nodes(tmp_path, 4)
    left = members(run(grid, 1))
    assert "not 3 modulo 4" in caplog.text
    (maker,) = set(grid.stages("key-pair")) - left
    assert len(left) == 3
    assert f"node {maker} is left out: 3 members refuse the key pair that it made" in caplog.text


def test_a_public_key_of_another_length_is_the_makers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server sees that by itself: nobody is asked to take it."""
    honest, long = BatchCryptAdder.new_pair, BatchCrypt(key_bits=3072)
    first_pair(
        monkeypatch, lambda adder, random: honest(dataclasses.replace(adder, scheme=long), random)
    )
    grid = nodes(tmp_path, 4)
    assert len(members(run(grid, 1))) == 3
    assert "the public key has 3072 bits, the terms say 2048" in caplog.text
    assert len(grid.stages("take-pair")) == 2


# --- lies ---


BAD: dict[str, tuple[Callable[[SecretKey], int], str]] = {
    "0": (lambda key: 0, "is 0"),
    "n^2": (lambda key: key.public.n**2, "not below n^2"),
    "factor": (lambda key: key.p, "a multiple of a factor of n"),
    "multiple of n": (lambda key: 5 * key.public.n, "a multiple of n"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_ciphertext_costs_its_sender_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    honest = BatchCryptSealer.encrypt
    bad, said = BAD[kind]

    def tampered(self: BatchCryptSealer, *args: Any, **how: Any) -> Sealed:
        sealed = honest(self, *args, **how)
        if self.rank != 1 or self.key.public != self.adder.public or sealed.length < 50:
            return sealed
        rows = sealed.data.reshape(-1, 512).copy()
        rows[1:2] = np.frombuffer(bad(self.key).to_bytes(512, "little"), np.uint8)
        return dataclasses.replace(sealed, data=rows.reshape(-1))

    monkeypatch.setattr(BatchCryptSealer, "encrypt", tampered)
    grid = nodes(tmp_path, 4)
    run(grid, 1, retries=0)
    assert grid.survivors == [3]
    assert "ciphertext 1 of sender 1" in caplog.text
    assert said in caplog.text


@pytest.mark.parametrize("by", [1 << 17, "a lane of one client", "the sum, one slot up"])
def test_a_sum_that_the_server_changed_is_refused_for_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: int | str
) -> None:
    """n is all that it takes to add to a slot, and a power of two moves slots: into those of a metric,
    whose mean members tell, or so far that they overflow, if they are large. It learns neither."""
    grid, firsts = nodes(tmp_path, 3), list[Any]()
    honest, add = BatchCryptAdder.close, BatchCryptAdder.add

    def close_(self: BatchCryptAdder, total: Sealed) -> Sealed:
        assert self.public is not None
        numbers = from_rows(total.data.reshape(-1, 512))
        n, width = self.public.n, self.batch.width
        if isinstance(by, int):
            other = 1 + n * by
        elif by == "a lane of one client":
            other = gmpy2.powmod(firsts[0], 1 << (3 * width), n * n)
        else:
            other = gmpy2.powmod(numbers[0], 1 << width, n * n)
        numbers[0] = numbers[0] * other % (n * n)
        data = to_rows(numbers, 512, len(numbers)).reshape(-1)
        return honest(self, dataclasses.replace(total, data=data))

    def seen(self: BatchCryptAdder, total: Sealed | None, part: Sealed) -> Sealed:
        if part.slot.run_id:
            firsts.append(from_rows(part.data.reshape(-1, 512))[0])
        return add(self, total, part)

    monkeypatch.setattr(BatchCryptAdder, "add", seen)
    monkeypatch.setattr(BatchCryptAdder, "close", close_)
    run(grid, 1)
    for log in map(grid.log, range(3)):
        assert REFUSED in log
    codes = [r.error.code for _, s, r in grid.replies if s == "evaluate" and r.has_error()]
    assert set(codes) == {1023}  # one answer, whether the sum overflows or not
    assert grid.model(0).round == 0


# --- groups that grow, terms that change ---


def test_a_group_that_outgrows_its_terms_goes_on_without_the_newcomer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four members leave advance scaling 2 of 4 bits, five 1: the fifth cannot join."""
    grid = nodes(tmp_path, 5)
    grid.away = lambda round_: {104} if round_ < 2 else set()
    strategy = run(grid, 3, bits=4, advance=True, min_available_nodes=4)
    assert members(strategy) == {100, 101, 102, 103}
    assert grid.survivors == [4, 4, 4]
    assert "the epoch before goes on: advance scaling with bits=4" in caplog.text
