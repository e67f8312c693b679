"""How many messages a round costs each node: every one starts a process in a deployment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flhe.mods import records
from flhe.strategies import (
    HEStrategy,
    batchcrypt_fedavg,
    esafl_fedavg,
    fedml_he_fedavg,
    flashe_fedavg,
    sash_fedavg,
)
from tests.strategies.puppets import Puppets, initial
from tests.strategies.test_he_strategy import MAX

pytestmark = pytest.mark.usefixtures("quick")

SPARSE: dict[str, Any] = {"top_k": 0.3, "warmup": 0}
SHORT: dict[str, Any] = {"key_bits": 2048}


@pytest.mark.parametrize(
    ("make", "how", "stages"),
    [
        (flashe_fedavg, {}, ["round"]),
        (flashe_fedavg, SPARSE, ["round", "update"]),
        (flashe_fedavg, {**SPARSE, "masking": "adaptive"}, ["round", "update"]),
        (flashe_fedavg, {"clip": "exchange"}, ["round", "update"]),
        (flashe_fedavg, {**SPARSE, "clip": "exchange"}, ["round", "supports", "update"]),
        (esafl_fedavg, {}, ["round"]),
        (esafl_fedavg, {"clip": "exchange"}, ["round", "update"]),
        (batchcrypt_fedavg, {**SHORT, "clip": 1.0}, ["round"]),
        (batchcrypt_fedavg, {**SHORT, "clip": "exchange"}, ["round", "update"]),
        (fedml_he_fedavg, {}, ["round"]),
        (sash_fedavg, {}, ["round", "consist", "unmask"]),
        (sash_fedavg, {"unmask": "clients"}, ["round", "consist", "unmask"]),
        (esafl_fedavg, {"per_round_keys": True}, ["round", "consist", "unmask"]),
    ],
)
def test_stages_of_a_round(
    tmp_path: Path, make: Callable[..., HEStrategy], how: dict[str, Any], stages: list[str]
) -> None:
    grid = Puppets(tmp_path, 4, config=lambda _: {"flhe-key-bits": 2048})
    make(max_examples=MAX, **how).start(grid, initial(), num_rounds=3)
    grid.close()
    asked: Counter[tuple[int, int, str]] = Counter()
    for node, stage, content in grid.sent:
        record = records.find_config(content, records.STAGE)
        assert record is not None
        if stage in STAGES_OF_A_ROUND:
            asked[node, records.field(record, "round", int), stage] += 1
    seen: dict[int, list[str]] = {node: [] for node, _, _ in asked}
    for node, number, stage in asked:
        if number == 3:
            seen[node].append(stage)
    assert len(seen) == 4
    assert all(found == stages for found in seen.values())
    assert set(asked.values()) == {1}


STAGES_OF_A_ROUND = ("round", "supports", "update", "consist", "unmask")
"""Not evaluation, and nothing that happens once an epoch."""
