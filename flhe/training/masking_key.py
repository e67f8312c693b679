"""Masking keys alone: which slot the seeds of one round belong to.

Every round is a start of its own, so members sign one set of survivors in each (`flhe.node.claims`).
"""

from __future__ import annotations

import hashlib

from flhe.schemes.sealed import Slot
from flhe.training.epoch_sums import EpochSums
from flhe.wire.canonical import dumps
from flhe.wire.derive import PREFIX

PURPOSE = "masking-key"


def slot_of(sums: EpochSums, round_: int) -> Slot:
    """The slot of a round's seeds."""
    history = hashlib.sha256(dumps([PREFIX + PURPOSE, round_])).digest()
    return sums.slot(round_, 0, sums.layout_hash, history, PURPOSE)
