"""A member that lies to an honest server: others are not blamed for it, and the run goes on.

It may return under other node ids, speak in another's name, and answer what Flower cannot read.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message

from flhe.errors import QuorumError
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.seal import ModelKey, seal
from flhe.mods import queries
from flhe.schemes.flashe.scheme import Flashe
from flhe.schemes.sash.scheme import Sash
from flhe.strategies import FlasheFedAvg, MaskingKeyAgreement, SashFedAvg, SecureSum
from flhe.strategies.grid import StreamGrid
from flhe.sums.secure_sum import SecureSum as Sum
from tests.strategies.puppets import (
    Log,
    Puppets,
    federated,
    first_of,
    lie,
    play,
    spoil_shares,
    told,
)
from tests.strategies.reference import Reference, assert_like
from tests.strategies.test_masking_keys import App, added, asked, nodes
from tests.strategies.test_secure_sum import federation, opened, pooled

pytestmark = pytest.mark.usefixtures("quick")

LIAR = 102


def evenly(grid: Puppets) -> Puppets:
    """Every node has as many examples."""
    grid.app.examples = lambda _: 10
    grid.app.metrics = lambda _: {"train_loss": 1.0}
    return grid


def test_a_spoiler_under_other_node_ids_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, honest = Puppets(tmp_path, 6), Sum.contribute
    now = [LIAR]

    def contribute(self: Sum, epoch: Epoch, *how: Any, **more: Any) -> Any:
        part = honest(self, epoch, *how, **more)
        if epoch.rank != grid.ranked().index(2) or part.slot.purpose != "update":
            return part
        data = part.data.copy()
        data[:64] ^= 1
        return replace(part, data=data)

    def returns() -> None:
        context = grid.contexts.pop(now[-1])
        now.append(now[-1] + 1000)
        context.node_id = now[-1]
        grid.contexts[now[-1]] = context

    monkeypatch.setattr(Sum, "contribute", contribute)
    grid.before.update(dict.fromkeys(range(2, 20), returns))
    fed = federated(FlasheFedAvg, grid, 12, retries=8, fraction_evaluate=0.0)
    assert not {100, 101, 103, 104, 105} & set(fed.nodes_of(fed.barred))
    assert 5 in grid.survivors


def test_a_reply_is_of_the_node_that_was_asked(tmp_path: Path) -> None:
    """Whatever it says: an error in another's name would end its part in the run."""
    grid = Puppets(tmp_path, 5)

    def forge(reply: Message) -> None:
        said = {"_src_node_id": 101, "_reply_to_message_id": "0" * 64}
        reply.metadata.__dict__.update(said)
        reply.__dict__.update(_content=None, _error=Error(code=1021, reason="flhe/left"))

    lie(grid, LIAR, "round", forge, 2)
    fed = federated(FlasheFedAvg, grid, 4)
    assert 101 in fed.members
    assert LIAR not in fed.members


@pytest.mark.parametrize("error", [IndexError, AttributeError, ValueError])
def test_a_reply_that_flower_cannot_read_costs_its_sender_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    grid, pull = Puppets(tmp_path, 5), StreamGrid.pull_messages

    def pulled(self: StreamGrid, names: Any) -> Any:
        found = list(pull(self, names))
        if found and self._nodes[names[0]] == LIAR and grid.asked >= 1:
            raise error("of a parser")
        return found

    monkeypatch.setattr(StreamGrid, "pull_messages", pulled)
    play(FlasheFedAvg, grid, 3, fraction_evaluate=0.0)
    assert grid.survivors[-1] >= 4


