"""Rosters: one encoding and their bounds; requests to be listed, and whose place they take."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe import errors
from flhe.errors import AuthenticationError, ConfigError, ProtocolError, QuorumError
from flhe.keys.identity import Identity
from flhe.keys.roster.enrolment import Enrolment
from flhe.keys.roster.limits import Limits
from flhe.keys.roster.pinned import load_pinned
from flhe.keys.roster.roster import ANY, MAX_MEMBERS, Member, Roster
from flhe.wire.canonical import dumps
from tests.keys import make_vectors

KEYS = [Identity(bytes([i]) * 32).public for i in range(10)]


def roster(size: int = 5, collusion: int = 1, min_survivors: int = 2, **changes: Any) -> Roster:
    members = tuple(Member(f"site-{i}", key) for i, key in enumerate(KEYS[:size]))
    fields = {"members": members, "collusion": collusion, "min_survivors": min_survivors}
    return Roster(**{**fields, "schemes": ("flashe", "eshe"), **changes})


ONE = roster()


@given(st.permutations(range(5)), st.permutations(range(5, 10)))
def test_order_of_writing_does_not_matter(order: list[int], gone: list[int]) -> None:
    members, revoked = tuple(ONE.members[i] for i in order), tuple(KEYS[i] for i in gone)
    shuffled = Roster(members, 1, 2, ("eshe", "flashe"), revoked)
    assert shuffled == replace(ONE, revoked=tuple(KEYS[5:]))
    assert list(shuffled.publics) == sorted(KEYS[:5])
    assert shuffled.revoked == tuple(sorted(KEYS[5:]))
    assert [ONE.rank(member.public) for member in ONE.members] == list(range(5))
    assert (ONE.allows("eshe"), ONE.allows("sash")) == (True, False)
    assert roster(schemes=(ANY,)).allows("sash")


@pytest.mark.parametrize("case", make_vectors.cases("roster"), ids=lambda case: case["name"])
def test_vector(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["roster"])
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            Roster.from_bytes(data)
        return
    assert case | make_vectors.roster(case) == case
    made = Roster(
        tuple(Member(name, bytes.fromhex(key)) for name, key in case["members"]),
        case["collusion"],
        case["min_survivors"],
        tuple(case["schemes"]),
        tuple(map(bytes.fromhex, case["revoked"])),
        Limits(case["limits"]),
    )
    assert (made.to_bytes(), made.hash.hex()) == (data, case["hash"])
    assert Roster.from_bytes(data) == made


def test_the_largest_roster_fits() -> None:
    keys = [Identity(i.to_bytes(32, "big")).public for i in range(2 * MAX_MEMBERS)]
    members = tuple(Member(f"{i:064d}", key) for i, key in enumerate(keys[:MAX_MEMBERS]))
    one = Roster(members, 1, 2, tuple(f"{i:064d}" for i in range(64)), tuple(keys[MAX_MEMBERS:]))
    assert Roster.from_bytes(one.to_bytes()) == one


def without(one: Roster, public: bytes) -> Roster:
    left = tuple(member for member in one.members if member.public != public)
    return replace(one, members=left, revoked=(*one.revoked, public))


def test_a_member_is_removed_for_good() -> None:
    less = without(ONE, KEYS[2])
    assert set(less.publics) == set(KEYS[:5]) - {KEYS[2]}
    assert less.revoked == (KEYS[2],)
    assert (less.collusion, less.min_survivors, less.schemes) == (1, 2, ONE.schemes)
    assert less.hash not in (ONE.hash, replace(less, revoked=()).hash)
    for asked in (less.rank, less.name, less.check_not_revoked):
        with pytest.raises(ProtocolError, match=f"{KEYS[2].hex()[:16]} was revoked"):
            asked(KEYS[2])
    with pytest.raises(ProtocolError, match="not in the roster"):
        less.rank(KEYS[7])
    less.check_not_revoked(KEYS[7])
    with pytest.raises(ConfigError, match=r"key of site-2 was revoked.*new identity"):
        replace(less, members=(*less.members, Member("site-2", KEYS[2])))
    back = replace(less, members=(*less.members, Member("site-2", KEYS[8])))  # another key of it
    assert (back.name(KEYS[8]), back.revoked) == ("site-2", (KEYS[2],))
    with pytest.raises(ConfigError, match="3 members, collusion 1 and min_survivors 4 need 4"):
        without(without(roster(5, collusion=1, min_survivors=4), KEYS[0]), KEYS[1])


@pytest.mark.parametrize(
    ("collusion", "survivors", "least", "members", "opening"),
    [(0, 2, None, 3, 2), (1, 2, None, 4, 3), (1, 5, None, 5, 5), (1, 2, 5, 5, 3), (1, 2, 2, 4, 3)],
)
def test_bounds(
    collusion: int, survivors: int, least: int | None, members: int, opening: int
) -> None:
    one = roster(5, collusion, survivors, limits=Limits({"min-members": least} if least else {}))
    assert (one.min_members, one.min_opening) == (members, opening)


MANY = tuple(i.to_bytes(32, "big") for i in range(1025))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"collusion": -1}, "collusion must be"),
        ({"collusion": 3}, "need 6"),
        ({"min_survivors": 1}, "min_survivors must be"),
        ({"min_survivors": 6}, "need 6"),
        ({"limits": Limits({"min-members": 6})}, r"need 6 to 1024 members \(min-members=6\)"),
        ({"schemes": ()}, "scheme once"),
        ({"schemes": ("eshe", "eshe")}, "scheme once"),
        ({"schemes": ("ESHE",)}, "schemes must be a list"),
        ({"members": ()}, "0 members"),
        ({"members": (*ONE.members, Member("again", KEYS[0]))}, "one public key"),
        ({"members": (*ONE.members, Member("site-0", KEYS[9]))}, "one name"),
        ({"members": (*ONE.members, Member("SITE-0", KEYS[9]))}, "differ in capitals only"),
        ({"revoked": MANY}, "1025 revoked keys"),
    ],
)
def test_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        roster(**changes)


def test_load_pinned(tmp_path: Path) -> None:
    """The SHA-256 of the file is what a node pins."""
    path = tmp_path / "hospital-names.roster"
    path.write_bytes(ONE.to_bytes())
    assert hashlib.sha256(path.read_bytes()).digest() == ONE.hash
    assert load_pinned(str(path), ONE.hash.hex()) == ONE
    with pytest.raises(ConfigError, match="pin the new hash") as caught:
        load_pinned(path, roster(6).hash.hex())
    assert "\n" not in str(caught.value)
    assert "hospital" not in str(caught.value)
    for pin in ("", "zz" * 32, "ab" * 31):
        with pytest.raises(ConfigError, match="64 hex digits"):
            load_pinned(path, pin)
    with pytest.raises(ConfigError, match="cannot read") as caught:
        load_pinned(tmp_path / "missing", ONE.hash.hex())
    assert "missing" not in str(caught.value)
    path.write_bytes(ONE.to_bytes()[:-1])
    with pytest.raises(ConfigError, match="the roster file cannot be used"):
        load_pinned(path, ONE.hash.hex())


def test_first_use() -> None:
    one = Roster.first_use(reversed(KEYS[:5]))
    assert one.publics == tuple(sorted(KEYS[:5]))
    assert (one.collusion, one.min_survivors, one.schemes) == (1, 2, (ANY,))
    assert one.members[0].name == min(KEYS[:5]).hex()[:16]
    assert one == Roster.first_use(KEYS[:5])
    assert [Roster.default_collusion(n) for n in (3, 4, 6, 7, 10)] == [0, 1, 1, 2, 3]
    with pytest.raises(QuorumError, match="2 members announced a key, 3 are needed"):
        Roster.first_use(KEYS[:2])


OLD, NEW, OTHER = (Identity(bytes([i]) * 32) for i in (1, 2, 3))
LATER = Enrolment.make("site-a", NEW, OLD)
THIEF = Enrolment.make("site-a", NEW, OTHER)
BODY = dumps(["site-a", NEW.public, OLD.public])
FORGED: list[dict[str, Any]] = [
    # Nobody takes a place without the key that held it, whose consent is no request.
    *({"replaced": each} for each in (THIEF.replaced, THIEF.signature, NEW.state("replace", BODY))),
    *({"replaced": each} for each in (OTHER.state("replace", BODY), OLD.state("enrol", BODY))),
    {"member": Enrolment.make("site-b", NEW, OLD).member},
    {"member": Enrolment.make("site-a", OTHER, OLD).member},
    {"replaces": b"", "replaced": b""},  # a change of keys is no first request
    {"signature": LATER.replaced},
]


@pytest.mark.parametrize("changes", FORGED)
def test_a_request_is_by_both_keys_for_one_name(changes: dict[str, Any]) -> None:
    with pytest.raises(AuthenticationError, match="ask the site for it again"):
        replace(LATER, **changes)


def test_what_makes_no_sense() -> None:
    with pytest.raises(ProtocolError, match="cannot replace itself"):
        Enrolment.make("site-a", OLD, OLD)
    with pytest.raises(ProtocolError, match="the replaced key must sign"):
        replace(LATER, replaced=b"")
    with pytest.raises(ConfigError, match="name must be"):
        Enrolment.make("site a", OLD)
    with pytest.raises(ConfigError, match="member one: this Ed25519 public key"):
        Member("one", bytes(32))  # of small order: anybody's signature would do
