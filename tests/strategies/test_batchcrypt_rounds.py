"""BatchCrypt's rounds: the real strategy and nodes, keys of 2048 bits."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gmpy2
import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp.strategy import Result

from flhe.errors import ConfigError, QuorumError
from flhe.keys.agreement.epoch import Epoch
from flhe.math.bigint import from_rows, to_rows
from flhe.mods import records
from flhe.node.store import Store
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.scheme import Paillier, PaillierSealer
from flhe.schemes.sealed import Sealed
from flhe.strategies import HEStrategy, batchcrypt_fedavg, batchcrypt_fedsgd
from flhe.training.client_optimizer import ClientOptimizer
from flhe.training.terms import Terms
from tests.strategies.puppets import COUNTS, Arrays, Fate, Puppets, Reference, initial, start_arrays
from tests.strategies.test_he_strategy import MAX, close, same, tolerance
from tests.strategies.test_membership import Changing

pytestmark = pytest.mark.usefixtures("quick")

WEIGHTS = dict(enumerate(COUNTS))
REFUSED = "the sum is not that of what its senders encrypted in this round"


class Nodes(Puppets):
    """Puppets that take short keys."""

    def __init__(self, path: Path, nodes: int, **how: Any) -> None:
        super().__init__(path, nodes, **{"config": lambda _: {"flhe-key-bits": 2048}, **how})


def run(grid: Puppets, rounds: int, *, start: Any = None, **how: Any) -> tuple[HEStrategy, Result]:
    make = how.pop("make", batchcrypt_fedavg)
    if make is batchcrypt_fedavg:
        how = {"clip": 1.0, **how}
    strategy = make(**{"key_bits": 2048, "max_examples": MAX, **how})
    try:
        result = strategy.start(grid, initial(), num_rounds=rounds, **(start or {}))
    finally:
        grid.close()
    return strategy, result


def epoch_of(grid: Puppets, node: int) -> Epoch:
    store = Store(grid.homes[node])
    (only,) = store.epochs()
    return Epoch.from_bytes(store.peek_epoch(only))


# --- the numbers ---


@pytest.mark.parametrize(
    ("size", "how"),
    [
        (3, {}),
        (6, {"weighted": False}),
        (4, {"clip": {"w": 1.0, "*": 2.0}}),
    ],
)
def test_it_is_fedavg_up_to_quantization(tmp_path: Path, size: int, how: dict[str, Any]) -> None:
    grid = Nodes(tmp_path, size)
    run(grid, 3, **how)
    weighted = how.get("weighted", True)
    reference = Reference(WEIGHTS if weighted else dict.fromkeys(range(6), 1))
    for _ in range(3):
        reference.round(range(size))
    close(same(grid, range(size)), reference, 2 * tolerance(range(size), 3, weighted))


@pytest.mark.parametrize("clip", ["exchange", "history"])
def test_thresholds_come_through_the_scheme(tmp_path: Path, clip: str) -> None:
    grid = Nodes(tmp_path, 4)
    run(grid, 3, clip=clip, bits=20)
    model = same(grid, range(4))
    assert model.round == 3
    asked = [stage for node, stage, _ in grid.sent if node == 100]
    assert asked.count("update") == (3 if clip == "exchange" else 1)
    # Clipping at 6.2 sigma of few values cuts some; the model still goes where FedAvg's does.
    reference = Reference(WEIGHTS)
    for _ in range(3):
        reference.round(range(4))
    change = reference.masters["w"] - start_arrays()["w"]
    assert np.abs(model.masters["w"] - reference.masters["w"]).max() < 0.1 * np.abs(change).max()


def test_advance_scaling_costs_bits_and_saves_slots(tmp_path: Path) -> None:
    sizes = {}
    for advance in (False, True):
        grid = Nodes(tmp_path / str(advance), 5)
        strategy, _ = run(grid, 2, advance=advance, bits=16)
        reference = Reference(WEIGHTS)
        for _ in range(2):
            reference.round(range(5))
        bits = 16 - (3 if advance else 0)
        close(same(grid, range(5)), reference, tolerance(range(5), 2, bits=bits))
        assert strategy._fed is not None
        scheme = strategy._fed.scheme
        assert isinstance(scheme, Paillier)
        sizes[advance] = scheme.batch.width
    assert sizes == {False: 20, True: 17}


# --- FedSGD ---


def gradient(arrays: Mapping[str, Any], partition: int) -> Arrays:
    """Of the squared distance to a place of a node's own."""
    out: Arrays = {}
    for i, (name, array) in enumerate(arrays.items()):
        if array.dtype.kind == "f":
            place = np.cos(np.arange(array.size) + 3 * partition + i).reshape(array.shape)
            out[name] = np.asarray(0.1 * (array.astype(np.float64) - place), array.dtype)
        else:
            out[name] = array
    return out


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.Adam(p, lr=0.05),
        lambda p: torch.optim.RMSprop(p, lr=0.02, momentum=0.5),
        lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, nesterov=True),
    ],
    ids=["adam", "rmsprop", "sgd"],
)
def test_every_client_steps_as_torch_would(tmp_path: Path, optimizer: Any) -> None:
    """Ten rounds under encryption beside torch's own optimizer on the float64 mean gradient."""
    size, rounds = 4, 10
    grid = Nodes(tmp_path, size)
    grid.app.trained = gradient  # type: ignore[attr-defined]
    names = [n for n, a in start_arrays().items() if a.dtype.kind == "f" and a.size]
    weights = [
        torch.nn.Parameter(torch.tensor(start_arrays()[n].astype(np.float64))) for n in names
    ]
    reference = optimizer(weights)
    run(grid, rounds, make=batchcrypt_fedsgd, optimizer=optimizer(weights), clip=1.0, bits=28)
    for _ in range(rounds):
        now = dict(zip(names, (w.detach().numpy() for w in weights), strict=True))
        whole = {n: now.get(n, a) for n, a in start_arrays().items()}
        told = [gradient(whole, p) for p in range(size)]
        for name, weight in zip(names, weights, strict=True):
            mean = sum(COUNTS[p] * told[p][name].astype(np.float64) for p in range(size))
            weight.grad = torch.as_tensor(mean / sum(COUNTS[:size]))
        reference.step()
    model = same(grid, range(size))
    assert model.steps == rounds
    for name, weight in zip(names, weights, strict=True):
        slack = 5e-3 if name == "half" else 1e-4
        moved = np.abs(weight.detach().numpy() - start_arrays()[name]).max()
        assert moved > 0.05  # otherwise this shows nothing
        np.testing.assert_allclose(model.masters[name], weight.detach().numpy(), atol=slack, rtol=0)


