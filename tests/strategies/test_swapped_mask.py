"""A member and a relay that hand one node another selection: what was encrypted is not shown later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from flhe import records
from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.errors import QuorumError
from flhe.keys import seal
from flhe.keys.epoch import Epoch
from flhe.keys.store import Store
from flhe.rounds.model import Model
from tests.strategies.puppets import Puppets, initial
from tests.strategies.test_he_strategy import MAX
from tests.strategies.test_selected_rounds import FLOATS, SCHEMES, puppets, uploads

pytestmark = pytest.mark.usefixtures("quick")


def sealed_by(grid: Puppets, node: int, model: Model) -> ArrayRecord:
    """A checkpoint as member `node` seals it, of whatever model it likes."""
    store = Store(grid.homes[node])
    (only,) = store.epochs()
    agreed = Epoch.from_bytes(store.peek_epoch(only))
    header: dict[str, int | str | bytes] = {
        "run_id": agreed.run_id,
        "roster_hash": agreed.roster.hash,
        "stage": "checkpoint",
        "round": model.round,
        "attempt": 0,
        "rank": agreed.rank,
        "epoch": agreed.id,
    }
    return records.from_pieces(seal.seal_stream(agreed.group_key, header, model.chunks()))


@pytest.mark.parametrize("count", [34, 5, 0])
@pytest.mark.parametrize("name", ["sash", "esafl", "fedml-he"])
def test_a_checkpoint_with_another_selection_is_refused(
    name: str, count: int, tmp_path: Path
) -> None:
    """With it the victim would answer the same round again, and show what it had encrypted."""
    make, how = SCHEMES[name]
    grid = puppets(tmp_path, 4)
    others = (101, 102, 103)
    grid.fate = lambda node, stage, round_: (
        "dead" if round_ == 2 and stage == "round" and node in others else None
    )
    strategy = make(**{"max_examples": MAX, "select": Select(0.5), "retries": 0, **how})
    with pytest.raises(QuorumError):
        strategy.start(grid, initial(), num_rounds=1)
    fed = strategy._fed
    assert fed is not None
    model = grid.model(0)
    assert model.mask is not None
    outside = np.setdiff1d(np.arange(FLOATS, dtype=np.uint32), model.mask.coords)
    coords = np.sort(np.concatenate([outside, model.mask.coords])[:count])
    mask = Support.of(coords.astype(np.uint32), FLOATS) if count else None
    box = sealed_by(grid, 3, replace(model, mask=mask))
    before = len(uploads(grid))
    grid.fate = lambda node, stage, round_: None
    fed.ledger.attempt, fed.ledger.phase = fed.ledger.attempt + 1, "training"
    (message,) = fed.messages("train", "round", [100], ConfigRecord({}), "config")
    content = RecordDict({**message.content, records.BOX: box})
    (reply,) = fed.grid.send_and_receive([Message(content, 100, "train")], timeout=20)
    grid.close()
    assert reply.has_error()
    assert len(uploads(grid)) == before
    assert grid.model(0).mask == model.mask
