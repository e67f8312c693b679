"""SASH+: seeds are shared among some neighbours, and the sums are those of who is left all the same."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.serverapp.strategy import Result

from flhe import records
from flhe.errors import ConfigError, QuorumError
from flhe.keys import masking
from flhe.keys.graph import Graph
from flhe.keys.seed_plan import bounds_of, degree_of
from flhe.rounds.terms import Terms
from flhe.strategies import HEStrategy, sash_fedavg
from tests.strategies.puppets import Fate, Puppets, Reference, initial, new_node
from tests.strategies.test_sash_hostile import pinned
from tests.strategies.test_sash_rounds import assert_like, numpy_of

pytestmark = pytest.mark.usefixtures("quick")

NODES, NEIGHBOURS, COLLUDERS = 14, 12, 1
"""t = 9 of the 13 who hold shares of a secret."""
COUNTS = tuple(range(5, 5 + NODES))
STAGES = ("mask-key", "mask-share", "round", "consist", "unmask")


class Dropping(Puppets):
    """Puppets of which some drop out of a round at a stage, and stay away until it is over."""

    def __init__(self, path: Path) -> None:
        app = new_node()
        app.examples = COUNTS.__getitem__
        super().__init__(path, NODES, app)
        pinned(self, collusion=COLLUDERS)
        self.fates: dict[int, tuple[str, str, tuple[int, ...]]] = {}
        self.round = 0
        self.fate = self._fate
        self.forge = self._forge

    def _gone(self, node: int, stage: str, how: str) -> bool:
        place, kind, nodes = self.fates.get(self.round, ("", "", ()))
        if stage not in STAGES or not place or node - 100 not in nodes:
            return False
        if stage == place:
            return how == kind
        return STAGES.index(stage) > STAGES.index(place)

    def _fate(self, node: int, stage: str, round_: int) -> Fate:
        self.round = round_ if stage in STAGES else self.round
        return "dead" if self._gone(node, stage, "dead") else None

    def _forge(self, node: int, stage: str, reply: Message) -> Message:
        if self._gone(node, stage, "lost"):
            reply._content = None
            reply._error = Error(code=4)
        return reply


def run(grid: Dropping, rounds: int, **how: Any) -> tuple[HEStrategy, Result]:
    start = {name: how.pop(name) for name in ("resume",) if name in how}
    strategy = sash_fedavg(max_examples=64, clip=8.0, neighbours=NEIGHBOURS, patience=rounds, **how)
    try:
        return strategy, strategy.start(grid, initial(), num_rounds=rounds, **start)
    finally:
        grid.close()


def test_dropouts_at_any_stage(tmp_path: Path) -> None:
    """A round for each stage, way and pair of nodes; who left before the update is not in the sum."""
    grid = Dropping(tmp_path)
    cases = [
        (stage, how, gone)
        for stage in STAGES
        for how, gone in (("dead", (0, 9)), ("lost", (3, 4)), ("lost", (13,)))
    ]
    grid.fates = dict(enumerate(cases, 1))
    _, result = run(grid, len(cases))
    reference = Reference(dict(enumerate(COUNTS)))
    for stage, _, gone in cases:
        reference.round(set(range(NODES)) - (set(gone) if stage in STAGES[:3] else set()))
    assert_like(numpy_of(result), reference, 1e-4)
    # Nobody's share went to all others: that is what the graph is for.
    shares = [
        records.bytes_list(answer, "boxes")
        for _, stage, reply in grid.replies
        if stage == "mask-share"
        and not reply.has_error()
        and (answer := records.find_config(reply.content, records.REPLY)) is not None
    ]
    assert shares
    assert {len(boxes) for boxes in shares} <= set(range(NEIGHBOURS - 2, NEIGHBOURS + 1))


@pytest.mark.parametrize("stage", ["consist", "unmask"])
def test_too_many_dropouts_open_nothing(tmp_path: Path, stage: str) -> None:
    grid = Dropping(tmp_path)
    grid.fates = {2: (stage, "dead", tuple(range(7)))}
    strategy, result = run(grid, 3)
    reference = Reference(dict(enumerate(COUNTS)))
    reference.round(range(NODES))
    reference.round(range(NODES))
    assert_like(numpy_of(result), reference, 1e-4)
    fed = strategy._fed
    assert fed is not None
    assert sorted(fed.ledger.chain) == [0, 1, 3]


def test_too_few_keys_are_asked_for_again(tmp_path: Path) -> None:
    grid, asked = Dropping(tmp_path), [0]

    def fate(node: int, stage: str, round_: int) -> Fate:
        asked[0] += stage == "mask-key"
        return "dead" if stage == "mask-key" and asked[0] <= NODES and node < 108 else None

    grid.fate = fate
    _, result = run(grid, 1)
    reference = Reference(dict(enumerate(COUNTS)))
    reference.round(range(NODES))
    assert_like(numpy_of(result), reference, 1e-4)


@pytest.mark.parametrize("stage", STAGES)
def test_a_server_killed_in_a_round_goes_on(tmp_path: Path, stage: str) -> None:
    class KilledError(Exception):
        pass

    grid = Dropping(tmp_path / "nodes")

    def rewrite(_node: int, name: str, content: Any) -> Any:
        record = records.find_config(content, records.STAGE)
        if record is not None and name == stage and record.get("round") == 2:
            raise KilledError
        return content

    grid.rewrite = rewrite
    with pytest.raises(KilledError):
        run(grid, 3, state_dir=tmp_path / "server")
    again = Dropping(tmp_path / "nodes")
    again._run.run_id = 8
    for context in again.contexts.values():
        context.run_id = 8
    _, result = run(again, 3, state_dir=tmp_path / "server", resume=True)
    reference = Reference(dict(enumerate(COUNTS)))
    for _ in range(3 if stage in STAGES[:3] else 2):
        reference.round(range(NODES))
    assert_like(numpy_of(result), reference, 1e-4)


def test_no_seed_and_no_key_is_told_twice_or_in_clear(tmp_path: Path) -> None:
    grid = Dropping(tmp_path)
    run(grid, 2)
    keys, seeds = [], []
    for _, stage, reply in grid.replies:
        answer = records.find_config(reply.content, records.REPLY)
        if stage == "mask-key" and answer is not None:
            keys.append(records.field(answer, "key", bytes))
        if stage == "round" and answer is not None:
            seeds.append(records.field(answer, "masked-seed", bytes))
    assert len(keys) == len(set(keys)) == 2 * NODES
    assert len(seeds) == len(set(seeds)) == 2 * NODES
    # The server adds up the masked seeds; without the answers that is no seed of the sum.
    assert all(len(seed) == 8 * 2048 for seed in seeds)


def test_few_members_share_with_all(tmp_path: Path) -> None:
    """Where the graph would be complete, the plain agreement is: two stages fewer."""
    from tests.strategies.test_sash_rounds import Dropping as Plain

    grid = Plain(tmp_path, 4)
    strategy = sash_fedavg(max_examples=64, clip=8.0, neighbours=NEIGHBOURS)
    strategy.start(grid, initial(), num_rounds=1)
    grid.close()
    assert grid.stages("mask-key") == []
    assert sorted(grid.stages("consist")) == [100, 101, 102, 103]


def test_where_neighbours_are_too_few_all_share_with_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A group that grows or shrinks is never left without an agreement, nor with a weak one."""
    logging.getLogger("flwr").propagate = True
    caplog.set_level(logging.INFO)
    grid = Dropping(tmp_path)
    strategy = sash_fedavg(max_examples=64, clip=8.0, neighbours=3)
    result = strategy.start(grid, initial(), num_rounds=1)
    grid.close()
    assert grid.stages("mask-key") == []
    reference = Reference(dict(enumerate(COUNTS)))
    reference.round(range(NODES))
    assert_like(numpy_of(result), reference, 1e-4)
    assert "with all, 3 neighbours are too few against 1 colluders" in caplog.text


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"neighbours": 1}, "0 for all members, or 2 to"),
        ({"neighbours": True}, "0 for all members"),
        ({"neighbours": 50, "unmask": "clients"}, "leave neighbours out"),
        ({"neighbours": 50, "scheme": "flashe"}, "leave neighbours out"),
    ],
)
def test_terms_that_cannot_work(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Terms(**{"scheme": "sash", "bits": 16, **wrong})


def test_bounds_withstand_the_colluders_that_they_are_for() -> None:
    for members, degree in ((60, 50), (200, 100), (500, 200)):
        colluders = (members - 1) // 3
        bounds = bounds_of(members, degree, colluders)
        assert degree + 1 < 2 * bounds.threshold <= 2 * (degree + 1)
        assert colluders + 2 <= bounds.min_set < members
        rng = np.random.default_rng(0)
        # Far from 2**-40, and at least not wrong: no neighbourhood of many has so many of them.
        drawn = rng.hypergeometric(colluders, members - 1 - colluders, degree, 20_000)
        assert drawn.max() < 2 * bounds.threshold - degree - 1
        connected(members, degree, colluders, bounds.min_set)
    with pytest.raises(ConfigError, match="too few against"):
        bounds_of(100, 10, 33)


def connected(members: int, degree: int, colluders: int, survivors: int) -> None:
    """Whoever colludes and drops out: the honest survivors of some graphs hang together."""
    for i in range(5):
        graph = Graph(members, degree, bytes([i]) * 16)
        left = set(range(colluders, survivors))
        seen, front = set[int](), {min(left)}
        while front:
            seen |= front
            front = {n for r in front for n in graph.neighbours(r)} & left - seen
        assert seen == left


def test_the_graph_of_a_group() -> None:
    assert degree_of(0, 200, 66) is None
    assert degree_of(199, 200, 66) is None
    assert degree_of(121, 201, 66) == 122
    assert degree_of(121, 200, 66) == 121
    assert degree_of(10, 200, 66) is None
    with pytest.raises(ConfigError, match="too few against"):
        bounds_of(200, 10, 66)


@pytest.mark.parametrize("colluders", [0, 2, 8])
def test_two_arcs_do_not_cut_the_circle(colluders: int) -> None:
    """A server that knows the graph leaves out the honest of two arcs: too few are left beside them."""
    members, degree = 148, 62
    bounds = bounds_of(members, degree, colluders)
    for i in range(40):
        graph = Graph(members, degree, bytes([i]) * 16)
        circle, half = graph._circle, degree // 2
        for start in (0, 40):
            arcs = {circle[(start + s + d) % members] for s in (0, 70) for d in range(half)}
            chosen = set(range(members)) - {r for r in arcs if r >= colluders}
            beside = circle[(start + half) % members]
            left = len(set(graph.around(beside)) & chosen)
            assert left < bounds.threshold
    assert masking.PACKED_FROM == 65


def test_a_small_group_needs_enough_to_sign(tmp_path: Path) -> None:
    grid = Dropping(tmp_path)
    grid.fates = dict.fromkeys(range(1, 5), ("mask-share", "dead", tuple(range(8))))
    with pytest.raises(QuorumError, match="'mask-share'"):
        run(grid, 1, retries=1)
