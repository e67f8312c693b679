"""Requests to be listed: signed by the key that asks, and by the one whose place it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe.errors import AuthenticationError, ConfigError, FlheError, ProtocolError
from flhe.keys.identity import Identity
from flhe.keys.roster import statements
from flhe.keys.roster.enrolment import MAX_FILE, Enrolment
from flhe.wire.canonical import dumps, loads

OLD, NEW, OTHER = (Identity(bytes([i]) * 32) for i in (1, 2, 3))
FIRST = Enrolment.make("site-a", OLD)
LATER = Enrolment.make("site-a", NEW, OLD)


@pytest.mark.parametrize("request_", [FIRST, LATER, Enrolment.make("a" * 64, NEW, OLD)])
def test_round_trip(request_: Enrolment) -> None:
    data = request_.to_bytes()
    assert Enrolment.from_bytes(data) == request_
    assert len(data) <= MAX_FILE // 2


def test_who_asks_and_who_is_replaced() -> None:
    assert (FIRST.member.public, FIRST.replaces) == (OLD.public, b"")
    assert (LATER.member.public, LATER.replaces) == (NEW.public, OLD.public)


def test_nobody_takes_a_place_without_the_key_that_held_it() -> None:
    thief = Enrolment.make("site-a", NEW, OTHER)
    for forged in (
        {"replaces": OLD.public},
        {"replaces": OLD.public, "replaced": thief.signature},
    ):
        with pytest.raises(AuthenticationError, match="ask the site for it again"):
            replace(thief, **forged)  # type: ignore[arg-type]
    body = dumps(["site-a", NEW.public, OLD.public])
    asks = statements.sign(NEW, "enrol", body)
    assert asks == LATER.signature
    for signs in (NEW, OTHER):  # who asks signs all that it can sign
        with pytest.raises(AuthenticationError):
            Enrolment(LATER.member, asks, OLD.public, statements.sign(signs, "replace", body))
    with pytest.raises(AuthenticationError):  # the old key's consent is of another kind
        Enrolment(LATER.member, asks, OLD.public, statements.sign(OLD, "enrol", body))
    with pytest.raises(AuthenticationError):
        replace(LATER, signature=LATER.replaced)


def test_a_signature_is_for_one_name_and_one_key() -> None:
    for other in (Enrolment.make("site-b", NEW, OLD), Enrolment.make("site-a", OTHER, OLD)):
        with pytest.raises(AuthenticationError):
            replace(LATER, member=other.member)
    with pytest.raises(AuthenticationError):  # a change of keys is no first request
        replace(LATER, replaces=b"", replaced=b"")


def test_what_makes_no_sense() -> None:
    with pytest.raises(ProtocolError, match="cannot replace itself"):
        Enrolment.make("site-a", OLD, OLD)
    with pytest.raises(ProtocolError, match="signs that"):
        replace(LATER, replaced=b"")
    with pytest.raises(ConfigError, match="name must be"):
        Enrolment.make("site a", OLD)


def test_bytes_that_are_no_request() -> None:
    good = loads(LATER.to_bytes(), MAX_FILE, "test")
    for wrong in ({"replaces": b"x"}, {"replaced": b""}, {"member": ["site-a", bytes(32)]}):
        with pytest.raises(FlheError):
            Enrolment.from_bytes(dumps(good | wrong))
    with pytest.raises(ProtocolError, match="no file of `flhe keygen`"):
        Enrolment.from_bytes(dumps(good | {"kind": "flhe-backup"}))
    with pytest.raises(ProtocolError, match="version 2, this flhe reads 1"):
        Enrolment.from_bytes(dumps(good | {"v": 2}))


@given(st.integers(0, 10**4), st.integers(1, 255))
def test_a_changed_byte_is_refused(at: int, flip: int) -> None:
    data = bytearray(LATER.to_bytes())
    data[at % len(data)] ^= flip
    with pytest.raises(FlheError):
        Enrolment.from_bytes(bytes(data))
