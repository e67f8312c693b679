"""Times of secure aggregation: who takes part, what is checked, and Flower's SecAgg+ as installed."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import numpy as np
import pytest

from flhe.errors import FlheError
from flhe.keys.agreement.messages import Envelope
from flhe.wire.canonical import loads
from flhe_lab.bench import flower_secagg
from flhe_lab.bench.contender import Setting
from flhe_lab.bench.flower_secagg import FlowerSecAgg, Projection, stayed, update_of
from flhe_lab.bench.members import Pairwise, SashMembers, SashNeighbours, checked
from flhe_lab.bench.secure_sums import (
    FLOWERS,
    MAKES,
    SASH_PLUS,
    SECAGG,
    SECAGG_PLUS,
    contender,
    timed,
)
from flhe_lab.variants.secagg import pairwise

WORKFLOW = "flwr.server.workflow.secure_aggregation.secaggplus_workflow"
MAKERS = {
    "SASH": SashMembers,
    "SASH+": lambda setting: SashNeighbours(setting, 6),
    "SecAgg": lambda setting: Pairwise(setting, None),
    "SecAgg+": lambda setting: Pairwise(setting, 6),
}


@pytest.mark.parametrize("dropouts", [0, 3])
@pytest.mark.parametrize("kind", MAKERS)
def test_sums_are_checked(kind: str, dropouts: int) -> None:
    made: Any = MAKERS[kind](Setting(300, 9, dropouts))
    laps = contender(kind, made).turn()
    assert {*laps} == {"client", "server"}
    assert min(*laps.values(), made.server()["server"]) > 0  # once more, on the same answers
    expected = made._expected if "SecAgg" in kind else made._uploads.expected
    expected[7] += 1
    with pytest.raises(FlheError, match="the sum is not the sum"):
        made.server()
    with pytest.raises(FlheError, match="x: the sum is not the sum"):
        checked("x", np.arange(3), np.arange(4), 0.5)


def test_made_up_members_answer_as_real_ones_would() -> None:
    """Rank 0's answer by its real steps is the one that was made up for it."""
    pair = Pairwise(Setting(20, 7, 1), 4)
    plan, epoch, identity = pair.plan, pair._epoch, pair._identities[0]
    near = plan.graph.neighbours(0)
    first, _ = pairwise.advertise(identity, epoch, plan)
    second, _ = pairwise.share(first, [pair._keys[r] for r in near])
    masked, _ = pairwise.mask(second, pair._boxes, np.zeros(20, np.uint32))
    signed, _ = pairwise.consist(masked, pair.setting.survivors, pair._statements)
    answer = pairwise.unmask(signed, pair._sets)
    read = [
        loads(Envelope.from_bytes(a, 1 << 16).payload, 1 << 16, "answer")
        for a in (answer, pair._answers[0])
    ]
    assert read[0][:2] == read[1][:2]
    own = 32 * plan.graph.around(0).index(0)
    drop = [data[:own] + data[own + 32 :] for _, _, data in read]
    assert drop[0] == drop[1]  # but for its own share, of a seed drawn anew


def test_a_client_opens_what_all_others_sent_and_has_the_bits_that_there_are() -> None:
    made = SashMembers(Setting(100, 9, 2))
    made._boxes[3] = bytes(made.circle.box_bytes)
    with pytest.raises(FlheError, match="do not open"):
        made.client()
    many = SashMembers(Setting(50, 300))
    assert many.adder.bits < 16
    assert int(np.abs(many._uploads.update(5)).max()) <= many.adder.space.bound


def test_who_has_a_point() -> None:
    assert MAKES[SECAGG_PLUS](Setting(10, 101)) is MAKES[SASH_PLUS](Setting(10, 50)) is None
    for clients in (5, 51):
        made = MAKES[FLOWERS](Setting(10, clients))
        assert made is not None
        assert made.projected == (clients > 50)
    makes = {SECAGG: MAKES[SECAGG], SASH_PLUS: lambda _: None}
    assert list(timed(Setting(10, 4), makes, 1)) == [SECAGG]


# --- Flower's ---


@pytest.mark.parametrize(
    ("setting", "shares"),
    [(Setting(100, 5), 5), (Setting(100, 5, 2), 5), (Setting(100, 6), 3), (Setting(40, 9, 1), 7)],
    ids=str,
)
def test_the_mean_is_the_mean_of_whoever_stayed(
    setting: Setting, shares: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        done = FlowerSecAgg(setting, shares)
    assert not [r for r in caplog.records if r.name.startswith("flwr")]
    nodes = stayed(setting)
    assert len(nodes) == setting.cohort - setting.dropouts
    mean = np.mean([update_of(setting, node) for node in nodes], axis=0)
    assert done._strategy.found[0] == pytest.approx(mean, abs=2 * 16 / 2**22)
    assert min(done.server()["server"] for _ in range(2)) > 0  # the state is not used up
    assert len({done.client()["client"] for _ in nodes}) == len(nodes)
    monkeypatch.setattr(flower_secagg, "update_of", lambda one, _node: np.zeros(one.values))
    with pytest.raises(FlheError, match="mean is off by"):
        done.server()


def test_a_projection_does_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are noise; what they are times of is not. By counting masks and shares instead."""
    workflow: Any = importlib.import_module(WORKFLOW)
    setting, cost = Setting(50, 8, 2), 0.0

    def costly(name: str, of: Any) -> None:
        real = getattr(workflow, name)

        def work(*args: Any) -> Any:
            nonlocal cost
            cost += of(*args)
            return real(*args)

        monkeypatch.setattr(workflow, name, work)

    costly("combine_shares", lambda given: len(given) ** 2 * len(given[0]))
    costly("pseudo_rand_gen", lambda *_: 1000)
    monkeypatch.setattr(flower_secagg.time, "perf_counter", lambda: cost)
    whole, projected = (
        sides(setting, 8).server()["server"] for sides in (FlowerSecAgg, Projection)
    )
    assert whole == pytest.approx(projected)
    assert whole > 6 * 1000 + 2 * 7 * 1000


def test_a_projection_has_a_real_client() -> None:
    assert Projection(Setting(200, 30, 5), 11).client()["client"] > 0
