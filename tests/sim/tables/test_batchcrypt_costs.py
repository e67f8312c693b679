"""BatchCrypt's Table 1 and Figure 10: what is run is right, and samples stand for wholes."""

from __future__ import annotations

from typing import Any

import pytest

from flhe.errors import ConfigError
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe_lab.bench import Setting
from flhe_lab.tables import batchcrypt_costs
from flhe_lab.tables.batchcrypt_costs import (
    ARITHMETIC,
    WHOLE,
    by_width,
    measure_keys,
    measure_widths,
    slots,
)
from flhe_lab.tables.batchcrypt_paper import BATCH, TABLE_1
from flhe_lab.tables.batchcrypt_ways import LEVELS, batches, paillier_values, short_key
from flhe_lab.tables.learned import VALUES
from flhe_lab.tables.phase_costs import PHE, PHE_BATCHED
from flhe_lab.tables.section import Plan
from tests.sim.tables.made_up import quietly, result

pytest.importorskip("phe")
gmpy2 = pytest.importorskip("gmpy2")


def test_a_value_each_is_paillier_and_nothing_else() -> None:
    setting = Setting(40, 3)
    updates = setting.updates()
    way = paillier_values(setting, updates, 512, 8)
    way.turn()
    assert (way.checked() or 0) < 1 / LEVELS
    assert way.projection == 5
    assert way.upload_bytes == 40 * 128
    one, other = (way.phases["encrypt"]() for _ in range(2))
    assert len({*one, *other}) == 16  # type: ignore[misc]


def test_short_keys_are_below_the_policy() -> None:
    key = short_key(512)
    assert key.public.bits in (511, 512)
    assert gmpy2.is_prime(key.p)
    assert gmpy2.is_prime(key.q)
    with pytest.raises(ConfigError, match="key_bits=1024"):
        SecretKey.generate(1024)


@pytest.fixture(scope="module")
def keys() -> dict[str, Any]:
    return measure_keys(300, 4, 100, 1, quietly, (512, 2048))


def test_table_1_is_of_what_is_run(keys: dict[str, Any]) -> None:
    """A refused key has no batches; who batches sends less."""
    names = [f"{who}|{bits}" for bits in (512, 2048) for who in (PHE, ARITHMETIC, WHOLE)]
    assert list(keys) == [name for name in names if name != f"{WHOLE}|512"]
    plan = Plan(quick=True)
    [step] = batchcrypt_costs.steps_1(plan)
    table = result("batchcrypt-table-1", plan, {step.key: keys})
    found = {(e.row, e.who, e.group, e.what): e for e in table.entries}
    at = "key of 2048 bits"
    sizes = [
        found[at, who, group, "ciphertext"].number
        for who, group in ((PHE, "peer"), (ARITHMETIC, "ours"))
    ]
    assert [s.value * 2**20 for s in sizes] == pytest.approx([300 * 516, 300 * 512])
    batches = found[at, WHOLE, "ours", "ciphertext"].number
    assert (batches.value * 2**20, batches.mark) == (
        pytest.approx(3 * 512),
        "counted",
    )  # 106 of two clients
    for line in TABLE_1:
        told = found[f"key of {line.key_bits} bits", PHE, "paper", "encryption"].number
        assert (told.value, told.mark) == (line.encrypt_s, "published")
    phe = found[at, PHE, "peer", f"encryption, to {ARITHMETIC}"].number
    one, base = (
        found[at, who, g, "encryption"].number for who, g in ((PHE, "peer"), (ARITHMETIC, "ours"))
    )
    assert (phe.value, phe.mark) == (one.value / base.value, "sampled")


def test_quick_and_full_runs_are_kept_apart_and_have_all_keys() -> None:
    [quick], [full] = (batchcrypt_costs.steps_1(Plan(quick=q)) for q in (True, False))
    assert quick.key != full.key
    assert batchcrypt_costs.KEYS == (1024, 2048, 3072)


@pytest.fixture(scope="module")
def widths() -> dict[str, Any]:
    return measure_widths(700, 200, 1, quietly)


def test_narrower_values_take_fewer_ciphertexts(widths: dict[str, Any]) -> None:
    found = by_width(widths, 700)
    for bits, (ours, theirs) in found.items():
        count = -(-700 // slots(bits).per)
        assert ours.upload_bytes.value == theirs.upload_bytes.value == count * 512
        assert ours.upload_bytes.mark == "counted"
    assert [len(found), *(slots(b).per for b in BATCH)] == [
        3,
        *sorted((slots(b).per for b in BATCH), reverse=True),
    ]
    ratio = found[8][1].encrypt_s.value / found[16][1].encrypt_s.value
    assert ratio == pytest.approx(slots(8).batches(700) / slots(16).batches(700))


def test_batches_open_to_the_mean() -> None:
    setting = Setting(700, 9)
    updates, key = setting.updates(), SecretKey.generate(2048)
    errors = []
    for bits in BATCH:
        way = batches(setting, updates, bits, key, 200)
        way.phases["decrypt"]()
        assert way.projection == slots(bits).batches(700) / -(-200 // slots(bits).per)
        errors.append(way.checked() or 0)
    assert errors[0] > 100 * errors[1] > errors[2]
    assert errors[0] < 1e-3


def test_figure_10_is_an_iteration_by_width(widths: dict[str, Any]) -> None:
    plan = Plan(quick=True)
    step, training = batchcrypt_costs.steps_10(plan)
    found = {
        step.key: widths,
        training.key: {"seconds_per_batch": 0.5, "batch": 64, "parameters": VALUES["lstm"]},
    }
    table = result("batchcrypt-figure-10", plan, found)
    assert {e.row for e in table.entries} == {"8 bits", "16 bits", "32 bits"}
    told = [e.number.value for e in table.entries if e.group == "paper"]
    assert told == [200, 100, 50]
    for bits in BATCH:
        for who in ("BatchCrypt (flhe)", PHE_BATCHED):
            mine = {
                e.what: e.number for e in table.entries if (e.row, e.who) == (f"{bits} bits", who)
            }
            parts = ("training", "encryption", "decryption", "idle")
            assert sum(mine[p].value for p in parts) == pytest.approx(mine["iteration"].value)
            assert mine["traffic"].mark == "counted"
