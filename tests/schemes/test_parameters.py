"""What a scheme must not be built with: too many members, bits, or a preset that is too weak."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flhe.coding.base import Plain
from flhe.coding.limbs import PIECE
from flhe.errors import ConfigError, ProtocolError
from flhe.math.ring import add
from flhe.schemes.base import Scheme
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.bfv.scheme import Bfv
from flhe.schemes.esafl import keys as eshe_keys
from flhe.schemes.esafl.rlwe import rlwe_for
from flhe.schemes.esafl.scheme import ESHE, Esafl
from flhe.schemes.fedml_he.adder import CkksSizes
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.presets import SEAL, RingPreset
from flhe.schemes.sash.scheme import SASH
from flhe.schemes.seal_sizes import Digits
from tests.laws import KEY, SLOT
from tests.roles import roles_of


@pytest.mark.parametrize(
    "scheme",
    [Flashe(), BatchCrypt(), Esafl(), FedmlHe(), Bfv()],
    ids=lambda scheme: scheme.name,
)
@pytest.mark.parametrize(
    ("name", "value"),
    [("cohort", 1), ("cohort", -3), ("cohort", 1025), ("bits", 1), ("bits", -1), ("bits", 33)],
)
def test_cohorts_and_bits(scheme: Scheme, name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"{name}={value}\): {name} must be 2 to"):
        scheme.adder(**{"cohort": 3, name: value})


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: rlwe_for(RingPreset("x", 4096, 49, 128, ""), 1024, 32), "does not fit log q = 49"),
    (lambda: Bfv().adder(1024, 32), "fewer bits or a smaller cohort"),
    (lambda: Bfv("2048"), "BFV has 4096, 8192"),
    (lambda: FedmlHe(ring="1024").adder(3), "CKKS has 2048"),
    (lambda: FedmlHe(ring="2048").adder(1024, 32), "fewer bits or a smaller cohort"),
]


@pytest.mark.parametrize("preset", [*SEAL.values(), *ESHE.values(), *SASH.values()])
def test_presets_have_128_bits_of_security(preset: RingPreset) -> None:
    assert preset.security >= 128
    assert preset.dimension.bit_count() == 1


def test_noise_that_reaches_a_quarter_of_a_step_does_not_fit() -> None:
    digits = Digits(22, 2, 32767)
    assert [CkksSizes(4096, bits, 50, digits).fits for bits in (45, 60)] == [False, True]


@pytest.mark.parametrize(("build", "says"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_what_cannot_work(build: Callable[[], object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        build()


@pytest.mark.parametrize("total", [np.zeros(4096, np.int64), np.zeros((2, 2), np.int32)])
def test_sums_of_keys_of_another_shape(total: Any) -> None:
    with pytest.raises(ProtocolError, match="of another shape"):
        eshe_keys.check_total(total, 3)


# --- what travels ---


@pytest.mark.parametrize(("key_bits", "most"), [(2048, 5.8), (3072, 5.6)])
def test_bytes_of_a_value_in_batches(key_bits: int, most: float) -> None:
    """16 bits, nine clients."""
    assert BatchCrypt(key_bits=key_bits).adder(9, 16).nbytes(1_250_000) <= most * 1_250_000


def test_bits_that_cost_nothing() -> None:
    assert [Esafl(keys="joint").adder(n, 0).bits for n in (3, 10, 100, 1000)] == [16, 24, 20, 16]
    for ring in ESHE:
        for cohort in (3, 10, 1000):
            scheme = Esafl(ring=ring)
            free, usual = scheme.adder(cohort, 0), scheme.adder(cohort, 16)
            assert free.bits >= 16
            assert free.nbytes(100_000) <= usual.nbytes(100_000)
            assert scheme.adder(cohort, free.bits) == free


# --- ESHE: keys as field elements, pieces of work ---


def test_elements_hold_as_many_coefficients_as_sums_have_room_for() -> None:
    assert [eshe_keys.elements(4096, n) for n in (3, 10, 100, 1000)] == [586, 683, 1024, 1366]
    for cohort in (2, 1024):  # all members at the border
        one = eshe_keys.to_elements(np.full(4096, -40, np.int8), cohort)
        total = functools.reduce(add, [one] * cohort)
        assert set(eshe_keys.from_elements(total, 4096, cohort).tolist()) == {-40 * cohort}


@pytest.mark.parametrize("ring", ["goldilocks-4096", "rns-8192"])
def test_lengths_around_the_borders_of_pieces(ring: str) -> None:
    for threads in (1, 2):
        adder, sealers, opener = roles_of(2, KEY, threads, False, scheme=Esafl(ring=ring))
        per, bound, rng = adder.sizes.slots.per, adder.space.bound, np.random.default_rng(1)
        step = max(PIECE, adder.sizes.n) * per
        for attempt, length in enumerate((step - 1, step, 2 * step + per + 1)):
            xs, slot = rng.integers(-bound, bound + 1, (2, length)), replace(SLOT, attempt=attempt)
            total = None
            for sealer, x in zip(sealers, xs.astype(np.int32), strict=True):
                plain = Plain(x[: length // 2], x[length // 2 :])
                total = adder.add(total, sealer.encrypt(plain, slot))
            assert np.array_equal(opener.decrypt(total), xs.sum(axis=0))
