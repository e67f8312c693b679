"""ESAFL's rounds: keys that nobody dealt, sums of all members, and new keys where one is missing."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, RecordDict
from flwr.serverapp.strategy import Result

from flhe.errors import ConfigError, QuorumError
from flhe.keys.agreement import dealt, joint
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.identity import Identity
from flhe.keys.roster.roster import Member, Roster
from flhe.mods import records
from flhe.node.store import Store
from flhe.schemes.esafl.keys import EsheKey
from flhe.strategies import HEStrategy, esafl_fedavg, esafl_fedsgd
from flhe.training.client_optimizer import ClientOptimizer
from flhe.training.model import Model
from tests.rosters import write_signed
from tests.strategies.puppets import COUNTS, Fate, Puppets, Reference, initial, start_arrays
from tests.strategies.test_batchcrypt_rounds import gradient
from tests.strategies.test_he_strategy import MAX, close, same, tolerance
from tests.strategies.test_membership import Changing, epochs

pytestmark = pytest.mark.usefixtures("quick")

WEIGHTS = dict(enumerate(COUNTS))
AROUND = ("evaluate", "sync", "checkpoint", "verify")
"""Stages that are not of a round of training."""


def run(
    grid: Puppets, rounds: int, *, start: Any = None, make: Any = esafl_fedavg, **how: Any
) -> tuple[HEStrategy, Result]:
    strategy = make(**{"max_examples": MAX, **how})
    try:
        result = strategy.start(grid, initial(), num_rounds=rounds, **(start or {}))
    finally:
        grid.close()
    return strategy, result


def epoch_of(grid: Puppets, node: int) -> Epoch:
    store = Store(grid.homes[node])
    (only,) = store.epochs()
    return Epoch.from_bytes(store.peek_epoch(only))


def key_of(grid: Puppets, node: int) -> EsheKey:
    return EsheKey.from_bytes(epoch_of(grid, node).scheme_secret)


def stages_of(grid: Puppets, node: int) -> list[str]:
    return [stage for one, stage, _ in grid.sent if one == node]


# --- the numbers ---


@pytest.mark.parametrize(
    ("size", "how"),
    [
        (3, {}),
        (6, {"weighted": False}),
        (4, {"ring": "rns-8192"}),
        (4, {"per_round_keys": True}),
        (4, {"clip": {"w": 1.0, "*": 2.0}}),
    ],
)
def test_it_is_fedavg_up_to_quantization(tmp_path: Path, size: int, how: dict[str, Any]) -> None:
    grid = Puppets(tmp_path, size)
    run(grid, 3, **how)
    weighted = how.get("weighted", True)
    reference = Reference(WEIGHTS if weighted else dict.fromkeys(range(6), 1))
    for _ in range(3):
        reference.round(range(size))
    close(same(grid, range(size)), reference, 2 * tolerance(range(size), 3, weighted))


@pytest.mark.parametrize("clip", ["exchange", "history"])
def test_thresholds_come_through_the_scheme(tmp_path: Path, clip: str) -> None:
    grid = Puppets(tmp_path, 4)
    run(grid, 3, clip=clip, bits=20)
    model = same(grid, range(4))
    assert model.round == 3
    assert stages_of(grid, 100).count("update") == (3 if clip == "exchange" else 1)
    reference = Reference(WEIGHTS)
    for _ in range(3):
        reference.round(range(4))
    change = reference.masters["w"] - start_arrays()["w"]
    assert np.abs(model.masters["w"] - reference.masters["w"]).max() < 0.1 * np.abs(change).max()


@pytest.mark.parametrize("per_round", [False, True])
def test_every_client_steps_as_torch_would(tmp_path: Path, per_round: bool) -> None:
    """Five rounds of FedSGD beside torch's SGD on the float64 mean gradient (ESAFL, Sec. 4.2)."""
    size, rounds = 4, 5
    grid = Puppets(tmp_path, size)
    grid.app.trained = gradient  # type: ignore[attr-defined]
    start = start_arrays()
    names = [n for n, a in start.items() if a.dtype.kind == "f" and a.size]
    weights = [torch.nn.Parameter(torch.tensor(start[n].astype(np.float64))) for n in names]
    theirs = torch.optim.SGD(weights, lr=0.5)
    total = sum(COUNTS[:size])
    for _ in range(rounds):
        now = {
            n: w.detach().numpy().astype(start[n].dtype)
            for n, w in zip(names, weights, strict=True)
        }
        each = [gradient({**start, **now}, p) for p in range(size)]
        for n, w in zip(names, weights, strict=True):
            mean = sum(COUNTS[p] * each[p][n].astype(np.float64) for p in range(size)) / total
            w.grad = torch.tensor(mean)
        theirs.step()
    run(
        grid,
        rounds,
        make=esafl_fedsgd,
        optimizer=ClientOptimizer("sgd", 0.5),
        clip=1.0,
        bits=24,
        per_round_keys=per_round,
    )
    model = same(grid, range(size))
    for n, w in zip(names, weights, strict=True):
        slack = 2e-3 if n == "half" else 2e-5
        np.testing.assert_allclose(model.masters[n], w.detach().numpy(), atol=slack, rtol=0)


