"""BatchCryptAdder: quantized values in batches, each batch one Paillier ciphertext.

    c = (1 + m n) r^n mod n^2          m = sum over k of v_k 2^(L k)  mod n
    product of c_i mod n^2             opens to the sum of the m_i, slot by slot

The server multiplies ciphertexts and needs only n. Members share p and q: any one of them can read
single updates if it colludes with the server. They encrypt modulo p^2 and q^2 instead of n^2
(`flhe.schemes.batchcrypt.residues`). Most of that work, the power r^n, does not depend on the
values: it can be computed while the app trains.

A ciphertext does not name its sender or round, and anybody can add to it or move its slots. The
tags of sums detect this (`flhe.schemes.sum_mac`): an opener alone accepts any sum in these slots.

Source: BatchCrypt, Sec. 4.2 and Algorithm 1; keys: `flhe.schemes.batchcrypt.keys`; differences from
the paper's codec: `flhe.coding.slots`.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.slots import Slots
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError
from flhe.math.bigint import Big, from_rows, gmpy, to_rows
from flhe.math.ring import Elements
from flhe.schemes.base import Adder, Opener, Sealer, Secrets
from flhe.schemes.batchcrypt.keys import PublicKey, SecretKey
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.keyed import KeyPairAdder
from flhe.schemes.sealed import Sealed, Slot
from flhe.schemes.shell import whose
from flhe.wire.secret import Random


@dataclass(frozen=True, slots=True)
class BatchCryptAdder(KeyPairAdder):
    """Public parameters, as for `Adder`, and the epoch's public key, which adding needs."""

    scheme: BatchCrypt
    cohort: int
    bits: int = 16
    public: PublicKey | None = None

    SECRET, PUBLIC, SIZE = SecretKey, PublicKey, ("key_bits", "subgroup")

    @property
    def batch(self) -> Slots:
        """Layout of values in a plaintext."""
        return Slots(self.space.bound, self.cohort, self.scheme.key_bits - 1)

    @property
    def ciphertext_bytes(self) -> int:
        """Bytes of one ciphertext: twice those of n."""
        return self.scheme.key_bits // 4

    def parameters(self) -> dict[str, Any]:
        """Return the public parameters for hashing into the layout, the key included."""
        public = b"" if self.public is None else self.public.to_bytes()
        return {
            **Adder.parameters(self),
            "key_bits": self.scheme.key_bits,
            "public": hashlib.sha256(public).digest() if public else b"",
            "slot_bits": self.batch.width,
            "slots": self.batch.per,
        }

    def nbytes(self, length: int) -> int:
        """Return the bytes of the ciphertexts of `length` values."""
        return self.batch.batches(length) * self.ciphertext_bytes

    def sealer(self, secrets: Secrets, *, threads: int = 1) -> BatchCryptSealer:
        """Return a member's sealer, with the key pair."""
        return BatchCryptSealer(self, self.pair_of(secrets), secrets.rank, threads=threads)

    def opener(
        self, secrets: Secrets, released: Elements | None = None, *, threads: int = 1
    ) -> BatchCryptOpener:
        """Return a member's opener, with the key pair."""
        return BatchCryptOpener(self, self.pair_of(secrets), threads)

    def _sum(self, total: Sealed, part: Sealed) -> NDArray[np.uint8]:
        square = gmpy().mpz(self._key().n) ** 2
        pairs = zip(self._numbers(total), self._numbers(part), strict=True)
        sums = [a * b % square for a, b in pairs]
        return to_rows(sums, self.ciphertext_bytes, len(sums)).reshape(-1)

    def check(self, sealed: Sealed) -> None:
        """Refuse numbers that are not ciphertexts: 0, n^2 or beyond, a multiple of a factor of n.

        Raises ConfigError: there is no public key; ProtocolError: as for any scheme; or an invalid
        number, which the error names.
        """
        Adder.check(self, sealed)
        self._key().check_ciphertexts(self._numbers(sealed), f" {whose(sealed)}")

    def _numbers(self, sealed: Sealed) -> list[Big]:
        return from_rows(sealed.data.reshape(-1, self.ciphertext_bytes))

    def _key(self) -> PublicKey:
        if self.public is None:
            raise ConfigError("batchcrypt: the adder has no public key, so it cannot add")
        return self.public


@dataclass(slots=True)
class BatchCryptSealer(Sealer):
    """One client's sealer, with the key pair; it computes powers on threads or in processes.

    Parameters as for `Sealer`; exponents are drawn from `random`.
    """

    adder: BatchCryptAdder
    key: SecretKey
    rank: int
    random: Random = field(default=secrets.token_bytes, kw_only=True, repr=False)

    def prepare(self, slot: Slot, length: int, mode: str = "") -> None:
        """Compute the powers r^n ahead of time: `encrypt` then takes two products a ciphertext.

        Where the processor has the vector instructions, threads compute them without Python's lock.
        Elsewhere child processes do: gmpy2 holds the lock while it multiplies, which would stall
        training.
        """
        self.adder.check_mode(mode)
        self._keep(slot, length, self._powers(length, max(self.threads - 1, 1)))

    def _seal(
        self, plain: Plain, slot: Slot, ready: list[Big] | None, mode: str, support: Support | None
    ) -> NDArray[np.uint8]:
        workers = self.threads if self.threads > 1 else 0
        powers = ready or self._powers(plain.values.size + plain.extras.size, workers)
        batches = self.adder.batch.pack(np.concatenate([plain.values, plain.extras]))
        n = gmpy().mpz(self.key.public.n)
        square = n * n

        def sealed(m: Big, power: Big) -> Big:
            # (1 + m n) r^n = r^n + n (m r^n mod n), at half the length; Python's % takes m < 0 too.
            c = power + n * (m * (power % n) % n)
            return c - square if c >= square else c

        numbers = map(sealed, batches, powers)
        return to_rows(numbers, self.adder.ciphertext_bytes, len(batches)).reshape(-1)

    def _powers(self, length: int, workers: int) -> list[Big]:
        from flhe.schemes.batchcrypt.residue_pool import draw

        count, key = self.adder.batch.batches(length), self.key
        return draw(key.p, key.q, key.h, count, workers, self.random, key.orders)


@dataclass(frozen=True, slots=True)
class BatchCryptOpener(Opener):
    """A reader's opener, with the key pair; it computes powers on threads without Python's lock."""

    adder: BatchCryptAdder
    key: SecretKey
    threads: int = 1

    def _open(self, total: Sealed) -> NDArray[np.int32] | NDArray[np.int64]:
        from flhe.schemes.batchcrypt.crt import Crt

        n = gmpy().mpz(self.key.public.n)
        half = n >> 1
        crt = Crt(self.key.p, self.key.q, self.key.orders)
        opened = crt.decrypt(self.adder._numbers(total), threads=self.threads)
        numbers = [m - n if m > half else m for m in opened]
        try:
            return self.adder.batch.digits(numbers, total.length, len(total.senders))
        except ProtocolError as error:
            raise ProtocolError(f"batchcrypt: {error}") from None
