"""python-paillier as a peer: its sums are the sums, its batches are ours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flhe.errors import ConfigError
from flhe.sim import phe_peer
from flhe.sim.contenders import Setting

pytest.importorskip("phe")
pytest.importorskip("gmpy2")

SETTING = Setting(1000, 4, 1)


@pytest.fixture(scope="module")
def peers() -> list[Any]:
    return phe_peer.phe_peers(SETTING, SETTING.updates(), 512)


def test_rows_say_what_was_measured(peers: list[Any]) -> None:
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


def test_the_mean_is_the_mean(peers: list[Any]) -> None:
    updates = SETTING.updates()
    values, batches = peers
    for peer, picked, tolerance in (
        (values, np.linspace(0, 999, 16).astype(int), 1e-7),
        (batches, np.arange(16 * 23), 2e-5),
    ):
        peer.decrypt()
        mean = np.mean([updates[j][picked].astype(np.float64) for j in SETTING.survivors], axis=0)
        assert np.max(np.abs(peer.mean - mean)) < tolerance
        assert peer.max_error() == pytest.approx(np.max(np.abs(peer.mean - mean)))


def test_an_encryption_is_of_the_sample(peers: list[Any]) -> None:
    values, batches = peers
    assert len(values.encrypt()) == len(batches.encrypt()) == 16
    assert len(values.add()) == len(batches.add()) == 16
    square = values.encrypt()[0].public_key.nsquare
    assert all(0 < c < square for c in batches.encrypt())
    assert batches.encrypt() != batches.encrypt()


def test_an_update_shorter_than_the_sample() -> None:
    setting = Setting(3, 2)
    for peer in phe_peer.phe_peers(setting, setting.updates(), 512):
        assert peer.projection == 1  # type: ignore[attr-defined]
        assert peer.decrypt is not None
        peer.decrypt()
        error = peer.max_error()
        assert error is not None
        assert error < 2e-5


def test_phe_without_gmp_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from phe import util

    monkeypatch.setattr(util, "HAVE_GMP", False)
    with pytest.raises(ConfigError, match="without gmpy2"):
        phe_peer.phe_keys(512)