# --- keys ---


def test_members_have_keys_of_their_own_and_one_sum(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    run(grid, 1)
    keys = [key_of(grid, i) for i in range(4)]
    assert len({key.own.tobytes() for key in keys}) == 4
    total = np.sum([key.own.astype(np.int32) for key in keys], axis=0)
    assert all(np.array_equal(key.total, total) for key in keys)


def test_the_server_carries_neither_keys_nor_their_sum(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    strategy, _ = run(grid, 2)
    secrets = [key_of(grid, i).own.tobytes()[:32] for i in range(4)]
    total = key_of(grid, 0).total
    secrets += [total.astype(kind).tobytes()[:64] for kind in ("<i4", "<i2", "<i8")]
    wires = [_bytes_of(message.content) for _, _, message in grid.replies if message.has_content()]
    wires += [_bytes_of(content) for _, _, content in grid.sent]
    everything = b"".join(wires)
    assert len(everything) > 100_000
    assert not any(secret in everything for secret in secrets)
    assert strategy._fed is not None
    assert strategy._fed.ledger.agreed is not None
    assert len(strategy._fed.ledger.agreed.public) == 32


def _bytes_of(content: RecordDict) -> bytes:
    out = b""
    for record in content.values():
        for value in record.values():
            items = value if isinstance(value, list) else [value]
            out += b"".join(
                item if isinstance(item, bytes) else getattr(item, "data", b"") for item in items
            )
    return out


def test_a_round_takes_one_stage(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)
    run(grid, 2, start={"evaluate_config": None})
    rounds = [stage for stage in stages_of(grid, 100) if stage not in AROUND]
    assert rounds == ["advertise", "share", "confirm", "joint", "joint-sum", "round", "round"]


# --- dropping out ---


class Killed(Changing):
    """One node is killed when a stage of a round reaches it, and stays dead."""

    def __init__(
        self, path: Path, nodes: int, victim: int, round_: int, stage: str = "round"
    ) -> None:
        super().__init__(path, nodes)
        self.killed: set[int] = set()
        self.when = victim, round_, stage
        self.lost = "dead"
        self.fate = self._fate
        self.forge = self._forge

    def _now(self, node: int, stage: str, round_: int) -> bool:
        return (node - 100, round_, stage) == self.when

    def _fate(self, node: int, stage: str, round_: int) -> Fate:
        if self._now(node, stage, round_) and self.lost == "dead":
            self.killed.add(node)
        return "dead" if node in self.killed else None

    def _forge(self, node: int, stage: str, reply: Message) -> Message:
        round_ = self.round
        if self._now(node, stage, round_) and self.lost == "answer" and node not in self.killed:
            self.killed.add(node)
            reply._content = None
            reply._error = Error(code=4)
        return reply


@pytest.mark.parametrize("how", ["dead", "answer"])
def test_a_round_goes_on_with_new_keys(tmp_path: Path, how: str) -> None:
    """Killed before it trains, or its answer lost: the others encrypt the same updates again."""
    grid = Killed(tmp_path, 5, victim=2, round_=2)
    grid.lost = how
    before: dict[int, EsheKey] = {}
    grid.before[2] = lambda: before.update({i: key_of(grid, i) for i in range(5)})
    run(grid, 3, on_round=grid.after)
    rest = [0, 1, 3, 4]
    reference = Reference(WEIGHTS)
    reference.round(range(5))
    reference.round(rest)
    reference.round(rest)
    close(same(grid, rest), reference, 2 * tolerance(rest, 3))
    # Nobody trained twice, and nobody has a key of the time before.
    for i in rest:
        assert grid.app.ran.count(("train", i)) == 3  # type: ignore[attr-defined]
        assert epochs(grid, i) == 2
        assert not np.array_equal(key_of(grid, i).own, before[i].own)
    assert [report.survivors for report in grid.reports] == [5, 4, 4]


def test_old_keys_are_erased_before_new_ones_are_drawn(tmp_path: Path) -> None:
    grid = Killed(tmp_path, 5, victim=4, round_=2)
    seen: list[bool] = []

    def forge(node: int, stage: str, reply: Message) -> Message:
        if stage == "joint" and grid.killed:
            store = Store(grid.homes[node - 100])
            kept = [Epoch.from_bytes(store.peek_epoch(i)) for i in store.epochs()]
            seen.append(any(epoch.scheme_secret for epoch in kept))
        return reply

    grid.forge = forge
    run(grid, 2, on_round=grid.after)
    assert seen == [False] * 4


def test_who_comes_back_joins_in_the_next_round(tmp_path: Path) -> None:
    grid = Killed(tmp_path, 5, victim=1, round_=2)
    grid.before[3] = grid.killed.clear
    run(grid, 4, on_round=grid.after)
    assert [report.survivors for report in grid.reports] == [5, 4, 5, 5]
    reference = Reference(WEIGHTS)
    for present in (range(5), [0, 2, 3, 4], range(5), range(5)):
        reference.round(present)
    close(same(grid, range(5)), reference, 2 * tolerance(range(5), 4))


def test_several_drop_out_one_after_the_other(tmp_path: Path) -> None:
    grid = Changing(tmp_path, 6)
    dead: dict[int, int] = {}

    def fate(node: int, stage: str, round_: int) -> Fate:
        if stage == "round" and node - 100 in (0, 5) and round_ == 2:
            dead[node] = round_
        # The second one goes while the others make their new keys.
        if stage == "joint" and node - 100 == 3 and 100 in dead:
            dead[node] = round_
        return "dead" if node in dead else None

    grid.fate = fate
    run(grid, 3, on_round=grid.after)
    rest = [1, 2, 4]
    assert [report.survivors for report in grid.reports] == [6, 3, 3]
    reference = Reference(WEIGHTS)
    for present in (range(6), rest, rest):
        reference.round(present)
    close(same(grid, rest), reference, 2 * tolerance(rest, 3))


def test_three_cannot_shrink_and_wait_for_the_third(tmp_path: Path) -> None:
    grid = Changing(tmp_path, 3)
    count = itertools.count()
    grid.fate = lambda node, stage, round_: (
        "dead" if (node, stage, round_) == (101, "round", 2) and next(count) == 0 else None
    )
    run(grid, 2, on_round=grid.after)
    assert [report.survivors for report in grid.reports] == [3, 3]
    assert epochs(grid, 0) == 1  # one key, another attempt


def test_three_of_whom_one_stays_dead_stop_with_an_error(tmp_path: Path) -> None:
    grid = Killed(tmp_path, 3, victim=1, round_=2)
    with pytest.raises(QuorumError):
        run(grid, 3, on_round=grid.after)


def test_a_member_away_between_rounds_is_no_lost_round(tmp_path: Path) -> None:
    grid = Changing(tmp_path, 5)
    grid.away = lambda round_: {103} if round_ == 2 else set()
    run(grid, 3, on_round=grid.after)
    assert [report.survivors for report in grid.reports] == [5, 4, 5]
    assert grid.app.ran.count(("train", 0)) == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize("stage", ["round", "update"])
def test_a_drop_out_while_thresholds_are_fitted(tmp_path: Path, stage: str) -> None:
    """Before the mean squares are opened the round goes on; after, the next one trains again."""
    grid = Killed(tmp_path, 5, victim=2, round_=2, stage=stage)
    run(grid, 4, on_round=grid.after, clip="exchange", bits=20)
    survivors = [report.survivors for report in grid.reports]
    assert survivors == ([5, 4, 4, 4] if stage == "round" else [5, 0, 4, 4])
    model = same(grid, [0, 1, 3, 4])
    assert model.round == 4


def test_the_late_update_is_not_in_any_sum(tmp_path: Path) -> None:
    """It is there in the attempt before; nobody's key opens that any more."""
    grid = Killed(tmp_path, 4, victim=3, round_=1)
    grid.lost = "answer"
    run(grid, 1, on_round=grid.after)
    assert [report.survivors for report in grid.reports] == [3]
    slots = set()
    for _, stage, reply in grid.replies:
        if stage == "round" and reply.has_content():
            header = records.field(
                records.find_config(reply.content, records.REPLY),
                "header",
                bytes,  # type: ignore[arg-type]
            )
            slots.add(header[:200])
    assert len(slots) >= 6  # three senders, two epochs


# --- keys of one round ---


def test_fresh_keys_need_nobody_in_particular(tmp_path: Path) -> None:
    grid = Killed(tmp_path, 5, victim=2, round_=2)
    run(grid, 3, on_round=grid.after, per_round_keys=True)
    rest = [0, 1, 3, 4]
    assert [report.survivors for report in grid.reports] == [5, 4, 4]
    assert epochs(grid, 0) == 1
    reference = Reference(WEIGHTS)
    for present in (range(5), rest, rest):
        reference.round(present)
    close(same(grid, rest), reference, 2 * tolerance(rest, 3))
    assert not epoch_of(grid, 0).scheme_secret


def test_fresh_keys_open_rounds_of_some_members(tmp_path: Path) -> None:
    grid = Changing(tmp_path, 6)
    run(grid, 3, on_round=grid.after, per_round_keys=True, fraction_train=0.7)
    assert [report.survivors for report in grid.reports] == [4, 4, 4]


def test_a_fraction_needs_fresh_keys() -> None:
    with pytest.raises(ConfigError, match=r"fraction_train=0.5.*per_round_keys=True"):
        esafl_fedavg(fraction_train=0.5)
    esafl_fedavg(fraction_train=0.5, per_round_keys=True)
    with pytest.raises(ConfigError, match="choose one"):
        esafl_fedavg(per_round_keys=True, dealt_keys=True)
    with pytest.raises(ConfigError, match="give clip as a number"):
        esafl_fedsgd(optimizer=ClientOptimizer("sgd", 0.1), per_round_keys=True)


def test_a_node_may_insist_on_fresh_keys(tmp_path: Path) -> None:
    grid = Puppets(tmp_path / "a", 4, config=lambda i: {"flhe-fresh-keys": True})
    with pytest.raises(QuorumError):
        run(grid, 1)
    grid = Puppets(tmp_path / "b", 4, config=lambda i: {"flhe-fresh-keys": True})
    run(grid, 1, per_round_keys=True)


# --- dealt keys ---


def _dealt(
    tmp_path: Path, size: int, without: Callable[[list[bytes]], list[bytes]] | None = None
) -> Puppets:
    seeds = [bytes([i + 1]) * 32 for i in range(size)]
    ids = [Identity(seed) for seed in seeds]
    roster = Roster(
        tuple(Member(f"site-{i}", one.public) for i, one in enumerate(ids)), 0, 2, ("esafl",)
    )
    pinned = write_signed(tmp_path / "roster", roster, ids)
    left_out = without([one.public for one in ids]) if without else []
    files = dealt.deal(roster, "goldilocks-4096", left_out)
    for i, one in enumerate(ids):
        home = tmp_path / f"node-{i}"
        home.mkdir(mode=0o700)
        (home / "identity.key").touch(0o600)
        (home / "identity.key").write_bytes(seeds[i])
        if one.public in files:
            (tmp_path / f"key-{i}").touch(0o600)
            (tmp_path / f"key-{i}").write_bytes(files[one.public].to_bytes())
    return Puppets(
        tmp_path,
        size,
        config=lambda i: {**pinned, "flhe-dealt-key": str(tmp_path / f"key-{i}")},
    )


def test_keys_may_be_dealt(tmp_path: Path) -> None:
    grid = _dealt(tmp_path, 4)
    run(grid, 2, dealt_keys=True)
    reference = Reference(WEIGHTS)
    for _ in range(2):
        reference.round(range(4))
    close(same(grid, range(4)), reference, 2 * tolerance(range(4), 2))
    assert "joint" not in stages_of(grid, 100)
    assert key_of(grid, 1).own.tobytes() in (tmp_path / "key-1").read_bytes()


def test_dealt_keys_are_for_those_they_were_dealt_to(tmp_path: Path) -> None:
    grid = _dealt(tmp_path, 5, without=lambda publics: [publics[4]])
    with pytest.raises(QuorumError):  # the fifth site has none, and the others' are without it
        run(grid, 1, dealt_keys=True)


def test_without_a_dealt_key_a_node_says_so(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    with pytest.raises(QuorumError):
        run(grid, 1, dealt_keys=True)


def test_a_run_that_ends_on_a_void_round_can_be_resumed(tmp_path: Path) -> None:
    """With no retries the first void round ends the run; the next run begins behind it."""
    how = {"clip": "exchange", "bits": 20, "retries": 0, "state_dir": tmp_path / "server"}
    how["patience"] = 0  # a new epoch as soon as one is away
    grid = Changing(tmp_path, 5)
    grid.fate = lambda node, stage, round_: (
        "dead" if (node, stage, round_) == (102, "update", 2) else None
    )
    with pytest.raises(QuorumError, match="void"):  # its mean squares are open, and one is away
        run(grid, 4, on_round=grid.after, **how)
    last = Changing(tmp_path, 5, run_id=9)
    run(last, 4, start={"resume": True}, on_round=last.after, **how)
    models = [(home / "runs/7/model").read_bytes() for home in last.homes]
    assert len(set(models)) == 1
    assert Model.from_bytes(models[0]).round == 4


# --- what must not be lost ---


def test_a_lost_answer_costs_dealt_keys_nothing(tmp_path: Path) -> None:
    """They are for all sites, who are asked again."""
    grid = _dealt(tmp_path, 4)
    count = itertools.count()
    grid.forge = lambda node, stage, reply: (
        _lost(reply) if (node, stage) == (101, "round") and next(count) == 1 else reply
    )
    reports: list[int] = []
    run(grid, 3, dealt_keys=True, on_round=lambda report: reports.append(report.survivors))
    assert reports == [4, 4, 4]
    assert epochs(grid, 0) == 1


def _lost(reply: Message) -> Message:
    reply._content = None
    reply._error = Error(code=4)
    return reply


def test_a_stranger_costs_dealt_keys_nothing(tmp_path: Path) -> None:
    """A site of the roster without a file comes: the keys of the others stay."""
    grid = _dealt(tmp_path, 5, without=lambda publics: [publics[4]])
    grid.fate = lambda node, stage, round_: (
        "dead" if node == 104 and ("round", 1) not in seen else None
    )
    seen: set[tuple[str, int]] = set()
    reports: list[int] = []

    def after(report: Any) -> None:
        seen.add(("round", 1))
        reports.append(report.survivors)

    run(grid, 3, dealt_keys=True, on_round=after)
    assert reports == [4, 4, 4]


def test_a_bad_share_of_who_joins_leaves_the_others_their_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every agreement with it fails, once the others' keys are gone: they agree among themselves."""
    grid = Changing(tmp_path, 5)
    grid.away = lambda round_: {104} if round_ < 2 else set()
    honest = joint._masked

    def masked(agreed: Epoch, own: Any) -> bytes:
        lanes = np.frombuffer(honest(agreed, own), "<u4")
        bad = agreed.members[agreed.rank] == publics[-1]
        return (lanes + np.uint32(100_000 if bad else 0)).tobytes()

    publics: list[bytes] = []
    monkeypatch.setattr(joint, "_masked", masked)

    def before() -> None:
        publics.append(Store(grid.homes[4]).identity().public)

    publics.append(b"")
    grid.before[2] = before
    grid.homes[4].parent.mkdir(exist_ok=True)
    run(grid, 4, on_round=grid.after)
    assert [report.survivors for report in grid.reports] == [4, 4, 4, 4]
    assert len({key_of(grid, i).total.tobytes() for i in range(4)}) == 1


def test_min_replies_holds_for_sums_of_all_too(tmp_path: Path) -> None:
    grid = Changing(tmp_path, 6)
    grid.fate = lambda node, stage, round_: (
        "dead" if node > 102 and stage == "round" and round_ == 2 else None
    )
    with pytest.raises(QuorumError, match="6 needed"):
        run(grid, 3, min_replies=5, on_round=grid.after)
    assert [report.survivors for report in grid.reports] == [6]


@pytest.mark.parametrize("what", ["a residue", "a digest"])
def test_who_spoils_its_answers_is_left_out(tmp_path: Path, what: str) -> None:
    grid = Changing(tmp_path, 5)

    def forge(node: int, stage: str, reply: Message) -> Message:
        if node != 102 or stage != "round" or reply.has_error():
            return reply
        if what == "a residue":
            arrays = reply.content[records.UPDATE]
            name, array = next(iter(arrays.items()))  # type: ignore[union-attr]
            array.data = b"\xff" * len(array.data)  # type: ignore[union-attr]
            arrays[name] = array  # type: ignore[index]
        else:
            answer = records.find_config(reply.content, records.REPLY)
            assert answer is not None
            answer["digest"] = secrets.token_bytes(32)
        return reply

    grid.forge = forge
    run(grid, 2, on_round=grid.after)
    assert [report.survivors for report in grid.reports] == [4, 4]


def test_several_lost_one_after_the_other_are_no_retries(tmp_path: Path) -> None:
    grid = Changing(tmp_path, 8)
    grid.app.examples = lambda p: 10  # type: ignore[attr-defined]

    def fate(node: int, stage: str, round_: int) -> Fate:
        """One more of them with every key that the others have agreed on."""
        gone = [107, 106, 105, 104][: stages_of(grid, 100).count("joint")]
        return "dead" if node in gone and round_ == 2 and stage == "round" else None

    grid.fate = fate
    run(grid, 3, on_round=grid.after, retries=1)
    assert [report.survivors for report in grid.reports][:2] == [8, 4]


def test_without_a_key_nothing_is_trained_or_sent_again(tmp_path: Path) -> None:
    """A new epoch that never began has cost them theirs: what was sent opens for nobody any more."""
    how = {"state_dir": tmp_path / "server"}
    grid = Changing(tmp_path, 4)
    run(grid, 1, on_round=grid.after, **how)
    node = Store(grid.homes[0])
    (epoch_id,) = node.epochs()
    bare = dataclasses.replace(Epoch.from_bytes(node.peek_epoch(epoch_id)), scheme_secret=b"")
    node.replace_epoch(epoch_id, bare.to_bytes())
    again = Changing(tmp_path, 4, run_id=8)
    run(again, 3, start={"resume": True}, on_round=again.after, **how)
    stages = stages_of(again, 100)
    assert stages.index("joint") < stages.index("round")
    assert [report.survivors for report in again.reports] == [4, 4]


def test_a_resumed_server_still_knows_what_the_sum_of_keys_is_called(tmp_path: Path) -> None:
    how = {"state_dir": tmp_path / "server"}
    grid = Changing(tmp_path, 4)
    run(grid, 1, on_round=grid.after, **how)
    again = Changing(tmp_path, 4, run_id=8)
    run(again, 2, start={"resume": True}, on_round=again.after, **how)
    assert "joint" not in stages_of(again, 100)
    assert [report.survivors for report in again.reports] == [4]
