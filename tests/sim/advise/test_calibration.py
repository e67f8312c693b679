"""What is measured of a machine, kept, and made of it for other sizes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.coding.support import Support
from flhe.errors import ConfigError
from flhe_lab.advise import agreement_cost, calibrate
from flhe_lab.advise.calibration import KEY, POINTS, installed
from flhe_lab.advise.check import HELD_OUT, compare, table, upload_bytes
from flhe_lab.advise.cost_model import Curve, Fit, Point, Row, counts, support_bytes
from flhe_lab.bench.contender import PHASES
from flhe_lab.tables import phase_costs as who
from tests.sim.advise.made_up import machine

UNIT_S = {"encrypt": 3e-9, "add": 1e-9, "decrypt": 2e-9}
EXTRA_S, RAGGED_S = 5e-10, 2e-10


def law(point: Point, phase: str) -> float:
    """Seconds on a machine that is exactly as the model says."""
    count, more, behind = counts(point, phase)
    return UNIT_S[phase] * count + EXTRA_S * more + RAGGED_S * behind


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
    base = [Row(10, 1, 5, 1.0), Row(20, 2, 9, 2.0)]
    fit = Fit.of(base, [Row(20, 8, 9, 1.5), Row(10, 1, 50, 1.9)])
    assert fit.extra_s == 0
    assert fit.ragged_s == pytest.approx(0.02, rel=0.2)
    assert Fit.of(base, []) == Fit(Curve((10, 20), (1.0, 2.0)), 0, 0)


SMALL = tuple(
    point
    for name, values in (
        (who.PLAIN, 3_000),
        (who.FLASHE, 30_000),
        (who.FLASHE_TENTH, 30_000),
        (who.SASH, 30_000),
        (who.ESAFL, 30_000),
        (who.ESAFL_NARROW, 30_000),
        (who.FEDML, 30_000),
        (who.FEDML_TENTH, 30_000),
        (who.BATCHCRYPT, 10_000),
    )
    if installed((point := Point(name, values, 4, 0, 1)).name)
)


@pytest.fixture
def few_groups(monkeypatch):
    monkeypatch.setattr(agreement_cost, "GROUPS", (4, 5))
    monkeypatch.setattr(agreement_cost, "ELEMENTS", (8, 16))


def test_what_is_measured_is_of_every_scheme_and_bytes_are_those_of_its_uploads(few_groups) -> None:
    told: list[str] = []
    speed, times, sizes = calibrate.measure(
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
    monkeypatch.setattr(calibrate, "measure", lambda **_: (made.append(1), (EXACT, {}, {}))[1])
    path = tmp_path / f"{KEY}.json"

    def count(**how: bool) -> int:
        assert calibrate.load(tmp_path, **how) == EXACT
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
        calibrate.load(tmp_path)
    path.write_text("{")
    with pytest.raises(ConfigError, match=KEY):
        calibrate.load(tmp_path)
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
