"""Rosters: one encoding, their bounds, and the pin."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe import errors
from flhe.errors import ConfigError, FlheError, ProtocolError, QuorumError
from flhe.keys.identity import Identity
from flhe.keys.roster.limits import Limits
from flhe.keys.roster.roster import ANY, MAX_BYTES, MAX_MEMBERS, Member, Roster
from flhe.wire.canonical import dumps, loads

FILE = Path(__file__).parents[1] / "vectors/roster.json"
VECTORS = json.loads(FILE.read_text())["cases"]
KEYS = [Identity(bytes([i]) * 32).public for i in range(10)]


def roster(size: int = 5, collusion: int = 1, min_survivors: int = 2) -> Roster:
    members = tuple(Member(f"site-{i}", key) for i, key in enumerate(KEYS[:size]))
    return Roster(members, collusion, min_survivors, ("flashe", "eshe"))


@given(st.permutations(range(5)))
def test_order_of_writing_does_not_matter(order: list[int]) -> None:
    members = roster().members
    shuffled = Roster(tuple(members[i] for i in order), 1, 2, ("eshe", "flashe"))
    assert shuffled == roster()
    assert shuffled.hash == roster().hash
    assert list(shuffled.publics) == sorted(KEYS[:5])


@given(st.permutations(range(5, 10)))
def test_order_of_revoking_does_not_matter(order: list[int]) -> None:
    one = replace(roster(), revoked=tuple(KEYS[i] for i in order))
    assert one.revoked == tuple(sorted(KEYS[5:]))
    assert one == replace(roster(), revoked=tuple(KEYS[5:]))
    assert Roster.from_bytes(one.to_bytes()) == one


def test_bytes_and_hash() -> None:
    one = roster()
    assert Roster.from_bytes(one.to_bytes()) == one
    assert one.hash == hashlib.sha256(one.to_bytes()).digest()
    revoking = replace(one, revoked=(KEYS[9],))
    for other in (roster(6), roster(collusion=2), roster(min_survivors=3), revoking):
        assert other.hash != one.hash
    assert Roster.from_bytes(revoking.to_bytes()) == revoking


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_vector(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["roster"])
    if "error" in case:
        with pytest.raises(getattr(errors, case["error"])):
            Roster.from_bytes(data)
        return
    made = Roster(
        tuple(Member(name, bytes.fromhex(key)) for name, key in case["members"]),
        case["collusion"],
        case["min_survivors"],
        tuple(case["schemes"]),
        tuple(map(bytes.fromhex, case["revoked"])),
        Limits.from_fields(case["limits"]),
    )
    assert made.to_bytes() == data
    assert made.hash.hex() == case["hash"]
    assert Roster.from_bytes(data) == made


def test_the_largest_roster_fits() -> None:
    keys = [Identity(i.to_bytes(32, "big")).public for i in range(2 * MAX_MEMBERS)]
    members = tuple(Member(f"{i:064d}", key) for i, key in enumerate(keys[:MAX_MEMBERS]))
    schemes = tuple(f"{i:064d}" for i in range(64))
    one = Roster(members, 1, 2, schemes, tuple(keys[MAX_MEMBERS:]))
    assert len(one.to_bytes()) < MAX_BYTES
    assert Roster.from_bytes(one.to_bytes()) == one


def test_a_member_is_removed_for_good() -> None:
    one = roster()
    less = one.removed(KEYS[2])
    assert set(less.publics) == set(KEYS[:5]) - {KEYS[2]}
    assert less.revoked == (KEYS[2],)
    assert (less.collusion, less.min_survivors, less.schemes) == (1, 2, one.schemes)
    assert less.hash not in (one.hash, replace(less, revoked=()).hash)
    for asked in (less.rank, less.name, less.check_not_revoked):
        with pytest.raises(ProtocolError, match=f"{KEYS[2].hex()[:16]} was revoked"):
            asked(KEYS[2])
    with pytest.raises(ProtocolError, match="not in the roster"):
        less.rank(KEYS[7])
    less.check_not_revoked(KEYS[7])
    with pytest.raises(ConfigError, match=r"key of site-2 was revoked.*new identity"):
        less.admitted(Member("site-2", KEYS[2]))
    back = less.admitted(Member("site-2", KEYS[8]))  # the same site, another key
    assert back.name(KEYS[8]) == "site-2"
    assert back.revoked == (KEYS[2],)
    both = back.removed(KEYS[8])
    assert both == roster().admitted(Member("x", KEYS[8])).removed(KEYS[8]).removed(KEYS[2])


def test_a_removal_needs_a_member_and_enough_others() -> None:
    one = roster(5, collusion=1, min_survivors=4)
    less = one.removed(KEYS[0])
    with pytest.raises(ConfigError, match="was revoked before"):
        less.removed(KEYS[0])
    with pytest.raises(ConfigError, match="is no member's"):
        less.removed(KEYS[9])
    with pytest.raises(ConfigError, match="3 members, collusion 1 and min_survivors 4 need 4"):
        less.removed(KEYS[1])
    three = less.removed(KEYS[1], collusion=0, min_survivors=3)
    assert (len(three.members), three.collusion, three.min_survivors) == (3, 0, 3)
    assert three.revoked == tuple(sorted(KEYS[:2]))
    with pytest.raises(ConfigError, match="min_survivors must be"):
        one.removed(KEYS[1], min_survivors=1)


def test_who_is_admitted() -> None:
    assert roster().admitted(Member("site-5", KEYS[5])) == roster(6)
    with pytest.raises(ConfigError, match="one public key"):
        roster().admitted(Member("again", KEYS[0]))
    with pytest.raises(ConfigError, match="one name"):
        roster().admitted(Member("site-0", KEYS[5]))


def test_a_key_is_replaced_in_its_place() -> None:
    one = roster()
    new = one.replaced(KEYS[2], KEYS[7])
    assert new.name(KEYS[7]) == "site-2"
    assert new.revoked == (KEYS[2],)
    assert set(new.publics) == {*KEYS[:2], *KEYS[3:5], KEYS[7]}
    assert (new.collusion, new.min_survivors, new.schemes) == (1, 2, one.schemes)
    with pytest.raises(ConfigError, match="is no member's"):
        new.replaced(KEYS[2], KEYS[8])
    with pytest.raises(ConfigError, match="one public key"):
        one.replaced(KEYS[2], KEYS[3])
    with pytest.raises(ConfigError, match="was revoked"):
        new.replaced(KEYS[7], KEYS[2])


def test_members_that_the_parameters_ask_for() -> None:
    assert make(limits=Limits(min_members=5)).min_members == 5
    assert make(limits=Limits(min_members=2)).min_members == 4
    with pytest.raises(ConfigError, match=r"need 6 to 1024 members \(min-members=6\)"):
        make(limits=Limits(min_members=6))


def test_rank_name_and_schemes() -> None:
    one = roster()
    assert [one.rank(m.public) for m in one.members] == list(range(5))
    assert one.name(KEYS[3]) == "site-3"
    with pytest.raises(ProtocolError, match="not in the roster"):
        one.rank(KEYS[7])
    assert one.allows("eshe")
    assert not one.allows("sash")
    assert Roster(one.members, 1, 2, (ANY,)).allows("sash")


@pytest.mark.parametrize(
    ("collusion", "survivors", "members", "opening"), [(0, 2, 3, 2), (1, 2, 4, 3), (1, 5, 5, 5)]
)
def test_bounds(collusion: int, survivors: int, members: int, opening: int) -> None:
    one = roster(5, collusion, survivors)
    assert (one.min_members, one.min_opening) == (members, opening)


def test_default_collusion() -> None:
    assert [Roster.default_collusion(n) for n in (3, 4, 6, 7, 10)] == [0, 1, 1, 2, 3]


def make(**changes: object) -> Roster:
    members = roster().members
    fields = {"members": members, "collusion": 1, "min_survivors": 2, "schemes": ("eshe",)}
    return Roster(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"collusion": -1}, "collusion must be"),
        ({"collusion": True}, "collusion must be"),
        ({"collusion": 3}, "need 6"),
        ({"min_survivors": 1}, "min_survivors must be"),
        ({"min_survivors": 6}, "need 6"),
        ({"schemes": ()}, "scheme"),
        ({"schemes": ("eshe", "eshe")}, "scheme"),
        ({"schemes": ("ESHE",)}, "scheme"),
        ({"members": ()}, "0 members"),
        ({"members": (*roster().members, Member("again", KEYS[0]))}, "one public key"),
        ({"members": (*roster().members, Member("site-0", KEYS[9]))}, "one name"),
        ({"members": (*roster().members, Member("SITE-0", KEYS[9]))}, "differ in capitals only"),
        ({"revoked": (KEYS[9], KEYS[0])}, "key of site-0 was revoked"),
        ({"revoked": (KEYS[9], KEYS[9])}, "revoked twice"),
        ({"revoked": (KEYS[9][:31],)}, "32 bytes"),
        ({"revoked": (KEYS[9].hex(),)}, "32 bytes"),
        ({"revoked": (1, KEYS[9])}, "32 bytes"),
        ({"revoked": tuple(i.to_bytes(32, "big") for i in range(1025))}, "1025 revoked keys"),
    ],
)
def test_refused(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(**changes)


@pytest.mark.parametrize(
    ("name", "public"),
    [
        ("", KEYS[0]),
        ("a" * 65, KEYS[0]),
        ("a b", KEYS[0]),
        ("a\n", KEYS[0]),
        (1, KEYS[0]),
        ("a", b""),
        ("a", bytes(32)),
        ("a", "a" * 32),
    ],
)
def test_no_member(name: str, public: bytes) -> None:
    with pytest.raises(ConfigError):
        Member(name, public)


def test_first_use() -> None:
    one = Roster.first_use(reversed(KEYS[:5]))
    assert one.publics == tuple(sorted(KEYS[:5]))
    assert (one.collusion, one.min_survivors, one.schemes) == (1, 2, (ANY,))
    assert one.members[0].name == min(KEYS[:5]).hex()[:16]
    assert one == Roster.first_use(KEYS[:5])
    assert Roster.first_use(KEYS, collusion=0).collusion == 0
    with pytest.raises(QuorumError, match="2 members announced a key, 3 are needed"):
        Roster.first_use(KEYS[:2])
    with pytest.raises(QuorumError, match="5 members"):
        Roster.first_use(KEYS[:5], min_survivors=6)


def test_bytes_that_are_no_roster() -> None:
    good = loads(roster().to_bytes(), 10**4, "test")
    wrong = [
        good | {"members": good["members"][::-1]},
        good | {"schemes": good["schemes"][::-1]},
        good | {"revoked": sorted(KEYS[6:8], reverse=True)},
        good | {"revoked": KEYS[:1]},
        good | {"limits": {"fresh_keys": None}},
    ]
    for body in wrong:
        with pytest.raises(FlheError):
            Roster.from_bytes(dumps(body))
    with pytest.raises(ProtocolError, match="version 1, this flhe reads 3"):
        Roster.from_bytes(dumps(good | {"v": 1}))


@given(st.integers(0, 10**4), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_another_roster(at: int, flip: int) -> None:
    data = bytearray(roster().to_bytes())
    data[at % len(data)] ^= flip
    try:
        other = Roster.from_bytes(bytes(data))
    except FlheError:
        return
    assert other.hash != roster().hash