def test_who_joins_late_receives_the_optimizers_state(tmp_path: Path) -> None:
    class Growing(Changing):
        """Node 104 is there from round 3 on."""

    grid = Growing(tmp_path, 5, config=lambda _: {"flhe-key-bits": 2048})
    grid.away = lambda round_: {104} if round_ < 3 else set()
    grid.app.trained = gradient  # type: ignore[attr-defined]
    strategy = batchcrypt_fedsgd(
        optimizer=ClientOptimizer("adam", lr=0.05),
        key_bits=2048,
        max_examples=MAX,
        clip=1.0,
        on_round=grid.after,
        min_available_nodes=4,
    )
    strategy.start(grid, initial(), num_rounds=5)
    grid.close()
    model = same(grid, range(5))
    assert (model.round, model.steps) == (5, 5)
    assert set(model.moments) == {"exp_avg", "exp_avg_sq"} or len(model.moments) == 2
    assert all(np.abs(lane).max() > 0 for lane in model.moments.values())
    assert [r.survivors for r in grid.reports] == [4, 4, 5, 5, 5]


# --- keys ---


def test_all_members_have_one_key_pair_and_the_server_has_n(tmp_path: Path) -> None:
    grid = Nodes(tmp_path, 4)
    strategy, _ = run(grid, 1)
    epochs = [epoch_of(grid, i) for i in range(4)]
    assert len({e.scheme_secret for e in epochs}) == 1
    key = SecretKey.from_bytes(epochs[0].scheme_secret)
    key.check(2048)
    fed = strategy._fed
    assert fed is not None
    assert isinstance(fed.scheme, Paillier)
    assert fed.scheme.public == key.public
    told: list[bytes] = []
    for content in [c for _, _, c in grid.sent] + [r.content for _, _, r in grid.replies]:
        for value in itertools.chain.from_iterable(
            r.values() for r in content.config_records.values()
        ):
            found = value if isinstance(value, list) else [value]
            told += [item for item in found if isinstance(item, bytes)]
    wire = b"".join(told)
    assert len(wire) > 10_000
    for number in (key.p, key.q):
        assert number.to_bytes(128, "big")[:16] not in wire
        assert number.to_bytes(128, "little")[:16] not in wire
    assert epochs[0].scheme_public in wire


