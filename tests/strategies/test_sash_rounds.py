"""SASH's rounds: the exact sum of who is left, whoever drops out at which stage, and no sum
otherwise."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result

from flhe.errors import QuorumError
from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import combine, unpack
from flhe.keys.agreement.thresholds import Thresholds
from flhe.mods import records
from flhe.strategies import HEStrategy, SashFedAvg
from tests.mods.harness import update
from tests.strategies.puppets import MASKED, Fate, Puppets, lie, play, told
from tests.strategies.reference import COUNTS, Reference, assert_like

pytestmark = pytest.mark.usefixtures("quick")


def run(
    grid: Puppets, rounds: int, unmask: str = "server", start: Any = None, **how: Any
) -> tuple[HEStrategy, Result]:
    return play(SashFedAvg, grid, rounds, start=start, clip=8.0, unmask=unmask, **how)


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
    most = nodes - Thresholds(nodes, (nodes - 1) // 3).threshold
    subsets = [s for k in range(1, most + 1) for s in itertools.combinations(range(nodes), k)]
    ways = itertools.product(MASKED, ("dead", "lost"))
    cases = [(stage, how, subset) for stage, how in ways for subset in subsets]
    grid = Puppets(tmp_path, nodes)
    for round_, (stage, how, subset) in enumerate(cases, 1):
        grid.drop(round_, stage, how, subset)
    _, result = run(grid, len(cases), unmask, patience=len(cases))
    inside = [set(range(nodes)) - set(s if stage == "round" else ()) for stage, _, s in cases]
    reference = Reference.of(inside)
    assert grid.survivors == [len(senders) for senders in inside]
    if unmask == "server":
        assert_like(numpy_of(result), reference, 1e-5)
        return
    for model in [grid.model(i) for i in range(nodes)]:
        assert model.round == len(cases)
        assert_like(model.arrays(), reference, 1e-5)


@pytest.mark.parametrize("unmask", ["server", "clients"])
@pytest.mark.parametrize("stage", ["consist", "unmask"])
def test_one_more_dropout_opens_nothing(tmp_path: Path, stage: str, unmask: str) -> None:
    """The round is void, its updates are trained again in the next, and no answer gave a seed."""
    nodes, answers = 6, list[bytes]()
    grid = Puppets(tmp_path, nodes)
    grid.drop(2, stage, "dead", (0, 2, 5) if stage == "consist" else (0, 2, 4, 5))
    for node in range(100, 100 + nodes):
        heard = lambda reply: answers.append(records.field(told(reply), "answer", bytes))  # noqa: E731
        lie(grid, node, "unmask", heard, 2)
    strategy, result = run(grid, 3, unmask)
    arrays = numpy_of(result) if unmask == "server" else grid.model(1).arrays()
    assert_like(arrays, Reference.of([range(nodes)] * 2), 1e-5)  # round 2 came to nothing
    fed = strategy._fed
    assert fed is not None
    assert 2 not in fed.ledger.chain
    assert 3 in fed.ledger.chain
    # What the server was told of round 2 is fewer answers than it takes.
    assert len(answers) < fed.parameters.circle.thresholds.threshold
    assert bool(answers) == (stage == "unmask")
    if answers and unmask == "server":
        with pytest.raises(QuorumError):
            combine(fed.parameters.circle, slot_of(grid, 2), range(nodes), answers)
    # Nobody encrypted again in a round whose survivors may have been signed.
    assert grid.stages("round").count(101) == 3


def slot_of(grid: Puppets, round_: int) -> Any:
    """Of the updates of a round."""
    parts = [update(r) for _, s, r in grid.replies if s == "round" and not r.has_error()]
    return next(part.slot for part in parts if part.slot.round == round_)


def test_too_few_uploads_are_asked_for_again_with_fresh_seeds(tmp_path: Path) -> None:
    grid, asked = Puppets(tmp_path, 4), list[int]()

    def fate(node: int, stage: str, round_: int) -> Fate:
        asked.extend([node] * (stage == "round"))
        return "dead" if stage == "round" and len(asked) <= 4 and node < 102 else None

    grid.fate = fate
    _, result = run(grid, 1)
    assert_like(numpy_of(result), Reference.of([range(4)]), 1e-5)
    mine = [r for n, s, r in grid.replies if (n, s) == (103, "round") and not r.has_error()]
    a, b = (update(reply).data for reply in mine)
    # One vector, two masks: what is left of the difference is no small number anywhere.
    difference = (a.view("<u4") - b.view("<u4")).view(np.int32)
    assert np.mean(np.abs(difference) < 1 << 20) < 0.05


def test_the_server_reads_the_model_and_evaluates_it(tmp_path: Path) -> None:
    seen: list[tuple[int, dict[str, Any]]] = []

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append((round_, records.to_numpy(arrays)))
        return MetricRecord({"mark": float(round_)})

    _, result = run(Puppets(tmp_path, 4), 2, start={"evaluate_fn": evaluate})
    assert [r for r, _ in seen] == [0, 1, 2]
    for round_, arrays in seen:
        assert_like(arrays, Reference.of([range(4)] * round_), 1e-5)
    assert {r: dict(m) for r, m in result.evaluate_metrics_serverapp.items()} == {
        r: {"mark": float(r)} for r in (0, 1, 2)
    }
    expected = np.average([1.0 + p for p in range(4)], weights=COUNTS[:4])
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx(expected, abs=1e-4)


def test_the_server_sees_no_model_where_clients_read(tmp_path: Path) -> None:
    """What opens a sum travels sealed: as it is, it combines to nothing."""
    grid = Puppets(tmp_path, 4)
    strategy, _ = run(grid, 2, "clients")
    fed = strategy._fed
    assert fed is not None
    assert fed.ledger.model is None
    (*_, last) = (content for _, stage, content in grid.sent if stage == "evaluate")
    record = records.find_config(last, records.STAGE)
    assert record is not None
    answers = unpack(records.bytes_list(record, "releases")[-1])
    assert len(answers) >= fed.parameters.circle.thresholds.threshold
    with pytest.raises(Exception, match="bytes, it takes"):
        combine(fed.parameters.circle, slot_of(grid, 2), range(4), answers)


def test_nothing_of_an_update_or_a_seed_is_on_the_wire(tmp_path: Path) -> None:
    """No share is told twice or in clear."""
    grid = Puppets(tmp_path, 4)
    run(grid, 2)
    replies = [told(r) for _, s, r in grid.replies if s == "round" and r.has_content()]
    boxes = [box for reply in replies for box in records.bytes_list(reply, "shares") if box]
    assert len(set(boxes)) == len(boxes) == 2 * 4 * 3
    own = [
        masking.Dealt.from_bytes((grid.run_dir(i) / "shares").read_bytes()).own for i in range(4)
    ]
    assert not any(bytes(share)[:64] in b"".join(boxes) for share in own)
