"""Members drop, come back, join and leave; all of them end with one model, that of plain FedAvg."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flhe.errors import QuorumError
from flhe.mods import HEMod, records
from flhe.node.checkpoint import open_checkpoint
from flhe.strategies import EsaflFedAvg, FlasheFedAvg, HEStrategy
from flhe.strategies.membership import BARRED, Membership
from tests.strategies.puppets import Log, Node, Puppets, initial, play, refused, same
from tests.strategies.reference import (
    COUNTS,
    Reference,
    close,
    gradient,
    start_arrays,
    tolerance,
)

pytestmark = pytest.mark.usefixtures("quick")


def run(grid: Puppets, rounds: int, **how: Any) -> HEStrategy:
    return play(FlasheFedAvg, grid, rounds, **how)[0]


def test_the_whole_story(tmp_path: Path, caplog: Log) -> None:
    """2 of 5 drop in round 3, one is back in 5, a sixth joins in 6, one leaves in 7."""
    caplog.set_level("INFO", "flwr")
    grid = Puppets(tmp_path, 6)
    grid.away = lambda r: (
        ({105} if r < 6 else set())
        | ({101, 102} if r == 4 else set())
        | ({102} if 5 <= r < 9 else set())
    )
    grid.fate = lambda node, stage, r: "silent" if r == 3 and node in (101, 102) else None
    grid.before[7] = lambda: grid.contexts[104].node_config.update({"flhe-leave": True})
    run(grid, 10)
    present = {
        1: [0, 1, 2, 3, 4], 2: [0, 1, 2, 3, 4], 3: [0, 3, 4], 4: [0, 3, 4], 5: [0, 1, 3, 4],
        6: [0, 1, 3, 4, 5], 7: [0, 1, 3, 5], 8: [0, 1, 3, 5], 9: [0, 1, 2, 3, 5],
        10: [0, 1, 2, 3, 5],
    }  # fmt: skip
    assert grid.survivors == [len(p) for p in present.values()]
    model = same(grid, [0, 1, 2, 3, 5])
    assert model.round == 10
    bound = sum(tolerance(partitions, 1) for partitions in present.values())
    close(model, Reference.of(present.values()), bound)
    assert not list((grid.homes[4] / "epochs").iterdir()), "who left has no keys"
    assert [grid.epochs(n) for n in range(6)] == [4, 4, 2, 4, 2, 3]
    assert [grid.keys(n) for n in range(6)] == [1, 1, 1, 1, 0, 1]
    for said in ("1 join", "1 left", "node 105 has caught up", "node 102 has caught up"):
        assert said in caplog.text


def test_a_member_that_lost_its_directory(tmp_path: Path) -> None:
    """It is a new site then, with a new identity; the group takes it in."""
    grid = Puppets(tmp_path, 4)
    grid.before[3] = lambda: shutil.rmtree(grid.homes[2])
    run(grid, 5)
    assert same(grid, range(4)).round == 5
    assert grid.survivors[2:4] == [3, 4]  # the others do not wait for it


def test_a_round_that_too_few_answer_is_asked_for_again(tmp_path: Path, caplog: Log) -> None:
    grid = Puppets(tmp_path, 4)
    grid.fate = lambda _, stage, round_: (
        "dead" if (stage, round_) == ("round", 2) and len(grid.stages("round")) <= 8 else None
    )
    run(grid, 3)
    assert "round 2: 0 updates, 3 needed" in caplog.text
    assert "asking again (attempt 2)" in caplog.text
    assert grid.survivors == [4, 4, 4]
    assert same(grid, range(4)).round == 3


def test_a_resumed_run_asks_under_the_next_attempt(tmp_path: Path) -> None:
    """Not under the first one again: nodes would send what they sent, and the others nothing."""
    grid = Puppets(tmp_path, 4)
    grid.fate = lambda node, stage, round_: "silent" if stage == "round" and round_ == 2 else None
    how = {"state_dir": tmp_path / "server", "retries": 1, "fraction_evaluate": 0.0}
    assert refused(FlasheFedAvg, grid, **how).startswith("round 2: 0 updates")
    again = Puppets(tmp_path, 4, run_id=8)
    again.federation = 7
    play(FlasheFedAvg, again, 3, start={"resume": True}, **how)
    asked = [content[records.STAGE] for node, stage, content in again.sent if stage == "round"]
    assert [(stage["round"], stage["attempt"]) for stage in asked] == [(2, 2)] * 4 + [(3, 0)] * 4
    same(again, range(4))


def test_a_joiner_that_breaks_the_agreement_off(tmp_path: Path) -> None:
    """The epoch goes on without it, and it is asked again in a while, not in every round."""
    grid = Puppets(tmp_path, 5)
    grid.away = lambda r: {104} if r == 1 else set()
    grid.fate = lambda node, stage, r: "dead" if node == 104 and stage == "share" else None
    run(grid, 4)
    assert grid.survivors == [4] * 4
    assert grid.stages("share").count(104) == 1
    assert same(grid, range(4)).round == 4


# --- initial_arrays=None: a member makes the first model, and the server never sees it ---


def secret(path: Path, nodes: int) -> Puppets:
    return Puppets(path, nodes, Node(HEMod(initial=lambda context: initial())))


NOTHING = {"initial_arrays": None}


def test_all_members_start_from_the_secret_model(tmp_path: Path) -> None:
    grid, wire = secret(tmp_path, 4), list[bytes]()
    grid.tap = lambda _direction, _node, content: wire.append(bytes(content))
    _, result = play(FlasheFedAvg, grid, 3, start=NOTHING)
    close(same(grid, range(4)), Reference.of([range(4)] * 3), tolerance(range(4), 3))
    path = tmp_path / "model.flhe"
    path.write_bytes(b"".join(records.to_pieces(result.arrays)))
    assert open_checkpoint(path, tmp_path / "node-0").round == 3
    assert not any(start_arrays()["w"].tobytes() in content for content in wire)
    assert not any("arrays" in content for _, _, content in grid.sent)


def test_the_next_member_makes_it_or_nobody_can(tmp_path: Path) -> None:
    grid = secret(tmp_path, 4)
    grid.fate = lambda node, stage, _: (
        "silent" if stage == "initial" and node == grid.stages("initial")[0] else None
    )
    play(FlasheFedAvg, grid, 2, start=NOTHING)
    assert same(grid, range(4)).round == 2
    with pytest.raises(QuorumError, match="no member made an initial model"):
        play(FlasheFedAvg, Puppets(tmp_path / "none", 3), 1, start=NOTHING)


# --- optimizers ---


def test_every_client_steps_as_torch_would(tmp_path: Path) -> None:
    """FedSGD under encryption beside torch's optimizer on the float64 mean gradient."""
    grid, rounds = Puppets(tmp_path, 4), 6
    grid.app.trained = gradient
    start = start_arrays()
    names = [n for n, a in start.items() if a.dtype.kind == "f" and a.size]
    weights = [torch.nn.Parameter(torch.tensor(start[n].astype(np.float64))) for n in names]
    reference = torch.optim.RMSprop(weights, 0.02, momentum=0.5)
    play(EsaflFedAvg, grid, rounds, keys="joint", optimizer=reference, clip=1.0, bits=28)
    for _ in range(rounds):
        now = dict(zip(names, (w.detach().numpy() for w in weights), strict=True))
        each = [gradient({**start, **now}, p) for p in range(4)]
        for name, weight in zip(names, weights, strict=True):
            mean = np.average([told[name] for told in each], axis=0, weights=COUNTS[:4])
            weight.grad = torch.as_tensor(np.asarray(mean, np.float64))
        reference.step()
    model = same(grid, range(4))
    assert model.steps == rounds
    for name, weight in zip(names, weights, strict=True):
        slack, expected = 5e-3 if name == "half" else 1e-4, weight.detach().numpy()
        assert np.abs(expected - start[name]).max() > 0.05  # otherwise this shows nothing
        np.testing.assert_allclose(model.masters[name], expected, atol=slack, rtol=0)


