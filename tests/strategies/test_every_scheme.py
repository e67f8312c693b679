"""Laws of federations: what holds of rounds under each scheme, whoever is away, dies, joins or lies."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp.strategy import Result

from flhe.coding.laplace import Laplace
from flhe.errors import ConfigError, FlheError, QuorumError
from flhe.keys.agreement.masking import Dealt
from flhe.mods import records
from flhe.node.checkpoint import open_checkpoint
from flhe.strategies import FlasheFedAvg, HEStrategy
from flhe.strategies.overhead import (
    ADD,
    CATCH_UP,
    ENCRYPT,
    EVALUATE,
    EXCHANGE,
    KEYS,
    MASKING,
    OPEN,
    OTHER,
    TRAIN,
    UPLOAD,
)
from flhe.training.contract import Contract
from flhe.training.kind import EVALUATION
from flhe.training.schedule import Settings
from tests.strategies.conftest import quickly
from tests.strategies.puppets import Puppets, drift, initial, lie, same
from tests.strategies.test_overhead import check_accounts
from tests.strategies.variants import MAIN, VARIANTS, Variant

NODES, ROUNDS = 4, 2
ALL = range(NODES)
REST = range(3)
"""Without the last one."""
KEYED = ["flashe", "sash, clients read", "fedml-he", "esafl"]
"""One variant for each way that members come to keys, for what follows from their agreement."""
LAB = pytest.param("threshold-ckks", marks=pytest.mark.sweep)

quick = pytest.mark.usefixtures("quick")


# --- a run in which nothing fails ---


@dataclass
class Calm:
    """A run of a variant, and what it left."""

    variant: Variant
    grid: Puppets
    strategy: HEStrategy
    result: Result
    wire: bytes

    @property
    def box(self) -> bytes:
        return b"".join(records.to_pieces(self.result.arrays))


CALM = [n if n in MAIN else pytest.param(n, marks=pytest.mark.sweep) for n in VARIANTS]
"""The golden rounds run all of them, quick ones too."""


@pytest.fixture(scope="module", params=CALM)
def calm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Calm]:
    variant, wire = VARIANTS[request.param], list[bytes]()
    with quickly():
        grid = variant.nodes(tmp_path_factory.mktemp("calm"), NODES)
        grid.tap = lambda _direction, _node, content: wire.append(bytes(content))
        strategy, result = variant.play(grid, ROUNDS)
        yield Calm(variant, grid, strategy, result, b"\0".join(wire))


def test_all_have_fedavgs_mean(calm: Calm) -> None:
    assert calm.grid.survivors == [NODES] * ROUNDS
    assert calm.grid.epochs(0) == 1
    calm.variant.check(calm.grid, calm.result, [ALL] * ROUNDS, ALL)
    if not calm.variant.server_reads:
        assert same(calm.grid, ALL).round == ROUNDS


def test_the_result_is_for_members_alone(calm: Calm, tmp_path: Path) -> None:
    path = tmp_path / "model.flhe"
    if calm.variant.server_reads:  # and a node keeps none
        assert not (calm.grid.run_dir(0) / "model").exists()
        return
    assert {array.stype for array in calm.result.arrays.values()} == {records.CHECKPOINT}
    for ask in (calm.result.arrays.to_torch_state_dict, calm.result.arrays.to_numpy_ndarrays):
        with pytest.raises(ConfigError, match="flhe open"):
            ask()
    path.write_bytes(calm.box)
    whole = b"".join(calm.grid.model(0).chunks())
    for home in calm.grid.homes:
        assert b"".join(open_checkpoint(path, home).chunks()) == whole
    path.write_bytes(calm.box[:-1] + bytes([calm.box[-1] ^ 1]))
    with pytest.raises(FlheError):
        open_checkpoint(path, calm.grid.homes[0])


def test_each_stage_is_asked_of_each_once(calm: Calm) -> None:
    """Every message starts a process in a deployment."""
    asked: Counter[tuple[int, int, str]] = Counter()
    for node, stage, content in calm.grid.sent:
        record = records.find_config(content, records.STAGE)
        evaluates = record.get("attempt") == EVALUATION.attempt
        if stage in ("round", "supports", "update", "consist", "unmask") and not evaluates:
            asked[node, records.field(record, "round", int), stage] += 1
    stages = itertools.product(calm.grid.contexts, range(1, ROUNDS + 1), calm.variant.stages)
    due = dict.fromkeys(stages, 1)
    assert asked.keys() <= due.keys()
    assert set(asked.values()) == {1}
    assert {stage for _, _, stage in due.keys() - asked.keys()} <= {"unmask"}
    assert len(due) - len(asked) == ROUNDS * (NODES - calm.variant.openers)


def test_every_second_and_byte_is_in_a_phase(calm: Calm) -> None:
    ending, stages = calm.strategy.ending, calm.variant.stages
    check_accounts(calm.grid, ending)
    own = {MASKING} if calm.variant.per_sum_keys else {EXCHANGE} if len(stages) > 1 else set()
    for report in calm.grid.reports:
        names = {phase.name for phase in report.phases}
        usual = {TRAIN, UPLOAD, ADD, EVALUATE, OTHER, OPEN, ENCRYPT}
        assert names == usual | own | ({KEYS} if report.round == 1 else set())
    closing = {phase.name for phase in ending.phases if phase.bytes_up}
    assert closing == (set() if calm.variant.server_reads else {CATCH_UP})


def test_nothing_readable_comes_from_a_node(calm: Calm) -> None:
    stypes, floats = set[str](), set[str]()
    for _, _, reply in calm.grid.replies:
        for record in reply.content.array_records.values():
            stypes |= {array.stype for array in record.values()}
        for config in reply.content.config_records.values():
            floats |= {key for key, value in config.items() if isinstance(value, float)}
    assert stypes <= {records.SEALED, records.CHECKPOINT}
    assert floats == {"crypto-s"}  # how long it trained would say how many examples it has
    for index in ALL:
        epoch = calm.grid.epoch(index)
        shares = calm.grid.run_dir(index) / "shares"
        own = bytes(Dealt.from_bytes(shares.read_bytes()).own) if shares.exists() else b""
        for secret in (epoch.group_key, *epoch.pair_keys, epoch.scheme_secret[64:96], own[:64]):
            assert len(secret) < 16 or bytes(secret) not in calm.wire
        assert (calm.grid.homes[index] / "identity.key").read_bytes() not in calm.wire
    assert len(calm.wire) > 10_000


# --- who is away, and who comes ---


@quick
@pytest.mark.parametrize("name", [*KEYED, "sash", "threshold-ckks"])
def test_one_that_comes_late_and_drops_out_has_the_model_of_all(tmp_path: Path, name: str) -> None:
    """It is in no sum of such a round, trains in the next, and has the model of all in the end.

    Its answer is lost; of one that is away `test_round_vectors` knows every sum.
    """
    variant = VARIANTS[name]
    grid = variant.nodes(tmp_path, NODES)
    grid.away = lambda round_: {103} if round_ < 2 else set()
    grid.drop(3, "round", "lost", [3])
    _, result = variant.play(grid, 4, min_available_nodes=3)
    assert grid.survivors == [3, 4, 3, 4]
    variant.check(grid, result, [REST, ALL, REST, ALL], ALL)
    assert {grid.trainings(i) for i in REST} == {4}, "nobody trains twice"
    assert grid.epochs(0) == (4 if variant.needs_all_members else 2)


@quick
@pytest.mark.parametrize("name", [*KEYED, LAB])
def test_fresh_keys_as_often_as_asked_for(tmp_path: Path, name: str) -> None:
    variant, seen = VARIANTS[name], list[bytes]()
    grid = variant.nodes(tmp_path, 3)
    grid.before = dict.fromkeys((2, 3, 4), lambda: seen.append(grid.epoch(0).id))
    _, result = variant.play(grid, 3, rekey_every=1, fraction_evaluate=0.0)
    assert len(set(seen)) == 3
    assert [(grid.epochs(i), grid.keys(i)) for i in range(3)] == [(3, 1)] * 3
    variant.check(grid, result, [range(3)] * 3, range(3))


class KilledError(Exception):
    """The server ends here."""


def points() -> list[Any]:
    """Each variant between rounds, and each stage of one that has such stages."""
    staged = {VARIANTS[name].stages: name for name in reversed(MAIN)}
    return [
        *((name, "") for name in KEYED),
        *((name, at) for stages, name in staged.items() for at in (*stages, "evaluate")),
    ]


@quick
@pytest.mark.parametrize(("name", "at"), points())
def test_a_server_killed_in_a_round_goes_on(tmp_path: Path, name: str, at: str) -> None:
    """Under the same keys, but for one more round, which is another contract.

    A round is void if somebody may have signed its set, and nobody can be shown t signatures.
    """
    variant, how = VARIANTS[name], {"state_dir": tmp_path / "server"}
    grid = variant.nodes(tmp_path / "nodes", NODES)

    def rewrite(_node: int, stage: str, content: RecordDict) -> RecordDict:
        record = records.find_config(content, records.STAGE)
        if record is not None and (stage, record.get("round")) == (at, 2):
            raise KilledError
        return content

    grid.rewrite = rewrite
    if at:
        with pytest.raises(KilledError):
            variant.play(grid, 3, **how)
    else:
        variant.play(grid, 2, **how)
    epoch = grid.epoch(0).id
    again = variant.nodes(tmp_path / "nodes", NODES, run_id=8)
    _, result = variant.play(again, 3, start={"resume": True}, **how)
    assert (again.epoch(0).id == epoch) == bool(at)
    void = variant.per_sum_keys and at == "consist"
    assert set(again.survivors) == ({0, NODES} if void else {NODES})
    variant.check(again, result, [ALL] * (2 if void else 3), ALL)


# --- who lies, and whose machine does ---


@quick
@pytest.mark.parametrize("name", [*KEYED, LAB])
def test_an_update_with_a_changed_byte_is_left_out_and_named(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    variant = VARIANTS[name]
    grid = variant.nodes(tmp_path, NODES)
    last = variant.stages[1] if variant.stages[1:] == ("update",) else "round"

    def flip(reply: Any) -> None:
        arrays = reply.content[records.UPDATE]
        key, array = next(iter(arrays.items()))
        array.data = bytes([array.data[0] ^ 1]) + array.data[1:]
        arrays[key] = array

    lie(grid, 103, last, flip, 2)
    _, result = variant.play(grid, 2, fraction_evaluate=0.0)
    assert grid.survivors == [4, 3]
    assert "node 103 is left out: " in caplog.text
    variant.check(grid, result, [ALL, REST], REST)


@quick
@pytest.mark.parametrize("name", [*KEYED, LAB])
def test_one_whose_model_has_drifted_is_left_out_and_caught_up(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its history is right and its weights are not: a bad disk, or another machine's arithmetic.

    Where sums are of all members, the round is asked for again, once it is caught up.
    """
    variant = VARIANTS[name]
    grid = variant.nodes(tmp_path, NODES)
    grid.before[2] = lambda: drift(grid, 3)
    _, result = variant.play(grid, 3)
    assert "node 103 is left out: its model has drifted" in caplog.text
    second = ALL if variant.needs_all_members else REST
    assert grid.survivors == [4, len(second), 4]
    variant.check(grid, result, [ALL, second, ALL], ALL)


