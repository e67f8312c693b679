"""FedML-HE in `flhe bench`: CKKS of all of an update, of its selected part, and what is in clear.

The sealer's own TenSEAL context is built once, as in a client's round after round. `add` is what the
server does for one upload, checks included. With a part selected, the row for the clear part holds what
would be spent without any encryption: quantizing and packing of as many values as are not selected.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from flhe.coding.base import Plain
from flhe.coding.extras import Extras
from flhe.coding.flatten import Entry, Layout
from flhe.coding.select import Select
from flhe.rounds.terms import Terms
from flhe.schemes.ckks import Ckks, CkksOpener, CkksSealer
from flhe.schemes.ckks_keys import CkksSecret
from flhe.schemes.selective import (
    Selective,
    SelectiveOpener,
    SelectiveSealer,
    pack_clear,
    unpack_clear,
)
from flhe.schemes.sum_tags import SumTags
from flhe.sealed import Sealed
from flhe.sim.contenders import EXAMPLES, SLOT, Kind, Setting, Timed, Vector, verified, worst


def _layout(values: int) -> Layout:
    return Layout((Entry("update", (values,), "float32"),))


class FedmlContender:
    """FedML-HE, from float32 update to float32 mean; nothing is computed ahead of time.

    Parameters
    ----------
    setting, updates
        As for every contender.
    select : float
        Share that is encrypted; which values does not matter here, so they are random ones.
    """

    kind: Kind = "scheme"
    max_repeats = 1_000_000

    def __init__(self, setting: Setting, updates: Sequence[Vector], select: float = 1.0) -> None:
        self.name = "fedml-he" if select == 1 else f"fedml-he select {select:g}"
        terms = Terms(
            "fedml-he",
            clip=1.0,
            max_examples=EXAMPLES,
            weighted=select == 1,
            metrics=(),
            select=Select(select, "random"),
        )
        self.layout = _layout(setting.values)
        whole = terms.for_cohort(setting.cohort)
        assert isinstance(whole, Ckks)
        secret = CkksSecret.generate(whole.ring)
        whole = dataclasses.replace(whole, public=secret.public(whole.sizes))
        self.scheme: Any = terms.selective(whole, self.layout)
        self.codec = terms.codec()
        self.state = self.codec.init(self.layout)
        sizes = whole.sizes
        self.note = (
            f"ring {whole.ring}, log q = {sizes.q.bit_length()}, {sizes.per} values of {whole.bits} "
            "bits in a slot"
        )
        self._extras = Extras().encode(EXAMPLES if select == 1 else 1, {}, [])
        self._updates, self._ranks = updates, setting.survivors
        key, threads = secrets.token_bytes(32), setting.threads
        self._bits = terms.bits
        self._tags = SumTags(key, SLOT, setting.values, threads)

        def sealer(rank: int) -> Any:
            inner = CkksSealer(whole, secret, key, rank, threads=threads)
            if isinstance(self.scheme, Selective):
                mask = terms.select.fixed(self.layout)
                return SelectiveSealer(self.scheme, inner, mask, threads)
            return inner

        opener: Any = CkksOpener(whole, secret, key, threads=threads)
        if isinstance(self.scheme, Selective):
            opener = SelectiveOpener(self.scheme, opener, terms.select.fixed(self.layout), threads)
        self._sealer, self._opener = sealer, opener
        total: Sealed | None = None
        for rank in self._ranks:
            part = self._encrypt(rank)
            total = self.scheme.add(total, part)
        assert total is not None
        self._total = self.scheme.close(total)
        self.upload_bytes: int | None = part.data.size + len(part.header())
        running = self.scheme.add(None, dataclasses.replace(part, senders=(0,)))
        more = dataclasses.replace(part, senders=(1,))
        self.mean: Vector = np.empty(0, np.float32)
        self.encrypt: Timed = lambda: self._encrypt(self._ranks[0])
        self.add: Timed = lambda: self.scheme.add(running, more)
        self.decrypt: Timed = self._decrypt

    def _encrypt(self, rank: int) -> Sealed:
        # A fresh sealer is what lets one process encrypt repeatedly in one slot.
        plain, _ = self.codec.encode(Plain(self._updates[rank], self._extras), self.state)
        plain = self._tags.tagged(plain, rank, self._bits)
        sealed: Sealed = self._sealer(rank).encrypt(plain, SLOT)
        return sealed

    def _decrypt(self) -> None:
        plain = verified(self._tags, self._opener.decrypt(self._total), self._total, self._bits)
        opened, _ = self.codec.decode(plain, self._total.senders, self.state)
        self.mean = opened.values

    def max_error(self) -> float:
        """Against the float64 mean of the survivors' updates."""
        return worst(self.mean, [self._updates[j] for j in self._ranks])


class ClearPart:
    """What selection leaves in clear, alone: quantized, packed, added, unpacked.

    Parameters
    ----------
    like : FedmlContender
        With a part selected.
    """

    kind: Kind = "part"
    max_repeats = 1_000_000

    def __init__(self, like: FedmlContender, setting: Setting) -> None:
        scheme = like.scheme
        count, packing = scheme.rest, scheme.packing
        self.name = f"its clear part, {count / setting.values:g}"
        self.note = f"{packing.bits} bits a value"
        codec, layout = like.codec, _layout(count)
        state, extras = codec.init(layout), Extras().encode(1, {}, [])
        update = like._updates[0][:count].copy()
        threads = setting.threads

        def encode() -> Any:
            plain, _ = codec.encode(Plain(update, extras), state)
            return pack_clear(packing, plain.values, threads)

        part = encode()
        total, running = part.copy(), part.copy()
        for _ in range(len(setting.survivors) - 1):
            packing.add(total, part, count)
        one, _ = codec.encode(Plain(update, extras), state)
        told = one.extras.astype(np.int64) * len(setting.survivors)

        def decode() -> None:
            sums = unpack_clear(packing, total, count, threads)
            codec.decode(Plain(sums, told), setting.survivors, state, reuse=True)

        self.upload_bytes: int | None = part.size
        self.encrypt: Timed = encode
        self.add: Timed = lambda: packing.add(running, part, count)
        self.decrypt: Timed = decode

    def max_error(self) -> None:
        """No mean is made."""
        return
