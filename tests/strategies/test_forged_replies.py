"""Replies that are forged, garbled or stolen: their sender is left out and named, the run goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flhe.coding.update import update_codec
from flhe.errors import FlheError
from flhe.mods import records
from flhe.schemes.sealed import Sealed
from flhe.strategies import FlasheFedAvg, HEStrategy
from flhe.training.update import UPDATE
from flhe.wire import canonical
from tests.strategies.puppets import Puppets, initial, lie, play, same, told
from tests.strategies.reference import MAX, Reference, close, start_arrays, tolerance

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


def envelope_of(reply: Message) -> Any:
    return canonical.loads(told(reply)["envelope"], 2048, "envelope")  # type: ignore[arg-type]


def resigned(reply: Message) -> None:
    body = envelope_of(reply)
    body["signature"] = altered(body["signature"], 5, 1)
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
NOTHING, NO_UPDATE = "the reply holds nothing of ours", "the reply holds no encrypted update"
LIES: dict[str, tuple[Callable[[Message], None], str]] = {
    "another's rank": (rewritten(senders=lambda p: ((p.senders[0] + 1) % 5,)), OTHERS),
    "two ranks": (rewritten(senders=(0, 1)), OTHERS),
    "a rank beyond": (rewritten(senders=(9,)), OTHERS),
    "signature": (resigned, "the signature does not verify"),
    "altered data": (rewritten(data=flipped), "signed for another payload"),
    "another round": (slotted(round=3), OF_ANOTHER),
    "another attempt": (slotted(attempt=1), OF_ANOTHER),
    "another layout": (slotted(layout_hash=bytes(32)), OF_ANOTHER),
    "another epoch": (slotted(epoch=bytes(16)), OF_ANOTHER),
    "another run": (slotted(run_id=8), OF_ANOTHER),
    "another history": (slotted(history=bytes(32)), "its model has drifted"),
    "longer": (rewritten(length=lambda p: p.length + 1), "another length"),
    "cut": (rewritten(data=lambda p: p.data[:-1]), "another payload"),
    "another scheme": (rewritten(scheme="sash"), ""),
    "another mode": (rewritten(mode="single"), "masked in another mode than was announced"),
    "no update": (replaced(records.UPDATE), NO_UPDATE),
    "plain arrays": (replaced(records.UPDATE, initial), "ciphertext pieces are missing"),
    "a config for arrays": (replaced(records.UPDATE, {"a": 1}), NO_UPDATE),
    "no reply record": (replaced(records.REPLY), NOTHING),
    "a plain record for ours": (replaced(records.REPLY, initial), NOTHING),
    "an empty reply record": (
        replaced(records.REPLY, {"v": records.PROTOCOL}),
        "field 'digest'",
    ),
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


ANY = st.one_of(
    st.integers(-9, 9),
    st.binary(max_size=300),
    st.text(max_size=9),
    st.lists(st.binary(), max_size=3),
)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Message]:
    """A run's state in the middle of round 1, and a reply that it would take."""
    taken: list[tuple[Any, Message]] = []

    class Stops(HEStrategy):
        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            taken.extend((self._fed, reply) for reply in replies)
            raise KeyboardInterrupt

    grid = Puppets(tmp_path_factory.mktemp("honest"), 3)
    with pytest.raises(KeyboardInterrupt):
        Stops(codec=update_codec(max_examples=MAX)).start(grid, initial())
    grid.close()
    return taken[0]


@settings(
    max_examples=200, deadline=5000, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    header=st.one_of(ANY, st.tuples(st.integers(0, 400), st.integers(1, 255))),
    envelope=st.one_of(ANY, st.tuples(st.integers(0, 700), st.integers(1, 255))),
    which=st.sampled_from(["header", "envelope", "both"]),
)
def test_any_reply_record_is_refused_or_right(
    honest: tuple[Any, Message], header: Any, envelope: Any, which: str
) -> None:
    state, reply = honest
    good = reply.content[records.REPLY]
    record = ConfigRecord(dict(good.items()))
    for name, value in (("header", header), ("envelope", envelope)):
        if which in (name, "both"):
            record[name] = altered(good[name], *value) if isinstance(value, tuple) else value  # type: ignore[arg-type]
    arrays = reply.content[records.UPDATE]  # taking an update in empties its record
    content = RecordDict({records.REPLY: record, records.UPDATE: ArrayRecord(dict(arrays.items()))})
    node = reply.metadata.src_node_id
    with pytest.raises(FlheError):
        state.contribution(node, Message(content, reply_to=reply), UPDATE, state.attempt.mode)
    content = RecordDict({records.REPLY: good, records.UPDATE: ArrayRecord(dict(arrays.items()))})
    reply = Message(content, reply_to=reply)
    part, _ = state.contribution(node, reply, UPDATE, state.attempt.mode)
    assert part.senders == (state.ledger.agreed.rank(node),)


def altered(data: bytes, at: int, flip: int) -> bytes:
    changed = bytearray(data)
    changed[at % len(changed)] ^= flip
    return bytes(changed)


NONSENSE: dict[str, Callable[[RecordDict], None]] = {
    "crypto-s": lambda c: c[records.REPLY].update({"crypto-s": "long"}),
    "opened": lambda c: c.update({"flhe.opened": ConfigRecord({"round": "one", "missed": 3})}),
    "opened kind": lambda c: c.update({"flhe.opened": MetricRecord({"round": 1})}),
    "means": lambda c: c.update({"flhe.means.1": ConfigRecord({"loss": "x"})}),
    **{
        f"means of round {number[:4]!r}": lambda c, number=number: c.update(
            {f"{records.MEANS}{number}": MetricRecord({"loss": 1.0})}
        )
        for number in ("\u00b2", "9" * 5000, "-1", "")
    },
    "no record": lambda c: c.pop(records.REPLY),
    "nothing": lambda c: c.clear(),
    "more arrays": lambda c: c.update({"more": initial()}),
    "another step": lambda c: c[records.REPLY].update({"step": "update"}),
    "an old ciphertext": lambda c: c[records.REPLY].update({"header": b"x"}),
    "another's envelope": lambda c: c[records.REPLY].update({"envelope": bytes(64)}),
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
