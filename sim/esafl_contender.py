"""ESAFL in `flhe bench`: all that a client does to an update, from float32 to ciphertext and back.

`encrypt` quantizes, draws the error, expands `a`, transforms, adds and packs, from nothing; making keys
is not timed: it happens once an epoch. `add` is what the server does for one upload, checks included.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence

import numpy as np

from flhe.coding.base import Plain
from flhe.coding.extras import Extras
from flhe.coding.flatten import Entry, Layout
from flhe.rounds.terms import Terms
from flhe.schemes.eshe import Eshe, EsheOpener, EsheSealer
from flhe.schemes.eshe_keys import EsheKey, Total, draw_own
from flhe.schemes.presets import DEFAULT_ESHE
from flhe.schemes.sum_tags import SumTags
from flhe.sealed import Sealed
from flhe.sim.contenders import EXAMPLES, SLOT, Kind, Setting, Timed, Vector, verified, worst

NARROW = "rns-8192"
"""The ring for narrow links, a row of its own."""


class EsaflContender:
    """ESAFL, from float32 update to float32 mean; nothing is computed ahead of time.

    Parameters
    ----------
    setting, updates
        As for every contender.
    ring : str
        Preset of the ring.
    """

    kind: Kind = "scheme"
    max_repeats = 1_000_000

    def __init__(
        self, setting: Setting, updates: Sequence[Vector], ring: str = DEFAULT_ESHE
    ) -> None:
        self.name = "esafl" if ring == DEFAULT_ESHE else f"esafl {ring}"
        terms = Terms("esafl", clip=1.0, max_examples=EXAMPLES, metrics=(), ring=ring)
        # Who drops out does so before keys are agreed on: the cohort is that of the survivors.
        count = len(setting.survivors)
        scheme = terms.for_cohort(count)
        assert isinstance(scheme, Eshe)
        self.scheme = scheme
        self.codec = terms.resolved(count).codec()
        self.state = self.codec.init(Layout((Entry("update", (setting.values,), "float32"),)))
        self.setting = setting
        sizes = scheme.sizes
        self.note = (
            f"{ring}, log q = {sizes.slots.q.bit_length()}; {sizes.slots.per} values of {scheme.bits} "
            f"bits in {len(sizes.slots.moduli)} x {sizes.limb_bits}"
        )
        self._extras = Extras().encode(EXAMPLES, {}, [])
        self._updates = updates
        self._group_key = secrets.token_bytes(32)
        self._tags = SumTags(self._group_key, SLOT, setting.values, setting.threads)
        owns = [draw_own(sizes.n) for _ in range(count)]
        s: Total = np.add.reduce(owns, dtype=np.int32)
        self._keys = [EsheKey(own, s) for own in owns]
        parts = [self._encrypt(rank) for rank in range(count)]
        part = parts[0]
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
        # A fresh sealer is what lets one process encrypt repeatedly; what it encrypts is random.
        key, update = self._keys[rank], self._updates[self.setting.survivors[rank]]
        sealer = EsheSealer(self.scheme, self._group_key, rank, key, threads=self.setting.threads)
        plain, _ = self.codec.encode(Plain(update, self._extras), self.state)
        return sealer.encrypt(self._tags.tagged(plain, rank, self.scheme.bits), SLOT)

    def _decrypt(self) -> None:
        opener = EsheOpener(
            self.scheme, self._group_key, self._keys[0].total, threads=self.setting.threads
        )
        plain = verified(self._tags, opener.decrypt(self._total), self._total, self.scheme.bits)
        opened, _ = self.codec.decode(plain, self._total.senders, self.state)
        self.mean = opened.values

    def max_error(self) -> float:
        """Against the float64 mean of the survivors' updates."""
        return worst(self.mean, [self._updates[j] for j in self.setting.survivors])
