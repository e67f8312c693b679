"""Messages of masking keys, for sums that a server or the members read: a mutant is never taken.

As in `tests/fuzz/signed.py`, a member who lies signs and seals what it likes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from flhe.keys.agreement import answers, masking, shares
from flhe.keys.agreement.circle import UNMASK, Circle, about
from flhe.keys.agreement.messages import Envelope
from tests.fuzz.decoders import ANY, NEVER, Decoder
from tests.fuzz.group import IDS, SIZE, exchange, slot, source

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
    _agree(shares.seal_share(key, slot().digest(), 1, 0, share, source("kshare")))


def _share_inside() -> list[bytes]:
    return [
        shares.open_share(exchange().epochs[0].pair_keys[1], slot().digest(), 1, 0, _boxes(0)[1])
    ]


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
    answers.check_answer(_circle(), slot(), ALL, data, sealed=False)


def _combine(data: bytes) -> None:
    said = [answer(0, True), data, *(answer(rank, True) for rank in ALL[2:])]
    answers.combine(_circle(), slot(), ALL, said, epoch=exchange().epochs[0])


def _liar_answers(share: bytes) -> None:
    head = _circle().header(slot(), UNMASK, 1, about(ALL))
    lie = answers.answer_of(1, Envelope.seal(IDS[1], head, share))
    answers.combine(_circle(), slot(), ALL, [lie, *(answer(r, False) for r in ALL if r != 1)])


def entries() -> Sequence[Decoder]:
    """All of them."""
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
    )
