"""SASH's rounds: the exact sum of who is left, whoever drops out at which stage, and no sum
otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Error, Message, MetricRecord
from flwr.serverapp.strategy import Result

from flhe.errors import ConfigError, QuorumError
from flhe.keys.agreement import masking
from flhe.keys.agreement.thresholds import Thresholds
from flhe.mods import records
from flhe.strategies import HEStrategy, sash_fedavg
from flhe.strategies.report import RoundReport
from tests.strategies.puppets import COUNTS, Fate, Puppets, Reference, initial, start_arrays

pytestmark = pytest.mark.usefixtures("quick")

STAGES = ("round", "consist", "unmask")
Fates = Mapping[int, tuple[str, str, Iterable[int]]]
"""round -> (stage, "dead" before it or answer "lost", nodes)"""


class Dropping(Puppets):
    """Puppets that drop out of a round at a stage, and stay away until it is over."""

    def __init__(self, path: Path, nodes: int, fates: Fates | None = None, **how: Any) -> None:
        super().__init__(path, nodes, **how)
        self.fates = fates or {}
        self.reports: list[RoundReport] = []
        self.round = 0
        self.answers: dict[int, list[bytes]] = {}
        self.fate = self._fate
        self.forge = self._forge

    def _gone(self, node: int, stage: str, how: str) -> bool:
        place, kind, nodes = self.fates.get(self.round, ("", "", ()))
        if stage not in STAGES or place not in STAGES or node - 100 not in nodes:
            return False
        if stage == place:
            return how == kind
        return STAGES.index(stage) > STAGES.index(place)

    def _fate(self, node: int, stage: str, round_: int) -> Fate:
        if stage in STAGES:
            self.round = round_
        return "dead" if self._gone(node, stage, "dead") else None

    def _forge(self, node: int, stage: str, reply: Message) -> Message:
        if self._gone(node, stage, "lost"):
            reply._content = None
            reply._error = Error(code=4)
        if stage == "unmask" and not reply.has_error():
            answer = records.find_config(reply.content, records.REPLY)
            assert answer is not None
            told = self.answers.setdefault(self.round, [])
            told.append(records.field(answer, "answer", bytes))
        return reply


def run(
    grid: Dropping, rounds: int, unmask: str = "server", **how: Any
) -> tuple[HEStrategy, Result]:
    start = {name: how.pop(name) for name in ("evaluate_fn", "resume") if name in how}
    strategy = sash_fedavg(
        max_examples=64,
        clip=8.0,
        unmask=unmask,  # type: ignore[arg-type]
        on_round=grid.reports.append,
        **how,
    )
    try:
        result = strategy.start(grid, initial(), num_rounds=rounds, **start)
    finally:
        grid.close()
    return strategy, result


def assert_like(arrays: Mapping[str, Any], reference: Reference, atol: float) -> None:
    for name, expected in reference.arrays.items():
        np.testing.assert_allclose(
            np.asarray(arrays[name], np.float64),
            np.asarray(expected, np.float64),
            rtol=0,
            atol=2e-3 if name == "half" else atol,
            err_msg=name,
        )


def numpy_of(result: Result) -> dict[str, Any]:
    return {n: a.numpy() for n, a in result.arrays.items()}


@pytest.mark.parametrize(
    ("nodes", "unmask"),
    [
        *((nodes, unmask) for nodes in (3, 4) for unmask in ("server", "clients")),
        *(pytest.param(6, unmask, marks=pytest.mark.sweep) for unmask in ("server", "clients")),
    ],
)
def test_any_dropouts_at_any_stage(tmp_path: Path, nodes: int, unmask: str) -> None:
    """Up to D_max of them, the sum is that of the others; a round for each subset, stage and way."""
    most = Thresholds(nodes, (nodes - 1) // 3).max_dropouts
    subsets = [s for k in range(1, most + 1) for s in itertools.combinations(range(nodes), k)]
    ways = [("round", "dead"), ("round", "lost"), *itertools.product(STAGES[1:], ("dead", "lost"))]
    cases = [(stage, how, subset) for stage, how in ways for subset in subsets]
    grid = Dropping(tmp_path, nodes, dict(enumerate(cases, 1)))
    _, result = run(grid, len(cases), unmask, patience=len(cases))
    reference = Reference(dict(enumerate(COUNTS)))
    for stage, _, subset in cases:
        gone = set(subset) if stage == "round" else set[int]()
        reference.round(set(range(nodes)) - gone)
    assert [r.survivors for r in grid.reports] == [
        nodes - (len(s) if stage == "round" else 0) for stage, _, s in cases
    ]
    if unmask == "server":
        assert_like(numpy_of(result), reference, 1e-5)
    else:
        models = [grid.model(i) for i in range(nodes)]
        done = max(model.round for model in models)
        last = [m for m in models if m.round == done]
        assert done == len(cases)
        assert len(last) == nodes
        for model in last:
            assert_like(model.arrays(), reference, 1e-5)


@pytest.mark.parametrize("unmask", ["server", "clients"])
@pytest.mark.parametrize("stage", ["consist", "unmask"])
def test_one_more_dropout_opens_nothing(tmp_path: Path, stage: str, unmask: str) -> None:
    """The round is void, its updates are trained again in the next, and no answer gave a seed."""
    nodes, gone = 6, (0, 2, 5)
    grid = Dropping(tmp_path, nodes, {2: (stage, "dead", gone)})
    strategy, result = run(grid, 3, unmask)
    reference = Reference(dict(enumerate(COUNTS)))
    reference.round(range(nodes))
    reference.round(range(nodes))  # round 3: round 2 came to nothing
    arrays = numpy_of(result) if unmask == "server" else grid.model(1).arrays()
    assert_like(arrays, reference, 1e-5)
    fed = strategy._fed
    assert fed is not None
    assert 2 not in fed.ledger.chain
    assert 3 in fed.ledger.chain
    # What the server was told of round 2 is fewer answers than it takes.
    answers = grid.answers.get(2, [])
    assert len(answers) < fed.circle.thresholds.threshold
    if answers and unmask == "server":
        slot = slot_of(grid, 2)
        with pytest.raises(QuorumError):
            masking.combine(fed.circle, slot, range(nodes), answers)
    # Nobody encrypted again in a round whose survivors may have been signed.
    assert grid.stages("round").count(101) == 3


def slot_of(grid: Puppets, round_: int) -> Any:
    for _, stage, reply in grid.replies:
        if stage != "round" or reply.has_error():
            continue
        answer = records.find_config(reply.content, records.REPLY)
        assert answer is not None
        header = records.field(answer, "header", bytes)
        arrays = reply.content[records.UPDATE]
        assert isinstance(arrays, ArrayRecord)
        sealed = records.to_sealed(header, arrays)
        if sealed.slot.round == round_:
            return sealed.slot
    raise AssertionError


def test_too_few_uploads_are_asked_for_again_with_fresh_seeds(tmp_path: Path) -> None:
    class Late(Dropping):
        asked = 0

        def _fate(self, node: int, stage: str, round_: int) -> Fate:
            if stage == "round":
                self.asked += 1
                if self.asked <= 4 and node < 102:
                    return "dead"
            return None

    grid = Late(tmp_path, 4)
    _, result = run(grid, 1)
    reference = Reference(dict(enumerate(COUNTS)))
    reference.round(range(4))
    assert_like(numpy_of(result), reference, 1e-5)
    uploads = [
        bytes(next(iter(reply.content[records.UPDATE].values())).data)  # type: ignore[union-attr]
        for node, stage, reply in grid.replies
        if stage == "round" and node == 103 and not reply.has_error()
    ]
    assert len(uploads) == 2
    assert uploads[0] != uploads[1]
    # One vector, two masks: what is left of the difference is no small number anywhere.
    a, b = (np.frombuffer(u, "<u4") for u in uploads)
    assert np.mean(np.abs((a - b).view(np.int32)) < 1 << 20) < 0.05


def test_void_rounds_end_the_run(tmp_path: Path) -> None:
    fates = dict.fromkeys(range(1, 9), ("consist", "dead", (0, 1, 2)))
    with pytest.raises(QuorumError, match="in a row are void"):
        run(Dropping(tmp_path, 6, fates), 8)


def test_the_server_reads_the_model_and_evaluates_it(tmp_path: Path) -> None:
    seen: list[tuple[int, dict[str, Any]]] = []

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append((round_, records.to_numpy(arrays)))
        return MetricRecord({"mark": float(round_)})

    grid = Dropping(tmp_path, 4)
    _, result = run(grid, 2, evaluate_fn=evaluate)
    assert [r for r, _ in seen] == [0, 1, 2]
    reference = Reference(dict(enumerate(COUNTS)))
    for round_, arrays in seen:
        if round_:
            reference.round(range(4))
        assert_like(arrays, reference, 1e-5)
    assert {r: dict(m) for r, m in result.evaluate_metrics_serverapp.items()} == {
        r: {"mark": float(r)} for r in (0, 1, 2)
    }
    means = result.train_metrics_clientapp
    weights = COUNTS[:4]
    expected = sum(w * (1.0 + p) for p, w in enumerate(weights)) / sum(weights)
    assert means[1]["train_loss"] == pytest.approx(expected, abs=1e-4)
    # A node keeps no model where the server has it.
    assert not (grid.run_dir(0) / "model").exists()


def test_who_reads_decides_what_start_takes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="evaluate_fn would see ciphertext"):
        run(Dropping(tmp_path / "a", 3), 1, "clients", evaluate_fn=lambda *_: None)
    grid = Dropping(tmp_path / "b", 3)
    with pytest.raises(ConfigError, match="give start\\(\\) initial_arrays"):
        sash_fedavg().start(grid, None)
    grid.close()


def test_the_server_sees_no_model_where_clients_read(tmp_path: Path) -> None:
    grid = Dropping(tmp_path, 4)
    strategy, result = run(grid, 2, "clients")
    assert next(iter(result.arrays.values())).stype == records.CHECKPOINT
    fed = strategy._fed
    assert fed is not None
    assert fed.ledger.model is None
    # What opens a sum travels sealed: as it is, it combines to nothing.
    release = fed.ledger.releases or {}
    sums = [s for s in grid.sent if s[1] == "evaluate"]
    record = records.find_config(sums[-1][2], records.STAGE)
    assert record is not None
    packed = records.bytes_list(record, "releases")[-1]
    del release
    answers = masking.unpack(packed)
    assert len(answers) >= fed.circle.thresholds.threshold
    slot = slot_of(grid, 2)
    with pytest.raises(Exception, match="bytes, a share has"):
        masking.combine(fed.circle, slot, range(4), answers)


def test_nothing_of_an_update_or_a_seed_is_on_the_wire(tmp_path: Path) -> None:
    """No upload equals another one, and no share is told twice or in clear."""
    grid = Dropping(tmp_path, 4)
    run(grid, 2)
    boxes: list[bytes] = []
    for _, stage, reply in grid.replies:
        answer = records.find_config(reply.content, records.REPLY)
        if stage == "round" and answer is not None:
            boxes += [b for b in records.bytes_list(answer, "shares") if b]
    assert len(boxes) == 2 * 4 * 3
    assert len(set(boxes)) == len(boxes)
    own = [
        masking.Dealt.from_bytes((grid.run_dir(i) / "shares").read_bytes()).own for i in range(4)
    ]
    everything = b"".join(boxes)
    assert not any(bytes(share)[:64] in everything for share in own)


@pytest.mark.parametrize("unmask", ["server", "clients"])
def test_a_run_is_resumed_where_it_stood(tmp_path: Path, unmask: str) -> None:
    grid = Dropping(tmp_path / "nodes", 4)
    run(grid, 2, unmask, state_dir=tmp_path / "server")
    again = Dropping(tmp_path / "nodes", 4, run_id=8)
    _, result = run(again, 4, unmask, state_dir=tmp_path / "server", resume=True)
    reference = Reference(dict(enumerate(COUNTS)))
    for _ in range(4):
        reference.round(range(4))
    if unmask == "server":
        assert_like(numpy_of(result), reference, 1e-5)
    else:
        home = tmp_path / "nodes" / "node-0" / "runs" / "7" / "model"
        from flhe.training.model import Model

        assert_like(Model.from_bytes(home.read_bytes()).arrays(), reference, 1e-5)


@pytest.mark.parametrize("unmask", ["server", "clients"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_server_killed_in_a_round_goes_on(tmp_path: Path, stage: str, unmask: str) -> None:
    """Before anybody was asked to sign, the round is asked for again; afterwards it is void."""

    class KilledError(Exception):
        pass

    grid = Dropping(tmp_path / "nodes", 4)

    def rewrite(_node: int, name: str, content: Any) -> Any:
        record = records.find_config(content, records.STAGE)
        if record is not None and name == stage and record.get("round") == 2:
            raise KilledError
        return content

    grid.rewrite = rewrite
    with pytest.raises(KilledError):
        run(grid, 3, unmask, state_dir=tmp_path / "server")
    again = Dropping(tmp_path / "nodes", 4, run_id=8)
    _, result = run(again, 3, unmask, state_dir=tmp_path / "server", resume=True)
    reference = Reference(dict(enumerate(COUNTS)))
    for _ in range(3 if stage == "round" else 2):
        reference.round(range(4))
    if unmask == "server":
        assert_like(numpy_of(result), reference, 1e-5)
        return
    from flhe.training.model import Model

    for i in range(4):
        home = tmp_path / "nodes" / f"node-{i}" / "runs" / "7" / "model"
        assert_like(Model.from_bytes(home.read_bytes()).arrays(), reference, 1e-5)


def test_fates_are_what_the_table_says(tmp_path: Path) -> None:
    """The test's own machinery: who is gone at a stage is gone for the rest of the round."""
    grid = Dropping(tmp_path, 4, {1: ("consist", "dead", (2,))})
    run(grid, 1)
    answered = {(n, s) for n, s, r in grid.replies if not r.has_error()}
    assert (102, "round") in answered
    assert (102, "consist") not in answered
    assert (102, "unmask") not in {(n, s) for n, s, _ in grid.sent}
    assert set(start_arrays()) == set(Reference({}).arrays)
