"""FLASHE, Figure 13, measured: an upload with and without masks that are computed ahead."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from flhe.coding.base import Plain
from flhe.schemes.flashe import FlasheSealer
from flhe.sealed import Sealed
from flhe.sim.contenders import SLOT, FlasheContender, Setting, Vector
from flhe.sim.tables.flashe_paper import COHORT
from flhe.sim.tables.section import Say


class Prepared(FlasheContender):
    """FLASHE whose next sealer has its masks already: `prepare`, then `encrypt_prepared`."""

    def __init__(self, setting: Setting, updates: Sequence[Vector]) -> None:
        super().__init__(setting, updates)
        self._next = self._sealer()

    def _sealer(self) -> FlasheSealer:
        # A fresh sealer lets one process encrypt repeatedly for one slot, random numbers all of them.
        return FlasheSealer(self.scheme, self._key, 0, threads=self.setting.threads)

    def prepare(self) -> None:
        """Compute the masks of one upload."""
        self._next = self._sealer()
        self._next.prepare(SLOT, self.length)

    def encrypt_prepared(self) -> Sealed:
        """From float32 to an upload, with the masks of `prepare`."""
        plain, _ = self.codec.encode(Plain(self._updates[0], self._extras), self.state)
        return self._next.encrypt(self._tags.tagged(plain, 0, self.scheme.bits), SLOT)


def measure(values: int, repeats: int, say: Say) -> dict[str, Any]:
    """Least seconds of each part, in turns: encrypt, prepare, encrypt_prepared, add, decrypt; bytes.

    Raises
    ------
    FlheError
        An upload with masks computed ahead that has another length than one without.
    """
    setting = Setting(values, COHORT)
    contender = Prepared(setting, setting.updates())
    names = ("encrypt", "prepare", "encrypt_prepared", "add", "decrypt")
    took: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats + 1):
        say(f"turn {turn} of {repeats}")
        for name in names:
            began = time.perf_counter()
            getattr(contender, name)()
            if turn > 0:  # the first turn warms up
                took[name].append(time.perf_counter() - began)
    return {name: min(each) for name, each in took.items()} | {"bytes": contender.upload_bytes}
