"""Each scheme of the library beside its second implementation: one round, and everybody's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.scheme import Paillier, PaillierOpener, PaillierSealer
from flhe.schemes.esafl.keys import EsheKey
from flhe.schemes.esafl.scheme import Eshe, EsheOpener, EsheSealer
from flhe.schemes.fedml_he.keys import CkksSecret
from flhe.schemes.fedml_he.ring import Ckks, CkksOpener, CkksSealer
from flhe.schemes.flashe.scheme import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.sash.scheme import Sash, SashOpener, SashSealer
from tests.reference import batchcrypt, esafl, fedml_he
from tests.reference.batchcrypt import BatchCryptBook
from tests.reference.esafl import EsaflBook
from tests.reference.fedml_he import FedmlHeBook
from tests.reference.field import Q
from tests.reference.flashe import FlasheBook
from tests.reference.mixing import Both
from tests.reference.sash import SashBook
from tests.reference.wire import Tape, columns


def flashe(book: FlasheBook) -> Both:
    scheme = Flashe(book.cohort, book.bits, book.masking)  # type: ignore[arg-type]
    return Both(
        scheme,
        lambda rank: FlasheSealer(scheme, book.key, rank),
        lambda _: FlasheOpener(scheme, book.key),
        book,
        book.mode,
        book.floats if book.sparse else 0,
        any_set=not book.sparse,
        slot=book.slot,
    )


def sash(book: SashBook) -> Both:
    scheme = Sash(book.cohort, book.bits, book.preset)
    made: dict[int, SashSealer] = {}

    def sealer(rank: int) -> SashSealer:
        made[rank] = SashSealer(scheme, rank, random=Tape(book.tapes[rank]))
        return made[rank]

    def opener(ranks: Any) -> SashOpener:
        seed = columns([book.seed(rank) for rank in ranks], Q)
        return SashOpener(scheme, np.array(seed, np.uint64))

    return Both(scheme, sealer, opener, book, slot=book.slot, sealers=made)


def batchcrypt_(book: BatchCryptBook) -> Both:
    key = SecretKey(batchcrypt.pair().p, batchcrypt.pair().q)
    group_key = batchcrypt.GROUP_KEY
    scheme = Paillier(book.cohort, book.bits, 2048, key.public)
    return Both(
        scheme,
        lambda rank: PaillierSealer(scheme, key, group_key, rank, random=Tape(book.tapes[rank])),
        lambda _: PaillierOpener(scheme, key, group_key),
        book,
        slot=book.slot,
    )


def fedml_he_(book: FedmlHeBook) -> Both:
    scheme = Ckks(book.cohort, book.bits, str(book.n))
    key = CkksSecret(scheme.ring, np.array(book.key, np.int8))
    return Both(
        scheme,
        lambda rank: CkksSealer(scheme, key, fedml_he.GROUP_KEY, rank),
        lambda _: CkksOpener(scheme, key, fedml_he.GROUP_KEY),
        book,
        exact=False,
        slot=book.slot,
    )


def fedml_he_book(
    cohort: int, bits: int, ring: str, key: tuple[int, ...], slot: Mapping[str, Any] | None = None
) -> FedmlHeBook:
    """With the sizes that the library has found."""
    sizes = Ckks(cohort, bits, ring).sizes
    book = FedmlHeBook(cohort, bits, sizes.n, sizes.bits, sizes.per, sizes.scale_bits, key, slot)
    assert (book.q, book.width, book.block) == (sizes.q, sizes.width, sizes.block)
    return book


def esafl_(book: EsaflBook) -> Both:
    scheme = Eshe(book.cohort, book.bits, book.ring, book.keys)  # type: ignore[arg-type]
    made: dict[int, EsheSealer] = {}
    fresh = book.keys == "round"

    def total(ranks: Any) -> Any:
        return np.array(esafl.key_of(ranks, book.n), np.int32)

    def sealer(rank: int) -> EsheSealer:
        own, seed = np.array(esafl.own(rank, book.n), np.int8), esafl.noise_seed(rank)
        key = None if fresh else EsheKey(own, total(range(book.cohort)))
        random = Tape(esafl.key_seed(rank) + seed if fresh else seed)
        made[rank] = EsheSealer(scheme, book.group_key, rank, key, random=random)
        return made[rank]

    def opener(ranks: Any) -> EsheOpener:
        return EsheOpener(scheme, book.group_key, total(ranks), threads=2)

    return Both(scheme, sealer, opener, book, any_set=fresh, slot=book.slot, sealers=made)
