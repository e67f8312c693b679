"""Members that lie, and disks that fail: none of them ends a run or replaces the model of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from flhe.coding.base import Plain
from flhe.coding.extras import Totals
from flhe.coding.flatten import Arrays
from flhe.coding.support import Support
from flhe.errors import ProtocolError
from flhe.keys import seal
from flhe.keys.agreement.messages import Envelope
from flhe.mods import records
from flhe.schemes.sealed import Sealed
from flhe.strategies import flashe_fedavg
from flhe.strategies.federation import Federation
from flhe.strategies.grid import StreamGrid
from flhe.training.due import Record
from flhe.training.model import Model
from flhe.training.session import Session
from flhe.wire import canonical
from tests.strategies.puppets import Puppets, play, same, told

pytestmark = pytest.mark.usefixtures("quick")


def run(grid: Puppets, rounds: int, **how: Any) -> ArrayRecord:
    return play(flashe_fedavg, grid, rounds, **how)[1].arrays


def flipped(box: Any) -> ArrayRecord:
    """A sealed checkpoint with one wrong bit in its last byte."""
    pieces = [bytes(p) for p in records.to_pieces(box)]
    pieces[-1] = pieces[-1][:-1] + bytes([pieces[-1][-1] ^ 1])
    return records.from_pieces(pieces)


def lie_about_the_model(monkeypatch: pytest.MonkeyPatch, rank: int, round_: int) -> list[int]:
    """A member gives one sum a check that the others refuse; the list says when it did."""
    honest, lied = Session.encode, list[int]()

    def encode(
        self: Session,
        old: Model,
        trained: Arrays,
        examples: int,
        metrics: Mapping[str, float],
        digest: bytes,
    ) -> Plain:
        if self.epoch.rank == rank and old.round == round_ and not lied:
            lied.append(round_)
            digest = bytes(32)
        return honest(self, old, trained, examples, metrics, digest)

    monkeypatch.setattr(Session, "encode", encode)
    return lied


@pytest.mark.parametrize("number", ["\u00b2", "9" * 5000, "-1", ""])
def test_no_name_of_a_record_ends_the_run(tmp_path: Path, number: str) -> None:
    grid = Puppets(tmp_path, 4)

    def forge(node: int, stage: str, reply: Message) -> Message:
        if stage in ("round", "evaluate") and node == 100 + grid.ranked()[0]:
            reply.content[f"{records.MEANS}{number}"] = MetricRecord({"loss": 1.0})
        return reply

    grid.forge = forge
    run(grid, 2)
    assert grid.survivors == [4, 4]
    assert same(grid, range(4)).round == 2


def test_no_status_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a round is taken back, one node does not say where it stands."""
    grid, spoilt = Puppets(tmp_path, 4), list[int]()
    lied = lie_about_the_model(monkeypatch, 0, 0)

    def forge(node: int, stage: str, reply: Message) -> Message:
        if stage == "status" and node == 103:
            spoilt.append(node)
            reply.content[records.REPLY] = ConfigRecord({"v": 2})
        return reply

    grid.forge = forge
    run(grid, 3)
    assert lied
    assert spoilt
    assert len(grid.reports) == 3
    assert same(grid, range(4)).round == 3


def test_who_confirms_another_epoch_is_left_out(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 4)

    def forge(node: int, stage: str, reply: Message) -> Message:
        if stage == "confirm" and node == 103:
            envelope = Envelope.from_bytes(records.field(told(reply), "envelope", bytes), 1024)
            _, mac = canonical.loads(envelope.payload, 1024, "test")  # type: ignore[misc]
            payload = canonical.dumps([bytes(32), mac])
            told(reply)["envelope"] = Envelope.seal(
                grid.identity(3), envelope.header, payload
            ).to_bytes()
        return reply

    grid.forge = forge
    run(grid, 2)
    assert grid.survivors == [3, 3]
    assert same(grid, range(3)).round == 2
    assert 103 not in grid.stages("round")


@pytest.mark.parametrize("rank", [0, 2])
def test_nobody_puts_a_model_in_everybodys_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    """One member spoils the sum for the others and claims that it opened: the round is void."""
    grid, honest, own = Puppets(tmp_path, 4), Session.open, list[int]()
    lied = lie_about_the_model(monkeypatch, rank, 1)

    def claim(
        self: Session,
        model: Model,
        total: Sealed,
        record: Record,
        digest: bytes | None = None,
        ranges: Sealed | None = None,
        release: Sequence[bytes] = (),
        told: bytes = b"",
    ) -> tuple[Model, Totals]:
        try:
            return honest(self, model, total, record, digest, ranges, release, told)
        except ProtocolError:
            if self.epoch.rank != rank:
                raise
        own.append(total.slot.round)
        masters = {
            n: np.full_like(a, 1e6) if a.dtype.kind == "f" else a for n, a in model.masters.items()
        }
        after = model.after(total.slot.round, total.digest(), masters, model.moments)
        return after, Totals(1, 1, {}, [])

    monkeypatch.setattr(Session, "open", claim)
    run(grid, 4)
    assert lied
    assert own == [2]
    assert "the round is void" in caplog.text
    others = [i for i in grid.ranked() if i != grid.ranked()[rank]]
    model = same(grid, others)
    assert model.round == 4
    assert max(np.abs(a).max() for a in model.masters.values() if a.size) < 1e5


