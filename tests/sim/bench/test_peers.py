"""python-paillier and TenSEAL as peers: their sums are the sums, batches are ours."""

from __future__ import annotations

import numpy as np
import pytest

from flhe.errors import ConfigError
from flhe_lab.bench import Contender, Setting, phe

pytest.importorskip("phe")
pytest.importorskip("gmpy2")

SETTING = Setting(1000, 4, 1)


@pytest.fixture(scope="module")
def peers() -> list[Contender]:
    return phe.phe_peers(SETTING, SETTING.updates(), 512)


def test_rows_say_what_was_measured(peers: list[Contender]) -> None:
    values, batches = peers
    assert (values.name, batches.name) == (
        "phe-512 a value, projected",
        "phe-512 batched, projected",
    )
    assert values.projection == 1000 / 16
    # Slots of 19 bits below a tag, 23 of them in 511: 44 ciphertexts.
    assert batches.projection == 44 / 16
    assert "from 16 ciphertexts to 1,000" in values.note
    assert "from 16 ciphertexts to 44, of 23 values" in batches.note
    assert values.upload_bytes == 1000 * (128 + 4)
    assert batches.upload_bytes == 44 * 128


def test_the_mean_is_the_mean() -> None:
    for setting, most in ((SETTING, 2e-5), (Setting(3, 2), 2e-5)):  # the other is below the sample
        for peer in phe.phe_peers(setting, setting.updates(), 512):
            peer.phases["decrypt"]()
            error = peer.checked()
            assert error is not None
            assert error < (1e-7 if "a value" in peer.name else most)
            assert peer.projection == 1 or setting is SETTING


def test_an_encryption_is_of_the_sample(peers: list[Contender]) -> None:
    for peer in peers:
        parts = [peer.phases[phase]() for phase in ("encrypt", "encrypt", "add")]
        assert [len(part) for part in parts] == [16] * 3  # type: ignore[arg-type]
        one, other = ([c.ciphertext(False) for c in part] for part in parts[:2])  # type: ignore[attr-defined]
        assert set(one).isdisjoint(other)


def test_phe_without_gmp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from phe import util

    monkeypatch.setattr(util, "HAVE_GMP", False)
    with pytest.raises(ConfigError, match="without gmpy2"):
        phe.phe_keys(512)


@pytest.mark.parametrize("cohort", [2, 10, 1000])
def test_bfv_moduli_have_room_for_the_sum(cohort: int) -> None:
    pytest.importorskip("tenseal")
    from flhe_lab.bench.peers import bfv, plain_modulus

    setting = Setting(300, cohort)
    largest = [np.where(np.arange(300) % 2, 1, -1).astype(np.float32)] * cohort
    made = bfv(setting, largest)
    made.phases["decrypt"]()
    assert made.checked() == 0
    modulus = plain_modulus(2 * cohort * 32767, 8192)
    assert modulus > 2 * cohort * 32767
    assert modulus % 8192 == 1
    assert pow(3, modulus - 1, modulus) == 1


def test_a_plain_modulus_that_sums_exceed() -> None:
    pytest.importorskip("tenseal")
    from flhe_lab.bench.peers import bfv

    setting = Setting(10, 20)
    with pytest.raises(ConfigError, match="sums of --cohort 20 exceed it"):
        bfv(setting, setting.updates(), None, 4096, 1_032_193)
