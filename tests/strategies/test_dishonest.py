"""Members that lie, and disks that fail: none of them ends a run or replaces the model of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message

from flhe.coding.extras import Totals
from flhe.coding.support import Support
from flhe.errors import ProtocolError
from flhe.keys import seal
from flhe.keys.agreement.model_key import ModelKey
from flhe.keys.agreement.states import Epoch
from flhe.mods import records
from flhe.schemes.sealed import Sealed
from flhe.schemes.sum_mac import SumMac
from flhe.strategies import FlasheFedAvg
from flhe.strategies.federation import Federation
from flhe.strategies.grid import StreamGrid
from flhe.sums.secure_sum import SecureSum
from flhe.training.chain import link_of
from flhe.training.session import Session
from tests.strategies.puppets import Log, Patch, Puppets, play, same, told

pytestmark = pytest.mark.usefixtures("quick")


def run(grid: Puppets, rounds: int, **how: Any) -> ArrayRecord:
    return play(FlasheFedAvg, grid, rounds, **how)[1].arrays


def ends_with(grid: Puppets, survivors: list[int], members: list[int] | range) -> None:
    """So many updates were in each round, and these members have one model in the end."""
    assert grid.survivors == survivors
    assert same(grid, members).round == len(survivors)


def at_rank(grid: Puppets, rank: int) -> Callable[[int], bool]:
    """Whether a node has a rank, which shows once it has an identity."""
    return lambda node: node == 100 + grid.ranked()[rank]


def lie_about_the_model(monkeypatch: Patch, rank: int, round_: int) -> list[int]:
    """A member's tags spoil one sum, which the others refuse; the list says when they did."""
    honest, lied = SumMac.tagged, list[int]()
    encode, starts = Session.encode, list[int]()

    def encoded(self: Session, old: Any, *args: Any) -> Any:
        starts[:] = [old.round]
        return encode(self, old, *args)

    def tagged(self: SumMac, plain: Any, own: int, *rest: Any) -> Any:
        made = honest(self, plain, own, *rest)
        if own == rank and starts == [round_] and not lied:
            lied.append(round_)
            made.extras[-2] += 1 if made.extras[-2] < 1 else -1
        return made

    monkeypatch.setattr(Session, "encode", encoded)
    monkeypatch.setattr(SumMac, "tagged", tagged)
    return lied


def test_no_status_ends_the_run(tmp_path: Path, monkeypatch: Patch) -> None:
    """While a round is taken back, one node does not say where it stands."""
    grid, nothing = Puppets(tmp_path, 4), ConfigRecord({"v": records.PROTOCOL})
    lied = lie_about_the_model(monkeypatch, 0, 0)
    spoilt = grid.lies(
        [103], "status", lambda _, reply: reply.content.update({records.REPLY: nothing})
    )
    run(grid, 3)
    assert lied
    assert spoilt
    assert len(grid.reports) == 3
    assert same(grid, range(4)).round == 3


@pytest.mark.parametrize("rank", [0, 2])
def test_nobody_puts_a_model_in_everybodys_place(
    tmp_path: Path, monkeypatch: Patch, rank: int, caplog: Log
) -> None:
    """One member spoils the sum for the others and claims that it opened: the round is void."""
    grid, honest, own = Puppets(tmp_path, 4), Session.open, list[int]()
    lied = lie_about_the_model(monkeypatch, rank, 1)

    def claim(self: Session, model: Any, total: Sealed, *args: Any) -> Any:
        try:
            return honest(self, model, total, *args)
        except ProtocolError:
            if self.epoch.rank != rank:
                raise
        own.append(total.slot.round)
        huge = {n: np.full_like(a, 1e6) for n, a in model.masters.items() if a.dtype.kind == "f"}
        masters = {**model.masters, **huge}
        after = model.after(total.slot.round, masters, model.moments)
        after = after.linked(link_of(model.history, total, total.digest(), self.epoch.members))
        return after, Totals(1, 1, {}, [])

    monkeypatch.setattr(Session, "open", claim)
    run(grid, 4)
    assert lied
    assert own == [2]
    assert "the round is void" in caplog.text
    model = same(grid, [i for i in grid.ranked() if i != grid.ranked()[rank]])
    assert model.round == 4
    assert max(np.abs(a).max() for a in model.masters.values() if a.size) < 1e5


