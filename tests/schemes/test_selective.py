"""Selective encryption over every scheme: the law of sums holds, and what is selected is hidden."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError, RangeError, ReuseError
from flhe.schemes.base import Adder, Opener, Sealer, Secrets
from flhe.schemes.sealed import Sealed
from flhe.schemes.selective import Selective, SelectiveOpener, SelectiveSealer
from flhe.schemes.shell import packed, unpacked
from tests.laws import FEW_SCHEMES, KEY, OTHER_SLOTS, SLOT, SchemeCase, add_up, joined, random_plain

some_schemes = pytest.mark.parametrize("case", FEW_SCHEMES, ids=lambda case: case.id)
FLASHE = next(case for case in FEW_SCHEMES if case.id == "flashe-16-double")


class Parts(NamedTuple):
    """Everybody's part, and what everybody's vector was."""

    scheme: Selective
    sealers: list[Sealer]
    opener: Opener
    inner: Adder


def mask_of(floats: int, selected: int, rng: np.random.Generator) -> Support:
    coords = np.sort(rng.choice(floats, selected, replace=False)).astype(np.uint32)
    return Support.of(coords, floats)


def parts(
    case: SchemeCase, cohort: int, mask: Support, *, clear: bool = True, threads: int = 1
) -> Parts:
    inner, sealers, opener = case.roles(cohort)
    scheme = Selective(inner, mask.length, mask.count, clear, mask)
    wrapped: list[Sealer] = [SelectiveSealer(scheme, s, s.rank, threads=threads) for s in sealers]
    return Parts(scheme, wrapped, SelectiveOpener(scheme, opener, threads), inner)


@some_schemes
@pytest.mark.parametrize("clear", [True, False])
def test_any_subset_opens_to_its_sum(case: SchemeCase, clear: bool) -> None:
    rng = np.random.default_rng(1)
    mask = mask_of(301, 40, rng)
    for senders in ((0,), (0, 1, 2, 3), (1, 3)):
        scheme, sealers, opener, inner = parts(case, 4, mask, clear=clear)
        plains = [random_plain(inner, 301, 5, rng) for _ in range(4)]
        sealed = [sealers[j].encrypt(plains[j], SLOT) for j in senders]
        assert {one.length for one in sealed} == {45}
        assert {one.data.size for one in sealed} == {scheme.nbytes(45)}
        total = scheme.close(add_up(scheme, sealed, rng))
        assert total.senders == senders
        assert total.data.size == scheme.nbytes(45)
        exact = np.sum([joined(plains[j]) for j in senders], axis=0)
        if not clear:
            left = np.ones(301, np.bool_)
            left[mask.coords] = False
            exact[:301][left] = 0
        assert np.array_equal(opener.decrypt(total), exact)


@some_schemes
def test_what_is_selected_does_not_show(case: SchemeCase) -> None:
    """The clear bytes depend on nothing that is selected, and the others are those of the scheme."""
    rng = np.random.default_rng(2)
    mask = mask_of(200, 90, rng)
    scheme, sealers, _, inner = parts(case, 3, mask)
    one, other = (random_plain(inner, 200, 4, rng) for _ in range(2))
    outside = np.delete(np.arange(200), mask.coords)
    other.values[outside] = one.values[outside]
    told = [
        sealers[0].encrypt(one, SLOT),
        sealers[0].encrypt(other, OTHER_SLOTS["round"]),
    ]
    (inside, rest), (_, again) = map(scheme.split, told)
    assert rest.tobytes() == again.tobytes()
    assert np.array_equal(unpacked(scheme.packing, rest, 110), one.values[outside])
    assert (inside.scheme, inside.length) == (inner.name, 94)
    assert inside.data.size == inner.nbytes(94)
    if not case.fresh:  # exactly what the scheme makes of the shorter vector
        shorter = Plain(one.values[mask.coords], one.extras)
        expected = case.roles(3).sealers[0].encrypt(shorter, SLOT)
        assert inside.data.tobytes() == expected.data.tobytes()


def flashe_parts() -> tuple[Parts, list[Sealed]]:
    rng, inner = np.random.default_rng(3), FLASHE.roles(3).adder
    scheme = Selective(inner, 100, 13, True, mask_of(100, 13, rng))
    held = [Secrets(KEY, rank) for rank in range(3)]
    made = Parts(scheme, [scheme.sealer(one) for one in held], scheme.opener(held[0]), inner)
    plains = [random_plain(made.inner, 100, 4, rng) for _ in range(3)]
    sealed = [s.encrypt(p, SLOT) for s, p in zip(made.sealers, plains, strict=True)]
    return made, sealed


def test_what_is_refused_leaves_the_sum_as_it_was() -> None:
    made, sealed = flashe_parts()
    scheme = dataclasses.replace(made.scheme, mask=None)  # as the server has it
    total = scheme.add(scheme.add(None, sealed[0]), sealed[1])
    before = scheme.close(total).data.copy()
    end, start = made.inner.nbytes(17), sealed[2].data.size - scheme.packing.nbytes(87)
    assert start > end
    between, behind = sealed[2].data.copy(), sealed[2].data.copy()
    between[end], behind[-1] = 1, behind[-1] | 0x80
    changes: list[dict[str, Any]] = [{"senders": (3,)}, {"scheme": made.inner.name}]
    changes += [{"length": 30}, {"length": 9}, {"data": sealed[2].data[:-1]}, {"data": between}]
    changes += [{"data": behind}]
    for change in (*changes, {"mode": "single"}):
        bad = dataclasses.replace(sealed[2], **change)
        for sum_ in (total, None):
            with pytest.raises(ProtocolError):
                scheme.add(sum_, bad)
        with pytest.raises(ProtocolError):
            made.opener.decrypt(bad)
    with pytest.raises(ProtocolError, match="the masking is fixed"):
        scheme.check_mode("single")
    with pytest.raises(ProtocolError, match="slot"):
        scheme.add(total, dataclasses.replace(sealed[2], slot=OTHER_SLOTS["attempt"]))
    with pytest.raises(ReuseError):
        scheme.add(total, sealed[0])
    assert np.array_equal(scheme.close(total).data, before)
    whole = scheme.close(scheme.add(total, sealed[2]))
    assert made.opener.decrypt(whole).size == 104


def test_a_closed_sum_may_be_added_to() -> None:
    made, sealed = flashe_parts()
    add, close = made.scheme.add, made.scheme.close
    one = close(add(add(None, sealed[0]), sealed[1]))
    other = close(add(add(None, sealed[2]), one))
    assert other.digest() == close(add(add(add(None, sealed[0]), sealed[1]), sealed[2])).digest()


def test_whole_vectors_only() -> None:
    made, _ = flashe_parts()
    sealer, extras, slot = made.sealers[0], np.zeros(4, np.int32), OTHER_SLOTS["round"]
    with pytest.raises(ProtocolError, match="whole vectors of 100"):
        sealer.encrypt(Plain(np.zeros(99, np.int32), extras), slot)
    clear = np.full(100, 1 << 20, np.int32)
    clear[sealer.adder.mask.coords] = 0  # type: ignore[attr-defined]
    for values in (np.full(100, 1 << 20, np.int32), clear):
        with pytest.raises(RangeError):
            sealer.encrypt(Plain(values, extras), slot)
    with pytest.raises(ReuseError):
        sealer.encrypt(Plain(np.zeros(100, np.int32), extras), SLOT)


def test_parameters_that_cannot_work() -> None:
    inner = FLASHE.roles(3).adder
    for floats, selected in ((10, 0), (10, 11), (0, 0)):
        with pytest.raises(ConfigError):
            Selective(inner, floats, selected)
    made, _ = flashe_parts()
    for mask in (
        mask_of(100, 14, np.random.default_rng(0)),
        mask_of(99, 13, np.random.default_rng(0)),
    ):
        with pytest.raises(ConfigError, match="mask"):
            dataclasses.replace(made.scheme, mask=mask)


def test_parameters_tell_the_parts_apart() -> None:
    inner = FLASHE.roles(3).adder
    kinds = [(9, 3, True), (9, 3, False), (9, 4, True), (10, 3, True)]
    made = [Selective(inner, *kind).parameters() for kind in kinds]
    assert len({repr(sorted(p.items())) for p in (*made, inner.parameters())}) == 5


@some_schemes
def test_seeds_are_shared_where_they_were(case: SchemeCase) -> None:
    made = parts(case, 3, mask_of(20, 5, np.random.default_rng(0)))
    made.sealers[0].encrypt(random_plain(made.inner, 20, 0, np.random.default_rng(0)), SLOT)
    if case.forgets:
        assert made.sealers[0].take_seed(SLOT).size
    with pytest.raises(ReuseError):
        made.sealers[0].take_seed(SLOT)


@pytest.mark.parametrize("size", [0, 1, 5000, 70_001])
def test_clear_values_go_there_and_back(size: int) -> None:
    packing = parts(FLASHE, 3, mask_of(9, 3, np.random.default_rng(0))).scheme.packing
    values: NDArray[Any] = np.random.default_rng(size).integers(-3 * 32767, 3 * 32767 + 1, size)
    data = packed(packing, values, 2)
    assert np.array_equal(unpacked(packing, data, size, 2), values)
    with pytest.raises(ProtocolError):
        unpacked(packing, np.append(data, np.uint8(0)), size)
