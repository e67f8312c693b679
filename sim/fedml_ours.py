"""Our CKKS, whole or on a part of each update, as one of the ways of FedML-HE's tables.

Timed is all that a client does, from float32 over integers to bytes and back, with nothing computed
ahead, and all that the server does, checks included. Making keys is not: it happens once an epoch.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import numpy as np

from flhe.coding.base import Plain
from flhe.coding.chain import Chain
from flhe.coding.clip import Clip
from flhe.coding.extras import Extras
from flhe.coding.flatten import Entry, Layout
from flhe.coding.quantize import Quantize
from flhe.coding.support import Support
from flhe.coding.weigh import Weigh
from flhe.schemes.base import Opener, Scheme, Sealer
from flhe.schemes.ckks import Ckks, CkksOpener, CkksSealer
from flhe.schemes.ckks_keys import CkksSecret
from flhe.schemes.presets import DEFAULT_CKKS
from flhe.schemes.selective import Selective, SelectiveOpener, selective_sealer
from flhe.schemes.sum_tags import SumTags
from flhe.sealed import Sealed
from flhe.sim.contenders import SLOT, verified
from flhe.sim.fedml_models import COHORT
from flhe.sim.fedml_ways import EXAMPLES, Cost, Vector, Watch, finished

BITS = 16


class OurWay:
    """Clip, weigh and quantize to 16 bits, then our CKKS.

    Parameters
    ----------
    mask : Support, optional
        Which values are encrypted; the others travel in clear, as integers. None: all are.
    ring : str
        Preset.
    """

    def __init__(self, mask: Support | None = None, ring: str = DEFAULT_CKKS) -> None:
        self.name = f"ours, {ring}"
        self._mask = mask
        self._ckks = Ckks(COHORT, BITS, ring)
        self._key = CkksSecret.generate(ring)
        self._group_key = secrets.token_bytes(32)
        self._codec = Chain((Clip(1.0), Weigh(max(EXAMPLES)), Quantize(BITS)))

    def cost(self, updates: Sequence[Vector]) -> Cost:
        """Average once."""
        watch, size = Watch(), updates[0].size
        state = self._codec.init(Layout((Entry("update", (size,), "float32"),)))
        scheme = self._scheme(size)
        tags = SumTags(self._group_key, SLOT, size)
        total: Sealed | None = None
        upload = 0
        for rank, (update, examples) in enumerate(zip(updates, EXAMPLES, strict=True)):
            sealer = self._sealer(scheme, rank)
            extras = Extras().encode(examples, {}, [])
            watch.start()
            plain, _ = self._codec.encode(Plain(update, extras), state)
            plain = tags.tagged(plain, rank, BITS)
            part = sealer.encrypt(plain, SLOT)
            watch.stop("encrypt", 1 / COHORT)
            upload = part.data.size + len(part.header())
            watch.start()
            total = scheme.add(total, part)
            watch.stop("aggregate")
        assert total is not None
        watch.start()
        total = scheme.close(total)
        watch.stop("aggregate")
        opener = self._opener(scheme)
        watch.start()
        plain = verified(tags, opener.decrypt(total), total, BITS)
        opened, _ = self._codec.decode(plain, total.senders, state)
        mean = opened.values.astype(np.float32, copy=False)
        watch.stop("decrypt")
        download = total.data.size + len(total.header())
        return finished(watch, upload, download, mean, updates)

    def _scheme(self, size: int) -> Scheme:
        return self._ckks if self._mask is None else Selective(self._ckks, size, self._mask.count)

    def _sealer(self, scheme: Scheme, rank: int) -> Sealer:
        # A fresh sealer each time: one key and slot encrypt repeatedly, random numbers only.
        sealer = CkksSealer(self._ckks, self._key, self._group_key, rank)
        if self._mask is None:
            return sealer
        assert isinstance(scheme, Selective)
        return selective_sealer(scheme, sealer, self._mask)

    def _opener(self, scheme: Scheme) -> Opener:
        opener = CkksOpener(self._ckks, self._key, self._group_key)
        if self._mask is None:
            return opener
        assert isinstance(scheme, Selective)
        return SelectiveOpener(scheme, opener, self._mask)