@quick
@pytest.mark.parametrize(
    ("name", "victims"), [*((name, (103,)) for name in KEYED), ("flashe", range(100, 104))]
)
def test_one_that_is_told_otherwise_is_in_no_sum(
    tmp_path: Path, name: str, victims: Collection[int], caplog: pytest.LogCaptureFixture
) -> None:
    """A relay shows one node another contract than all others; what all are shown is no matter."""
    variant = VARIANTS[name]
    grid = variant.nodes(tmp_path, NODES)

    def rewrite(node: int, stage: str, content: RecordDict) -> RecordDict:
        if stage != "advertise" or node not in victims:
            return content
        record = content[records.STAGE]
        shown = Contract.from_bytes(record["contract"])  # type: ignore[index]
        other = dataclasses.replace(shown, train=Settings({"lr": 1.0}))
        record = ConfigRecord({**record, "contract": other.to_bytes()})
        return RecordDict({**content, records.STAGE: record})

    grid.rewrite = rewrite
    variant.play(grid, 2, fraction_evaluate=0.0)
    apart = len(victims) == 1
    assert ("received another contract" in caplog.text) == apart
    assert grid.survivors == [4 - apart] * 2


@quick
@pytest.mark.parametrize("name", [*KEYED, LAB, "noise"])
def test_a_round_that_was_answered_is_asked_for_again_under_other_settings(
    tmp_path: Path, name: str
) -> None:
    """A resumed run is one, and so is one that its user has changed: it costs an attempt."""
    noisy = Variant(FlasheFedAvg, {"noise": Laplace(1e-3, "all")})
    variant = VARIANTS.get(name, noisy)
    grid = variant.nodes(tmp_path / "nodes", 4)
    how: dict[str, Any] = {"state_dir": tmp_path / "server", "fraction_evaluate": 0.0}
    pull, dead = grid.pull_messages, list[int]()

    def cut(message_ids: Any) -> Any:
        replies = list(pull(message_ids))
        if grid.round == 2 and replies and not dead:
            dead.append(1)
            raise ConnectionError("cut off")
        return replies

    grid.pull_messages = cut  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        variant.play(grid, 3, **how)
    assert grid.survivors == [4]
    again = variant.nodes(tmp_path / "nodes", 4)
    changed = {"resume": True, "train_config": ConfigRecord({"momentum": 0.5})}
    variant.play(again, 3, start=changed, **how)
    assert again.survivors[-2:] == [4, 4]


@quick
@pytest.mark.parametrize(("name", "package"), [("batchcrypt", "gmpy2"), ("fedml-he", "tenseal")])
def test_a_site_without_its_package_says_so_when_it_is_first_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    for missing in ("gmpy2", "tenseal"):
        grid = VARIANTS[name].nodes(tmp_path / missing, 3)
        strategy = VARIANTS[name].make(**VARIANTS[name].how)  # at the server it is there
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            if missing != package:  # what the other scheme needs is nobody's loss
                strategy.start(grid, initial(), num_rounds=1)
                assert same(grid, range(3)).round == 1
                continue
            with pytest.raises(QuorumError, match="flhe/package"):
                strategy.start(grid, initial(), num_rounds=1)
        grid.close()
        assert {stage for _, stage, _ in grid.sent} <= {"status", "advertise"}
        assert f"needs {package}" in grid.log(0)
