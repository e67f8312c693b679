"""Envelopes: vectors of a second implementation, every field bound, every difference named."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from flhe import errors
from flhe.errors import AuthenticationError, ConfigError, ProtocolError
from flhe.keys.agreement.messages import Envelope, Header
from flhe.keys.agreement.pairs import pair_key
from flhe.keys.identity import Identity
from flhe.wire.derive import hkdf
from tests.keys import make_vectors
from tests.keys.make_vectors import unhex

ME, OTHER = Identity(b"a" * 32), Identity(b"b" * 32)
HEADER = Header(
    roster_hash=b"r" * 32,
    run_id=5,
    epoch=1,
    round=2,
    attempt=3,
    stage="upload",
    sender=ME.public,
    receiver=OTHER.public,
    policy_hash=b"p" * 32,
    layout_hash=b"l" * 32,
)
OTHER_VALUES: dict[str, Any] = {
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
ENVELOPE = Envelope.seal(ME, HEADER, b"payload")


@pytest.mark.parametrize("case", make_vectors.cases("envelope"), ids=lambda case: case["name"])
def test_vector(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["envelope"])
    if "error" not in case:
        assert case | make_vectors.envelope(case) == case
        identity, payload = Identity(bytes.fromhex(case["seed"])), bytes.fromhex(case["payload"])
        head = Header(**unhex(case["header"]))
        assert Envelope.seal(identity, head, payload).to_bytes() == data
        Envelope.from_bytes(data, 4096).verify(asdict(head), senders={identity.public})
        return
    error = getattr(errors, case["error"])
    if case["at"] == "parse":
        with pytest.raises(error):
            Envelope.from_bytes(data, 4096)
        return
    envelope = Envelope.from_bytes(data, 4096)
    with pytest.raises(error):
        envelope.verify(unhex(case["expect"]), senders=None)


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_every_field_is_compared_named_and_signed(name: str) -> None:
    with pytest.raises(ProtocolError, match=rf"upload message: {name} is"):
        ENVELOPE.verify({name: OTHER_VALUES[name]}, senders=None)
    moved = replace(ENVELOPE, header=replace(HEADER, **{name: OTHER_VALUES[name]}))
    with pytest.raises(ProtocolError):
        moved.verify({}, senders=None)


def test_what_is_signed_by_whom() -> None:
    ENVELOPE.verify(asdict(HEADER), senders=[ME.public])
    assert "payload" not in repr(ENVELOPE)
    for payload in (b"payloaD", b""):
        with pytest.raises(AuthenticationError):
            replace(ENVELOPE, payload=payload).verify({}, senders=None)
    for senders in ({OTHER.public}, set[bytes]()):
        with pytest.raises(ProtocolError, match="not a member"):
            ENVELOPE.verify({}, senders=senders)
    with pytest.raises(ConfigError, match="another key"):
        Envelope.seal(OTHER, HEADER, b"")
    with pytest.raises(ConfigError, match="do not have"):
        HEADER.check({"rank": 1})
    with pytest.raises(ProtocolError, match="at most 100"):
        Envelope.from_bytes(ENVELOPE.to_bytes(), 100)


def test_hkdf_binds_label_context_and_their_borders() -> None:
    """By the second implementation, vectors show what each key is of."""
    keys = [hkdf(b"k", "a", "bc", "d"), hkdf(b"k", "a", "b", "cd"), hkdf(b"k", "a", b"b", "cd")]
    assert len(set(keys)) == len(keys)
    for arguments, says in (
        ((b"k", ""), "the label is empty"),
        ((b"", "a"), "the secret is empty"),
        ((b"k", "a", 1.5), "cannot encode"),
    ):
        with pytest.raises(ConfigError, match=says):
            hkdf(*arguments)  # type: ignore[arg-type]


def test_pair_keys_are_bound() -> None:
    def key(
        mine: int = 1, theirs: int = 2, t1: bytes = b"t" * 32, scope: tuple[int, bytes] = (1, b"r")
    ) -> bytes:
        other = X25519PrivateKey.from_private_bytes(bytes([theirs]) * 32).public_key()
        pair = (bytes([mine]) * 32, bytes([theirs]) * 32)
        return pair_key(pair[0], other.public_bytes_raw(), pair, t1, scope)

    assert key(1, 2) == key(2, 1)
    keys = {key(), key(1, 3), key(t1=b"T" * 32), key(scope=(2, b"r")), key(scope=(1, b"R"))}
    assert len(keys) == 5
