"""Updates that travel without encryption: as each scheme would pack them under masks of zero.

A wire that carries quantized integers shows no float32. So the integers are looked for too, rounded to
nearest, as they lie before they are encrypted, and as FLASHE packs them. Clients round at random, so of
their integers about three in four are the nearest ones: of the windows of 8 bytes, which hold up to
five lanes, a quarter or more still match, thousands in a vector.

Of all other ciphertexts the scheme itself tells: what opens under a key of zeros, within the noise that
it allows, was encrypted under nothing (`open_without_keys`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import COUNT, WEIGHT, Plain
from flhe.coding.chain import Chain
from flhe.coding.flatten import Layout
from flhe.coding.pack import Packing
from flhe.coding.quantize import Quantize
from flhe.errors import FlheError
from flhe.math.bigint import gmpy
from flhe.schemes.base import Adder
from flhe.schemes.batchcrypt.adder import BatchCryptAdder
from flhe.schemes.esafl.adder import EsaflAdder
from flhe.schemes.fedml_he.adder import FedmlHeAdder
from flhe.schemes.flashe.adder import FlasheAdder
from flhe.schemes.sash.adder import SashAdder, SashOpener
from flhe.schemes.sealed import Sealed
from flhe.training.terms import Terms
from flhe_lab.rehearsal.writings import floats

Integers = NDArray[np.integer]


def quantized(terms: Terms, layout: Layout, update: NDArray[np.float32], examples: int) -> Integers:
    """An update clipped, weighed and rounded to nearest, shape (layout.floats,).

    `terms` have a threshold that is given; `update` has shape (layout.floats,).
    """
    codecs = (
        replace(codec, rounding="nearest") if isinstance(codec, Quantize) else codec
        for codec in terms.codec.codecs
    )
    chain = Chain(tuple(codecs))
    extras = np.zeros(max(COUNT, WEIGHT) + 1, np.int64)
    extras[[COUNT, WEIGHT]] = 1, examples if terms.codec.weighted else 1
    plain, _ = chain.encode(Plain(update, extras), chain.init(layout))
    values: Integers = plain.values
    return values


def unencrypted(adder: Adder, values: Integers, trailer: int) -> Iterator[bytes]:
    """What of a vector of integers, shape (length,), would be on the wire if nothing hid it.

    So many integers as `trailer` says travel behind them: blocks are cut as if they were there.
    """
    if int(np.abs(values).max(initial=0)) < 1 << 15:
        for order in "<>":
            yield floats(values.astype(f"{order}i2"))
    for order in "<>":
        yield floats(values.astype(f"{order}i4"))
    if isinstance(adder, FlasheAdder):
        yield _lanes(adder.packing, values, trailer)


def _lanes(packing: Packing, values: Integers, trailer: int) -> bytes:
    """Lanes as they travel, without those of the trailer where they are the last."""
    length = values.size + trailer
    whole = np.zeros(length, packing.signed)
    whole[: values.size] = values
    data = packing.pack(whole, np.zeros(length, packing.lane))
    start = length // packing.block * packing.block
    end = (max(start, values.size) * packing.bits) // 8
    return floats(data[:end])


def open_without_keys(adder: Adder, sealed: Sealed) -> Integers | None:
    """What a ciphertext holds, shape (length,), if it opens with no key at all; None if it does not.

    Of FLASHE it cannot be told: any lanes are a vector.
    """
    with suppress(FlheError):
        if isinstance(adder, BatchCryptAdder):
            return _trivial_paillier(adder, sealed)
        if isinstance(adder, FedmlHeAdder):
            return _unmasked_ckks(adder, sealed)
        if isinstance(adder, EsaflAdder):
            return _keyless_eshe(adder, sealed)
        if isinstance(adder, SashAdder):
            zeros = np.zeros(adder.scheme.elements(adder.cohort), np.uint64)
            return SashOpener(adder, zeros).decrypt(sealed)
    return None


def _keyless_eshe(adder: EsaflAdder, sealed: Sealed) -> Integers:
    """Under a key of zeros a residue is p e + m, whatever `a` is; what holds more noise is refused."""
    adder.check(sealed)
    slots = adder.sizes.slots
    count = slots.count(sealed.length)
    residues = np.empty((len(slots.moduli), count), np.uint64)
    for limb, at, end in adder.limbs.pieces(count):
        adder.limbs.read(sealed.data, count, limb, at, residues[limb, at:end])
    return slots.lower(residues, sealed.length, len(sealed.senders))


def _trivial_paillier(adder: BatchCryptAdder, sealed: Sealed) -> Integers | None:
    """(1 + m n) r^n with r = 1: who knows n divides by it."""
    n = gmpy().mpz(adder.public.n) if adder.public is not None else None
    numbers = adder._numbers(sealed)
    if n is None or any((c - 1) % n for c in numbers):
        return None
    plain = [(c - 1) // n for c in numbers]
    slots = [m - n if m > n >> 1 else m for m in plain]
    return adder.batch.digits(slots, sealed.length, len(sealed.senders))


def _unmasked_ckks(adder: FedmlHeAdder, sealed: Sealed) -> Integers | None:
    """Under masks of zero every key opens a block, and slots lie on the grid."""
    from flhe.schemes.seal_blocks import SealBlocks
    from flhe.schemes.seal_keys import SealSecret

    adder.check(sealed)
    sizes = adder.sizes
    blocks = SealBlocks.of(sizes, SealSecret.generate(adder.scheme.ring))
    count = sizes.count(sealed.length)
    found = []
    for at in range(0, count, sizes.step):
        c = np.empty(min(sizes.step, count - at), np.uint64)
        sizes.limbs.read(sealed.data, count, 0, at, c)
        rows = c.reshape(-1, sizes.n)
        slots = blocks.decrypt(rows, np.zeros_like(rows))
        if np.abs(slots - np.rint(slots)).max() > sizes.residual(len(sealed.senders)):
            return None
        found.append(sizes.digits.split(np.rint(slots).astype(np.int64), len(sealed.senders))[0])
    return np.concatenate(found)[: sealed.length]
