"""Envelopes: vectors of a second implementation, every field bound, every difference named."""

from __future__ import annotations

import hashlib
import json
import pathlib
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flhe import errors
from flhe.errors import AuthenticationError, ConfigError, FlheError, ProtocolError
from flhe.keys.agreement.messages import Envelope, Header, open_detached, sign_detached
from flhe.keys.identity import Identity
from flhe.wire.canonical import dumps, loads
from flhe.wire.derive import hkdf

FILE = pathlib.Path(__file__).parents[1] / "vectors/envelope.json"
VECTORS = json.loads(FILE.read_text())["cases"]
ME, OTHER = Identity(b"a" * 32), Identity(b"b" * 32)


def header(**changes: object) -> Header:
    fields: dict[str, Any] = {
        "roster_hash": b"r" * 32,
        "run_id": 5,
        "epoch": 1,
        "round": 2,
        "attempt": 3,
        "stage": "upload",
        "sender": ME.public,
        "receiver": OTHER.public,
        "policy_hash": b"p" * 32,
        "layout_hash": b"l" * 32,
    }
    return Header(**(fields | changes))


OTHER_VALUES: dict[str, object] = {
    "suite": "other",
    "roster_hash": b"R" * 32,
    "run_id": 6,
    "epoch": 0,
    "round": 3,
    "attempt": 0,
    "stage": "consist",
    "sender": OTHER.public,
    "receiver": b"",
    "policy_hash": b"",
    "layout_hash": b"L" * 32,
}


def unhex(value: Any) -> Any:
    if isinstance(value, dict):
        return (
            bytes.fromhex(value["hex"]) if "hex" in value else {k: unhex(value[k]) for k in value}
        )
    return value


@pytest.mark.parametrize("case", VECTORS, ids=lambda case: case["name"])
def test_vector(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["envelope"])
    if "error" not in case:
        identity, payload = Identity(bytes.fromhex(case["seed"])), bytes.fromhex(case["payload"])
        head = Header(**unhex(case["header"]))
        assert Envelope.seal(identity, head, payload).to_bytes() == data
        digest = hashlib.sha256(payload).digest()
        assert sign_detached(identity, head, digest).hex() == case["detached"]
        Envelope.from_bytes(data, 4096).verify(asdict(head), senders={identity.public})
        return
    error = getattr(errors, case["error"])
    if case["at"] == "parse":
        with pytest.raises(error):
            Envelope.from_bytes(data, 4096)
    else:
        envelope = Envelope.from_bytes(data, 4096)
        with pytest.raises(error):
            envelope.verify(unhex(case["expect"]), senders=None)


def test_comes_back() -> None:
    envelope = Envelope.seal(ME, header(), b"payload")
    again = Envelope.from_bytes(envelope.to_bytes(), 4096)
    assert again == envelope
    again.verify(asdict(header()), senders=[ME.public])
    again.verify({}, senders=None)
    assert b"payload" not in repr(again).encode()


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_every_field_is_compared_and_named(name: str) -> None:
    envelope = Envelope.seal(ME, header(), b"")
    with pytest.raises(ProtocolError, match=rf"upload message: {name} is"):
        envelope.verify({name: OTHER_VALUES[name]}, senders=None)  # type: ignore[dict-item]


def test_the_first_difference_is_named() -> None:
    with pytest.raises(ProtocolError, match=": run_id is 5, expected 6"):
        header().check({"stage": "consist", "round": 9, "run_id": 6})


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_every_field_is_signed(name: str) -> None:
    envelope = Envelope.seal(ME, header(), b"")
    moved = replace(envelope, header=replace(envelope.header, **{name: OTHER_VALUES[name]}))
    with pytest.raises(ProtocolError):
        moved.verify({}, senders=None)


def test_payload_and_header_do_not_slide() -> None:
    envelope = Envelope.seal(ME, header(), b"payload")
    with pytest.raises(AuthenticationError):
        replace(envelope, payload=b"payloaD").verify({}, senders=None)
    with pytest.raises(AuthenticationError):
        replace(envelope, payload=b"").verify({}, senders=None)


