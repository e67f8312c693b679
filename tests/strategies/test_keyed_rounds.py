"""Rounds under keys of a scheme's own: key pairs, joint keys, and shares of one that nobody has."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
import pytest
from flwr.app import Message

from flhe.errors import ConfigError, NoKeyError, ProtocolError, QuorumError
from flhe.keys.agreement import dealt, joint
from flhe.keys.agreement.epoch import Epoch
from flhe.math.bigint import from_rows, to_rows
from flhe.node.journal import Journal
from flhe.node.store import Store
from flhe.schemes.base import Spends
from flhe.schemes.batchcrypt.adder import BatchCryptAdder, BatchCryptSealer
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.keyed import JointKey
from flhe.schemes.sealed import Sealed
from flhe.strategies import EsaflFedAvg, HEStrategy, SchemeFedAvg
from flhe.strategies.exchange import Exchange
from flhe.strategies.masking_agreement import MaskingAgreement
from flhe_lab.variants.threshold.scheme import ThresholdCkks
from tests.strategies.puppets import Fate, Patch, Puppets, lie, lose, pin, play, same
from tests.strategies.reference import Reference, close, tolerance
from tests.strategies.variants import VARIANTS

pytestmark = pytest.mark.usefixtures("quick")

REFUSED = "does not match what its 3 senders encrypted"


batchcrypt_nodes = VARIANTS["batchcrypt"].nodes


def run_batchcrypt(grid: Puppets, rounds: int, **how: Any) -> HEStrategy:
    return VARIANTS["batchcrypt"].play(grid, rounds, **how)[0]


def members(strategy: HEStrategy) -> set[int]:
    return set(strategy._fed.members)


# --- keys ---


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
    grid = batchcrypt_nodes(tmp_path, 4)
    left = members(run_batchcrypt(grid, 1))
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
    grid = batchcrypt_nodes(tmp_path, 4)
    assert len(members(run_batchcrypt(grid, 1))) == 3
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
    grid = batchcrypt_nodes(tmp_path, 4)
    run_batchcrypt(grid, 1, retries=0)
    assert grid.survivors == [3]
    assert "ciphertext 1 of sender 1" in caplog.text
    assert said in caplog.text


@pytest.mark.parametrize("by", [1 << 17, "the sum, one slot up"])
def test_a_sum_that_the_server_changed_is_refused_for_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: int | str
) -> None:
    """n is all that it takes to add to a slot, and a power of two moves slots: into those of a metric,
    whose mean members tell, or so far that they overflow, if they are large. It learns neither."""
    grid, honest = batchcrypt_nodes(tmp_path, 3), BatchCryptAdder.close

    def close_(self: BatchCryptAdder, total: Sealed) -> Sealed:
        numbers = from_rows(total.data.reshape(-1, 512))
        n, width = self.public.n, self.batch.width
        added = isinstance(by, int)
        other = 1 + n * by if added else gmpy2.powmod(numbers[0], 1 << width, n * n)
        numbers[0] = numbers[0] * other % (n * n)
        data = to_rows(numbers, 512, len(numbers)).reshape(-1)
        return honest(self, dataclasses.replace(total, data=data))

    monkeypatch.setattr(BatchCryptAdder, "close", close_)
    with pytest.raises(QuorumError, match="1 consecutive rounds are void"):
        run_batchcrypt(grid, 1)
    for log in map(grid.log, range(3)):
        assert REFUSED in log
    codes = {r.error.code for _, s, r in grid.replies if s == "evaluate" and r.has_error()}
    assert codes == {1023}  # one answer, whether the sum overflows or not
    assert grid.model(0).round == 0


def run_esafl(grid: Puppets, rounds: int, start: Any = None, **how: Any) -> HEStrategy:
    return play(EsaflFedAvg, grid, rounds, start=start, **{"keys": "joint", **how})[0]


def key_of(grid: Puppets, node: int) -> JointKey:
    return JointKey.from_bytes(grid.epoch(node).scheme_secret)


def dying(
    path: Path, nodes: int, victim: int, round_: int, how: str, stage: str = "round"
) -> Puppets:
    """One node is killed when a stage of a round reaches it, or its answer lost, and stays dead."""
    grid = Puppets(path, nodes)
    grid.drop(round_, stage, how, [victim])
    grid.for_good = True
    return grid


def check_esafl(grid: Puppets, rounds: list[Iterable[int]], rest: Sequence[int]) -> None:
    assert grid.survivors == [len(list(present)) for present in rounds]
    close(same(grid, rest), Reference.of(rounds), 2 * tolerance(rest, len(rounds)))


# --- dropping out ---


@pytest.mark.parametrize("how", ["dead", "lost"])
def test_a_round_goes_on_with_new_keys(tmp_path: Path, how: str) -> None:
    """Killed before it trains, or its answer lost: the others encrypt the same updates again.

    They have erased their old keys before they draw new ones.
    """
    grid = dying(tmp_path, 5, 2, 2, how)
    before: list[JointKey] = []
    grid.before[2] = lambda: before.extend(key_of(grid, i) for i in range(5))
    seen: list[bool] = []

    def forge(node: int, stage: str, reply: Message) -> Message:
        if stage == "joint" and grid.killed:
            store = Store(grid.homes[node - 100])
            kept = [Epoch.from_bytes(store.read(i)) for i in store.names("epochs/*")]
            seen.append(any(epoch.scheme_secret for epoch in kept))
        return reply

    grid.forge = forge
    run_esafl(grid, 3)
    assert seen == [False] * 4
    rest = [0, 1, 3, 4]
    check_esafl(grid, [range(5), rest, rest], rest)
    # Nobody trained twice, and nobody has a key of the time before.
    assert [(grid.trainings(i), grid.epochs(i)) for i in rest] == [(3, 2)] * 4
    assert not any(np.array_equal(key_of(grid, i).own, before[i].own) for i in rest)


def test_several_drop_out_one_after_the_other(tmp_path: Path) -> None:
    """Each costs the others their keys, also those that they are about to make, and no retry."""
    grid = Puppets(tmp_path, 7)
    grid.app.examples = lambda p: 10

    def fate(node: int, stage: str, round_: int) -> Fate:
        """One more of them with every key that the others have agreed on."""
        drawn = grid.stages_of(100).count("joint")
        if node in [106, 105, 104][:drawn] and round_ == 2 and stage == "round":
            return "dead"
        return "dead" if node == 103 and drawn > 1 and stage == "joint" else None

    grid.fate = fate
    run_esafl(grid, 2, retries=1)
    assert grid.survivors == [7, 3]


@pytest.mark.parametrize("stage", ["round", "update"])
def test_a_drop_out_while_thresholds_are_fitted(tmp_path: Path, stage: str) -> None:
    """Before the mean squares are opened the round goes on; after, the next one trains again."""
    grid = dying(tmp_path, 4, 2, 2, "dead", stage)
    run_esafl(grid, 3, clip="exchange", bits=20)
    assert grid.survivors == [4, 3 if stage == "round" else 0, 3]
    assert same(grid, [0, 1, 3]).round == 3


# --- dealt keys ---


def with_dealt_keys(tmp_path: Path, size: int) -> Puppets:
    """Sites of one roster with a dealt key each."""
    grid = Puppets(tmp_path, size)
    roster, ids = pin(grid, range(size), size, schemes=("esafl",))
    files = dealt.deal(roster, Esafl(keys="dealt"), [])
    for i, one in enumerate(ids):
        path = tmp_path / f"key-{i}"
        grid.contexts[100 + i].node_config["flhe-dealt-key"] = str(path)
        path.touch(0o600)
        path.write_bytes(files[one.public].to_bytes())
    return grid


# --- what must not be lost ---


def test_a_lost_answer_costs_dealt_keys_nothing(tmp_path: Path) -> None:
    """They are for all sites, who are asked again; and no others are agreed on."""
    grid = with_dealt_keys(tmp_path, 4)
    lost: list[None] = []
    lie(grid, 101, "round", lambda reply: lost or lost.append(lose(reply)), 2)
    run_esafl(grid, 3, keys="dealt")
    check_esafl(grid, [range(4)] * 3, range(4))
    assert grid.epochs(0) == 1
    assert "joint" not in grid.stages_of(100)
    assert key_of(grid, 1).own.tobytes() in (tmp_path / "key-1").read_bytes()


NODES = 5
THRESHOLD = partial(SchemeFedAvg, ThresholdCkks())


def other(total: Sealed, part: str) -> Sealed:
    """What a server shows in place of a sum."""
    data, senders = total.data.copy(), total.senders
    if part == "c0":
        data[0] ^= 1
    else:
        senders = senders[1:]
    return replace(total, data=data, senders=senders)


@pytest.mark.parametrize(("part", "sends"), [("c0", True), ("senders", False)])
def test_another_sum_than_that_of_the_senders(
    tmp_path: Path, monkeypatch: Patch, part: str, sends: bool
) -> None:
    """Nobody reads it: members refuse to decrypt it, or to take what comes of it.

    `sends` is whether the server sends the same to be opened, or the sum as it is.
    """
    grid, added = VARIANTS["threshold-ckks"].nodes(tmp_path, NODES), Exchange.add_updates

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
        play(THRESHOLD, grid, 1, retries=0)
    assert [model.round for model in map(grid.model, range(NODES))] == [0] * NODES


def test_a_key_opens_so_much_and_no_more(tmp_path: Path, monkeypatch: Patch) -> None:
    """Then nobody trains or signs before members have agreed on another."""
    grid = VARIANTS["threshold-ckks"].nodes(tmp_path, NODES)
    monkeypatch.setattr("flhe_lab.variants.threshold.adder.ALLOWANCE", 100)
    play(THRESHOLD, grid, 3)
    assert grid.survivors == [NODES] * 3
    assert len(grid.stages("advertise")) == 2 * NODES
    close(
        same(grid, range(NODES)), Reference.of([range(NODES)] * 3), 6 * tolerance(range(NODES), 1)
    )


@pytest.mark.parametrize(("length", "refusal"), [(600, NoKeyError), (1001, ConfigError)])
def test_what_one_key_may_open_is_on_disk(tmp_path: Path, length: int, refusal: Any) -> None:
    journal = Journal(bytes(16), bytes(16), epoch=bytes(16), mark=(1, 0, 2))
    assert journal.spending(Spends(1000, 1000)).spent == 1000
    with pytest.raises(refusal):
        journal.spending(Spends(500, 1000)).spending(Spends(length, 1000))
    assert journal.spending(Spends(500, 1000)).begun(bytes(15) + b"1", 0).spent == 0


def test_a_group_that_outgrows_its_terms_goes_on_without_the_newcomer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four members leave advance scaling 2 of 4 bits, five 1: the fifth cannot join."""
    grid = batchcrypt_nodes(tmp_path, 5)
    grid.away = lambda round_: {104} if round_ < 2 else set()
    strategy = run_batchcrypt(grid, 2, bits=4, advance=True, min_available_nodes=4)
    assert members(strategy) == {100, 101, 102, 103}
    assert grid.survivors == [4, 4]
    assert "the epoch before goes on: advance scaling with bits=4" in caplog.text


def test_a_bad_share_of_who_joins_leaves_the_others_their_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every agreement with it fails, once the others' keys are gone: they agree among themselves."""
    grid = Puppets(tmp_path, 5)
    grid.away = lambda round_: {104} if round_ < 2 else set()
    honest = joint._masked

    def masked(agreed: Epoch, own: Any) -> bytes:
        lanes = np.frombuffer(honest(agreed, own), "<u4")
        bad = agreed.members[agreed.rank] == publics[-1]
        return (lanes + np.uint32(100_000 if bad else 0)).tobytes()

    publics = [b""]
    monkeypatch.setattr(joint, "_masked", masked)
    grid.before[2] = lambda: publics.append(Store(grid.homes[4]).identity().public)
    run_esafl(grid, 3)
    assert grid.survivors == [4, 4, 4]
    assert len({key_of(grid, i).total.tobytes() for i in range(4)}) == 1
