"""Messages of masking keys, for sums that a server or the members read: a mutant is never taken.

As in `tests/fuzz/signed.py`, a member who lies signs and seals what it likes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from flhe.keys import masking, pairwise, pairwise_server
from flhe.keys.masking import Circle
from flhe.keys.messages import Envelope
from flhe.keys.pairwise_messages import read_key
from tests.fuzz.decoders import ANY, NEVER, Decoder
from tests.fuzz.group import IDS, SIZE, exchange, slot, source
from tests.fuzz.signed import payload_of
from tests.keys.masking import group, plan_for, vectors_for
from tests.keys.masking import run as masked_run

# --- masking keys ---

ELEMENTS = 8
ALL = tuple(range(SIZE))


@functools.cache
def dealt(rank: int, attempt: int = 0) -> masking.Dealt:
    seed = np.arange(ELEMENTS, dtype=np.uint64) + np.uint64(rank)
    return masking.deal(exchange().epochs[rank], slot(attempt), seed, source(f"deal {rank}"))


def _boxes(at: int) -> list[bytes]:
    return [dealt(rank).boxes[at] for rank in ALL]


def _agree(data: bytes) -> None:
    boxes = [b"", data, *_boxes(0)[2:]]
    masking.agree(exchange().epochs[0], IDS[0], dealt(0), ALL, boxes, ELEMENTS)


def _liar_deals(share: bytes) -> None:
    key = exchange().epochs[1].pair_keys[0]
    _agree(masking.seal_share(key, slot().digest(), 1, 0, share, source("kshare")))


def _share_inside() -> list[bytes]:
    return [masking._open(exchange().epochs[0].pair_keys[1], slot().digest(), 1, 0, _boxes(0)[1])]


@functools.cache
def agreed(rank: int) -> tuple[masking.Agreed, bytes]:
    e = exchange().epochs[rank]
    return masking.agree(e, IDS[rank], dealt(rank), ALL, _boxes(rank), ELEMENTS)


def _circle() -> Circle:
    return Circle.of(exchange().epochs[0], ELEMENTS)


def _signatures() -> list[bytes]:
    return [agreed(rank)[1] for rank in ALL]


def _consist(data: bytes) -> None:
    signatures = [data, *_signatures()[1:]]
    masking.check_agreement(_circle(), slot(), ALL, ALL, signatures)


@functools.cache
def answer(rank: int, sealed: bool) -> bytes:
    epoch_, mine = exchange().epochs[rank], agreed(rank)[0]
    how: dict[str, Any] = {"sealed": sealed, "random": source(f"answer {rank}")}
    return masking.release(epoch_, IDS[rank], mine, ALL, _signatures(), ELEMENTS, **how)


def _check_answer(data: bytes) -> None:
    masking.check_answer(_circle(), slot(), ALL, data, sealed=False)


def _combine(data: bytes) -> None:
    answers = [answer(0, True), data, *(answer(rank, True) for rank in ALL[2:])]
    masking.combine(_circle(), slot(), ALL, answers, epoch=exchange().epochs[0])


def _liar_answers(share: bytes) -> None:
    head = _circle().header(slot(), masking.UNMASK, 1, masking.about(ALL))
    lie = masking.answer_of(1, Envelope.seal(IDS[1], head, share))
    masking.combine(_circle(), slot(), ALL, [lie, *(answer(r, False) for r in ALL if r != 1)])


# --- masks among neighbours ---

PLAN = plan_for(SIZE, collusion=1)
PAIR_IDS, PAIR_EPOCHS = group(SIZE, 1)


@functools.cache
def pairwise_run(until: str = "sum", attempt: int = 1) -> Any:
    plan = plan_for(SIZE, collusion=1, attempt=attempt)
    return masked_run(plan, vectors_for(plan), collusion=1, until=until)


def _mask(data: bytes) -> None:
    done = pairwise_run("share")
    boxes = {rank: done.boxes[rank][0] for rank in (1, 2, 3)}
    pairwise.mask(done.states[0], {**boxes, 1: data}, vectors_for(PLAN)[0])


def _pairwise_share(data: bytes) -> None:
    state, _ = _begun()
    keys = pairwise_run().keys
    pairwise.share(state, [data, keys[2], keys[3]], source("pairwise"))


@functools.cache
def _begun() -> tuple[pairwise.Advertised, bytes]:
    return pairwise.advertise(PAIR_IDS[0], PAIR_EPOCHS[0], PLAN, source("begun"))


def _statements(done: Any) -> list[bytes]:
    return [done.states[rank].message for rank in range(SIZE)]


def _set(data: bytes) -> None:
    done = pairwise_run("mask")
    said = _statements(done)
    pairwise.consist(done.states[0], ALL, [data, *said[2:]])


@functools.cache
def _signed_sets() -> tuple[pairwise.Signed, list[bytes]]:
    done = pairwise_run("mask")
    made = [pairwise.consist(done.states[rank], ALL, _statements(done)) for rank in ALL]
    return made[0][0], [message for _, message in made]


def _unmask(data: bytes) -> None:
    state, said = _signed_sets()
    pairwise.unmask(state, [data, *said[2:]])


def _read_answer(data: bytes) -> None:
    pairwise_server.read_answer(PLAN, ALL, data)


def _liar_opens(payload: bytes) -> None:
    """A member signs another answer: it is read, and proved wrong when secrets are rebuilt."""
    head = Envelope.from_bytes(pairwise_run().answers[1], 1 << 16).header
    pairwise_server.read_answer(PLAN, ALL, Envelope.seal(PAIR_IDS[1], head, payload).to_bytes())


def entries() -> Sequence[Decoder]:
    """All of them."""
    keys = "flhe.keys."
    return (
        Decoder("KSHARE", lambda: [_boxes(0)[1]], _agree, NEVER, lambda: [dealt(1, 1).boxes[0]]),
        Decoder("KSHARE by a liar", _share_inside, _liar_deals, ANY),
        Decoder(
            "signature on survivors",
            lambda: _signatures()[:1],
            _consist,
            NEVER,
            lambda: _signatures()[1:],
        ),
        Decoder(
            "answer to UNMASK",
            lambda: [answer(1, False)],
            _check_answer,
            NEVER,
            lambda: [answer(1, True)],
        ),
        Decoder(
            "answer to UNMASK, sealed",
            lambda: [answer(1, True)],
            _combine,
            NEVER,
            lambda: [answer(1, False), answer(2, True)],
        ),
        Decoder(
            "answer to UNMASK by a liar", lambda: [bytes(agreed(1)[0].share)], _liar_answers, ANY
        ),
        Decoder(
            "mask-key",
            lambda: [pairwise_run().keys[1]],
            lambda data: read_key(PLAN, data),
            NEVER,
            lambda: [pairwise_run(attempt=2).keys[1]],
            covers=(keys + "pairwise_messages.read_key",),
        ),
        Decoder(
            "mask-key to a neighbour",
            lambda: [pairwise_run().keys[1]],
            _pairwise_share,
            NEVER,
            lambda: [pairwise_run().keys[2], pairwise_run(attempt=2).keys[1]],
        ),
        Decoder(
            "mask-share",
            lambda: [pairwise_run("share").boxes[1][0]],
            _mask,
            NEVER,
            lambda: [pairwise_run("share").boxes[2][0]],
        ),
        Decoder(
            "mask-with",
            lambda: [pairwise_run("mask").states[1].message],
            _set,
            NEVER,
            lambda: [pairwise_run("mask").states[2].message],
        ),
        Decoder(
            "mask-set",
            lambda: [_signed_sets()[1][1]],
            _unmask,
            NEVER,
            lambda: _signed_sets()[1][2:],
        ),
        Decoder(
            "mask-open",
            lambda: [pairwise_run().answers[1]],
            _read_answer,
            NEVER,
            lambda: [pairwise_run(attempt=2).answers[1]],
            covers=(keys + "pairwise_server.read_answer",),
        ),
        Decoder(
            "mask-open by a liar",
            lambda: [payload_of(pairwise_run().answers[1])],
            _liar_opens,
            ANY,
        ),
    )
