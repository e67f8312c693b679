"""Rosters: one encoding, their bounds, and the pin."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import ConfigError, FlheError, ProtocolError, QuorumError
from flhe.keys.canonical import dumps, loads
from flhe.keys.identity import Identity
from flhe.keys.roster import ANY, Member, Roster, load_pinned

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


def test_bytes_and_hash() -> None:
    one = roster()
    assert Roster.from_bytes(one.to_bytes()) == one
    assert one.hash == hashlib.sha256(one.to_bytes()).digest()
    for other in (roster(6), roster(collusion=2), roster(min_survivors=3)):
        assert other.hash != one.hash


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
        ({"collusion": -1}, "collusion=-1"),
        ({"collusion": True}, "collusion=True"),
        ({"collusion": 3}, "need 6"),
        ({"min_survivors": 1}, "min_survivors=1"),
        ({"min_survivors": 6}, "need 6"),
        ({"schemes": ()}, "scheme"),
        ({"schemes": ("eshe", "eshe")}, "scheme"),
        ({"schemes": ("ESHE",)}, "scheme"),
        ({"members": ()}, "0 members"),
        ({"members": (*roster().members, Member("again", KEYS[0]))}, "one public key"),
        ({"members": (*roster().members, Member("site-0", KEYS[9]))}, "one name"),
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
        good | {"v": 2},
        good | {"more": 1},
        good | {"members": good["members"][::-1]},
        good | {"members": [*good["members"], 1]},
        good | {"members": [[1, 2]]},
        good | {"schemes": good["schemes"][::-1]},
        good | {"schemes": [1]},
        good | {"collusion": True},
        {},
        [],
    ]
    for body in wrong:
        with pytest.raises(FlheError):
            Roster.from_bytes(dumps(body))
    with pytest.raises(ProtocolError, match="version 2, this flhe reads 1"):
        Roster.from_bytes(dumps(wrong[0]))


@given(st.integers(0, 10**4), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_another_roster(at: int, flip: int) -> None:
    data = bytearray(roster().to_bytes())
    data[at % len(data)] ^= flip
    try:
        other = Roster.from_bytes(bytes(data))
    except FlheError:
        return
    assert other.hash != roster().hash


def test_load_pinned(tmp_path: Path) -> None:
    path = tmp_path / "hospital-names.roster"
    path.write_bytes(roster().to_bytes())
    assert load_pinned(path, roster().hash) == roster()
    assert load_pinned(str(path), roster().hash.hex()) == roster()
    for pin in (roster(6).hash, roster(6).hash.hex()):
        with pytest.raises(ConfigError, match="pin the new hash") as caught:
            load_pinned(path, pin)
        assert "\n" not in str(caught.value)
        assert "hospital" not in str(caught.value)
    for pin in ("", "zz" * 32, b"", b"short"):
        with pytest.raises(ConfigError, match="64 hex digits"):
            load_pinned(path, pin)
    with pytest.raises(ConfigError, match="cannot read") as caught:
        load_pinned(tmp_path / "missing", roster().hash)
    assert "missing" not in str(caught.value)
    noise = b"not a roster"
    path.write_bytes(noise)
    with pytest.raises(FlheError):
        load_pinned(path, hashlib.sha256(noise).digest())