# --- the rules of membership, by themselves ---


@pytest.mark.parametrize(
    ("there", "dues"),
    [
        ([[1, 2], [1, 2], [1, 2], [1, 2]], ["", "", "1 left", "1 left"]),
        ([[1, 2], [1, 2, 3], [1, 2], [1, 2]], ["", "", "", ""]),
    ],
    ids=["who is away for long has left", "who comes back in time has not"],
)
def test_patience(there: list[list[int]], dues: list[str]) -> None:
    m = Membership(patience=2, rekey_every=0)
    for round_, (connected, due) in enumerate(zip(there, dues, strict=True), 1):
        m.see(round_, [1, 2, 3], connected)
        assert m.due(round_, 1, [1, 2, 3], connected) == due


def test_a_new_epoch_begins_anew() -> None:
    """Who was away before it is not away in it; who broke it off is asked again later."""
    m = Membership(patience=2, rekey_every=0)
    m.see(1, [1, 2, 3], [1, 2])
    m.changed(2, [1, 2, 3], [1, 2, 3])
    dues = []
    for round_ in (3, 5):
        m.see(round_, [1, 2, 3], [1, 2])
        dues.append(m.due(round_, 2, [1, 2, 3], [1, 2]))
    assert dues == ["", "1 left"]
    m.changed(5, [1, 2, 3, 4], [1, 2, 3])
    assert [bool(m.due(r, 5, [1, 2, 3], [1, 2, 3, 4])) for r in (6, 5 + BARRED)] == [False, True]
