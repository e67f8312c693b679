"""The scheme's key pair, made by one member for all, against a server that carries what it likes."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from flhe.errors import AuthenticationError, ConfigError, FlheError, ProtocolError
from flhe.keys.agreement import key_pair
from flhe.keys.agreement.epoch import Confirmed, Epoch, finish
from flhe.keys.agreement.messages import Envelope
from flhe.keys.identity import Identity
from flhe.schemes.batchcrypt.keys import PublicKey, SecretKey
from flhe.schemes.batchcrypt.scheme import Paillier
from flhe.schemes.flashe.scheme import Flashe
from flhe.wire.canonical import dumps, loads
from tests.keys import agreement

IDS = sorted((Identity(bytes([i + 1]) * 32) for i in range(3)), key=lambda one: one.public)
SCHEME = Paillier(3, 16, 2048)
TERMS = bytes(range(32))
RUN = 77


confirmed = functools.partial(agreement.confirmed, IDS, RUN)


@functools.cache
def made() -> tuple[tuple[Confirmed, ...], tuple[bytes, ...], Confirmed, bytes]:
    states, confirms = confirmed()
    state, message = key_pair.make(states[0], confirms, SCHEME, TERMS)
    return tuple(states), tuple(confirms), state, message


def take(
    rank: int, message: bytes, *, scheme: Paillier = SCHEME, terms: bytes = TERMS
) -> Confirmed:
    states, confirms, _, _ = made()
    return key_pair.take(states[rank], list(confirms), message, scheme, terms)


def forged(signer: int, **changes: object) -> bytes:
    """The message with other header fields or another payload, signed by `signer`."""
    envelope = Envelope.from_bytes(made()[3], key_pair.MAX_PAIR)
    payload = changes.pop("payload", envelope.payload)
    assert isinstance(payload, bytes)
    fields = {"sender": IDS[signer].public} | changes
    header = dataclasses.replace(envelope.header, **fields)  # type: ignore[arg-type]
    return Envelope.seal(IDS[signer], header, payload).to_bytes()


def test_all_have_the_pair_that_the_first_made() -> None:
    _, confirms, first, message = made()
    states = [first, take(1, message), take(2, message)]
    epochs = [finish(state, list(confirms)) for state in states]
    assert len({(e.scheme_public, e.scheme_secret) for e in epochs}) == 1
    key = SecretKey.from_bytes(epochs[1].scheme_secret)
    key.check(2048)
    assert key.public.to_bytes() == epochs[2].scheme_public
    assert Epoch.from_bytes(epochs[0].to_bytes()) == epochs[0]
    for state, identity in zip(states, IDS, strict=True):
        assert Confirmed.from_bytes(state.to_bytes(), identity=identity) == state


def test_the_relay_learns_the_public_key_alone() -> None:
    states, confirms, first, message = made()
    epoch_id = finish(states[0], list(confirms)).id
    told = key_pair.announced(message, IDS[0].public, RUN, 0, epoch_id, TERMS)
    assert PublicKey.from_bytes(told).bits == 2048
    key = SecretKey.from_bytes(first.scheme_secret)
    for number in (key.p, key.q, key.h):
        raw = number.to_bytes((number.bit_length() + 7) // 8, "big")
        assert raw not in message
        assert raw[::-1] not in message
    assert "Secret" not in repr(first)
    assert f"<{len(first.scheme_secret)} bytes>" in repr(first)


def test_the_relay_refuses_what_is_of_another_exchange() -> None:
    states, confirms, _, message = made()
    epoch_id = finish(states[0], list(confirms)).id
    scope = (IDS[0].public, RUN, 0, epoch_id, TERMS)
    for i, other in enumerate((IDS[1].public, RUN + 1, 1, bytes(16), bytes(32))):
        changed = [*scope[:i], other, *scope[i + 1 :]]
        with pytest.raises(ProtocolError):
            key_pair.announced(message, *changed)  # type: ignore[arg-type]
    with pytest.raises(AuthenticationError):
        key_pair.announced(message[:-1] + bytes([message[-1] ^ 1]), *scope)


def test_asked_twice_the_member_seals_one_pair() -> None:
    _, confirms, first, message = made()
    again, other = key_pair.make(first, list(confirms), SCHEME, TERMS)
    assert again == first
    assert other != message  # under a fresh salt
    assert take(1, other) == take(1, message)


def test_only_the_lowest_rank_makes_one() -> None:
    states, confirms, _, _ = made()
    for state in states[1:]:
        with pytest.raises(ProtocolError, match="lowest rank"):
            key_pair.make(state, list(confirms), SCHEME, TERMS)


def test_a_second_pair_is_refused() -> None:
    states, confirms, _, message = made()
    taken = take(1, message)
    _, other = key_pair.make(states[0], list(confirms), SCHEME, TERMS)
    with pytest.raises(ProtocolError, match="a second key pair"):
        key_pair.take(taken, list(confirms), other, SCHEME, TERMS)
    assert key_pair.take(taken, list(confirms), message, SCHEME, TERMS) == taken


def test_nothing_is_made_or_taken_before_all_have_confirmed() -> None:
    states, confirms, _, message = made()
    for bad in (list(confirms[:2]), [*confirms[:2], confirms[0]]):
        with pytest.raises(FlheError):
            key_pair.make(states[0], bad, SCHEME, TERMS)
        with pytest.raises(FlheError):
            key_pair.take(states[1], bad, message, SCHEME, TERMS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"run_id": RUN + 1}, "run_id"),
        ({"epoch": 1}, "epoch"),
        ({"round": 1}, "round"),
        ({"attempt": 1}, "attempt"),
        ({"stage": "update"}, "stage"),
        ({"policy_hash": bytes(32)}, "policy_hash"),
        ({"layout_hash": bytes(32)}, "layout_hash"),
        ({"roster_hash": bytes(32)}, "roster_hash"),
        ({"receiver": IDS[1].public}, "receiver"),
    ],
)
def test_a_message_of_another_exchange_is_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        take(1, forged(0, **change))


def test_a_pair_of_another_epoch_does_not_open() -> None:
    other_states, other_confirms = confirmed()
    _, other = key_pair.make(other_states[0], other_confirms, SCHEME, TERMS)
    with pytest.raises(ProtocolError):
        take(1, other)
    payload = Envelope.from_bytes(other, key_pair.MAX_PAIR).payload
    with pytest.raises(FlheError):  # signed for this epoch, sealed for another
        take(1, forged(0, payload=payload))


def test_a_public_key_beside_another_secret_one_is_refused() -> None:
    public, box = loads(Envelope.from_bytes(made()[3], key_pair.MAX_PAIR).payload, 1 << 20, "x")
    stranger = SecretKey.generate(2048).public.to_bytes()
    with pytest.raises(ProtocolError, match="public"):  # the box is bound to the public key
        take(1, forged(0, payload=dumps([stranger, box])))
    for bad in (dumps([public]), dumps([b"", box]), dumps([public, box, box]), dumps({}), b""):
        with pytest.raises(ProtocolError):
            take(1, forged(0, payload=bad))


def test_a_key_that_does_not_fit_the_terms_is_refused() -> None:
    with pytest.raises(ProtocolError, match="2048 bits, the terms say 3072"):
        take(1, made()[3], scheme=Paillier(3, 16, 3072))
    with pytest.raises(ProtocolError, match="has none"):
        take(1, made()[3], scheme=Flashe(3))  # type: ignore[arg-type]
    states, confirms, _, _ = made()
    with pytest.raises(ConfigError, match="no key pair"):
        key_pair.make(states[0], list(confirms), Flashe(3), TERMS)


def test_a_public_key_that_the_secret_one_does_not_have_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the maker itself has sealed the two together."""
    states, confirms, _, _ = made()
    one, other = (SecretKey.generate(2048) for _ in range(2))
    monkeypatch.setattr(key_pair, "new_pair", lambda *_: (other.public.to_bytes(), one.to_bytes()))
    _, message = key_pair.make(states[0], list(confirms), SCHEME, TERMS)
    with pytest.raises(ProtocolError, match="does not belong to the public one"):
        take(1, message)


def test_a_pair_is_sealed_for_one_set_of_terms() -> None:
    _, confirms, first, _ = made()
    with pytest.raises(ProtocolError, match="made for other terms"):
        key_pair.make(first, list(confirms), SCHEME, bytes(32))
