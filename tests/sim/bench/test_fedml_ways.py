"""FedML-HE's tables: what the paper says, ways that average rightly, their bytes."""

from __future__ import annotations

import math
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flhe.errors import FlheError
from flhe.schemes.fedml_he.ring import Ckks
from flhe_lab.bench import Contender, Laps, Vector
from flhe_lab.bench.fedml_models import CNN, COHORT, RESNET_18, TABLE_7
from flhe_lab.bench.fedml_ways import (
    BITS,
    SLOTS,
    WEIGHTS,
    Watch,
    Way,
    bare,
    mask_of,
    ours,
    plain,
    selected,
    updates_of,
)

pytest.importorskip("tenseal")

SIZE = 5000


@pytest.fixture(scope="module")
def tenseal() -> Way:
    return bare(server_weighs=True)


def ran(way: Way, values: int = SIZE) -> tuple[Contender, Laps]:
    made = way(updates_of(values))
    return made, made.turn()


def test_the_papers_ratios_come_out() -> None:
    plain = TABLE_7[0]
    times = [round(s.seconds / plain.seconds, 2) for s in TABLE_7]
    sizes = [s.nbytes / plain.nbytes for s in TABLE_7]
    assert times == [1.0, 1.74, 2.83, 3.96, 5.01, 6.34]
    assert sizes == pytest.approx([1.0, 2.56, 5.69, 8.81, 11.93, 16.62], rel=3e-3)
    # CNN's are said to be 16.66: that is of Table 8's 105.72 MB, not of Table 4's own 103.15.
    ratios = [42.23, 16.24], [18.14, 16.61]
    for model, (time, size) in zip((CNN, RESNET_18), ratios, strict=True):
        assert model.he_s / model.plain_s == pytest.approx(time, rel=5e-3)
        assert model.he_bytes / model.plain_bytes == pytest.approx(size, rel=5e-3)
        assert model.plain_bytes == pytest.approx(4 * model.values, rel=2e-3)


@pytest.mark.parametrize("kind", ["plain", "ours", "part of ours", "server", "client", "part"])
def test_every_way_gives_the_weighted_mean(kind: str, tenseal: Way) -> None:
    mask = mask_of(SIZE, 0.3)
    assert mask is not None
    ways: dict[str, Way] = {
        "plain": plain,
        "ours": ours(),
        "part of ours": ours(mask),
        "server": tenseal,
        "client": bare(server_weighs=False),
        "part": selected(tenseal, mask),
    }
    made, laps = ran(ways[kind])
    # Halves of 16-bit steps of three, of weights that are a fifth at least.
    error = made.checked()
    assert error is not None
    assert error < (5e-5 if "ours" in kind else 1e-6)
    assert set(laps) == {"encrypt", "aggregate", "decrypt"}
    assert min(laps.values()) > 0
    assert made.turn().keys() == laps.keys()  # and once more


def test_bytes_are_those_of_one_client(tenseal: Way) -> None:
    mask = mask_of(SIZE, 0.3)
    assert mask is not None
    assert mask.count == 0.3 * SIZE

    def upload(way: Way, values: int = SIZE) -> int:
        return ran(way, values)[0].known_sizes()[0]

    assert ran(plain)[0].known_sizes() == (4 * SIZE, 4 * SIZE)
    scheme = Ckks(COHORT, BITS)
    assert 0 <= upload(ours()) - scheme.nbytes(SIZE) < 1000
    rest = scheme.nbytes(mask.count) + 0.7 * SIZE * math.ceil(math.log2(COHORT * 2**BITS)) / 8
    assert 0 <= upload(ours(mask)) - rest < 1000
    one = upload(tenseal, 10)  # a ciphertext is one, whatever is in it
    assert upload(tenseal) == pytest.approx(-(-SIZE // SLOTS) * one, rel=0.01)
    theirs = upload(selected(tenseal, mask))
    assert theirs == pytest.approx(one + 4 * 0.7 * SIZE, rel=0.01)


def test_the_server_weighs_away_a_level(tenseal: Way) -> None:
    server, client = (ran(way, 100)[0] for way in (tenseal, bare(server_weighs=False)))
    (up, down), (other, whole) = server.known_sizes(), client.known_sizes()
    assert up == pytest.approx(other, rel=0.01)
    assert down < 0.6 * up
    assert whole > 0.9 * other


def test_what_is_not_the_mean_is_refused() -> None:
    updates = updates_of(100)
    mean = np.average(updates, axis=0, weights=WEIGHTS).astype(np.float32)
    watch = Watch()
    made = watch.contender("x", Laps, updates)
    watch.end(mean, 1, 1)
    assert (made.checked() or 1) < 1e-6
    for wrong in (mean[50] + 0.01, math.nan):
        mean[50] = wrong
        with pytest.raises(FlheError, match="its times mean nothing"):
            made.checked()


def test_a_part_that_is_not_the_mean_is_refused() -> None:
    mask = mask_of(100, 0.3)
    assert mask is not None

    def wrong(updates: Sequence[Vector]) -> Contender:
        return replace(plain(updates), error=lambda: 0.01)

    made, laps = ran(selected(wrong, mask), 100)
    assert set(laps) == {"encrypt", "aggregate", "decrypt"}
    with pytest.raises(FlheError, match="its times mean nothing"):
        made.checked()


@pytest.mark.parametrize(("ratio", "count"), [(0.0, 1), (0.1, 100), (0.7, 700)])
def test_masks(ratio: float, count: int) -> None:
    mask = mask_of(1000, ratio)
    assert mask is not None
    assert (mask.count, mask.length) == (count, 1000)
    assert mask_of(1000, 1.0) is None


def test_every_name_in_the_documentation_exists() -> None:
    text = (Path(__file__).parents[3] / "docs" / "fedml_he.md").read_text()
    names = set(re.findall(r"`(flhe(?:\.\w+)+)`", text))
    assert len(names) > 15
    for name in names:
        pkgutil.resolve_name(name)
