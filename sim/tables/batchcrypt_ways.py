"""Contenders of BatchCrypt's tables alone: Paillier a value each, and batches of other widths."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import numpy as np

from flhe.coding.base import Plain
from flhe.math.bigint import Big, gmpy, random_blum_prime
from flhe.math.crt import Crt
from flhe.math.residue_pool import draw
from flhe.schemes.paillier import Paillier, PaillierOpener, PaillierSealer
from flhe.schemes.paillier_keys import SecretKey
from flhe.sealed import Sealed
from flhe.sim.contenders import SLOT, Kind, Setting, Timed, Vector, worst

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


class PaillierValues:
    """flhe's arithmetic of Paillier without the scheme: a value a ciphertext, no batches, no tags.

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

    kind: Kind = "scheme"
    max_repeats = 3

    def __init__(
        self, setting: Setting, updates: Sequence[Vector], key_bits: int, count: int
    ) -> None:
        key = short_key(key_bits)
        self._n, self._key = gmpy().mpz(key.public.n), key
        self._square = self._n * self._n
        count = min(count, setting.values)
        self.projection = setting.values / count
        self.name = f"Paillier {key_bits}, a value each"
        self.note = f"flhe's arithmetic, a value a ciphertext; projected from {count} ciphertexts"
        self.upload_bytes: int | None = setting.values * key.public.ciphertext_bytes
        self._samples = [updates[j][:count] for j in setting.survivors]
        crt = Crt(key.p, key.q)
        parts = [self._encrypt(sample) for sample in self._samples]
        total = parts[0]
        for part in parts[1:]:
            total = self._add(total, part)
        self.mean: Vector = np.empty(0, np.float32)

        def decrypt() -> None:
            opened = crt.decrypt(total)
            signed = [int(m - self._n if 2 * m > self._n else m) for m in opened]
            self.mean = (np.array(signed, np.float64) / (LEVELS * len(parts))).astype(np.float32)

        self.encrypt: Timed = lambda: self._encrypt(self._samples[0])
        self.add: Timed = lambda: self._add(parts[0], parts[1])
        self.decrypt: Timed = decrypt

    def _encrypt(self, sample: Vector) -> list[Big]:
        n, square, key = self._n, self._square, self._key
        messages = np.rint(sample.astype(np.float64) * LEVELS).astype(np.int64).tolist()
        residues = draw(key.p, key.q, key.h, len(messages))
        return [(1 + m * n) * u % square for m, u in zip(messages, residues, strict=True)]

    def _add(self, one: Sequence[Big], other: Sequence[Big]) -> list[Big]:
        return [a * b % self._square for a, b in zip(one, other, strict=True)]

    def max_error(self) -> float:
        """Of the sample, against the float64 mean of the survivors' values."""
        return worst(self.mean, self._samples)


class Batches:
    """BatchCrypt with values of `bits` bits, from floats to ciphertexts and back.

    Beside `BatchcryptContender`, which has the 16 bits of terms, weights and metrics are left out.

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

    kind: Kind = "scheme"
    max_repeats = 3

    def __init__(
        self, setting: Setting, updates: Sequence[Vector], bits: int, key: SecretKey, sample: int
    ) -> None:
        self.name = f"batchcrypt, {bits} bits a value"
        self.scheme = Paillier(setting.cohort, bits, key.public.bits, key.public)
        slots = self.scheme.batch
        whole = slots.batches(setting.values)
        run = min(-(-sample // slots.per), whole)
        length = min(run * slots.per, setting.values)
        self.projection = whole / run
        self.note = (
            f"{slots.per} values a ciphertext; projected from {run} ciphertexts to {whole:,}"
        )
        self.upload_bytes: int | None = self.scheme.nbytes(setting.values)
        self._key = key
        self._samples = [updates[j][:length] for j in setting.survivors]
        # The largest value takes the largest integer, as clipping would have it.
        self._scale = self.scheme.space.bound / max(float(np.abs(u).max()) for u in self._samples)
        parts = [self._encrypt(rank) for rank in range(len(self._samples))]
        total: Sealed | None = None
        for part in parts:
            total = self.scheme.add(total, part)
        assert total is not None
        self._total = total
        running = self.scheme.add(None, parts[0])
        self.mean: Vector = np.empty(0, np.float32)
        self.encrypt: Timed = lambda: self._encrypt(0)
        self.add: Timed = lambda: self.scheme.add(running, parts[1])
        self.decrypt: Timed = self._decrypt

    def _encrypt(self, rank: int) -> Sealed:
        scaled = np.rint(self._samples[rank].astype(np.float64) * self._scale)
        sealer = PaillierSealer(self.scheme, self._key, KEY, rank)
        return sealer.encrypt(Plain(scaled.astype(np.int32), NOTHING), SLOT)

    def _decrypt(self) -> None:
        sums = PaillierOpener(self.scheme, self._key, KEY).decrypt(self._total)
        self.mean = (sums / (self._scale * len(self._samples))).astype(np.float32)

    def max_error(self) -> float:
        """Of the sample, against the float64 mean of the survivors' values."""
        return worst(self.mean, self._samples)
