"""A member and a relay that hand one node another selection: what was encrypted is not shown later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from flhe.coding.select import Select
from flhe.coding.support import Support
from flhe.errors import QuorumError
from flhe.keys import seal
from flhe.keys.agreement.model_key import ModelKey
from flhe.mods import records
from flhe.node.store import Store
from flhe.strategies.federation import Federation
from flhe.training.model import Model
from flhe.training.session import Session
from tests.strategies.puppets import Puppets, initial, restaged
from tests.strategies.reference import MAX
from tests.strategies.test_selected_rounds import FLOATS, SCHEMES, puppets, sensitive, uploads

pytestmark = pytest.mark.usefixtures("quick")


def sealed_by(grid: Puppets, node: int, model: Model) -> ArrayRecord:
    """A checkpoint as member `node` seals it, of whatever model it likes."""
    agreed = grid.epoch(node)
    header = {**ModelKey.of(agreed).header(), "round": model.round, "attempt": 0}
    header["rank"] = agreed.rank
    return records.from_pieces(seal.seal_stream(ModelKey.of(agreed).key, header, model.chunks()))


def with_box(grid: Puppets, fed: Federation, stage: str, box: ArrayRecord, model: Model) -> Message:
    """What the victim answers to a stage in which it is handed that checkpoint.

    All others vouch for it, who are more than may collude.
    """
    (message,) = fed.messages("train", stage, [100])
    session = Session(grid.epoch(3), fed.terms, model.layout)
    holding = session.holding(model, session.digest(model))
    vouchers = [holding.sign(Store(home).identity()) for home in grid.homes[1:4]]
    more = {records.BOX: box, "config": ConfigRecord({})}
    content = restaged(RecordDict({**message.content, **more}), vouchers=vouchers)
    (reply,) = fed.grid.send_and_receive([Message(content, 100, "train")], timeout=20)
    return reply


@pytest.mark.parametrize(("model_is", "count"), [("there", 34), ("gone", 5), ("damaged", 34)])
@pytest.mark.parametrize("name", ["sash, clients read", "esafl", "fedml-he"])
def test_a_checkpoint_with_another_selection_is_refused(
    name: str, count: int, model_is: str, tmp_path: Path
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
    fed, model = strategy._fed, grid.model(0)
    outside = np.setdiff1d(np.arange(FLOATS, dtype=np.uint32), model.mask.coords)
    coords = np.sort(np.concatenate([outside, model.mask.coords])[:count])
    mask = Support.of(coords.astype(np.uint32), FLOATS)
    false = replace(model, mask=mask)
    box = sealed_by(grid, 3, false)
    kept = grid.run_dir(0) / "model"
    if model_is == "gone":
        kept.unlink()
    elif model_is == "damaged":
        kept.write_bytes(b"?" + kept.read_bytes()[1:])
    before = len(uploads(grid))
    grid.fate = lambda node, stage, round_: None
    fed.ledger.attempt, fed.ledger.phase = fed.ledger.attempt + 1, "training"
    assert with_box(grid, fed, "round", box, false).has_error()
    grid.close()
    assert len(uploads(grid)) == before
    if model_is == "there":
        assert grid.model(0).mask == model.mask


def test_a_newcomer_takes_no_selection_that_the_terms_do_not_make(tmp_path: Path) -> None:
    make, how = SCHEMES["fedml-he"]
    grid = puppets(tmp_path, 4)
    strategy = make(**{"max_examples": MAX, "select": Select(0.5), **how})
    strategy.start(grid, initial(), num_rounds=0)  # the map alone: nobody has sent an update
    fed, model = strategy._fed, grid.model(0)
    for count, taken in ((5, False), (34, True)):
        (grid.run_dir(0) / "model").unlink(missing_ok=True)
        mask = Support.of(np.arange(count, dtype=np.uint32), FLOATS)
        false = replace(model, mask=mask)
        reply = with_box(grid, fed, "sync", sealed_by(grid, 3, false), false)
        assert reply.has_error() != taken, reply.error if reply.has_error() else ""
    grid.close()


@pytest.mark.parametrize("name", ["flashe", "fedml-he"])
def test_who_has_opened_a_map_that_came_to_nothing_goes_on_with_the_next(
    name: str, tmp_path: Path
) -> None:
    """No update was sent under its selection, so another one shows nothing more.

    Its administrator has it take the others' result: to it the void map is a second story.
    """
    calls: dict[int, int] = {}

    def changing(message: Message, context: Context) -> Mapping[str, NDArray[Any]]:
        found, node = dict(sensitive(message, context)), int(context.node_config["partition-id"])
        calls[node] = calls.get(node, 0) + 1
        if calls[node] > 1:
            found["w"] = found["w"].reshape(-1)[::-1].reshape(9, 7).copy()
        return found

    grid = puppets(tmp_path, 5, changing)
    grid.damage_sum(1, spared=100)
    grid.before[4] = (grid.run_dir(0) / "model").unlink
    make, how = SCHEMES[name]
    given = {"max_examples": MAX, "select": Select(0.5), **how}
    grid.timed(make(**given)).start(grid, initial(), num_rounds=4)
    grid.close()
    assert max(calls.values()) == 2
    assert grid.survivors[0] == 5
    assert set(grid.survivors[1:]) <= {3, 4, 5}
    assert len({grid.model(i).fingerprint() for i in range(5)}) == 1
