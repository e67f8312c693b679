"""Messages that are signed, sealed or pinned: a mutant is never taken.

Beside the ones of a stranger stand those of a member who lies (`... by a liar`), where what it signs
and seals has a form of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from flhe.errors import ProtocolError
from flhe.keys import seal
from flhe.keys.agreement import broadcast, epoch, joint, key_pair, pairs, shared_key
from flhe.keys.agreement.messages import Envelope
from flhe.keys.seal import ModelKey
from flhe.node import backup
from flhe.node.backup import Backup
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.fedml_he.scheme import FedmlHe
from flhe.schemes.seal_keys import SealSecret
from flhe.training.session import Session
from flhe.training.terms import Terms
from flhe.training.vouching import Holding
from flhe.wire import canonical
from flhe_lab.variants.threshold.scheme import ThresholdCkks
from tests.fuzz.decoders import ANY, NEVER, Decoder
from tests.fuzz.group import IDS, KEY, RUN, SIZE, exchange, replaced, source
from tests.fuzz.stored import models
from tests.keys.agreement import CONTRACT, opened, resigned

E, OTHER = exchange(), exchange(1)
SCOPE = RUN, 0, E.epochs[0].id, CONTRACT

# --- the agreement of an epoch ---

TO_ME = E.share(1, 0)


def _share(data: bytes) -> None:
    epoch.share(IDS[0], E.advertised[0], replaced(E.hellos, E.hellos[1], data), source("share"))


def _confirm(data: bytes) -> None:
    epoch.confirm(IDS[0], E.shared[0], replaced(E.shares, TO_ME, data))


def _finish(data: bytes) -> None:
    epoch.finish(E.confirmed[0], replaced(E.confirms, E.confirms[1], data))


# --- key pairs and sums of keys ---

PAILLIER = BatchCrypt(key_bits=2048).adder(SIZE, 16)
CKKS = FedmlHe(ring="2048").adder(SIZE, 16)
ESAFL = Esafl(keys="joint").adder(SIZE)
THRESHOLD: Any = ThresholdCkks().adder(SIZE)


@functools.cache
def pair(number: int = 0, adder: Any = PAILLIER) -> tuple[epoch.Epoch, bytes]:
    draw = source(f"pair {number} {adder.name}")
    return key_pair.make(IDS[0], exchange(number).epochs[0], adder, draw)


def _take(data: bytes, adder: Any = PAILLIER) -> None:
    key_pair.take(E.epochs[1], data, adder)


def _leader_lies(secret: bytes, adder: Any = PAILLIER) -> None:
    """The leader seals what is no secret key, or not that of the public one."""
    agreed, message = pair(0, adder)
    head = opened(message).header
    box = pairs.seal_to(agreed.group_key, head, secret, source("lie"))
    _take(resigned(IDS[0], message, canonical.dumps([agreed.scheme_public, box])), adder)


@functools.cache
def joints(number: int = 0) -> tuple[list[epoch.Epoch], list[bytes]]:
    epochs, draw = exchange(number).epochs, source(f"joint {number}")
    made = [joint.share(IDS[agreed.rank], agreed, ESAFL, draw) for agreed in epochs]
    return [state for state, _ in made], [message for _, message in made]


def _add(data: bytes) -> None:
    states, messages = joints()
    joint.add(IDS[0], states[0], replaced(messages, messages[1], data), ESAFL)


def joint_sum(number: int) -> bytes:
    states, messages = joints(number)
    return joint.add(IDS[1], states[1], messages, ESAFL)[1]


@functools.cache
def commits(number: int = 0) -> tuple[list[epoch.Epoch], list[bytes]]:
    epochs, draw = exchange(number).epochs, source(f"shared {number}")
    made = [shared_key.commit(IDS[agreed.rank], agreed, THRESHOLD, draw) for agreed in epochs]
    return [state for state, _ in made], [message for _, message in made]


@functools.cache
def revealed(number: int = 0) -> tuple[list[epoch.Epoch], list[list[bytes]]]:
    """Every epoch, and what each member has for the others."""
    states, told = commits(number)
    draw = source(f"revealed {number}")
    made = [shared_key.reveal(IDS[s.rank], s, told, THRESHOLD, draw) for s in states]
    return [state for state, _ in made], [messages for _, messages in made]


def reveals(number: int = 0) -> tuple[list[epoch.Epoch], list[bytes]]:
    """Every epoch, and what is for rank 0."""
    states, sent = revealed(number)
    return states, [messages[0] for messages in sent[1:]]


def _reveal(data: bytes) -> None:
    states, told = commits()
    shared_key.reveal(IDS[0], states[0], replaced(told, told[1], data), THRESHOLD)


def _finish_shared(data: bytes) -> None:
    states, told = reveals()
    shared_key.finish(IDS[0], states[0], replaced(told, told[0], data), THRESHOLD)


def _liar_reveals(box: bytes) -> None:
    head = opened(reveals()[1][0]).header
    payload = pairs.seal_to(E.confirmed[1].pair_keys[0], head, box, source("shared lie"))
    _finish_shared(Envelope.seal(IDS[1], head, payload).to_bytes())


def _shown() -> list[bytes]:
    part = shared_key._Part.from_bytes(reveals()[0][1].scheme_secret)
    return [THRESHOLD.reveal(part.part, part.commitments)[0]]


def shared_name(number: int) -> bytes:
    states, told = reveals(number)
    return shared_key.finish(IDS[0], states[0], told, THRESHOLD)[1]


def _shared_announced(data: bytes) -> None:
    broadcast.announced(data, shared_key.SHARED, IDS[0].public, SCOPE)


# --- sealed boxes ---


def _box(plaintext: bytes, round_: int = 3) -> bytes:
    draw = source(f"box {round_}")
    return b"".join(seal.seal(KEY, round_, 1, plaintext, draw, chunk_bytes=16))


def _unseal(data: bytes) -> None:
    head, chunks = seal.unseal(KEY, [data[:50], data[50:]])
    b"".join(chunks)
    if head.round != 3:
        raise ProtocolError("of another round")


# --- what members sign of their models, and what a site keeps of its own ---

PASSPHRASE = "correct horse battery staple"
CHEAP = mock.patch.object(backup, "COST", 1 << 4)
"""A guess takes half a second otherwise, and 128 MiB."""


def _holding(round_: int = 3) -> Holding:
    model = replace(models()[0], round=round_)
    return Session(E.epochs[0], Terms(), model.layout).holding(model, bytes(32))


def _vouch(data: bytes) -> None:
    _holding().check(data, [IDS[1].public])


def _backup() -> list[bytes]:
    with CHEAP:
        kept = Backup(IDS[0].seed, (ModelKey.of(E.epochs[0]),))
        return [kept.seal(PASSPHRASE, source("backup"))]


def _restore(data: bytes) -> Backup:
    with CHEAP:
        return Backup.unseal(data, PASSPHRASE)


def entries() -> Sequence[Decoder]:
    """All of them."""
    rest, room = [*E.hellos[2:], OTHER.hellos[1]], 16 << 20
    magic = len(seal.MAGIC)
    vouchers = [_holding().sign(IDS[rank]) for rank in range(4)]

    def another_key() -> list[bytes]:
        return [SealSecret.generate("2048", source("another key")).to_bytes()]

    def of_two(name: str, made: Callable[[int], bytes], decode: Any, room: int = 0) -> Decoder:
        """One whose message of another agreement is refused, too."""
        return Decoder(name, lambda: [made(0)], decode, NEVER, lambda: [made(1)], room=room)

    def by_a_liar(name: str, adder: Any, *more: Any) -> Decoder:
        """A pair with another secret key."""
        lies, own = functools.partial(_leader_lies, adder=adder), [pair(0, adder)[0].scheme_secret]
        return Decoder(f"KEY-PAIR of {name} by a liar", own, lies, NEVER, *more, room=room)

    return (
        Decoder("ADVERTISE", [E.hellos[1]], _share, NEVER, rest),
        Decoder("SHARE", [TO_ME], _confirm, NEVER, [E.share(1, 2), OTHER.share(1, 0)]),
        Decoder("CONFIRM", [E.confirms[1]], _finish, NEVER, [*E.confirms[2:], OTHER.confirms[1]]),
        Decoder(
            "CONFIRM by a liar",
            [opened(E.confirms[1]).payload],
            lambda payload: _finish(resigned(IDS[1], E.confirms[1], payload)),
            NEVER,
        ),
        of_two("KEY-PAIR", lambda n: pair(n)[1], _take),
        by_a_liar("Paillier", PAILLIER),
        by_a_liar("CKKS", CKKS, another_key),
        of_two("JOINT", lambda n: joints(n)[1][1], _add),
        of_two("KEY-COMMIT", lambda n: commits(n)[1][1], _reveal),
        of_two("KEY-REVEAL", lambda n: reveals(n)[1][0], _finish_shared, room),
        Decoder("KEY-REVEAL by a liar", _shown, _liar_reveals, ANY, room=room),
        of_two("KEY-SHARED at the relay", shared_name, _shared_announced),
        Decoder("sealed box", [_box(bytes(40))], _unseal, NEVER, [_box(bytes(40), 4)], magic),
        Decoder("sealed box, unread", [_box(b"x")], seal.peek, ANY, head=magic),
        Decoder("voucher", [vouchers[1]], _vouch, NEVER, [vouchers[2], _holding(4).sign(IDS[1])]),
        Decoder("backup", _backup, _restore, NEVER),
    )
