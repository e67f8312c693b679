"""Key of the models that a group has sealed: what a site may keep when all else of an epoch is gone.

    key  = HKDF(K_G, "models" | run_id | roster_hash | epoch id)
    file = CBOR {v, kind, epoch, run_id, roster_hash, key}

Sealed checkpoints are under this key, and nothing else is. K_G is not found from it, so who has it,
with all that ever passed over the wire, reads models: no update, no sum, no key of a scheme.

Source: docs/protocol.md; RFC 5869 (HKDF).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from flhe.keys.agreement.states import Epoch
from flhe.wire.derive import hkdf
from flhe.wire.fields import SECRET, U64, Hash, size
from flhe.wire.record import Form, Record

VERSION = 1
KIND = "flhe-model-key"
MAX_FILE = 512
"""Longest file, bytes; one takes some 200."""


@dataclass(frozen=True, slots=True)
class ModelKey(Record):
    """What opens the sealed models of one epoch: its id, run, roster and key, which is secret."""

    FORM = Form("model key", MAX_FILE, KIND, VERSION)

    epoch: Annotated[bytes, size(16)]
    run_id: U64
    roster_hash: Hash
    key: Annotated[Hash, SECRET] = field(repr=False)

    @classmethod
    def of(cls, epoch: Epoch) -> ModelKey:
        """The key of an epoch's models."""
        run_id, roster_hash = epoch.run_id, epoch.roster.hash
        key = hkdf(epoch.group_key, "models", run_id, roster_hash, epoch.id)
        return cls(epoch.id, run_id, roster_hash, key)
