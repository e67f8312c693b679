"""Requests to be listed: signed by the key that asks, and by the one whose place it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flhe.errors import AuthenticationError, ConfigError, ProtocolError
from flhe.keys.identity import Identity
from flhe.keys.roster.enrolment import MAX_FILE, Enrolment
from flhe.wire.canonical import dumps

OLD, NEW, OTHER = (Identity(bytes([i]) * 32) for i in (1, 2, 3))
FIRST = Enrolment.make("site-a", OLD)
LATER = Enrolment.make("site-a", NEW, OLD)


def test_who_asks_and_who_is_replaced() -> None:
    assert (FIRST.member.public, FIRST.replaces) == (OLD.public, b"")
    assert (LATER.member.public, LATER.replaces) == (NEW.public, OLD.public)
    for request in (FIRST, LATER, Enrolment.make("a" * 64, NEW, OLD)):
        data = request.to_bytes()
        assert Enrolment.from_bytes(data) == request
        assert len(data) <= MAX_FILE // 2


def test_nobody_takes_a_place_without_the_key_that_held_it() -> None:
    thief = Enrolment.make("site-a", NEW, OTHER)
    for forged in (
        {"replaces": OLD.public},
        {"replaces": OLD.public, "replaced": thief.signature},
    ):
        with pytest.raises(AuthenticationError, match="ask the site for it again"):
            replace(thief, **forged)  # type: ignore[arg-type]
    body = dumps(["site-a", NEW.public, OLD.public])
    asks = NEW.state("enrol", body)
    assert asks == LATER.signature
    # Who asks signs all that it can sign; the old key's consent is of another kind than a request.
    consents = NEW.state("replace", body), OTHER.state("replace", body), OLD.state("enrol", body)
    for consent in consents:
        with pytest.raises(AuthenticationError):
            Enrolment(LATER.member, asks, OLD.public, consent)


def test_a_signature_is_for_one_name_and_one_key() -> None:
    for changes in (
        {"member": Enrolment.make("site-b", NEW, OLD).member},
        {"member": Enrolment.make("site-a", OTHER, OLD).member},
        {"replaces": b"", "replaced": b""},  # a change of keys is no first request
        {"signature": LATER.replaced},
    ):
        with pytest.raises(AuthenticationError):
            replace(LATER, **changes)  # type: ignore[arg-type]


def test_what_makes_no_sense() -> None:
    with pytest.raises(ProtocolError, match="cannot replace itself"):
        Enrolment.make("site-a", OLD, OLD)
    for change, says in (
        ({"replaced": b""}, "a key that is replaced signs that"),
        ({"member": ["site-a", bytes(32)]}, "no honest site"),
    ):
        with pytest.raises((ConfigError, ProtocolError), match=says):
            Enrolment.from_bytes(dumps({**LATER.to_fields(), **change}))
    with pytest.raises(ConfigError, match="name must be"):
        Enrolment.make("site a", OLD)
