"""Replies that are forged, garbled or stolen: their sender is left out and named, the run goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result

from flhe.coding.support import Support
from flhe.keys import seal
from flhe.keys.agreement.states import Epoch
from flhe.keys.seal import ModelKey
from flhe.mods import records
from flhe.schemes.sealed import Sealed
from flhe.strategies import FlasheFedAvg, HEStrategy
from flhe.strategies.federation import Federation
from flhe.sums.secure_sum import SecureSum
from flhe.wire import canonical
from tests.mods.harness import SECRET
from tests.strategies.puppets import (
    Log,
    Patch,
    Puppets,
    drift,
    first_of,
    initial,
    lie,
    play,
    same,
    told,
)
from tests.strategies.reference import Reference, close, start_arrays, tolerance

pytestmark = pytest.mark.usefixtures("quick")


def run(grid: Puppets, rounds: int, **how: Any) -> Result:
    return play(FlasheFedAvg, grid, rounds, **how)[1]


def sealed(reply: Message) -> Sealed:
    header = reply.content[records.REPLY]["header"]
    return records.to_sealed(header, reply.content[records.UPDATE])  # type: ignore[arg-type]


def rewritten(**changes: Any) -> Callable[[Message], None]:
    """The update with other fields; what is callable makes one of it."""

    def forge(reply: Message) -> None:
        part = sealed(reply)
        made = {name: of(part) if callable(of) else of for name, of in changes.items()}
        part = dataclasses.replace(part, **made)
        told(reply)["header"] = part.header()
        reply.content[records.UPDATE] = records.from_sealed(part)

    return forge


def slotted(**changes: Any) -> Callable[[Message], None]:
    return rewritten(slot=lambda part: dataclasses.replace(part.slot, **changes))


def resigned(reply: Message) -> None:
    body: Any = canonical.loads(told(reply)["envelope"], 2048, "envelope")  # type: ignore[arg-type]
    body["signature"] = bytes(64)
    told(reply)["envelope"] = canonical.dumps(body)  # type: ignore[assignment]


def flipped(part: Sealed) -> Any:
    data = part.data.copy()
    data[3] ^= 1
    return data


def replaced(name: str, record: Any = None) -> Callable[[Message], None]:
    """Something else, or nothing, in the place of a record."""

    def forge(reply: Message) -> None:
        del reply.content[name]
        if record is not None:
            reply.content[name] = record() if callable(record) else ConfigRecord(record)

    return forge


HUGE = {"digest": b"x", "header": bytes(1 << 20), "envelope": b"x"}
OTHERS, OF_ANOTHER = "it is another member's", "another round, epoch or parameter set"
NOTHING, NO_UPDATE = "the reply has no record of flhe", "the reply holds no encrypted update"
LIES: dict[str, tuple[Callable[[Message], None], str]] = {
    "another's rank": (rewritten(senders=lambda p: ((p.senders[0] + 1) % 5,)), OTHERS),
    "signature": (resigned, "the signature does not verify"),
    "altered data": (rewritten(data=flipped), "signed for another payload"),
    "another attempt": (slotted(attempt=1), OF_ANOTHER),
    "another history": (slotted(history=bytes(32)), "its model has drifted"),
    "another mode": (rewritten(mode="single"), "masked in another mode than was announced"),
    "no update": (replaced(records.UPDATE), NO_UPDATE),
    "plain arrays": (replaced(records.UPDATE, initial), "ciphertext pieces are missing"),
    "a plain record for ours": (replaced(records.REPLY, initial), NOTHING),
    "an empty reply record": (replaced(records.REPLY, {"v": records.PROTOCOL}), "field 'digest'"),
    "a reply of another version": (
        replaced(records.REPLY, {"v": records.PROTOCOL + 1}),
        "another version of flhe's protocol",
    ),
    "garbage": (replaced(records.REPLY, {"header": b"\xff", "envelope": b""}), ""),
    "a huge header": (
        replaced(records.REPLY, {"v": records.PROTOCOL, **HUGE}),
        "at most 65536 are accepted",
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_a_forged_update_is_left_out_and_named(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    forge, why = LIES[name]
    grid = Puppets(tmp_path, 5)
    lie(grid, 102, "round", forge, 2)
    run(grid, 2)
    assert grid.survivors == [5, 4]
    assert why in caplog.text
    assert "node 102 is left out: " in caplog.text
    assert caplog.text.count("is left out") == 1
    reported = "node 102 reports that its update is missing from the sum" in caplog.text
    assert reported == (name != "another history")  # with another model it is sent no sum
    reference = Reference.of([range(5), [0, 1, 3, 4]])
    close(same(grid, range(5)), reference, 2 * tolerance(range(4), 1))


def test_a_stolen_update_does_not_shut_its_owner_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Node 102 sends what node 100 sent: 102 is left out, and 100 is not."""
    grid = Puppets(tmp_path, 5)

    def steal(reply: Message) -> None:
        stolen = next(r for n, s, r in grid.replies if (n, s) == (100, "round"))
        reply.content = stolen.content

    original = HEStrategy._sample
    with pytest.MonkeyPatch.context() as patch:  # sampling is random; the thief must come second
        patch.setattr(HEStrategy, "_sample", lambda self, *a: sorted(original(self, *a)))
        lie(grid, 102, "round", steal)
        run(grid, 1, fraction_evaluate=0.0)
    assert grid.survivors == [4]
    assert "node 102 is left out: the update says that it is another member's" in caplog.text


