"""What a round starts from, in each node's own words: its model.

A member that hands one node another model than the rest turns a sum into that node's update. So the
model is bound into the slot of whatever is encrypted: masks, seeds and `a` then differ between nodes
that start from different ones, and nothing that they send adds up. What apps are told is in the
contract, and with it in the epoch: see `flhe.training.contract`.
"""

from __future__ import annotations

import hashlib

from flhe.wire import canonical
from flhe.wire.derive import PREFIX


def started_layout(layout_hash: bytes, digest: bytes) -> bytes:
    """Layout hash of a round that starts from the model with this keyed `digest`."""
    return hashlib.sha256(canonical.dumps([PREFIX + "start", layout_hash, digest])).digest()


def fitted_layout(layout_hash: bytes, digest: bytes) -> bytes:
    """Layout hash of a round whose thresholds are fitted on the sum with this `digest`."""
    return hashlib.sha256(canonical.dumps([PREFIX + "ranged", layout_hash, digest])).digest()
