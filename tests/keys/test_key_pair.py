"""The scheme's key pair, made by one member for all, against a server that carries what it likes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flhe.errors import AuthenticationError, ProtocolError
from flhe.keys.agreement import key_pair
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.schemes.batchcrypt.keys import PublicKey, SecretKey
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.flashe.scheme import Flashe
from flhe.wire.canonical import dumps, loads
from tests.fuzz.group import CONTRACT, IDS, RUN, exchange
from tests.fuzz.signed import PAILLIER as SCHEME
from tests.fuzz.signed import pair

EPOCHS = exchange().epochs


def take(rank: int, message: bytes, scheme: Any = SCHEME) -> Epoch:
    return key_pair.take(EPOCHS[rank], message, scheme)


def forged(payload: bytes | None = None, **changes: Any) -> bytes:
    """The message with other header fields or another payload, signed by its maker."""
    envelope = Envelope.from_bytes(pair()[1], key_pair.MAX_PAIR)
    header = dataclasses.replace(envelope.header, **changes)
    return Envelope.seal(
        IDS[0], header, envelope.payload if payload is None else payload
    ).to_bytes()


def test_all_have_the_pair_that_the_first_made() -> None:
    first, message = pair()
    epochs = [first, take(1, message), take(2, message)]
    assert len({(e.scheme_public, e.scheme_secret) for e in epochs}) == 1
    key = SecretKey.from_bytes(epochs[1].scheme_secret)
    key.check(2048)
    assert key.public.to_bytes() == epochs[2].scheme_public


def test_the_relay_learns_the_public_key_alone() -> None:
    first, message = pair()
    scope = RUN, 0, first.id, CONTRACT
    assert PublicKey.from_bytes(key_pair.announced(message, IDS[0].public, scope)).bits == 2048
    key = SecretKey.from_bytes(first.scheme_secret)
    for number in (key.p, key.q, key.h):
        raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
        assert raw not in message
        assert raw[::-1] not in message
    assert f"<{len(first.scheme_secret)} bytes>" in repr(first)
    with pytest.raises(AuthenticationError):
        key_pair.announced(message[:-1] + bytes([message[-1] ^ 1]), IDS[0].public, scope)


def test_asked_twice_the_lowest_rank_seals_one_pair() -> None:
    first, message = pair()
    again, other = key_pair.make(IDS[0], first, SCHEME)
    assert again == first
    assert other != message  # under a fresh nonce
    assert take(1, other) == take(1, message)
    for agreed in EPOCHS[1:]:
        with pytest.raises(ProtocolError, match="lowest rank"):
            key_pair.make(IDS[agreed.rank], agreed, SCHEME)


def test_a_second_pair_is_refused() -> None:
    message = pair()[1]
    taken = take(1, message)
    _, other = key_pair.make(IDS[0], EPOCHS[0], SCHEME)
    with pytest.raises(ProtocolError, match="a second key pair"):
        key_pair.take(taken, other, SCHEME)
    assert key_pair.take(taken, message, SCHEME) == taken


def test_a_message_of_another_exchange_is_refused() -> None:
    for field, value in (("run_id", RUN + 1), ("stage", "update"), ("policy_hash", bytes(32))):
        with pytest.raises(ProtocolError, match=field):
            take(1, forged(**{field: value}))


def test_a_public_key_beside_another_secret_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the maker itself has sealed the two together."""
    public, box = loads(Envelope.from_bytes(pair()[1], key_pair.MAX_PAIR).payload, 1 << 20, "x")
    one, other = (SecretKey.generate(2048) for _ in range(2))
    with pytest.raises(ProtocolError, match="public"):
        take(1, forged(dumps([other.public.to_bytes(), box])))
    for bad in (dumps([public]), dumps([b"", box]), dumps([public, box, box]), dumps({}), b""):
        with pytest.raises(ProtocolError):
            take(1, forged(bad))
    swapped = other.public.to_bytes(), one.to_bytes()
    monkeypatch.setattr(type(SCHEME), "new_pair", lambda *_: swapped)
    _, message = key_pair.make(IDS[0], EPOCHS[0], SCHEME)
    with pytest.raises(ProtocolError, match="does not belong to the public one"):
        take(1, message)


def test_a_key_that_does_not_fit_the_terms_is_refused() -> None:
    message = pair()[1]
    with pytest.raises(ProtocolError, match="2048 bits, the terms say 3072"):
        take(1, message, BatchCrypt(key_bits=3072).adder(3, 16))
    with pytest.raises(ProtocolError, match="has none"):
        take(1, message, Flashe().adder(3))
