"""Secure sums of anything: exact under every scheme, over whoever may be in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from numpy.typing import NDArray

from flhe.errors import ConfigError, QuorumError, SumRangeError
from flhe.mods import bounded, query_app, records
from flhe.node.checkpoint import open_checkpoint
from flhe.schemes.base import Scheme
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import SecureSum, Total
from flhe.strategies.sealed_result import write_private
from flhe.training.query import Query
from tests.patience import PATIENCE_S
from tests.strategies.puppets import Puppets
from tests.strategies.variants import ALLOWED, VARIANTS

pytestmark = pytest.mark.usefixtures("quick")

SCHEMES: dict[str, Scheme] = {
    scheme.summary(): scheme
    for scheme in (variant.make(**variant.how).terms.scheme for variant in VARIANTS.values())
}
"""Every scheme, in each way that it has."""

Numbers = Mapping[str, Any]


class Site:
    """What the sites of a test answer; `calls` counts how often they were asked."""

    def __init__(self, found: Callable[[int, ConfigRecord], Numbers]) -> None:
        self.found, self.calls = found, list[int]()

    def __call__(self, asked: ConfigRecord, context: Context) -> ArrayRecord:
        partition = int(str(context.node_config["partition-id"]))
        self.calls.append(partition)
        found = self.found(partition, asked)
        return ArrayRecord({name: Array(np.asarray(value)) for name, value in found.items()})


def numbers(partition: int, asked: ConfigRecord) -> Numbers:
    """Random integers of all sizes, the same whenever they are asked for."""
    draw = np.random.default_rng([partition, int(str(asked.get("seed", 0)))])
    size = int(str(asked.get("size", 9)))
    wide = draw.integers(-(1 << 58), 1 << 58, size)
    return {
        "wide": wide,
        "small": draw.integers(0, 200, (2, size)).astype(np.uint8),
        "one": partition,
    }


def federation(
    path: Path, site: Any = None, nodes: int = 4, app: Any = None, **config: Any
) -> Puppets:
    """Sites that answer "numbers", as `site` finds them."""
    queries = {"numbers": site or Site(numbers)}
    allowed = {**ALLOWED, "flhe-queries": "numbers, floats", **config}
    return Puppets(path, nodes, app or query_app(queries), config=lambda _: allowed)


def opened(grid: Puppets, total: Total) -> dict[str, NDArray[Any]]:
    """A total's arrays, as a member opens them where the server does not read them."""
    if not isinstance(total.arrays, records.SealedArrays):
        return dict(records.to_numpy(total.arrays))
    box = grid.homes[0].parent / "total.flhe"
    write_private(box, records.to_pieces(ArrayRecord(dict(total.arrays))))
    return dict(open_checkpoint(box, grid.homes[1]).masters)


def pooled(partitions: Sequence[int], asked: ConfigRecord) -> dict[str, NDArray[Any]]:
    """What these sites' answers add up to, in the clear."""
    parts = [numbers(partition, asked) for partition in partitions]
    return {name: sum(np.asarray(part[name], np.int64) for part in parts) for name in parts[0]}  # type: ignore[misc]


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Puppets]:
    with federation(tmp_path) as made:
        yield made


@pytest.mark.parametrize("name", SCHEMES)
def test_sums_are_exact_whoever_is_in_them(tmp_path: Path, name: str) -> None:
    scheme = SCHEMES[name]
    with federation(tmp_path) as grid, SecureSum(grid, scheme) as secure:
        for seed, away in enumerate(((), (2,))):
            if away and scheme.needs_all_members:
                continue
            grid.unreached[seed + 1, "query"] = away
            asked = ConfigRecord({"seed": seed, "size": 5 + 40 * seed})
            total = secure.sum("numbers", asked)
            there = [partition for partition in range(4) if partition not in away]
            assert (total.number, total.contributors) == (seed + 1, len(there))
            assert set(total.errors.values()) == {0.0}
            want, found = pooled(there, asked), opened(grid, total)
            assert list(found) == list(want)
            for part, values in want.items():
                np.testing.assert_array_equal(found[part], values)
                assert found[part].dtype == np.int64
        assert (scheme.reader == "server") != isinstance(total.arrays, records.SealedArrays)


@pytest.mark.parametrize("scheme", [Sash(), Flashe()], ids=["server reads", "members read"])
def test_floats_are_rounded_as_they_are_declared(tmp_path: Path, scheme: Scheme) -> None:
    values = np.array([[0.1, -99.9], [1e-9, 33.3]])

    def found(partition: int, asked: ConfigRecord) -> Numbers:
        return {"f": values * (partition + 1) / 4, "i": [partition]}

    for resolution in (0.0, 0.5):
        queries = {"floats": bounded(Site(found), 100.0, resolution)}
        path = tmp_path / str(resolution)
        with federation(path, app=query_app(queries)) as grid, SecureSum(grid, scheme) as secure:
            total = secure.sum("floats")
            error = total.errors["f"]
            assert error == 4 * (resolution or 2.0**-45) / 2
            sums = opened(grid, total)
            np.testing.assert_allclose(sums["f"], 2.5 * values, rtol=0, atol=error)
            assert (total.errors["i"], sums["i"].tolist()) == (0.0, [6])


