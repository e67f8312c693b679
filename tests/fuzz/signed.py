"""Messages that are signed, sealed or pinned: a mutant is never taken.

Beside the ones of a stranger stand those of a member who lies (`... by a liar`): it signs and seals
what it likes, so nothing but the form of what it says can be refused.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

from flhe.keys import seal
from flhe.keys.agreement import epoch, joint, key_pair, pairs
from flhe.keys.agreement import messages as envelopes
from flhe.keys.agreement.broadcast import box_header
from flhe.keys.agreement.messages import EVERYONE, NONE, Envelope, Header
from flhe.schemes.batchcrypt.scheme import Paillier
from flhe.schemes.esafl.scheme import Eshe
from flhe.schemes.fedml_he.keys import CkksSecret
from flhe.schemes.fedml_he.ring import Ckks
from flhe.wire import canonical
from tests.fuzz.decoders import ANY, NEVER, Decoder
from tests.fuzz.group import IDS, ROSTER, RUN, SIZE, TERMS, exchange, source

# --- envelopes ---


def header(stage: str = "update", **changes: Any) -> Header:
    fields: dict[str, Any] = {
        "roster_hash": ROSTER.hash,
        "run_id": RUN,
        "epoch": 4,
        "round": 3,
        "attempt": 1,
        "stage": stage,
        "sender": IDS[1].public,
        "receiver": EVERYONE,
        "policy_hash": TERMS,
        "layout_hash": NONE,
    }
    return Header(**fields | changes)


EXPECT = {name: value for name, value in header().to_fields().items() if name != "sender"}
MEMBERS = [each.public for each in IDS]
PAYLOAD = bytes(range(40))
DIGEST = hashlib.sha256(PAYLOAD).digest()


def _envelope(data: bytes) -> None:
    Envelope.from_bytes(data, 2048).verify(EXPECT, senders=MEMBERS)


def _sealed_envelopes() -> list[bytes]:
    return [Envelope.seal(IDS[1], header(), PAYLOAD).to_bytes()]


def _other_envelopes() -> list[bytes]:
    changed = (header(round=2), header("ranges"), header(run_id=7), header(receiver=IDS[0].public))
    return [Envelope.seal(IDS[1], each, PAYLOAD).to_bytes() for each in changed]


def _detached(data: bytes) -> None:
    envelopes.open_detached(data, DIGEST, EXPECT, senders=MEMBERS)


# --- the agreement of an epoch ---

ADVERTISED = [data for data in exchange().hellos if data != exchange().hellos[1]]
OTHER = exchange(1)


def _share(data: bytes) -> None:
    epoch.share(exchange().advertised[0], exchange().hellos_with(data), source("share"))


def _shares_with(at: int, data: bytes) -> list[bytes]:
    shares = exchange().shares
    return [*shares[:at], data, *shares[at + 1 :]]


def _between(sender: int, receiver: int, made: list[bytes] | None = None) -> int:
    """Where the SHARE between two ranks is."""
    found = [Envelope.from_bytes(share, 1024).header for share in made or exchange().shares]
    wanted = (IDS[sender].public, IDS[receiver].public)
    return [(each.sender, each.receiver) for each in found].index(wanted)


TO_ME, PAST_ME = _between(1, 0), _between(1, 2)


def _confirm(data: bytes) -> None:
    epoch.confirm(exchange().shared[0], _shares_with(TO_ME, data))


def _confirm_of_others(data: bytes) -> None:
    """What two others say to each other: unreadable here, but all must have seen the same."""
    state, own = epoch.confirm(exchange().shared[0], _shares_with(PAST_ME, data))
    epoch.finish(state, [own, *exchange().confirms[1:]])


def _finish(data: bytes) -> None:
    epoch.finish(exchange().confirmed[0], exchange().confirms_with(data))


def payload_of(message: bytes, limit: int = 1 << 20) -> bytes:
    return Envelope.from_bytes(message, limit).payload


def _resigned(message: bytes, payload: bytes, rank: int = 1, limit: int = 1 << 20) -> bytes:
    """The same message with another payload, by a member who lies."""
    return Envelope.seal(IDS[rank], Envelope.from_bytes(message, limit).header, payload).to_bytes()


def _liar_confirms(payload: bytes) -> None:
    epoch.finish(
        exchange().confirmed[0],
        exchange().confirms_with(_resigned(exchange().confirms[1], payload)),
    )


def _liar_shares(contribution: bytes) -> None:
    e = exchange()
    head = Envelope.from_bytes(e.shares[TO_ME], 1024).header
    box = pairs.seal_to(e.shared[1].pair_keys[0], head, contribution, source("box"))
    message = Envelope.seal(IDS[1], head, box).to_bytes()
    epoch.confirm(e.shared[0], _shares_with(TO_ME, message))


# --- key pairs and sums of keys ---

PAILLIER = Paillier(SIZE, 16, 2048)
CKKS = Ckks(SIZE, 16, "2048")
ESHE = Eshe(SIZE)


@functools.cache
def pair(number: int = 0, scheme: Any = PAILLIER) -> tuple[epoch.Confirmed, bytes]:
    e = exchange(number)
    label = f"pair {number} {scheme.name}"
    return key_pair.make(e.confirmed[0], e.confirms, scheme, TERMS, source(label))


def _take(data: bytes, scheme: Any = PAILLIER) -> None:
    key_pair.take(exchange().confirmed[1], exchange().confirms, data, scheme, TERMS)


def _announced(data: bytes) -> None:
    key_pair.announced(data, IDS[0].public, RUN, 0, exchange().epochs[0].id, TERMS)


def _leader_lies(secret: bytes, scheme: Any = PAILLIER) -> None:
    """The leader seals what is no secret key, or not that of the public one."""
    state, message = pair(0, scheme)
    agreed = exchange().epochs[0]
    box = seal.seal(
        agreed.group_key, key_pair._box_header(agreed, state.scheme_public), secret, source("lie")
    )
    _take(_resigned(message, canonical.dumps([state.scheme_public, box]), 0), scheme)


@functools.cache
def joints(number: int = 0) -> tuple[list[epoch.Confirmed], list[bytes]]:
    e, draw = exchange(number), source(f"joint {number}")
    made = [joint.share(state, e.confirms, ESHE, TERMS, draw) for state in e.confirmed]
    return [state for state, _ in made], [message for _, message in made]


def _add(data: bytes) -> None:
    states, messages = joints()
    joint.add(states[0], exchange().confirms, [messages[0], data, *messages[2:]], ESHE, TERMS)


def _liar_adds(lanes: bytes) -> None:
    agreed = exchange().epochs[1]
    box = seal.seal(agreed.group_key, box_header(agreed, "joint", 1), lanes, source("joint lie"))
    _add(_resigned(joints()[1][1], box))


def _joint_lanes() -> list[bytes]:
    group_key = exchange().epochs[0].group_key
    return [seal.unseal(group_key, payload_of(joints()[1][1]))[1]]


@functools.cache
def _joint_sum(number: int = 0) -> bytes:
    states, messages = joints(number)
    return joint.add(states[1], exchange(number).confirms, messages, ESHE, TERMS)[1]


def _sum_announced(data: bytes) -> None:
    joint.announced(data, IDS[1].public, RUN, 0, exchange().epochs[0].id, TERMS)


# --- sealed boxes ---

BOX_HEADER = {
    "run_id": RUN,
    "roster_hash": ROSTER.hash,
    "stage": "checkpoint",
    "round": 3,
    "attempt": 0,
    "rank": 1,
    "epoch": bytes(16),
}
KEY = bytes(range(32))


def _box(plaintext: bytes, round_: int = 3) -> bytes:
    fields = BOX_HEADER | {"round": round_}
    return seal.seal(KEY, fields, plaintext, source(f"box {round_}"), chunk_bytes=16)


def _unseal(data: bytes) -> None:
    _, chunks = seal.unseal_stream(KEY, [data[:50], data[50:]], BOX_HEADER)
    b"".join(chunks)


def _one(data: bytes) -> list[bytes]:
    return [data]


def entries() -> Sequence[Decoder]:
    """All of them."""
    e = exchange()
    keys = "flhe.keys."
    return (
        Decoder("envelope, verified", _sealed_envelopes, _envelope, NEVER, _other_envelopes),
        Decoder(
            "envelope, detached",
            lambda: [envelopes.sign_detached(IDS[1], header(), DIGEST)],
            _detached,
            NEVER,
            lambda: [
                envelopes.sign_detached(IDS[1], header(round=2), DIGEST),
                envelopes.sign_detached(IDS[1], header(), bytes(32)),
            ],
            covers=(keys + "agreement.messages.open_detached",),
        ),
        Decoder(
            "ADVERTISE",
            lambda: [e.hellos[1]],
            _share,
            NEVER,
            lambda: [*e.hellos[2:], OTHER.hellos[1]],
        ),
        Decoder(
            "SHARE to me",
            lambda: [e.shares[TO_ME]],
            _confirm,
            NEVER,
            lambda: [e.shares[PAST_ME], OTHER.shares[TO_ME]],
        ),
        Decoder(
            "SHARE past me",
            lambda: [e.shares[PAST_ME]],
            _confirm_of_others,
            NEVER,
            lambda: [e.shares[TO_ME], OTHER.shares[PAST_ME]],
        ),
        Decoder(
            "CONFIRM",
            lambda: [e.confirms[1]],
            _finish,
            NEVER,
            lambda: [*e.confirms[2:], OTHER.confirms[1]],
        ),
        Decoder("CONFIRM by a liar", lambda: [payload_of(e.confirms[1])], _liar_confirms, NEVER),
        Decoder("SHARE by a liar", lambda: [e.shared[1].contribution], _liar_shares, ANY),
        Decoder(
            "KEY-PAIR of Paillier",
            lambda: [pair()[1]],
            _take,
            NEVER,
            lambda: [pair(1)[1]],
        ),
        Decoder(
            "KEY-PAIR of CKKS",
            lambda: [pair(0, CKKS)[1]],
            functools.partial(_take, scheme=CKKS),
            NEVER,
            room=16 << 20,
        ),
        Decoder(
            "KEY-PAIR at the relay", lambda: [pair()[1]], _announced, NEVER, lambda: [pair(1)[1]]
        ),
        Decoder(
            "KEY-PAIR of Paillier by a liar", lambda: [pair()[0].scheme_secret], _leader_lies, NEVER
        ),
        Decoder(
            "KEY-PAIR of CKKS by a liar",
            lambda: [pair(0, CKKS)[0].scheme_secret],
            functools.partial(_leader_lies, scheme=CKKS),
            NEVER,
            lambda: [CkksSecret.generate("2048", source("another key")).to_bytes()],
            room=16 << 20,
        ),
        Decoder("JOINT", lambda: [joints()[1][1]], _add, NEVER, lambda: [joints(1)[1][1]]),
        Decoder("JOINT by a liar", _joint_lanes, _liar_adds, ANY),
        Decoder(
            "JOINT-SUM at the relay",
            lambda: [_joint_sum()],
            _sum_announced,
            NEVER,
            lambda: [_joint_sum(1)],
        ),
        Decoder(
            "sealed box",
            lambda: [_box(bytes(40))],
            _unseal,
            NEVER,
            lambda: [_box(bytes(40), 4)],
            head=len(seal.MAGIC),
        ),
        Decoder("sealed box, unread", lambda: [_box(b"x")], seal.peek, ANY, head=len(seal.MAGIC)),
    )
