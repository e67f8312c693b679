"""ESHE beyond the laws: keys as field elements, what is refused, pieces of work."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.pack import PIECE
from flhe.errors import ReuseError
from flhe.math.ring import add
from flhe.schemes.esafl import keys as eshe_keys
from flhe.schemes.esafl.adder import EsaflAdder, EsaflOpener, EsaflSealer
from flhe.schemes.esafl.keys import draw_own
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.joint_key import JointKey
from tests.laws import KEY, SLOT


@functools.cache
def keys(cohort: int, dimension: int) -> tuple[JointKey, ...]:
    """What the members of an epoch hold."""
    owns = [draw_own(dimension) for _ in range(cohort)]
    total: NDArray[np.int32] = np.sum(owns, axis=0, dtype=np.int32)
    return tuple(JointKey(own, total) for own in owns)


def sealer(scheme: EsaflAdder, rank: int, **how: Any) -> EsaflSealer:
    return EsaflSealer(scheme, KEY, rank, keys(scheme.cohort, scheme.sizes.n)[rank].own, **how)


def opener(scheme: EsaflAdder, **how: Any) -> EsaflOpener:
    return EsaflOpener(scheme, KEY, keys(scheme.cohort, scheme.sizes.n)[0].total, **how)


def vectors(scheme: EsaflAdder, length: int) -> NDArray[np.int32]:
    rng, bound = np.random.default_rng(1), scheme.space.bound
    return rng.integers(-bound, bound + 1, (scheme.cohort, length)).astype(np.int32)


def test_a_lasting_key_is_no_seed() -> None:
    with pytest.raises(ReuseError, match="there is no key"):
        sealer(Esafl(keys="joint").adder(3), 0).take_seed(SLOT)


def test_elements_hold_as_many_coefficients_as_sums_have_room_for() -> None:
    assert [eshe_keys.elements(4096, n) for n in (3, 10, 100, 1000)] == [586, 683, 1024, 1366]
    for cohort in (2, 1024):  # all members at the border
        one = eshe_keys.to_elements(np.full(4096, -40, np.int8), cohort)
        total = functools.reduce(add, [one] * cohort)
        assert set(eshe_keys.from_elements(total, 4096, cohort).tolist()) == {-40 * cohort}


@pytest.mark.parametrize("ring", ["goldilocks-4096", "rns-8192"])
def test_lengths_around_the_borders_of_pieces(ring: str) -> None:
    scheme = Esafl(ring=ring, keys="joint").adder(2, 16)
    per = scheme.sizes.slots.per
    step = max(PIECE, scheme.sizes.n) * per
    for length in (step - 1, step, 2 * step + per + 1):
        xs, total = vectors(scheme, length), None
        for rank, x in enumerate(xs):
            plain = Plain(x[: length // 2], x[length // 2 :])
            part = sealer(scheme, rank, threads=1 + rank).encrypt(plain, SLOT)
            total = scheme.add(total, part)
        assert total is not None
        opened = opener(scheme, threads=2).decrypt(total)
        assert opened.tolist() == xs.sum(axis=0, dtype=np.int64).tolist()