def test_a_checkpoint_that_does_not_open_is_not_kept(tmp_path: Path) -> None:
    """Neither for a member that needs one nor as the result."""
    grid, spoilt = Puppets(tmp_path, 5), list[int]()

    def forge(node: int, stage: str, reply: Message) -> Message:
        if stage == "checkpoint" and node == 100 + grid.ranked()[0] and not reply.has_error():
            spoilt.append(node)
            reply.content[records.BOX] = flipped(reply.content[records.BOX])
        return reply

    def damage() -> None:  # a bad disk at an honest node
        file = grid.run_dir(grid.ranked()[1]) / "model"
        raw = bytearray(file.read_bytes())
        raw[-40] ^= 1
        file.write_bytes(raw)

    grid.forge, grid.before[3] = forge, damage
    arrays = run(grid, 5)
    assert spoilt
    assert grid.survivors == [5, 5, 4, 5, 5]
    model = same(grid, range(5))
    _, plain = seal.unseal(grid.epoch(0).model_key, records.to_pieces(arrays))
    assert bytes(plain) == b"".join(model.chunks())


def test_three_lone_models_do_not_shut_out_the_others(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 10)
    grid.app.examples = lambda p: 10  # type: ignore[attr-defined]

    def forge(node: int, stage: str, reply: Message) -> Message:
        if stage == "round" and node in (100, 101, 102) and not reply.has_error():
            told(reply)["digest"] = bytes([node]) * 32
        return reply

    grid.forge = forge
    run(grid, 2)
    assert grid.survivors == [7, 7]
    assert same(grid, range(3, 10)).round == 2


Forge = Callable[[Session, Sealed], Sealed]


def forge_ciphertexts(monkeypatch: pytest.MonkeyPatch, change: Forge) -> dict[int, Sealed]:
    """A member signs and sends what `change` makes of its ciphertexts; the last one by rank."""
    honest, made = Session.seal, dict[int, Sealed]()

    def seal_(self: Session, *args: Any, **kwargs: Any) -> Sealed:
        part = change(self, honest(self, *args, **kwargs))
        made[self.epoch.rank] = part
        return part

    monkeypatch.setattr(Session, "seal", seal_)
    return made


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("count", [0, 5])
def test_coordinates_in_a_dense_round_cost_their_sender_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rank: int,
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Even if its update comes first: nothing is added to it then."""

    def change(session: Session, part: Sealed) -> Sealed:
        if session.epoch.rank != rank or part.slot.round != 2:
            return part
        support = Support.of(np.arange(count, dtype=np.uint32), session.layout.floats)
        return replace(part, supports=(support,))

    grid = Puppets(tmp_path, 4)
    made = forge_ciphertexts(monkeypatch, change)

    def forge(node: int, stage: str, reply: Message) -> Message:
        # The node itself would leave them out of its reply.
        if stage == "round" and node == 100 + grid.ranked()[rank] and not reply.has_error():
            reply.content[records.UPDATE] = records.from_sealed(made[rank])
        return reply

    grid.forge = forge
    received = Federation.receive
    order: list[int] = []

    def receive(self: Federation, node: int, *args: Any) -> Any:
        order.append(node)
        return received(self, node, *args)

    monkeypatch.setattr(Federation, "receive", receive)
    first_of(monkeypatch, lambda: 100 + grid.ranked()[rank])
    run(grid, 3)
    assert order[0] == order[4] == 100 + grid.ranked()[rank]
    assert grid.survivors == [4, 3, 4]
    assert f"node {100 + grid.ranked()[rank]} is left out" in caplog.text
    assert same(grid, range(4)).round == 3


def first_of(monkeypatch: pytest.MonkeyPatch, node: Callable[[], int]) -> None:
    """Have one node's reply to every stage come before the others'."""
    honest = StreamGrid.send_and_receive

    def ordered(self: StreamGrid, *args: Any, **kwargs: Any) -> Iterator[Message]:
        replies = list(honest(self, *args, **kwargs))
        return iter(sorted(replies, key=lambda r: self.node_of(r) != node()))

    monkeypatch.setattr(StreamGrid, "send_and_receive", ordered)


FORGED: dict[str, Callable[[Sealed], Sealed]] = {
    "cut short": lambda part: replace(part, data=part.data[:-1]),
    "longer": lambda part: replace(part, data=np.append(part.data, np.uint8(0))),
    "another scheme": lambda part: replace(part, scheme="sash"),
    "another mode": lambda part: replace(part, mode="single"),
    "no mode": lambda part: replace(part, mode=""),
    "a mode that is none": lambda part: replace(part, mode="triple"),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", FORGED)
def test_mean_squares_that_cannot_be_added_cost_their_sender_alone(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    first: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def change(session: Session, part: Sealed) -> Sealed:
        ranges = part.length == session.terms.range_lanes(session.layout)
        if session.epoch.rank != 1 or not ranges or part.slot.round != 2:
            return part
        return FORGED[name](part)

    grid = Puppets(tmp_path, 5)
    forge_ciphertexts(monkeypatch, change)
    if first:
        first_of(monkeypatch, lambda: 100 + grid.ranked()[1])
    run(grid, 3, clip="exchange", masking="adaptive", top_k=0.5)
    assert grid.survivors == [5, 4, 5]
    assert f"node {100 + grid.ranked()[1]} is left out" in caplog.text
    assert same(grid, range(5)).round == 3