def test_a_new_epoch_has_a_new_pair(tmp_path: Path) -> None:
    grid = Nodes(tmp_path, 3)
    seen: list[bytes] = []
    strategy = batchcrypt_fedavg(
        key_bits=2048,
        max_examples=MAX,
        clip=1.0,
        rekey_every=1,
        on_round=lambda _: seen.append(epoch_of(grid, 0).scheme_public),
    )
    strategy.start(grid, initial(), num_rounds=3)
    grid.close()
    assert len(set(seen)) == 3
    reference = Reference(WEIGHTS)
    for _ in range(3):
        reference.round(range(3))
    close(same(grid, range(3)), reference, tolerance(range(3), 3))


@pytest.mark.parametrize("fate", ["dead", "silent"])
@pytest.mark.parametrize("stage", ["key-pair", "take-pair"])
def test_who_fails_at_the_key_pair_is_left_out(tmp_path: Path, stage: str, fate: Fate) -> None:
    grid = Nodes(tmp_path, 5)
    failed: list[int] = []

    def fall(node: int, at: str, _round: int) -> Fate:
        if at == stage and not failed:
            failed.append(node)
        return fate if at == stage and [node] == failed else None

    grid.fate = fall
    strategy, _ = run(grid, 1, min_available_nodes=5)
    assert strategy._fed is not None
    left = set(range(100, 105)) - set(failed)
    assert set(strategy._fed.members) == left
    same(grid, [node - 100 for node in left])
    assert not Store(grid.homes[failed[0] - 100]).epochs()