def test_a_checkpoint_that_does_not_open_is_not_kept(tmp_path: Path) -> None:
    """Neither for a member that needs one nor as the result."""
    grid = Puppets(tmp_path, 5)

    def flip(_: int, reply: Message) -> None:
        pieces = [bytes(p) for p in records.to_pieces(reply.content[records.BOX])]
        pieces[-1] = pieces[-1][:-1] + bytes([pieces[-1][-1] ^ 1])
        reply.content[records.BOX] = records.from_pieces(pieces)

    def damage() -> None:  # a bad disk at an honest node
        file = grid.run_dir(grid.ranked()[1]) / "model"
        raw = bytearray(file.read_bytes())
        raw[-40] ^= 1
        file.write_bytes(raw)

    spoilt = grid.lies(at_rank(grid, 0), "checkpoint", flip)
    grid.before[3] = damage
    arrays = run(grid, 5)
    assert spoilt
    ends_with(grid, [5, 5, 4, 5, 5], range(5))
    _, plain = seal.unseal(ModelKey.of(grid.epoch(0)).key, records.to_pieces(arrays))
    assert bytes(plain) == b"".join(grid.model(0).chunks())


def test_three_lone_models_do_not_shut_out_the_others(tmp_path: Path) -> None:
    grid, alone = Puppets(tmp_path, 10), (100, 101, 102)
    grid.app.examples = lambda p: 10
    grid.lies(alone, "round", lambda node, reply: told(reply).update(digest=bytes([node]) * 32))
    run(grid, 2)
    ends_with(grid, [7, 7], range(3, 10))


def forge_ciphertexts(
    monkeypatch: Patch, rank: int, change: Callable[[SecureSum, Sealed], Sealed]
) -> dict[int, Sealed]:
    """A member signs and sends what `change` makes of its ciphertexts of round 2."""
    honest, made = SecureSum.contribute, dict[int, Sealed]()

    def contribute(self: SecureSum, epoch: Epoch, *args: Any, **kwargs: Any) -> Sealed:
        part = honest(self, epoch, *args, **kwargs)
        if epoch.rank == rank:
            part = made[rank] = change(self, part) if part.slot.round == 2 else part
        return part

    monkeypatch.setattr(SecureSum, "contribute", contribute)
    return made


def first_of(monkeypatch: Patch, first: Callable[[int], bool]) -> None:
    """Have one node's reply to every stage come before the others'."""
    honest = StreamGrid.send_and_receive

    def ordered(self: StreamGrid, *args: Any, **kwargs: Any) -> Iterator[Message]:
        replies = list(honest(self, *args, **kwargs))
        return iter(sorted(replies, key=lambda r: not first(self.node_of(r))))

    monkeypatch.setattr(StreamGrid, "send_and_receive", ordered)


@pytest.mark.parametrize(("rank", "count"), [(0, 5), (3, 0)])
def test_coordinates_in_a_dense_round_cost_their_sender_alone(
    tmp_path: Path, monkeypatch: Patch, rank: int, count: int, caplog: Log
) -> None:
    """Even if its update comes first: nothing is added to it then."""
    grid, order, received = Puppets(tmp_path, 4), list[int](), Federation.contribution
    liar = at_rank(grid, rank)

    def sparse(of: SecureSum, part: Sealed) -> Sealed:
        coords = np.arange(count, dtype=np.uint32)
        return replace(part, supports=(Support.of(coords, of.floats),))

    def as_made(_: int, reply: Message) -> None:  # the node itself would leave them out
        reply.content[records.UPDATE] = records.from_sealed(made[rank])

    def receive(self: Federation, node: int, *args: Any) -> Any:
        order.append(node)
        return received(self, node, *args)

    made = forge_ciphertexts(monkeypatch, rank, sparse)
    grid.lies(liar, "round", as_made)
    monkeypatch.setattr(Federation, "contribution", receive)
    first_of(monkeypatch, liar)
    run(grid, 3)
    assert liar(order[0])
    assert liar(order[4])
    ends_with(grid, [4, 3, 4], range(4))
    assert f"node {order[0]} is left out" in caplog.text


FORGED: dict[str, Callable[[Sealed], dict[str, Any]]] = {
    "cut short": lambda part: {"data": part.data[:-1]},
    "longer": lambda part: {"data": np.append(part.data, np.uint8(0))},
    "another scheme": lambda part: {"scheme": "sash"},
    "another mode": lambda part: {"mode": "single"},
    "no mode": lambda part: {"mode": ""},
    "a mode that is none": lambda part: {"mode": "triple"},
}


@pytest.mark.parametrize("name", FORGED)
def test_mean_squares_that_cannot_be_added_cost_their_sender_alone(
    tmp_path: Path, monkeypatch: Patch, name: str, caplog: Log
) -> None:
    """Although they come first, so that there is no other to go by."""

    def forged(_of: SecureSum, part: Sealed) -> Sealed:
        mean_squares = part.slot.purpose == "mean-squares"
        return replace(part, **FORGED[name](part)) if mean_squares else part

    grid = Puppets(tmp_path, 4)
    forge_ciphertexts(monkeypatch, 1, forged)
    first_of(monkeypatch, at_rank(grid, 1))
    run(grid, 3, clip="exchange", masking="adaptive", top_k=0.5, small=0)
    ends_with(grid, [4, 3, 4], range(4))
    assert f"node {100 + grid.ranked()[1]} is left out" in caplog.text
