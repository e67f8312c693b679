"""FLASHE with top-k sparsification, as `flhe bench --top-k` times it.

`encrypt` is everything between a float32 update and what is uploaded: error feedback, selection,
permutation, quantization, coding of the support, encryption. `decrypt` ends with a dense float32 mean.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flhe.coding.base import Plain, State
from flhe.coding.extras import Extras
from flhe.coding.flatten import Entry, Layout
from flhe.coding.support import Support
from flhe.errors import FlheError
from flhe.math.permutation import Permutation
from flhe.rounds.terms import Terms
from flhe.schemes import masking
from flhe.schemes.flashe import Flashe, FlasheOpener, FlasheSealer
from flhe.schemes.sparse import covered
from flhe.schemes.sum_tags import SumTags
from flhe.sealed import Sealed
from flhe.sim.contenders import EXAMPLES, SLOT, Kind, Setting, Timed, Vector, verified

PATTERNS = 16
"""Most clients among whom the masks are counted one by one, too: 2**16 sets of senders."""


class SparseContender:
    """FLASHE of the largest values of each client; nothing is computed ahead of time."""

    kind: Kind = "scheme"
    max_repeats = 1_000_000

    def __init__(self, setting: Setting, updates: Sequence[Vector], top_k: float) -> None:
        self.name = f"flashe top {100 * top_k:g}%"
        self.terms = Terms(
            max_examples=EXAMPLES, metrics=(), top_k=top_k, warmup=0, masking="adaptive"
        )
        self.layout = Layout((Entry("update", (setting.values,), "float32"),))
        self.scheme = Flashe(setting.cohort, self.terms.bits, self.terms.masking)
        self.setting = setting
        self._key, self._order = secrets.token_bytes(32), secrets.token_bytes(32)
        self._tags = SumTags(self._key, SLOT, setting.values, setting.threads)
        self._updates = updates
        self._extras = Extras().encode(EXAMPLES, {}, [])
        self._residual = np.zeros(setting.values, np.float32)
        self._sent: list[Plain] = []
        supports = [self._told(j) for j in setting.survivors]
        bitmaps = [(j, s.bitmap()) for j, s in zip(setting.survivors, supports, strict=True)]
        lanes = self.terms.trailer_lanes(self.layout)
        self.choice = masking.for_supports(bitmaps, lanes, setting.cohort)
        self._check_count(bitmaps, lanes)
        parts = [self._encrypt(j) for j in setting.survivors]
        self.upload_bytes = sum(map(len, (*parts[0].body(), parts[0].header())))
        running = self.scheme.add(None, parts[0])
        total: Sealed | None = None
        for part in parts:
            total = self.scheme.add(total, part)
        assert total is not None
        self._total = self.scheme.close(total)
        self.note = (
            f"{self.choice.masking} masking (adaptive): {self.choice.single:,} masks of all clients, "
            f"double {self.choice.double:,}; {self._total.length:,} values in the sum, "
            f"{sum(map(len, self._total.body())):,} bytes"
        )
        # `add` is timed on a running sum of its own: what it holds does not matter, its size does.
        other = parts[1]
        self.mean: Vector = np.empty(0, np.float32)
        self.encrypt: Timed = lambda: self._encrypt(setting.survivors[0])
        self.add: Timed = lambda: self.scheme.add(replace(running), other)
        self.decrypt: Timed = self._decrypt

    def _check_count(self, bitmaps: Sequence[masking.Bitmap], lanes: int) -> None:
        """Count again, set of senders by set of senders, from what opening takes by definition."""
        if len(bitmaps) > PATTERNS:
            return
        patterns: NDArray[np.int64] = np.zeros(self.setting.values, np.int64)
        for i, (_, words) in enumerate(bitmaps):
            bits = np.unpackbits(words.view(np.uint8), bitorder="little", count=patterns.size)
            patterns |= bits.astype(np.int64) << i
        found, times = np.unique(patterns, return_counts=True)
        cases = [
            *zip(found.tolist(), times.tolist(), strict=True),
            ((1 << len(bitmaps)) - 1, lanes),
        ]
        for mode, counted in (("single", self.choice.single), ("double", self.choice.double)):
            sealing = opening = 0
            for pattern, often in cases:
                senders = [j for i, (j, _) in enumerate(bitmaps) if pattern >> i & 1]
                plus, minus = self.scheme.mask_terms(senders, mode)
                opening += often * (len(plus) + len(minus))
                sealing += often * len(senders) * (1 if mode == "single" else 2)
            if sealing + self.setting.cohort * opening != counted:
                raise FlheError(f"{self.name}: {mode} masking does not take {counted} masks")

    def _selected(self, rank: int) -> tuple[Plain, Support]:
        codec = self.terms.codec(Permutation(self._order, self.setting.values))
        fresh = codec.init(self.layout)
        state = State(fresh.shared, (self._residual, *fresh.local[1:]))
        selected, _ = codec.select(Plain(self._updates[rank], self._extras), state)
        if len(self._sent) < len(self.setting.survivors):
            self._sent.append(selected)
        encoded, _ = codec.finish(selected, state)
        assert encoded.coords is not None
        return encoded, Support.of(encoded.coords, self.setting.values)

    def _told(self, rank: int) -> Support:
        return self._selected(rank)[1]

    def _encrypt(self, rank: int) -> Sealed:
        encoded, support = self._selected(rank)
        sealer = FlasheSealer(self.scheme, self._key, rank, threads=self.setting.threads)
        tagged = self._tags.tagged(encoded, rank, self.scheme.bits, support.digest())
        return sealer.encrypt(tagged, SLOT, mode=self.choice.masking, support=support)

    def _decrypt(self) -> None:
        total = self._total
        lanes = FlasheOpener(self.scheme, self._key, threads=self.setting.threads).decrypt(total)
        coords = covered(total.supports)
        codec = self.terms.codec(Permutation(self._order, self.setting.values))
        plain = verified(self._tags, lanes, total, self.scheme.bits, coords)
        opened, _ = codec.decode(plain, total.senders, codec.init(self.layout), reuse=True)
        self.mean = opened.values

    def max_error(self) -> float:
        """Against the float64 mean of what the survivors sent."""
        exact = np.zeros(self.setting.values, np.float64)
        for plain in self._sent:
            exact[plain.coords] += plain.values
        return float(np.abs(self.mean - exact / len(self._sent)).max())