def test_only_members_are_heard() -> None:
    with pytest.raises(ProtocolError, match="not a member"):
        Envelope.seal(ME, header(), b"").verify({}, senders={OTHER.public})
    with pytest.raises(ProtocolError, match="not a member"):
        Envelope.seal(ME, header(), b"").verify({}, senders=set())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("v", 0),
        ("v", True),
        ("suite", ""),
        ("roster_hash", b""),
        ("roster_hash", b"r" * 31),
        ("run_id", -1),
        ("run_id", 2**64),
        ("run_id", "5"),
        ("epoch", 2**32),
        ("round", -1),
        ("round", True),
        ("round", 1.0),
        ("attempt", 2**32),
        ("stage", ""),
        ("stage", "Upload"),
        ("stage", "upload\n"),
        ("stage", "a" * 17),
        ("stage", b"upload"),
        ("sender", b""),
        ("receiver", b"x"),
        ("policy_hash", b"x" * 33),
        ("layout_hash", None),
    ],
)
def test_header_out_of_bounds(name: str, value: object) -> None:
    with pytest.raises(ProtocolError, match=f"field {name} must be"):
        header(**{name: value})


def test_own_mistakes() -> None:
    with pytest.raises(ConfigError, match="another key"):
        Envelope.seal(OTHER, header(), b"")
    with pytest.raises(ConfigError, match="another key"):
        sign_detached(OTHER, header(), bytes(32))
    with pytest.raises(ConfigError, match="32 bytes"):
        sign_detached(ME, header(), b"payload")
    with pytest.raises(ConfigError, match="do not have"):
        header().check({"rank": 1})


def test_detached() -> None:
    digest = hashlib.sha256(b"megabytes").digest()
    data = sign_detached(ME, header(), digest)
    assert open_detached(data, digest, {"round": 2}, senders={ME.public}) == header()
    with pytest.raises(ProtocolError, match="another payload"):
        open_detached(data, bytes(32), {}, senders=None)
    with pytest.raises(ProtocolError, match="round is 2, expected 1"):
        open_detached(data, digest, {"round": 1}, senders=None)
    with pytest.raises(ProtocolError, match="not a member"):
        open_detached(data, digest, {}, senders={OTHER.public})
    body = loads(data, 4096, "test")
    for field in ("payload_sha256", "signature"):
        body[field] = bytes(len(body[field]))
        with pytest.raises(FlheError):
            open_detached(dumps(body), bytes(32), {}, senders=None)


def test_both_forms_have_one_signature() -> None:
    envelope = Envelope.seal(ME, header(), b"x")
    detached = loads(sign_detached(ME, header(), hashlib.sha256(b"x").digest()), 4096, "test")
    assert detached["signature"] == envelope.signature


MUTATION = st.tuples(st.integers(0, 10**4), st.integers(1, 255))


@given(MUTATION)
def test_a_changed_byte_is_never_accepted(mutation: tuple[int, int]) -> None:
    digest = hashlib.sha256(b"payload").digest()
    whole = Envelope.seal(ME, header(), b"payload").to_bytes()
    detached = sign_detached(ME, header(), digest)

    def changed(data: bytes) -> bytes:
        at, flip = mutation[0] % len(data), mutation[1]
        return data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]

    with pytest.raises(ProtocolError):
        Envelope.from_bytes(changed(whole), 4096).verify({}, senders=None)
    with pytest.raises(ProtocolError):
        open_detached(changed(detached), digest, {}, senders=None)


def test_length_is_bounded_before_parsing() -> None:
    data = Envelope.seal(ME, header(), b"x" * 100).to_bytes()
    with pytest.raises(ProtocolError, match="at most 100"):
        Envelope.from_bytes(data, 100)
    with pytest.raises(ProtocolError, match="at most 2048"):
        open_detached(b"\x00" * 2049, bytes(32), {}, senders=None)


def test_hkdf_binds_label_context_and_their_borders() -> None:
    keys = [
        hkdf(b"k", "a"),
        hkdf(b"k", "b"),
        hkdf(b"K", "a"),
        hkdf(b"k", "a", salt=b"s"),
        hkdf(b"k", "a", "bc", "d"),
        hkdf(b"k", "a", "b", "cd"),
        hkdf(b"k", "a", b"b", "cd"),
        hkdf(b"k", "a", 1),
        hkdf(b"k", "a", 2),
    ]
    assert len(set(keys)) == len(keys)
    assert len(hkdf(b"k", "a", length=100)) == 100
    assert repr(keys[0]) == "<32 bytes>"
    for call in (
        lambda: hkdf(b"k", ""),
        lambda: hkdf(b"", "a"),
        lambda: hkdf(b"k", "a", length=0),
        lambda: hkdf(b"k", "a", length=8161),
        lambda: hkdf(b"k", "a", 1.5),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            call()
