"""The round of a very large model, with a small one: roles do what they say, the mean is checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flhe.sim import fedml_large

pytest.importorskip("tenseal")


@pytest.mark.parametrize("select", [1.0, 0.1])
def test_a_round_of_a_small_model(select: float, tmp_path: Path) -> None:
    (tmp_path / "pair").write_bytes(b"".join(fedml_large._pair(select)))
    sizes = []
    for rank in range(fedml_large.COHORT):
        found = fedml_large._measured(f"client {rank}", tmp_path, 20_000, select)
        assert found["peak"] > 1 << 20
        sizes.append(found["bytes"])
    assert len(set(sizes)) == 1
    assert fedml_large._measured("server", tmp_path, 20_000, select)["bytes"] == sizes[0]
    assert fedml_large._measured("reader", tmp_path, 20_000, select)["bytes"] is None


def test_a_wrong_mean_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pair").write_bytes(b"".join(fedml_large._pair(1.0)))
    for rank in range(fedml_large.COHORT):
        fedml_large._measured(f"client {rank}", tmp_path, 5000, 1.0)
    fedml_large._measured("server", tmp_path, 5000, 1.0)
    monkeypatch.setattr(fedml_large, "STEP", np.float32(1 / 32))
    with pytest.raises(SystemExit, match="off by"):
        fedml_large._measured("reader", tmp_path, 5000, 1.0)
