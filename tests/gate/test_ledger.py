"""What the gate remembers of the SuperLink's answers: bounded, and in no honest message's way."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree

from flhe.errors import StoreError
from flhe.gate import ledger
from flhe.gate.ledger import KEPT, MAX_FILE, NAME, Ledger
from flhe.node.store import Store
from flhe.wire.canonical import loads


def named(number: int) -> str:
    return f"{number:064x}"


def answer(number: int, kind: str = "train", objects: int = 1) -> bytes:
    """A SuperLink's answer with one message."""
    parts = [ObjectTree(object_id=named(1000 * number + i)) for i in range(objects)]
    metadata = Metadata(run_id=7, message_id=named(number), message_type=kind)
    tree = ObjectTree(object_id=named(number), children=parts)
    made = PullMessagesResponse(
        messages_list=[Message(metadata=metadata)], message_object_trees=[tree]
    )
    return made.SerializeToString()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "gate")


def test_the_newest_are_kept_over_a_restart(store: Store) -> None:
    made = Ledger(store)
    for number in range(KEPT + 3):
        made.note("pull-messages", answer(number, objects=3))
    made.note("activate-node", ActivateNodeResponse(node_id=5).SerializeToString())
    made.note_answered(named(9))
    for found in (made, Ledger(store)):
        kept = [found.asked(named(number)) for number in (2, 3, KEPT + 2)]
        expected = Metadata(run_id=7, message_id=named(3), message_type="train")
        assert (kept[0], kept[1], kept[2] is None) == (None, expected, False)
        assert all(found.has_object(7, named(3000 + i)) for i in range(3))
        assert not found.has_object(8, named(3000))
        assert found.knows("node", 5)
        assert found.knows("run", 7)
        assert [found.knows("answered", named(n)) for n in (9, 10)] == [True, False]


def test_a_server_does_not_choose_its_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of messages too long to keep together the newest stay, and the file can be read again."""
    monkeypatch.setattr(ledger, "MOST", 1 << 16)
    made = Ledger(store)
    for number in (1, 2, 3):
        made.note("pull-messages", answer(number, "x" * 30_000, objects=50))
    made.note("pull-messages", answer(4, "x" * (1 << 17)))  # alone too long
    assert len(store.read(NAME)) < 1 << 17
    for found in (made, Ledger(store)):
        assert not any(found.asked(named(n)) for n in (1, 2, 3, 4))
    made.note("pull-messages", answer(5))
    assert Ledger(store).asked(named(5)) is not None
    loads(store.read(NAME), MAX_FILE, "the ledger")


@pytest.mark.parametrize(
    "data", [b"", b"junk", b"\x82\xa0\x41\x00", b"\x82\xa0\x81\x82\x41\xff\x40"]
)
def test_a_damaged_file_begins_anew(
    store: Store, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store.write(NAME, data)
    found = Ledger(store)
    assert "begins empty" in caplog.text
    found.note("pull-messages", answer(1))
    assert Ledger(store).asked(named(1)) is not None


def test_a_full_disk_stops_no_message(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The SuperLink gives each message once."""
    found = Ledger(store)

    def full(*_: object) -> None:
        raise StoreError("No space left on device")

    monkeypatch.setattr(Store, "write", full)
    found.note("pull-messages", answer(1))
    found.note_answered(named(2))
    assert found.asked(named(1)) is not None
    assert found.knows("answered", named(2))
    assert caplog.text.count("No space left on device") == 2


@pytest.mark.parametrize("body", [b"\xff", b"junk" * 9])
def test_an_answer_of_another_form_names_nothing(store: Store, body: bytes) -> None:
    found = Ledger(store)
    for name in ("pull-messages", "activate-node", "register-node", "get-run"):
        found.note(name, body)
    assert not store.exists(NAME)
