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
from flhe.sealed import Sealed, Slot
from flhe.sim.contenders import EXAMPLES, Kind, Setting, Timed, Vector, worst

SLOT = Slot(0, bytes(32), bytes(16), 1, 0, bytes(32), bytes(32))
"""Always the same: no key or exponent is derived from it, each encryption draws fresh ones."""


class BatchcryptContender:
    """BatchCrypt, from float32 update to float32 mean; nothing is computed ahead of time.

    All clients upload client 0's ciphertexts: encrypting ten updates would take minutes and show
    nothing more, since adding and decrypting cost the same whatever is inside.

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
        self._update = updates[0]
        part = self._encrypt()
        slots = scheme.batch
        self.note = (
            f"Paillier, {key_bits} bits; {slots.batches(part.length):,} ciphertexts of {slots.per} "
            f"values, each of {terms.bits} bits in {slots.width}; every client uploads client 0's; at "
            f"most {self.max_repeats} repeats"
        )
        self.upload_bytes: int | None = part.data.size + len(part.header())
        total: Sealed | None = None
        for j in setting.survivors:
            total = scheme.add(total, dataclasses.replace(part, senders=(j,)))
        assert total is not None
        self._total = total
        running = scheme.add(None, dataclasses.replace(part, senders=(0,)))
        more = dataclasses.replace(part, senders=(1,))
        self.mean: Vector = np.empty(0, np.float32)
        self.encrypt: Timed = self._encrypt
        self.add: Timed = lambda: scheme.add(running, more)
        self.decrypt: Timed = self._decrypt

    def _encrypt(self) -> Sealed:
        sealer = PaillierSealer(self.scheme, self.key, 0, threads=self.setting.threads)
        plain, _ = self.codec.encode(Plain(self._update, self._extras), self.state)
        return sealer.encrypt(plain, SLOT)

    def _decrypt(self) -> None:
        opener = PaillierOpener(self.scheme, self.key, threads=self.setting.threads)
        sums, values = opener.decrypt(self._total), self.setting.values
        plain = Plain(sums[:values], sums[values:])
        opened, _ = self.codec.decode(plain, self._total.senders, self.state)
        self.mean = opened.values

    def max_error(self) -> float:
        """Against the update itself, which is the mean here."""
        return worst(self.mean, [self._update])
