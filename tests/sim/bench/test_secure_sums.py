"""Times of secure aggregation: who takes part, and what is checked."""

from __future__ import annotations

import numpy as np
import pytest

from flhe.errors import ConfigError, FlheError
from flhe.keys.agreement.messages import Envelope
from flhe.wire.canonical import loads
from flhe_lab.bench import Laps
from flhe_lab.bench.pairwise import Pairwise, SashNeighbours
from flhe_lab.bench.sash_members import SashMembers, checked
from flhe_lab.bench.secure_sums import (
    FLOWERS,
    MAKERS,
    SASH_PLUS,
    SECAGG,
    SECAGG_PLUS,
    Maker,
    Setting,
    contender,
    timed,
)
from flhe_lab.variants.secagg import pairwise


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["SecAgg", "SecAgg+", "SASH", "SASH+"])
def test_sums_are_checked(kind: str, dropout: float) -> None:
    setting = Setting(9, 300, dropout)
    if kind == "SASH":
        made = SashMembers(setting)
    else:
        made = SashNeighbours(setting, 6) if kind == "SASH+" else Pairwise(setting, None)
        if kind == "SecAgg+":
            made = Pairwise(setting, 6)
        assert made.plan.graph.complete is (kind == "SecAgg")
    laps = contender(kind, made).turn()
    assert {*laps} == {"client", "server"}
    assert min(*laps.values(), made.server()["server"]) > 0  # once more, on the same answers
    expected = made._expected if "SecAgg" in kind else made._uploads.expected
    expected[7] += 1
    with pytest.raises(FlheError, match="the sum is not the sum"):
        made.server()


def test_a_sum_is_told_from_another() -> None:
    assert checked("x", np.arange(3), np.arange(3), 0.5) == Laps(server=0.5)
    for other in (np.arange(4), np.array([0, 1, 3])):
        with pytest.raises(FlheError, match="x: the sum is not the sum"):
            checked("x", np.arange(3), other, 0.5)


def test_made_up_members_answer_as_real_ones_would() -> None:
    """Rank 0's answer by its real steps is the one that was made up for it."""
    pair = Pairwise(Setting(7, 20, 0.2), 4)
    plan, epoch, identity = pair.plan, pair._epoch, pair._identities[0]
    near = plan.graph.neighbours(0)
    first, _ = pairwise.advertise(identity, epoch, plan)
    second, _ = pairwise.share(first, [pair._keys[r] for r in near])
    masked, _ = pairwise.mask(second, pair._boxes, np.zeros(20, np.uint32))
    signed, _ = pairwise.consist(masked, pair.setting.senders, pair._statements)
    answer = pairwise.unmask(signed, pair._sets)
    read = [
        loads(Envelope.from_bytes(a, 1 << 16).payload, 1 << 16, "answer")
        for a in (answer, pair._answers[0])
    ]
    assert read[0][:2] == read[1][:2]
    own = 32 * plan.graph.around(0).index(0)
    drop = [data[:own] + data[own + 32 :] for _, _, data in read]
    assert drop[0] == drop[1]  # but for its own share, of a seed drawn anew


def test_settings() -> None:
    setting = Setting(10, 5, 0.3)
    assert (setting.dropouts, setting.gone) == (3, {3, 6, 9})
    assert setting.senders == (0, 1, 2, 4, 5, 7, 8)
    assert np.array_equal(setting.update(3), setting.update(3))
    assert not np.array_equal(setting.update(3), setting.update(4))
    for clients in (3, 7, 50, 500):
        for dropout in (0.0, 0.1, 0.3, 1 / 3):
            each = Setting(clients, 1, dropout)
            assert len(each.gone) == each.dropouts
            assert 0 not in each.gone
            assert each.gone <= set(range(clients))
    for bad in ((2, 1, 0.0), (3, 0, 0.0), (3, 1, 0.5), (9, 1, 0.9), (3, 1, -0.3)):
        with pytest.raises(ConfigError, match="at least 3 clients"):
            Setting(*bad)


def test_a_client_opens_what_all_others_sent() -> None:
    made = SashMembers(Setting(9, 100, 0.2))
    box = made.circle.box_bytes
    assert [len(b) for b in made._boxes] == [0] + [box] * (len(made.setting.senders) - 1)
    made._boxes[3] = bytes(box)
    with pytest.raises(FlheError, match="do not open"):
        made.client()


def test_updates_are_cut_to_the_bits_that_there_are() -> None:
    made = SashMembers(Setting(300, 50))
    assert made.scheme.bits < 16
    assert int(np.abs(made._uploads.update(5)).max()) <= made.scheme.space.bound


def test_who_has_a_point() -> None:
    assert [maker.name for maker in MAKERS[:3]] == ["SASH", "SASH+", "SecAgg"]
    assert SECAGG_PLUS.make(Setting(101, 10)) is SASH_PLUS.make(Setting(50, 10)) is None
    flower = [FLOWERS.make(Setting(n, 10)) for n in (5, 51)]
    assert [each is not None and each.projected for each in flower] == [False, True]
    projected = [contender("x", each).projected for each in flower if each is not None]
    assert projected == [(), ("server",)]


def test_those_without_a_point_are_left_out() -> None:
    absent = Maker("absent", lambda _: None)
    assert list(timed(Setting(4, 10), [SECAGG, absent], repeats=1)) == ["SecAgg"]
