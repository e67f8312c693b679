"""What is measured of a machine, and made of it for other sizes; and the round simulator."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flhe.coding.support import Support
from flhe.errors import ConfigError
from flhe_lab.advise import agreement_cost, calibration
from flhe_lab.advise.agreement_cost import Agreement
from flhe_lab.advise.calibration import KEY, POINTS, Calibration, installed
from flhe_lab.advise.check import HELD_OUT, compare, table, upload_bytes
from flhe_lab.advise.cost_model import TERMS, Curve, Fit, Point, Row, counts, support_bytes
from flhe_lab.advise.round_model import Breakdown, Exchange, Work, simulate, typical
from flhe_lab.advise.wan import Link
from flhe_lab.bench.contender import PHASES
from flhe_lab.tables import phase_costs as who

GROUPS = agreement_cost.GROUPS


def machine(seconds: Callable[[Point, str], float]) -> Calibration:
    """One that is as fast as a test says."""
    return Calibration(
        {point.key: {phase: seconds(point, phase) for phase in PHASES} for point in POINTS},
        POINTS,
        {
            (n, length): Agreement(1e-7 * n * length, 1e-5 * n, 4e-5 * n, 8e-5 * n)
            for n in GROUPS
            for length in agreement_cost.ELEMENTS
        },
        6e-10,
    )


UNIT_S = {"encrypt": 3e-9, "add": 1e-9, "decrypt": 2e-9}
EXTRA_S = 5e-10


def law(point: Point, phase: str) -> float:
    """Seconds on a machine that is exactly as the model says."""
    count, more = counts(point, phase)
    return UNIT_S[phase] * count + EXTRA_S * more


EXACT = machine(law)


@given(
    st.dictionaries(st.integers(1, 10**6), st.floats(0, 10), min_size=1, max_size=6),
    st.integers(1, 10**8),
    st.integers(1, 10**8),
)
def test_a_curve_never_falls(points, one, other) -> None:
    curve = Curve.through(list(points.items()))
    less, more = sorted((one, other))
    assert curve.at(less) <= curve.at(more) * (1 + 1e-12)
    assert all(curve.at(count) >= seconds for count, seconds in points.items())


@pytest.mark.parametrize("name", [name for name in who.WHO if any(p.name == name for p in POINTS)])
@pytest.mark.parametrize(("cohort", "dropouts"), [(4, 0), (6, 2), (12, 3)])
def test_a_machine_as_the_model_says_is_predicted_exactly(name, cohort, dropouts) -> None:
    for values in (300_000, 9_000_000):
        found = EXACT.phases(name, values, cohort, dropouts)
        for phase in PHASES:
            expected = law(Point(name, values, cohort, dropouts), phase)
            # A polynomial that is not full is between two calibrated ones.
            assert getattr(found, f"{phase}_s") == pytest.approx(expected, rel=1e-2)


def test_a_count_that_seems_to_save_time_costs_nothing() -> None:
    base = [Row(10, 1, 1.0), Row(20, 2, 2.0)]
    assert Fit.of(base, [Row(20, 8, 1.5)]).extra_s == 0
    assert Fit.of(base, [Row(20, 8, 3.0)]).extra_s == pytest.approx(1 / 6)
    assert Fit.of(base, []) == Fit(Curve((10, 20), (1.0, 2.0)), 0)


VALUES = {who.PLAIN: 3_000, who.BATCHCRYPT: 10_000}
SMALL = tuple(
    Point(name, VALUES.get(name, 30_000), 4, 0, 1)
    for name in (who.PLAIN, *TERMS)
    if installed(name)
)


@pytest.fixture
def few_groups(monkeypatch):
    monkeypatch.setattr(agreement_cost, "GROUPS", (4, 5))
    monkeypatch.setattr(agreement_cost, "ELEMENTS", (8, 16))


def test_what_is_measured_is_of_every_scheme_and_bytes_are_those_of_its_uploads(few_groups) -> None:
    told: list[str] = []
    speed, times, sizes = calibration.measure(
        SMALL[:1], also=SMALL[1:], progress=lambda _n, _m, what: told.append(what)
    )
    assert speed.points == SMALL[:1]
    assert set(times) == {p.key for p in SMALL[1:]}
    assert all(times[key][phase] > 0 for key in times for phase in PHASES)
    assert told
    for point in SMALL[1:]:
        # Metrics, of which the contenders have none, take a few lanes.
        assert upload_bytes(point) == pytest.approx(sizes[point.key], rel=0.02)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.4, 0.9])
def test_a_random_support_is_as_long_as_counted(share) -> None:
    rng = np.random.default_rng(3)  # test data
    coords = np.flatnonzero(rng.random(40_000) < share).astype(np.uint32)
    found = len(Support.of(coords, 40_000).data)
    assert support_bytes(coords.size, 40_000) == pytest.approx(found, rel=0.02)


def test_agreements_go_through_what_was_measured_and_between() -> None:
    assert EXACT.agreement(16, 2048) == EXACT.agreements[16, 2048]
    assert EXACT.agreement(12, 1280).deal_s == pytest.approx(1e-7 * 12 * 1280)
    assert EXACT.agreement(1000, 2048).release_s == pytest.approx(4e-2)


def test_a_calibration_is_kept_and_renewed(tmp_path: Path, monkeypatch) -> None:
    made = []
    monkeypatch.setattr(calibration, "measure", lambda **_: (made.append(1), (EXACT, {}, {}))[1])
    path = tmp_path / f"{KEY}.json"

    def count(**how: bool) -> int:
        assert calibration.load(tmp_path, **how) == EXACT
        return len(made)

    def write(part: str, **changed: object) -> None:
        document = json.loads(path.read_text())
        document[part] |= changed
        path.write_text(json.dumps(document))

    assert (count(), count(), count(renew=True)) == (1, 1, 2)
    write("machine", processor="another one")
    assert count() == 3
    write("data", version=-1)
    assert count() == 4
    write("data", agreements=[["?"]])
    with pytest.raises(ConfigError, match="--calibrate"):
        calibration.load(tmp_path)
    path.write_text("{")
    with pytest.raises(ConfigError, match=KEY):
        calibration.load(tmp_path)
    assert count(renew=True) == 5


def test_the_check_finds_what_is_off() -> None:
    calibrated = {(p.name, p.values) for p in POINTS}
    assert not calibrated & {(p.name, p.values) for p in HELD_OUT}
    points = HELD_OUT[:2]  # of FLASHE
    times = {p.key: {phase: law(p, phase) for phase in PHASES} for p in points}
    sizes = {p.key: upload_bytes(p) for p in points}
    good = compare(EXACT, HELD_OUT, times, sizes)
    assert len(good) == 2 * (len(PHASES) + 1)  # points without times are left out
    assert not any(line.verdict for line in good)
    times[points[1].key]["decrypt"] *= 1.5
    sizes[points[0].key] = round(1.03 * sizes[points[0].key])
    bad = [line for line in compare(EXACT, points, times, sizes) if line.verdict == "OFF"]
    assert [(line.point, line.what) for line in bad] == [
        (points[0], "bytes"),
        (points[1], "decrypt"),
    ]
    assert table(bad).row_count == 2


# --- the round simulator: closed forms, laws, and what it refuses ---

MB = 1_000_000
LINK = Link(8, 16)  # 1 and 2 MB a second
WORK = Work(3.0, 0.5, 0.25, 0.0, 2 * MB, 2 * MB)
PARTS = ("train_s", "encrypt_s", "decrypt_s", "transfer_s", "idle_s", "server_s")


def parts(found: Breakdown) -> float:
    return sum(getattr(found, name) for name in PARTS)


def total(found: tuple[Breakdown, ...]) -> float:
    (seconds,) = {one.total_s for one in found}
    return seconds


def test_the_server_adds_while_it_waits() -> None:
    """Uploads arrive at 1, 2 and 4 s; three seconds an addition: done at 4, 7 and 10."""
    work = Work(0, 0, 0, 3.0, MB, 0)
    found = simulate(work, [Link(8, 8), Link(4, 8), Link(2, 8)])
    assert total(found) == pytest.approx(10)
    assert [one.idle_s for one in found] == pytest.approx([3, 2, 0])
    assert [one.server_s for one in found] == pytest.approx([6, 6, 6])
    quick = simulate(replace(work, add_s=0.5), [Link(8, 8), Link(4, 8), Link(2, 8)])
    assert total(quick) == pytest.approx(4.5)


def test_every_message_pays_its_latency_and_exchanges_follow() -> None:
    far = Link(8, 16, 0.25)
    stages = (Exchange("shares", MB, 2 * MB, 0.25, 0.5), Exchange("word", 0, 0, 0, 0.125))
    (bare,) = simulate(WORK, [far])
    (found,) = simulate(replace(WORK, exchanges=stages), [far])
    assert bare.transfer_s == pytest.approx(3.5)
    # A message of no bytes is none.
    assert found.transfer_s - bare.transfer_s == pytest.approx(2.5)
    assert found.decrypt_s - bare.decrypt_s == pytest.approx(0.25)
    assert found.server_s - bare.server_s == pytest.approx(0.625)
    assert (found.bytes_up, found.bytes_down) == (3 * MB, 4 * MB)


def test_preparation_hides_in_waiting() -> None:
    """Three seconds of transfers hide three; two more seconds of a slower client's, two more."""

    def seen(prepare_s: float, *, other: float = 0.0) -> tuple[float, float]:
        work = replace(WORK, prepare_s=prepare_s)
        links = [LINK, *([Link(8, 16, other / 2)] if other else [])]
        found = simulate(work, links)[0]
        return found.encrypt_s, found.total_s

    assert seen(3.0) == pytest.approx((0.5, 6.75))
    assert seen(4.0) == pytest.approx((1.5, 7.75))
    assert seen(4.0, other=2.0) == pytest.approx((0.5, 8.75))
    assert seen(5.0, other=2.0) == pytest.approx((0.5, 8.75))
    assert seen(6.0, other=2.0) == pytest.approx((3.5, 9.75))  # never idle now