def test_a_pair_that_is_not_sound_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that makes keys of a wrong form is left out, not those who refuse them."""
    import math

    from flhe.keys.agreement import key_pair

    def weak(scheme: Paillier, random: Any) -> tuple[bytes, bytes]:
        import gmpy2

        key = SecretKey.generate(2048)
        p = int(gmpy2.next_prime(key.p))
        while p % 4 != 1 or math.gcd(p - 1, key.q - 1) != 2:
            p = int(gmpy2.next_prime(p))
        bad = SecretKey(p, key.q)
        return bad.public.to_bytes(), bad.to_bytes()

    made: list[int] = []
    honest = key_pair.new_pair

    def first_is_weak(scheme: Paillier, random: Any) -> tuple[bytes, bytes]:
        made.append(len(made))
        return weak(scheme, random) if len(made) == 1 else honest(scheme, random)

    monkeypatch.setattr(key_pair, "new_pair", first_is_weak)
    grid = Nodes(tmp_path, 4)
    strategy, _ = run(grid, 1)
    assert "not 3 modulo 4" in caplog.text
    assert strategy._fed is not None
    (maker,) = {node for node, stage, _ in grid.sent if stage == "key-pair"} - set(
        strategy._fed.members
    )
    assert len(strategy._fed.members) == 3
    assert f"node {maker} is left out: 3 members refuse the key pair that it made" in caplog.text


def test_a_node_takes_no_shorter_key_than_its_policy_says(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)  # the default: 3072
    with pytest.raises(QuorumError, match="policy refuses"):
        run(grid, 1)
    assert all(not Store(home).epochs() for home in grid.homes)


def test_a_server_that_was_restarted_goes_on_with_the_same_key(tmp_path: Path) -> None:
    grid = Nodes(tmp_path / "nodes", 3)
    run(grid, 2, state_dir=tmp_path / "server")
    before = epoch_of(grid, 0).scheme_public
    again = Nodes(tmp_path / "nodes", 3)
    strategy, _ = run(again, 4, state_dir=tmp_path / "server", start={"resume": True})
    assert epoch_of(again, 0).scheme_public == before
    assert strategy._fed is not None
    assert isinstance(strategy._fed.scheme, Paillier)
    reference = Reference(WEIGHTS)
    for _ in range(4):
        reference.round(range(3))
    close(same(again, range(3)), reference, tolerance(range(3), 4))


# --- dropouts and lies ---


def test_any_two_of_six_may_drop_out(tmp_path: Path) -> None:
    grid = Nodes(tmp_path, 6)
    gone = dict(enumerate(itertools.combinations(range(6), 2), 1))
    grid.fate = lambda node, stage, round_: (
        "dead" if stage == "round" and node - 100 in gone.get(round_, ()) else None
    )
    run(grid, 8, patience=99)
    reference = Reference(WEIGHTS)
    for round_ in range(1, 9):
        reference.round(set(range(6)) - set(gone[round_]))
    close(same(grid, range(6)), reference, 4 * tolerance(range(6), 8))


@pytest.mark.parametrize("kind", ["0", "n", "n^2", "factor", "multiple of n"])
def test_what_is_no_ciphertext_costs_its_sender_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    honest = PaillierSealer.encrypt

    def tampered(self: PaillierSealer, *args: Any, **how: Any) -> Sealed:
        sealed = honest(self, *args, **how)
        if self.rank != 1 or self.key.public != self.scheme.public or sealed.length < 50:
            return sealed
        n = self.key.public.n
        bad = {"0": 0, "n": n, "n^2": n * n, "factor": self.key.p, "multiple of n": 5 * n}[kind]
        rows = sealed.data.reshape(-1, 512).copy()
        rows[1:2] = np.frombuffer(bad.to_bytes(512, "little"), np.uint8)
        return dataclasses.replace(sealed, data=rows.reshape(-1))

    monkeypatch.setattr(PaillierSealer, "encrypt", tampered)
    grid = Nodes(tmp_path, 4)
    strategy, _ = run(grid, 1, retries=0)
    fed = strategy._fed
    assert fed is not None
    assert fed.survivors == 3
    said = {
        "0": "is 0",
        "n": "a multiple of n",
        "n^2": "not below n^2",
        "factor": "a multiple of a factor of n",
        "multiple of n": "a multiple of n",
    }[kind]
    assert "ciphertext 1 of sender 1" in caplog.text
    assert said in caplog.text


def test_a_ciphertext_added_twice_under_another_name_opens_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing in a Paillier ciphertext says whose it is: the tags that are encrypted with it do."""
    grid = Nodes(tmp_path, 4)
    first: list[Sealed] = []
    honest = Paillier.add

    def add(self: Paillier, total: Sealed | None, part: Sealed) -> Sealed:
        if part.length < 50 or part.slot.run_id == 0:
            return honest(self, total, part)
        first.append(part)
        return honest(self, total, dataclasses.replace(part, data=first[0].data))

    monkeypatch.setattr(Paillier, "add", add)
    run(grid, 2, retries=0)
    assert "the sum of round 1 opened for nobody: the round is void" in caplog.text
    assert len(first) >= 4
    assert all(grid.model(i).round == 0 for i in range(4))
    assert REFUSED in (grid.homes[0] / "errors.log").read_text()


@pytest.mark.parametrize("by", [1, 1 << 17, "a lane of one client", "the sum, one slot up"])
def test_a_sum_that_the_server_changed_is_refused_for_that_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: int | str
) -> None:
    """n is all that it takes to add to a slot, and a power of two moves slots: into those of a metric,
    whose mean members tell, or so far that they overflow, if they are large. It learns neither."""
    grid = Nodes(tmp_path, 3)
    honest = Paillier.close

    def close_(self: Paillier, total: Sealed) -> Sealed:
        assert self.public is not None
        numbers = from_rows(total.data.reshape(-1, 512))
        n = self.public.n
        other = (
            1 + n * by
            if isinstance(by, int)
            else gmpy2.powmod(numbers[0], 1 << self.batch.width, n * n)
        )
        if by == "a lane of one client":
            other = gmpy2.powmod(firsts[0], 1 << (3 * self.batch.width), n * n)
        numbers[0] = numbers[0] * other % (n * n)
        data = to_rows(numbers, 512, len(numbers)).reshape(-1)
        return honest(self, dataclasses.replace(total, data=data))

    firsts: list[Any] = []
    add = Paillier.add

    def seen(self: Paillier, total: Sealed | None, part: Sealed) -> Sealed:
        if part.slot.run_id:
            firsts.append(from_rows(part.data.reshape(-1, 512))[0])
        return add(self, total, part)

    monkeypatch.setattr(Paillier, "add", seen)
    monkeypatch.setattr(Paillier, "close", close_)
    run(grid, 1)
    for home in grid.homes:
        log = (home / "errors.log").read_text()
        assert REFUSED in log
        assert "overflow" not in log
    assert grid.model(0).round == 0