@pytest.mark.parametrize(("size", "unmask"), [(4, "server"), (10, "clients")])
def test_who_accuses_others_again_and_again_is_left_out(
    tmp_path: Path, size: int, unmask: str
) -> None:
    """As many as may collude in each round, and always others: they are asked again."""
    grid, accused = evenly(Puppets(tmp_path, size)), list[int]()

    def complain(_: int, reply: Message) -> None:
        record = told(reply)
        if "signature" in record:
            del record["signature"]
            ranked = grid.ranked()
            others = [r for r in range(size) if ranked[r] not in (0, *accused)]
            now = others[: (size - 1) // 3]
            accused.extend(ranked[rank] for rank in now)
            record.update({"step": "consist", "bad": now})

    grid.lies([100], "consist", complain)
    fed = federated(SashFedAvg, grid, 5, unmask=unmask, clip=8.0)
    assert fed.nodes_of(fed.barred) == [100]
    assert grid.survivors[-1] == size - 1


@pytest.mark.parametrize("size", [3, 6])
def test_shares_that_do_not_open_are_theirs_who_sent_them(
    tmp_path: Path, caplog: Log, size: int
) -> None:
    """One round is lost; then the liar is asked for no more updates, and nobody else is blamed.

    Nor are its accusers in later rounds: of three sites none may collude, so each accusation would
    be one too many.
    """
    grid = Puppets(tmp_path, size)
    lie(grid, LIAR, "round", spoil_shares)
    strategy, result = play(SashFedAvg, grid, 4, clip=8.0)
    assert grid.survivors == [0, *[size - 1] * 3]
    rest = [i for i in range(size) if 100 + i != LIAR]
    arrays = {name: array.numpy() for name, array in result.arrays.items()}
    assert_like(arrays, Reference.of([rest] * 3), 1e-5)
    fed = strategy._fed
    assert fed is not None
    assert fed.nodes_of(fed.barred) == [LIAR]
    assert f"node {LIAR} is left out from now on: its shares do not decrypt" in caplog.text
    assert not any(fed.model_round(100 + i) < 0 for i in rest)


@pytest.mark.parametrize("scheme", [Flashe(), Sash("clients")], ids=lambda s: s.name)
@pytest.mark.parametrize("forged", [True, False])
def test_no_single_member_makes_the_box_of_a_total(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: Any, forged: bool
) -> None:
    """It reports the digest that all report, and seals other numbers, or bytes that do not open."""

    def sealed(key: ModelKey, round_: int, rank: int, chunks: Any, random: Any) -> Any:
        data = bytearray(b"".join(map(bytes, chunks)))
        if sealed.first:  # type: ignore[attr-defined]
            sealed.first = False  # type: ignore[attr-defined]
            data[-8:] = (4711).to_bytes(8, "little")
            made = bytearray(b"".join(seal(key, round_, rank, bytes(data), random)))
            if not forged:
                made[-1] ^= 1
            return iter([bytes(made)])
        return seal(key, round_, rank, bytes(data), random)

    sealed.first = True  # type: ignore[attr-defined]
    monkeypatch.setattr(queries, "seal", sealed)
    with (
        federation(tmp_path, nodes=7) as grid,
        SecureSum(grid, scheme, state_dir=tmp_path / "server") as secure,
    ):
        total = secure.sum("numbers", {"size": 3})
        want = pooled(range(7), {"size": 3})
        for name, numbers in opened(grid, total).items():
            np.testing.assert_array_equal(numbers, want[name])


def test_a_member_whose_shares_do_not_open_is_asked_for_no_more_masks(tmp_path: Path) -> None:
    grid = nodes(tmp_path, App())
    lie(grid, LIAR, "masking-key", spoil_shares)
    with MaskingKeyAgreement(grid, retries=0) as keys:
        with pytest.raises(Exception, match="survivors"):
            keys.release(added(keys.send_and_receive(asked(keys), timeout=100))[0])
        assert LIAR not in keys.get_node_ids()
        keys.release(added(keys.send_and_receive(asked(keys), timeout=100))[0])


def test_a_member_that_leaves_makes_no_fraction_too_small(tmp_path: Path) -> None:
    grid = evenly(Puppets(tmp_path, 8))

    def leave(reply: Message) -> None:
        reply.__dict__.update(_content=None, _error=Error(code=1021, reason="flhe/left"))

    lie(grid, 107, "evaluate", leave)
    play(FlasheFedAvg, grid, 4, fraction_train=0.5)
    assert grid.survivors[-1] >= 4


@pytest.mark.parametrize("size", [4, 7])
def test_nobody_takes_anothers_place_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A set is pending. As many as may collude answer first, with others' keys, and then not at all."""
    state, liars = tmp_path / "server", range(100, 100 + (size - 1) // 3)
    grid = evenly(Puppets(tmp_path, size))
    grid.drop(2, "unmask", "dead", range(size))
    grid.fate = lambda _node, stage, _round: "dead" if stage == "void" else None
    with pytest.raises(QuorumError):
        play(SashFedAvg, grid, 3, clip=8.0, state_dir=state)
    again = Puppets(tmp_path, size, app=grid.app, run_id=8)

    def claim(node: int, reply: Message) -> None:
        told(reply)["member"] = again.identity(size - 1 - (node - 100)).public

    again.lies(liars, "status", claim)
    again.fate = lambda node, stage, _: (
        "dead" if node in liars and stage in ("unmask", "void") else None
    )
    first_of(monkeypatch, liars.__contains__)
    play(SashFedAvg, again, 3, start={"resume": True}, clip=8.0, state_dir=state)
    assert len(again.reports) >= 1
