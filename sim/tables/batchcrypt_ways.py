"""Contenders of BatchCrypt's tables alone: Paillier a value each, and batches of other widths."""

from __future__ import annotations

import functools
import math
import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from flhe.coding.base import Plain
from flhe.math.bigint import Big, gmpy, random_blum_prime
from flhe.schemes.batchcrypt.crt import Crt
from flhe.schemes.batchcrypt.keys import SecretKey
from flhe.schemes.batchcrypt.residue_pool import draw
from flhe.schemes.batchcrypt.scheme import Paillier, PaillierOpener, PaillierSealer
from flhe.schemes.sealed import Sealed
from flhe_lab.bench import SLOT, Contender, Setting, Vector, worst
from flhe_lab.bench.schemes import Way, contender

LEVELS = (1 << 15) - 1
"""Integers of 16 bits, sign included."""

KEY = bytes(32)
"""Always the same: tags here protect nothing but random numbers."""

NOTHING = np.empty(0, np.int64)


def short_key(bits: int) -> SecretKey:
    """A key of any even length, such as the paper's 1024 bits, which no policy of flhe allows."""
    half = bits // 2
    while True:
        p, q = (random_blum_prime(half, secrets.token_bytes) for _ in range(2))
        if p != q and math.gcd(p - 1, q - 1) == 2:
            return SecretKey(p, q)


def paillier_values(
    setting: Setting, updates: Sequence[Vector], key_bits: int, count: int
) -> Contender:
    """Flhe's arithmetic of Paillier without the scheme: a value a ciphertext, no batches, no tags.

    Below the scheme there is no least length of a key, so this is timed at the paper's 1024 bits too.

    Parameters
    ----------
    setting, updates
        As for every contender; of an update, only the first `count` values are encrypted.
    key_bits : int
        |n|, even.
    count : int
        Ciphertexts that are run, and share tables of powers.
    """
    key = short_key(key_bits)
    n, crt = gmpy().mpz(key.public.n), Crt(key.p, key.q)
    square, count = n * n, min(count, setting.values)
    samples = [updates[j][:count] for j in setting.survivors]

    def encrypt(sample: Vector) -> list[Big]:
        messages = np.rint(sample.astype(np.float64) * LEVELS).astype(np.int64).tolist()
        residues = draw(key.p, key.q, key.h, len(messages))
        return [(1 + m * n) * u % square for m, u in zip(messages, residues, strict=True)]

    def add(one: Sequence[Big], other: Sequence[Big]) -> list[Big]:
        return [a * b % square for a, b in zip(one, other, strict=True)]

    parts = [encrypt(sample) for sample in samples]
    total, mean = functools.reduce(add, parts), np.empty(0, np.float32)

    def decrypt() -> None:
        nonlocal mean
        signed = [int(m - n if 2 * m > n else m) for m in crt.decrypt(total)]
        mean = (np.array(signed, np.float64) / (LEVELS * len(parts))).astype(np.float32)

    return Contender(
        f"Paillier {key_bits}, a value each",
        {
            "encrypt": lambda: encrypt(samples[0]),
            "add": lambda: add(parts[0], parts[1]),
            "decrypt": decrypt,
        },
        note=f"flhe's arithmetic, a value a ciphertext; projected from {count} ciphertexts",
        upload_bytes=setting.values * key.public.ciphertext_bytes,
        error=lambda: worst(mean, samples),
        max_repeats=3,
        projection=setting.values / count,
    )


def batches(
    setting: Setting, updates: Sequence[Vector], bits: int, key: SecretKey, sample: int
) -> Contender:
    """BatchCrypt with values of `bits` bits, from floats to ciphertexts and back.

    Beside `flhe_lab.bench.schemes.batchcrypt`, which has the 16 bits of terms, weights and metrics are
    left out.

    Parameters
    ----------
    setting, updates
        As for every contender; of an update, only the first `sample` values are encrypted.
    bits : int
        Of a value, sign included.
    key : SecretKey
        Everybody's.
    sample : int
        Values that are run.
    """
    scheme = Paillier(setting.cohort, bits, key.public.bits, key.public)
    slots = scheme.batch
    whole = slots.batches(setting.values)
    run = min(-(-sample // slots.per), whole)
    length = min(run * slots.per, setting.values)
    samples = [updates[j][:length] for j in setting.survivors]
    # The largest value takes the largest integer, as clipping would have it.
    scale = scheme.space.bound / max(float(np.abs(u).max()) for u in samples)

    def seal(rank: int) -> Sealed:
        scaled = np.rint(samples[rank].astype(np.float64) * scale)
        sealer = PaillierSealer(scheme, key, KEY, rank)
        return sealer.encrypt(Plain(scaled.astype(np.int32), NOTHING), SLOT)

    def opened(total: Sealed) -> Vector:
        sums = PaillierOpener(scheme, key, KEY).decrypt(total)
        return (sums / (scale * len(samples))).astype(np.float32)

    made = contender(
        f"batchcrypt, {bits} bits a value",
        Way(scheme, seal, opened),
        range(len(samples)),
        samples,
        note=f"{slots.per} values a ciphertext; projected from {run} ciphertexts to {whole:,}",
        max_repeats=3,
        projection=whole / run,
    )
    return replace(made, upload_bytes=scheme.nbytes(setting.values))