SECONDS = st.floats(0, 100)
BYTES = st.integers(0, 10**8)
SPEED = st.floats(0.5, 1e4)
LINKS = st.lists(st.builds(Link, SPEED, SPEED, st.floats(0, 1)), min_size=1, max_size=6)
EXCHANGES = st.lists(st.builds(Exchange, st.just("x"), BYTES, BYTES, SECONDS, SECONDS), max_size=2)
WORKS = st.builds(
    Work, SECONDS, SECONDS, SECONDS, SECONDS, BYTES, BYTES, EXCHANGES.map(tuple), SECONDS
)


@settings(max_examples=40)
@given(WORKS, LINKS, st.randoms(use_true_random=False))
def test_every_second_is_somewhere_in_any_order(
    work: Work, links: list[Link], draw: object
) -> None:
    found = simulate(work, links)
    assert typical(found).idle_s == min(one.idle_s for one in found)
    up = work.upload_bytes + sum(e.up_bytes for e in work.exchanges)
    down = work.download_bytes + sum(e.down_bytes for e in work.exchanges)
    for one in found:
        assert parts(one) == pytest.approx(total(found))
        assert min(astuple(one)) >= -1e-6
        assert (one.bytes_up, one.bytes_down) == (up, down)
    server_alone = work.add_s * len(links) + sum(e.server_s for e in work.exchanges)
    assert total(found) >= server_alone - 1e-6
    order = list(range(len(links)))
    draw.shuffle(order)  # type: ignore[attr-defined]
    moved = simulate(work, [links[i] for i in order])
    for at, i in enumerate(order):
        assert astuple(moved[at]) == pytest.approx(astuple(found[i]), rel=1e-9, abs=1e-6)
