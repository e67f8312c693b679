"""Messages of masking keys, for sums that a server or the members read: a mutant is never taken."""

from __future__ import annotations

from collections.abc import Sequence

from flhe.errors import ProtocolError
from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import check_answer
from flhe.keys.agreement.voids import Promise, Void, promise
from tests.fuzz.decoders import NEVER, Decoder
from tests.fuzz.group import replaced, source
from tests.keys.masking import play

ALL = (0, 1, 2, 3)
TOLD = play(4, 1, elements=8, random=lambda rank: source(f"deal {rank}"))
OTHER = play(4, 1, agreeing=(), elements=8, round_=4, random=lambda rank: source(f"deal {rank}"))
SIGNED = [TOLD.signatures[rank] for rank in ALL]
CLEAR = TOLD.releases(ALL)
HIDDEN = TOLD.releases(ALL, sealed=True, random=source("answers"))
SCOPE = TOLD.circle, TOLD.slot, ALL
PROMISES = {
    rank: promise(TOLD.identities[rank], TOLD.slot, TOLD.circle.number, signed=rank > 1)
    for rank in ALL[:3]
}
VOID = Void.of(TOLD.circle, TOLD.slot).with_promises(PROMISES)


def _agree(data: bytes) -> None:
    TOLD.agree(0, ALL, TOLD.inbox(0, {1: data}))


def _consist(data: bytes) -> None:
    masking.check_agreement(*SCOPE, ALL, [data, *SIGNED[1:]])


def _check_answer(data: bytes) -> None:
    check_answer(*SCOPE, data, sealed=False)


def _promise(data: bytes) -> None:
    VOID.check_promise(0, Promise.from_bytes(data))


def _void(data: bytes) -> None:
    found = Void.from_bytes(data)
    found.check()
    if found.scope != VOID.scope:
        raise ProtocolError("of another set")


def _combine(data: bytes) -> None:
    TOLD.combine(replaced(HIDDEN, HIDDEN[1], data), TOLD.epochs[0])


def entries() -> Sequence[Decoder]:
    """All of them."""
    box, other = TOLD.dealt[1].boxes[0], OTHER.dealt[1].boxes[0]
    return (
        Decoder("KSHARE", [box], _agree, NEVER, [other]),
        Decoder("signature on survivors", SIGNED[:1], _consist, NEVER, SIGNED[1:]),
        Decoder("answer to UNMASK", [CLEAR[1]], _check_answer, NEVER, [HIDDEN[1]]),
        Decoder("answer to UNMASK, sealed", [HIDDEN[1]], _combine, NEVER, [CLEAR[1], HIDDEN[2]]),
        Decoder("promise", [PROMISES[0].to_bytes()], _promise, NEVER, [PROMISES[1].to_bytes()]),
        Decoder("void", [VOID.to_bytes()], _void, NEVER),
    )
