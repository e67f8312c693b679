"""SASH in `flhe bench`: all that a client does to an update, and parts of it in rows of their own.

`encrypt` is what a client does to its update: quantize, draw a seed, expand the mask, add. The
agreement on the sum of seeds does not depend on the update's length and has a row of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flhe.coding.base import Plain
from flhe.coding.extras import Extras
from flhe.coding.flatten import Entry, Layout
from flhe.math import ring
from flhe.math.prg import random_elements
from flhe.rounds.terms import Terms
from flhe.schemes.presets import DEFAULT_SASH
from flhe.schemes.sash import Sash, SashOpener, SashSealer
from flhe.schemes.shprg import Seed
from flhe.sealed import Sealed
from flhe.sim.contenders import EXAMPLES, SLOT, Kind, Setting, Timed, Vector, worst

MATRIX = "lwr-736"


class SashContender:
    """SASH, from float32 update to float32 mean; nothing is computed ahead of time.

    Parameters
    ----------
    preset : str
        Parameters of the generator; only the default one takes part as often as the others.
    """

    kind: Kind = "scheme"

    def __init__(
        self, setting: Setting, updates: Sequence[Vector], preset: str = DEFAULT_SASH
    ) -> None:
        usual = preset == DEFAULT_SASH
        self.name = "sash" if usual else f"sash {preset}"
        self.max_repeats = 1_000_000 if usual else 3
        self.scheme = Sash(setting.cohort, 0, preset)
        terms = Terms("sash", 0, 1.0, EXAMPLES, metrics=()).resolved(setting.cohort)
        self.codec = terms.codec()
        self.state = self.codec.init(Layout((Entry("update", (setting.values,), "float32"),)))
        self.setting = setting
        self.note = f"{self.scheme.bits} bits a value, 32 on the wire; {preset}"
        self._extras = Extras().encode(EXAMPLES, {}, [])
        self._updates = updates
        self._seeds: Seed | None = None
        total: Sealed | None = None
        for j in setting.survivors:
            part, seed = self._encrypt(j)
            total = self.scheme.add(total, part)
            self._seeds = seed if self._seeds is None else ring.add(self._seeds, seed)
        assert total is not None
        self._total, self._part = total, part
        self.upload_bytes: int | None = part.data.size + len(part.header())
        self._running = self.scheme.add(None, part)
        self.mean: Vector = np.empty(0, np.float32)
        self.encrypt: Timed = lambda: self._encrypt(0)
        lanes, more = self._running.data.view(np.uint32), part.data.view(np.uint32)
        self.add: Timed = lambda: np.add(lanes, more, out=lanes)
        self.decrypt: Timed = self._decrypt

    def _encrypt(self, rank: int) -> tuple[Sealed, Seed]:
        sealer = SashSealer(self.scheme, rank, threads=self.setting.threads)
        plain, _ = self.codec.encode(Plain(self._updates[rank], self._extras), self.state)
        return sealer.encrypt(plain, SLOT), sealer.take_seed(SLOT)

    def _decrypt(self) -> None:
        assert self._seeds is not None
        opener = SashOpener(self.scheme, self._seeds, threads=self.setting.threads)
        lanes, values = opener.decrypt(self._total), self.setting.values
        plain = Plain(lanes[:values], lanes[values:])
        opened, _ = self.codec.decode(plain, self._total.senders, self.state)
        self.mean = opened.values

    def max_error(self) -> float:
        """Against the float64 mean of the survivors' updates."""
        return worst(self.mean, [self._updates[j] for j in self.setting.survivors])


class MaskPart:
    """Of SASH's client, the mask alone: draw a seed, expand `a`, transform, round."""

    kind: Kind = "part"
    upload_bytes = None
    add = decrypt = None

    def __init__(self, setting: Setting, preset: str = DEFAULT_SASH) -> None:
        usual = preset == DEFAULT_SASH
        self.name = "sash mask" if usual else f"sash mask {preset}"
        self.max_repeats = 1_000_000 if usual else 3
        self.note = "of encrypt, the mask alone"
        generator = Sash(setting.cohort, 0, preset).generator(SLOT)
        dimension = generator.preset.dimension
        out = np.empty(setting.values, np.uint32)

        def mask() -> None:
            generator.into(random_elements(dimension), out, setting.threads)

        self.encrypt: Timed = mask

    def max_error(self) -> None:
        """Nothing to compare."""
