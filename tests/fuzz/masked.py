"""Messages of masking keys, for sums that a server or the members read: a mutant is never taken.

As in `tests/fuzz/signed.py`, a member who lies signs and seals what it likes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from flhe.keys.agreement import masking
from flhe.keys.agreement.answers import answer_of, check_answer, combine
from flhe.keys.agreement.circle import UNMASK
from flhe.keys.agreement.masking import SharingParameters
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.shares import open_share, seal_share
from tests.fuzz.decoders import ANY, NEVER, Decoder
from tests.fuzz.group import IDS, SIZE, exchange, replaced, slot, source

ELEMENTS = 8
ALL = tuple(range(SIZE))
EPOCHS = exchange().epochs


@functools.cache
def dealt(rank: int, attempt: int = 0) -> masking.Dealt:
    seed = np.arange(ELEMENTS, dtype=np.uint64) + np.uint64(rank)
    return masking.deal(EPOCHS[rank], slot(attempt), seed, source(f"deal {rank}"))


def _boxes(at: int) -> list[bytes]:
    return [dealt(rank).boxes[at] for rank in ALL]


def _agree(data: bytes) -> None:
    boxes = [b"", data, *_boxes(0)[2:]]
    masking.agree(EPOCHS[0], IDS[0], dealt(0), ALL, boxes, ELEMENTS)


def _liar_deals(share: bytes) -> None:
    key = EPOCHS[1].pair_keys[0]
    _agree(seal_share(key, slot().digest(), 1, 0, share, source("kshare")))


@functools.cache
def agreed(rank: int) -> tuple[masking.Agreed, bytes]:
    return masking.agree(EPOCHS[rank], IDS[rank], dealt(rank), ALL, _boxes(rank), ELEMENTS)


def _circle() -> SharingParameters:
    return SharingParameters.of(EPOCHS[0], ELEMENTS)


def _signatures() -> list[bytes]:
    return [agreed(rank)[1] for rank in ALL]


def _consist(data: bytes) -> None:
    signatures = [data, *_signatures()[1:]]
    masking.check_agreement(_circle(), slot(), ALL, ALL, signatures)


@functools.cache
def answer(rank: int, sealed: bool) -> bytes:
    told = EPOCHS[rank], IDS[rank], agreed(rank)[0], ALL, _signatures(), ELEMENTS
    return masking.release(*told, sealed=sealed, random=source(f"answer {rank}"))


def answers(sealed: bool) -> list[bytes]:
    return [answer(rank, sealed) for rank in ALL]


def _check_answer(data: bytes) -> None:
    check_answer(_circle(), slot(), ALL, data, sealed=False)


def _combine(data: bytes) -> None:
    told = replaced(answers(True), answer(1, True), data)
    combine(_circle(), slot(), ALL, told, epoch=EPOCHS[0])


def _liar_answers(share: bytes) -> None:
    head = _circle().header(slot(), UNMASK, 1, _circle().about(ALL))
    lie = answer_of(1, Envelope.seal(IDS[1], head, share))
    combine(_circle(), slot(), ALL, replaced(answers(False), answer(1, False), lie))


def entries() -> Sequence[Decoder]:
    """All of them."""
    clear, hidden, signed = answers(False), answers(True), _signatures()
    box, other = _boxes(0)[1], dealt(1, 1).boxes[0]
    inside = open_share(EPOCHS[0].pair_keys[1], slot().digest(), 1, 0, box)
    held = bytes(agreed(1)[0].share)
    return (
        Decoder("KSHARE", [box], _agree, NEVER, [other]),
        Decoder("KSHARE by a liar", [inside], _liar_deals, ANY),
        Decoder("signature on survivors", signed[:1], _consist, NEVER, signed[1:]),
        Decoder("answer to UNMASK", [clear[1]], _check_answer, NEVER, [hidden[1]]),
        Decoder("answer to UNMASK, sealed", [hidden[1]], _combine, NEVER, [clear[1], hidden[2]]),
        Decoder("answer to UNMASK by a liar", [held], _liar_answers, ANY),
    )