def test_a_member_shown_another_model_has_drifted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "flwr")
    grid = Puppets(tmp_path, 5)
    other = {n: np.asarray(a + a.dtype.type(1)) for n, a in start_arrays().items()}

    def rewrite(node: int, stage: str, content: RecordDict) -> RecordDict:
        if node != 103 or "arrays" not in content:
            return content
        return RecordDict({**content, "arrays": records.from_numpy(other)})

    grid.rewrite = rewrite
    run(grid, 1)
    assert "node 103 is left out: flhe/drift: its model is not the one" in caplog.text
    assert "node 103 has caught up by a checkpoint" in caplog.text
    assert grid.survivors == [4]
    close(same(grid, range(5)), Reference.of([[0, 1, 2, 4]]), tolerance([0, 1, 2, 4], 1))


NONSENSE: dict[str, Callable[[RecordDict], None]] = {
    "crypto-s": lambda c: c[records.REPLY].update({"crypto-s": "long"}),
    "opened": lambda c: c.update({"flhe.opened": ConfigRecord({"round": "one", "missed": 3})}),
    **{
        f"means of round {number[:4]!r}": lambda c, number=number: c.update(
            {f"{records.MEANS}{number}": MetricRecord({"loss": 1.0})}
        )
        for number in ("\u00b2", "-1")
    },
    "an old ciphertext": lambda c: c[records.REPLY].update({"header": b"x"}),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_in_one_evaluation_does_not_end_the_run(tmp_path: Path, name: str) -> None:
    grid = Puppets(tmp_path, 4)
    for node in range(100, 103 if name.startswith("means") else 0):  # one of them has rank 0
        lie(grid, node, "evaluate", lambda reply: NONSENSE[name](reply.content))
    lie(grid, 102, "evaluate", lambda reply: NONSENSE[name](reply.content))
    run(grid, 2)
    assert grid.survivors == [len(grid.homes)] * 2


def test_only_rank_0_is_believed_about_means(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, 3)
    means = MetricRecord({"train_loss": -99.0})
    for node in (100, 101, 102):  # who is rank 0 has told of its own
        for name in ("flhe.means.1", "flhe.evaluation.1"):
            lie(grid, node, "evaluate", lambda reply, n=name: reply.content.setdefault(n, means))
    done = run(grid, 2)
    assert all(m["train_loss"] > 0 for m in done.train_metrics_clientapp.values())
    assert all("train_loss" not in m for m in done.evaluate_metrics_clientapp.values())


def test_words_of_a_node_in_its_means_are_not_repeated(tmp_path: Path, caplog: Log) -> None:
    """Of the metrics that the terms name, the numbers are kept."""
    grid = Puppets(tmp_path, 3)
    record = MetricRecord({SECRET: 1.0, "loss": [4711.0], "train_loss": 0.5})
    for node in (100, 101, 102):
        for name in ("flhe.means.1", "flhe.evaluation.1"):
            lie(grid, node, "evaluate", lambda reply, n=name: reply.content.update({n: record}))
    done = run(grid, 2)
    assert dict(done.train_metrics_clientapp[1]) == {"train_loss": 0.5}
    found = [v for m in done.evaluate_metrics_clientapp.values() for v in m.values()]
    assert {*map(type, found)} <= {float}
    assert SECRET not in caplog.text + str(done)


def ends_with(grid: Puppets, survivors: list[int], members: list[int] | range) -> None:
    """So many updates were in each round, and these members have one model in the end."""
    assert grid.survivors == survivors
    assert same(grid, members).round == len(survivors)


def at_rank(grid: Puppets, rank: int) -> Callable[[int], bool]:
    """Whether a node has a rank, which shows once it has an identity."""
    return lambda node: node == 100 + grid.ranked()[rank]


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
    arrays = run(grid, 5).arrays
    assert spoilt
    ends_with(grid, [5, 5, 4, 5, 5], range(5))
    _, chunks = seal.unseal(ModelKey.of(grid.epoch(0)), records.to_pieces(arrays))
    assert b"".join(chunks) == b"".join(grid.model(0).chunks())


@pytest.mark.parametrize(("lone", "before"), [*((3, count) for count in range(4)), (4, 4)])
def test_lone_models_do_not_shut_out_the_others(
    lone: int, before: int, tmp_path: Path, monkeypatch: Patch, caplog: Log
) -> None:
    """Not one of the others either, however many of those are heard before it.

    With more of them than may collude, one is dropped: the server has room for so many sums.
    """
    grid, first = Puppets(tmp_path, 10), (*range(100, 100 + before), 100 + lone)

    def part() -> None:
        for index in range(lone):  # each to a model of its own
            for _ in range(index + 1):
                drift(grid, index)

    first_of(monkeypatch, first.__contains__)
    grid.app.examples, grid.before[2] = lambda p: 10, part
    run(grid, 2)
    ends_with(grid, [10, 10 - lone], range(10))
    assert ("one of more different ones than members may collude" in caplog.text) == (lone > 3)


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
    "longer": lambda part: {"data": np.append(part.data, np.uint8(0))},
    "another scheme": lambda part: {"scheme": "sash"},
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
