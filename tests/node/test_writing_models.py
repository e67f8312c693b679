"""Models that are opened, or that a run writes: an older file stays, and no link is followed."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from flhe.errors import ConfigError
from flhe.node import checkpoint
from flhe.strategies.sealed_result import write_private
from flhe.training.model import Model
from tests.provision.site import bad

MODEL = Model.initial({"w": np.arange(3, dtype=np.float32)})


def test_a_link_at_a_name_that_others_could_guess_is_not_followed(tmp_path: Path) -> None:
    out, victim = tmp_path / "model.npz", tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / ".model.npz.part").symlink_to(victim)
    checkpoint.write_model(MODEL, out)
    assert victim.read_bytes() == b"mine"
    assert not out.is_symlink()
    assert out.stat().st_mode & 0o777 == 0o600
    np.testing.assert_array_equal(np.load(out)["w"], MODEL.masters["w"])


@pytest.mark.parametrize("kind", ["opened", "sealed"])
def test_an_older_model_stays_where_a_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The error has the whole reason."""
    out = tmp_path / "model.npz"
    out.write_bytes(b"older")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device: 0 bytes")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match="in its directory: No space left on device: 0 bytes"):
        checkpoint.write_model(MODEL, out) if kind == "opened" else write_private(out, [b"newer"])
    assert out.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [out]


def test_a_sealed_model_is_not_replaced_by_what_is_in_it(tmp_path: Path) -> None:
    sealed = tmp_path / "model.npz"
    sealed.write_bytes(b"sealed")
    assert "the sealed model itself" in bad("open", sealed, "--key", tmp_path)
    assert sealed.read_bytes() == b"sealed"