def test_asked_again_a_query_gives_what_it_gave(tmp_path: Path) -> None:
    site, state = Site(numbers), tmp_path / "state"
    with federation(tmp_path, site) as own, SecureSum(own, Sash(), state_dir=state) as secure:
        first, other = secure.sum("numbers", {"size": 3}), secure.sum("numbers", {"size": 4})
        sent = len(own.sent)
        again = secure.sum("numbers", {"size": 3})
        assert (again.arrays, again.number, again.report) == (first.arrays, 1, None)
        assert (other.number, len(own.sent), len(site.calls)) == (2, sent, 8)
        with SecureSum(own, Sash(), state_dir=state, resume=True) as later:
            assert later.sum("numbers", {"size": 4}).arrays == other.arrays
            assert later.sum("numbers", {"size": 5}).number == 3
            assert len(site.calls) == 12


@pytest.mark.parametrize("stage", ["query", "consist", "unmask", "total"])
@pytest.mark.parametrize("scheme", [Sash(), Sash(unmask="clients"), Flashe()], ids=str)
def test_a_run_that_stops_in_a_query_goes_on_with_it(
    tmp_path: Path, scheme: Scheme, stage: str
) -> None:
    if stage not in ("query", "total") and not scheme.opened_together:
        pytest.skip("this scheme has no such stage")
    if stage == "total" and scheme.reader == "server":
        pytest.skip("the server opens its sums")
    site, asked = Site(numbers), ConfigRecord({"size": 3})
    with federation(tmp_path, site) as grid:
        there = 100 if stage == "total" else 101
        grid.fate = lambda node, at, _: "dead" if at == stage and node > there else None
        with (
            SecureSum(grid, scheme, state_dir=tmp_path / "state", retries=0) as secure,
            pytest.raises(QuorumError),
        ):
            secure.sum("numbers", asked)
        grid.fate = lambda *_: None
        with SecureSum(grid, scheme, state_dir=tmp_path / "state", resume=True) as later:
            total = later.sum("numbers", asked)
            for part, values in pooled(range(4), asked).items():
                np.testing.assert_array_equal(opened(grid, total)[part], values)
        assert sorted(set(site.calls)) == [0, 1, 2, 3]


def test_what_an_answer_leaves_in_its_context_is_forgotten(tmp_path: Path) -> None:
    def answer(asked: ConfigRecord, context: Context) -> ArrayRecord:
        context.state["seen"] = asked
        return ArrayRecord({"n": Array(np.array([1]))})

    with federation(tmp_path, answer) as grid, SecureSum(grid, Sash()) as secure:
        assert opened(grid, secure.sum("numbers"))["n"].tolist() == [4]
        assert not any("seen" in context.state for context in grid.contexts.values())


def test_members_come_and_go_between_queries(tmp_path: Path) -> None:
    with federation(tmp_path, nodes=5) as grid:
        grid.away = lambda _: {104}
        with SecureSum(grid, Flashe(), patience=1) as secure:
            assert secure.sum("numbers", {"seed": 1}).contributors == 4
            grid.away = lambda _: set()
            assert secure.sum("numbers", {"seed": 2}).contributors == 5
            assert grid.epochs(4) == 1


def test_a_sum_beyond_63_bits_is_an_error_and_not_a_number(tmp_path: Path) -> None:
    def found(partition: int, asked: ConfigRecord) -> Numbers:
        return {"n": [(1 << 62) // int(str(asked["by"]))]}

    with federation(tmp_path / "server", Site(found)) as grid, SecureSum(grid, Sash()) as secure:
        with pytest.raises(SumRangeError):
            secure.sum("numbers", {"by": 1})
        assert opened(grid, secure.sum("numbers", {"by": 4}))["n"].tolist() == [1 << 62]
    with (
        federation(tmp_path / "members", Site(found)) as grid,
        SecureSum(grid, Flashe()) as secure,
        pytest.raises(QuorumError, match="flhe/sum-range"),
    ):
        secure.sum("numbers", {"by": 1})


def test_what_cannot_be_asked_is_refused_before_anybody_is(grid: Puppets) -> None:
    with pytest.raises(ConfigError, match="in a with"):
        SecureSum(grid).sum("numbers")
    with SecureSum(grid, Sash(), max_queries=1) as secure:
        for name, parameters in (
            ("Numbers", {}),
            ("", {}),
            ("n" * 65, {}),
            ("numbers", {"x": None}),
            ("numbers", {"x": float("nan")}),
        ):
            with pytest.raises(ConfigError):
                secure.sum(name, parameters)  # type: ignore[arg-type]
        secure.sum("numbers")
        with pytest.raises(ConfigError, match="has asked its 1 queries"):
            secure.sum("numbers", {"seed": 1})
    assert len(grid.stages("query")) == 4


def test_a_federation_either_trains_or_answers(tmp_path: Path) -> None:
    with federation(tmp_path) as grid, SecureSum(grid, Sash()) as secure:
        fed = secure._survey
        for stage in ("round", "sync", "checkpoint"):
            (reply,) = fed.grid.send_and_receive(
                fed.messages("train", stage, [100]), timeout=PATIENCE_S
            )
            assert reply.error.code == 1014
    with VARIANTS["sash"].nodes(tmp_path / "other", 4, **{"flhe-queries": "numbers"}) as trains:
        strategy, _ = VARIANTS["sash"].play(trains, 1)
        fed = strategy._fed  # type: ignore[assignment]
        message = fed.messages("train", "query", [100])[0]
        asked = Query.of("numbers", {}).to_bytes()
        message.content[records.STAGE]["query"] = asked  # type: ignore[index]
    with VARIANTS["sash"].nodes(tmp_path / "other", 4) as trains:
        trains.push_messages([message])
        [(_, _, reply)] = trains.replies
        assert reply.error.code == 1014
