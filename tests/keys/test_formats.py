"""Files and states of other kinds, of other versions, or with something else in a field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import FlheError, ProtocolError
from flhe.keys.agreement import masking
from flhe.keys.agreement.epoch import Advertised, Epoch, advertise
from flhe.keys.agreement.model_key import ModelKey
from flhe.keys.roster.enrolment import Enrolment
from flhe.keys.roster.roster import Roster
from flhe.keys.roster.signed_roster import SignedRoster
from flhe.node import backup
from flhe.node.backup import Backup
from flhe.wire.canonical import dumps, loads
from tests.keys.agreement import roster_of, sites
from tests.keys.masking import group, slot_for

PHRASE = "five random words"
IDS = sites(3)
ROSTER = roster_of(IDS, 0)
FULL = SignedRoster(ROSTER).signed(IDS[0]).signed(IDS[1]).signed(IDS[2])
ENROLMENT = Enrolment.make("site-a", IDS[1], IDS[0])
PAIRS: Any = loads(FULL.to_bytes(), 1 << 20, "test")["signatures"]
EPOCH = group(3)[1][0]
SLOT = slot_for(EPOCH)
DEALT, AGREED = masking.Dealt(SLOT, (b"",) * 3, b""), masking.Agreed(SLOT, (0, 1), b"")
STATE = advertise(IDS[0], 1, 0, ROSTER)[0]


def cheaply(act: Callable[[], Any]) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "COST", 1 << 4)
        return act()


def unseal(data: bytes) -> Backup:
    return cheaply(lambda: Backup.unseal(data, PHRASE))


Reader = Callable[[bytes], object]
READERS: dict[str, tuple[Reader, bytes]] = {
    "roster": (Roster.from_bytes, ROSTER.to_bytes()),
    "roster file": (SignedRoster.from_bytes, FULL.to_bytes()),
    "enrolment": (Enrolment.from_bytes, ENROLMENT.to_bytes()),
    "backup": (unseal, cheaply(lambda: Backup(IDS[0], (ModelKey.of(EPOCH),)).seal(PHRASE))),
    "model key": (ModelKey.from_bytes, ModelKey.of(EPOCH).to_bytes()),
    "epoch": (Epoch.from_bytes, EPOCH.to_bytes()),
    "advertised": (lambda data: Advertised.from_bytes(data, identity=IDS[0]), STATE.to_bytes()),
}
CHANGES: list[tuple[str, dict[str, Any], str]] = [
    *((name, {"v": 99}, "version 99, this flhe reads") for name in READERS),
    *((name, {"more": 1}, "unknown") for name in READERS),
    ("roster", {"members": [1]}, "member: got int, needs a list"),
    ("roster", {"schemes": [1]}, "field schemes must be a list, each item made of"),
    ("roster", {"revoked": ["x" * 32]}, "32 bytes"),
    ("roster", {"revoked": [IDS[0].public]}, "key of site-0 was revoked"),
    ("roster", {"limits": [[["fresh-keys", "none"]]]}, "limits"),
    ("roster file", {"signatures": [PAIRS[0], PAIRS[0]]}, "signed twice"),
    ("roster file", {"signatures": PAIRS[::-1]}, "out of order"),
    ("roster file", {"signatures": [PAIRS[0][0]]}, r"each item .32 bytes, 64 bytes."),
    ("roster file", {"signatures": [[PAIRS[0][0], PAIRS[1][1]]]}, "not on this roster"),
    ("roster file", {"roster": roster_of(IDS, 0, ("eshe",)).to_bytes()}, "not on this roster"),
    ("roster file", {"roster": b""}, "roster"),
    ("enrolment", {"kind": "flhe-backup"}, "no file of `flhe keygen`"),
    ("enrolment", {"replaces": b"x"}, "32 bytes, or none"),
    ("enrolment", {"replaced": b""}, "a key that is replaced signs that"),
    ("enrolment", {"member": ["site-a", bytes(32)]}, "no honest site"),
    ("backup", {"kind": "flhe-site"}, "no file of"),
    ("backup", {"salt": b""}, "16 bytes"),
    ("backup", {"box": 1}, "box"),
    ("model key", {"key": b"k"}, "key must be 32 bytes"),
    ("model key", {"run_id": -1}, "unsigned 64-bit"),
    ("epoch", {"pair_keys": [1, 2, 3]}, "each item 32 bytes, or none"),
]


@pytest.mark.parametrize(("name", "change", "message"), CHANGES)
def test_refused(name: str, change: dict[str, Any], message: str) -> None:
    read, data = READERS[name]
    read(data)
    with pytest.raises(FlheError, match=message):
        read(dumps({**loads(data, 1 << 20, "test"), **change}))  # type: ignore[dict-item]


@given(st.integers(0, 10**5), st.integers(1, 255))
@pytest.mark.parametrize("name", ["roster file", "enrolment", "backup"])
def test_a_changed_byte_is_refused(name: str, at: int, flip: int) -> None:
    """Signed or sealed, no byte of these files is free."""
    read, good = READERS[name]
    data = bytearray(good)
    data[at % len(data)] ^= flip
    with pytest.raises(FlheError):
        read(bytes(data))


@pytest.mark.parametrize(("kind", "other"), [(masking.Dealt, AGREED), (masking.Agreed, DEALT)])
def test_states_are_of_one_kind(kind: Any, other: Any) -> None:
    with pytest.raises(ProtocolError, match="another kind of encoding"):
        kind.from_bytes(other.to_bytes())
