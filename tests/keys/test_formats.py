"""Files and states of other kinds, of other versions, or with something else in a field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flhe.errors import FlheError, ProtocolError
from flhe.keys.agreement import masking
from flhe.keys.agreement.epoch import Advertised, Epoch, advertise
from flhe.keys.agreement.model_key import ModelKey
from flhe.keys.identity import Identity
from flhe.keys.roster.enrolment import Enrolment
from flhe.keys.roster.roster import Member, Roster
from flhe.keys.roster.signed_roster import SignedRoster
from flhe.node import backup
from flhe.node.backup import Backup
from flhe.schemes.sealed import Slot
from flhe.wire.canonical import dumps, loads
from tests.keys.masking import group

PHRASE = "five random words"
IDS = sorted((Identity(bytes([i + 1]) * 32) for i in range(3)), key=lambda one: one.public)
ROSTER = Roster(tuple(Member(f"s{i}", one.public) for i, one in enumerate(IDS)), 0, 2, ("*",))
FULL = SignedRoster(ROSTER).signed(IDS[0]).signed(IDS[1]).signed(IDS[2])
PAIRS: Any = loads(FULL.to_bytes(), 1 << 20, "test")["signatures"]
EPOCH = group(3)[1][0]
SLOT = Slot(1, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))
DEALT, AGREED = masking.Dealt(SLOT, (b"",) * 3, b""), masking.Agreed(SLOT, (0, 1), b"")
STATE = advertise(IDS[0], 1, 0, ROSTER)[0]


def sealed() -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "COST", 1 << 4)
        return Backup(IDS[0]).seal(PHRASE)


Reader = Callable[[bytes], object]
READERS: dict[str, tuple[Reader, bytes]] = {
    "roster": (Roster.from_bytes, ROSTER.to_bytes()),
    "roster file": (SignedRoster.from_bytes, FULL.to_bytes()),
    "enrolment": (Enrolment.from_bytes, Enrolment.make("site-a", IDS[0]).to_bytes()),
    "backup": (lambda data: Backup.unseal(data, PHRASE), sealed()),
    "model key": (ModelKey.from_bytes, ModelKey.of(EPOCH).to_bytes()),
    "epoch": (Epoch.from_bytes, EPOCH.to_bytes()),
    "advertised": (lambda data: Advertised.from_bytes(data, identity=IDS[0]), STATE.to_bytes()),
}
CHANGES: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"v": 99}, "version") for name in READERS),
    *((name, {"more": 1}, "unknown") for name in READERS),
    ("roster", {"members": [1]}, "member: got int, needs a list"),
    ("roster", {"schemes": [1]}, "field schemes must be a list, each item made of"),
    ("roster", {"revoked": ["x" * 32]}, "32 bytes"),
    ("roster file", {"signatures": [PAIRS[0], PAIRS[0]]}, "signed twice"),
    ("roster file", {"signatures": PAIRS[::-1]}, "out of order"),
    ("roster file", {"signatures": [PAIRS[0][0]]}, r"each item .32 bytes, 64 bytes."),
    ("roster file", {"signatures": [[PAIRS[0][0], PAIRS[1][1]]]}, "not on this roster"),
    ("enrolment", {"kind": "flhe-backup"}, "no file of"),
    ("backup", {"kind": "flhe-site"}, "no file of"),
    ("backup", {"salt": b""}, "16 bytes"),
    ("model key", {"key": b"k"}, "key must be 32 bytes"),
    ("model key", {"run_id": -1}, "unsigned 64-bit"),
    ("epoch", {"pair_keys": [1, 2, 3]}, "each item 32 bytes, or none"),
]


@pytest.mark.parametrize(("name", "change", "message"), CHANGES)
def test_refused(
    name: str, change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backup, "COST", 1 << 4)
    read, data = READERS[name]
    read(data)
    with pytest.raises(FlheError, match=message):
        read(dumps({**loads(data, 1 << 20, "test"), **change}))  # type: ignore[dict-item]


@pytest.mark.parametrize(("kind", "other"), [(masking.Dealt, AGREED), (masking.Agreed, DEALT)])
def test_states_are_of_one_kind(kind: Any, other: Any) -> None:
    with pytest.raises(ProtocolError, match="another kind of encoding"):
        kind.from_bytes(other.to_bytes())