# --- composition ---


def test_what_cannot_work_is_refused_at_construction() -> None:
    for how, says in (
        ({"key_bits": 1024}, "3072 has 128 bits"),
        ({"bits": 33}, "bits"),
        ({"advance": 1}, "advance"),
    ):
        with pytest.raises(ConfigError, match=says):
            batchcrypt_fedavg(**how)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="torch"):
        batchcrypt_fedsgd(optimizer="adam")
    with pytest.raises(ConfigError, match="amsgrad"):
        batchcrypt_fedsgd(optimizer=torch.optim.Adam([torch.zeros(1)], amsgrad=True))


def test_advance_scaling_needs_bits_for_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="advance scaling with bits=3"):
        run(Nodes(tmp_path, 4), 1, advance=True, bits=3)


# --- groups that grow, terms that change ---


def test_a_group_that_outgrows_its_terms_goes_on_without_the_newcomer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Four members leave advance scaling 2 of 4 bits, five 1: the fifth cannot join."""
    grid = Changing(tmp_path, 5, config=lambda _: {"flhe-key-bits": 2048})
    grid.away = lambda round_: {104} if round_ < 2 else set()
    strategy = batchcrypt_fedavg(
        key_bits=2048,
        max_examples=MAX,
        clip=1.0,
        bits=4,
        advance=True,
        on_round=grid.after,
        min_available_nodes=4,
    )
    strategy.start(grid, initial(), num_rounds=3)
    grid.close()
    assert strategy._fed is not None
    assert set(strategy._fed.members) == {100, 101, 102, 103}
    assert [r.survivors for r in grid.reports] == [4, 4, 4]
    assert "the epoch before goes on: advance scaling with bits=4" in caplog.text


def test_a_pair_is_for_the_terms_that_it_was_made_for(tmp_path: Path) -> None:
    """Who is told of other terms when the epoch begins has no part in it, and is back afterwards."""
    grid = Nodes(tmp_path, 4)
    told: list[int] = []

    def rewrite(node: int, stage: str, content: RecordDict) -> RecordDict:
        record = records.find_config(content, records.STAGE)
        if (node, stage) != (101, "round") or told or record is None:
            return content
        told.append(node)
        terms = Terms.from_bytes(records.field(record, "terms", bytes))
        other = dataclasses.replace(terms, key_bits=3072).to_bytes()
        return RecordDict({**content, records.STAGE: ConfigRecord({**record, "terms": other})})

    grid.rewrite = rewrite
    run(grid, 4, rekey_every=2)
    assert told
    assert (
        "not the terms that the key was agreed on for" in (grid.homes[1] / "errors.log").read_text()
    )
    assert same(grid, range(4)).round == 4


def test_a_public_key_of_another_length_is_the_makers_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The server sees that by itself: nobody is asked to take it."""
    from flhe.keys.agreement import key_pair

    honest, made = key_pair.new_pair, list[int]()

    def first_is_long(scheme: Paillier, random: Any) -> tuple[bytes, bytes]:
        made.append(len(made))
        return honest(
            dataclasses.replace(scheme, key_bits=3072) if len(made) == 1 else scheme, random
        )

    monkeypatch.setattr(key_pair, "new_pair", first_is_long)
    grid = Nodes(tmp_path, 4)
    strategy, _ = run(grid, 1)
    assert "the public key has 3072 bits, the terms say 2048" in caplog.text
    assert strategy._fed is not None
    assert len(strategy._fed.members) == 3
    assert len(grid.stages("take-pair")) == 2


def test_a_site_without_gmpy2_says_so_when_it_is_first_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = Nodes(tmp_path, 3)
    strategy = batchcrypt_fedavg(key_bits=2048, clip=1.0, max_examples=MAX)
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    with pytest.raises(QuorumError, match="flhe/package"):
        strategy.start(grid, initial(), num_rounds=1)
    grid.close()
    assert "needs gmpy2" in (grid.homes[0] / "errors.log").read_text()
    assert {stage for _, stage, _ in grid.sent} <= {"status", "advertise"}
