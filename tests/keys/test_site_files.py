"""Files that sites exchange or keep: whatever bytes are in one, only our own errors come out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flhe.errors import FlheError
from flhe.keys.identity import Identity
from flhe.keys.roster.enrolment import Enrolment
from flhe.keys.roster.limits import Limits
from flhe.keys.roster.roster import Member, Roster
from flhe.keys.roster.signed_roster import SignedRoster
from flhe.node import backup
from flhe.node.backup import Backup

PHRASE = "five random words"
IDS = [Identity(bytes([i + 1]) * 32) for i in range(3)]
ROSTER = Roster(
    tuple(Member(f"site-{i}", one.public) for i, one in enumerate(IDS)),
    0,
    2,
    ("flashe",),
    (Identity(b"r" * 32).public,),
    Limits(min_select=0.25, counts=False),
)
FULL = SignedRoster(ROSTER).signed(IDS[0]).signed(IDS[1]).signed(IDS[2])

Case = tuple[bytes, Callable[[bytes], Any]]


def cases() -> dict[str, Case]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "COST", 1 << 4)
        kept = Backup(IDS[0]).seal(PHRASE)
    return {
        "roster": (ROSTER.to_bytes(), Roster.from_bytes),
        "roster file": (FULL.to_bytes(), SignedRoster.from_bytes),
        "enrolment": (Enrolment.make("site-a", *IDS[:2]).to_bytes(), Enrolment.from_bytes),
        "backup": (kept, lambda data: Backup.unseal(data, PHRASE)),
    }


CASES = cases()


@st.composite
def mutated(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes flipped, cut out, put in, repeated, or something else altogether."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=600))
    data = bytearray(good)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0 if at < len(data):
                data[at] ^= draw(st.integers(1, 255))
            case 1:
                del data[at : at + draw(st.integers(1, 64))]
            case 2:
                data[at:at] = draw(st.binary(min_size=1, max_size=16))
            case _:
                data[at:at] = data[at : at + draw(st.integers(1, 64))]
    return bytes(data)


def check(name: str, data: bytes) -> None:
    good, read = CASES[name]
    try:
        made = read(data)
    except FlheError:
        return
    # A roster is anybody's to write; what is signed, or under a passphrase, is nobody else's.
    assert data == good or name == "roster"
    assert name == "backup" or made.to_bytes() == data


@pytest.mark.parametrize("name", CASES)
@given(st.data())
def test_mutations(name: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "COST", 1 << 4)
        check(name, data.draw(mutated(CASES[name][0])))


@pytest.mark.sweep
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_ten_thousand_mutations(name: str, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup, "COST", 1 << 4)
        check(name, data.draw(mutated(CASES[name][0])))
