"""BatchCrypt in `flhe bench`: all that a client does to an update, under Paillier.

`encrypt` is quantizing, batching, drawing the powers r^n and multiplying, from nothing: the fixed-base
tables are made anew each time, as in a round. Making the key is not timed: it happens once an epoch.
`add` is what the server does for one upload, checks of its ciphertexts included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from flhe.coding.base import Plain
from flhe.coding.extras import Extras
from flhe.coding.flatten import Entry, Layout
from flhe.rounds.terms import Terms
from flhe.schemes.paillier import DEFAULT_KEY_BITS, Paillier, PaillierOpener, PaillierSealer
from flhe.schemes.paillier_keys import SecretKey
from flhe.sealed import Sealed
from flhe.sim.contenders import EXAMPLES, SLOT, Kind, Setting, Timed, Vector, worst

KEY = bytes(32)
"""Always the same: exponents are drawn afresh, and tags here protect nothing but random numbers."""


class BatchcryptContender:
    """BatchCrypt, from float32 update to float32 mean; nothing is computed ahead of time.

    Parameters
    ----------
    setting, updates
        As for every contender.
    key_bits : int
        Length of Paillier's modulus.
    """

    kind: Kind = "scheme"
    max_repeats = 3

    def __init__(
        self, setting: Setting, updates: Sequence[Vector], key_bits: int = DEFAULT_KEY_BITS
    ) -> None:
        usual = key_bits == DEFAULT_KEY_BITS
        self.name = "batchcrypt" if usual else f"batchcrypt {key_bits}"
        terms = Terms("batchcrypt", clip=1.0, max_examples=EXAMPLES, metrics=(), key_bits=key_bits)
        self.key = SecretKey.generate(key_bits)
        scheme = terms.for_cohort(setting.cohort, public=self.key.public.to_bytes())
        assert isinstance(scheme, Paillier)
        self.scheme = scheme
        self.codec = terms.codec()
        self.state = self.codec.init(Layout((Entry("update", (setting.values,), "float32"),)))
        self.setting = setting
        self._extras = Extras().encode(EXAMPLES, {}, [])
        self._updates = updates
        parts = [self._encrypt(j) for j in setting.survivors]
        part = parts[0]
        slots = scheme.batch
        self.note = (
            f"Paillier, {key_bits} bits; {slots.batches(part.length):,} ciphertexts of {slots.per} "
            f"values, each of {terms.bits} bits in {slots.width}; at most {self.max_repeats} repeats"
        )
        self.upload_bytes: int | None = part.data.size + len(part.header())
        total: Sealed | None = None
        for one in parts:
            total = scheme.add(total, one)
        assert total is not None
        self._total = total
        running = scheme.add(None, dataclasses.replace(part, senders=(0,)))
        more = dataclasses.replace(part, senders=(1,))
        self.mean: Vector = np.empty(0, np.float32)
        self.encrypt: Timed = lambda: self._encrypt(0)
        self.add: Timed = lambda: scheme.add(running, more)
        self.decrypt: Timed = self._decrypt

    def _encrypt(self, rank: int) -> Sealed:
        sealer = PaillierSealer(self.scheme, self.key, KEY, rank, threads=self.setting.threads)
        plain, _ = self.codec.encode(Plain(self._updates[rank], self._extras), self.state)
        return sealer.encrypt(plain, SLOT)

    def _decrypt(self) -> None:
        opener = PaillierOpener(self.scheme, self.key, KEY, threads=self.setting.threads)
        sums, values = opener.decrypt(self._total), self.setting.values
        plain = Plain(sums[:values], sums[values:])
        opened, _ = self.codec.decode(plain, self._total.senders, self.state)
        self.mean = opened.values

    def max_error(self) -> float:
        """Against the float64 mean of the survivors' updates."""
        return worst(self.mean, [self._updates[j] for j in self.setting.survivors])
