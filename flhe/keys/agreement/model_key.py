"""Key of the models that a group has sealed: what a site may keep when all else of an epoch is gone.

    key  = HKDF(K_G, "models" | run_id | roster_hash | epoch id)
    file = CBOR {v, kind, epoch, run_id, roster_hash, key}

Sealed checkpoints are under this key, and nothing else is. K_G is not found from it, so who has it,
with all that ever passed over the wire, reads models: no update, no sum, no key of a scheme.

Source: docs/protocol.md; RFC 5869 (HKDF).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from flhe.errors import ProtocolError
from flhe.keys.agreement.states import Epoch
from flhe.keys.identity import Secret
from flhe.wire.canonical import dumps, loads, record

VERSION = 1
KIND = "flhe-model-key"
STAGE = "checkpoint"
"""Stage in the header of a sealed model."""
MAX_FILE = 512
"""Longest file, bytes; one takes some 200."""

_SIZES = {"epoch": 16, "roster_hash": 32, "key": 32}


@dataclass(frozen=True, slots=True)
class ModelKey:
    """What opens the sealed models of one epoch.

    Parameters
    ----------
    epoch : bytes
        The epoch's id, 16 bytes.
    run_id : int
        The run that it was agreed in.
    roster_hash : bytes
        SHA-256 of its roster, 32 bytes.
    key : bytes
        32 bytes, secret.

    Raises
    ------
    ProtocolError
        A part of another length, or a run that is none.
    """

    epoch: bytes
    run_id: int
    roster_hash: bytes
    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        for name, size in _SIZES.items():
            if len(getattr(self, name)) != size:
                raise ProtocolError(f"model key: {name} must be {size} bytes")
        if not 0 <= self.run_id < 1 << 64:
            raise ProtocolError("model key: a run is a number of 64 bits")
        object.__setattr__(self, "key", Secret(self.key))

    @classmethod
    def of(cls, epoch: Epoch) -> ModelKey:
        """The key of an epoch's models."""
        return cls(epoch.id, epoch.run_id, epoch.roster.hash, epoch.model_key)

    def header(self) -> dict[str, int | str | bytes]:
        """What the header of each model under this key says; a reader accepts nothing else."""
        return {
            "stage": STAGE,
            "epoch": self.epoch,
            "run_id": self.run_id,
            "roster_hash": self.roster_hash,
        }

    def to_bytes(self) -> bytes:
        """Encode as canonical CBOR; the bytes are secret."""
        return dumps(
            {
                "v": VERSION,
                "kind": KIND,
                "epoch": self.epoch,
                "run_id": self.run_id,
                "roster_hash": self.roster_hash,
                "key": self.key,
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> ModelKey:
        """Decode what `to_bytes` wrote. Raises ProtocolError for anything else."""
        kinds = {
            "v": int,
            "kind": str,
            "epoch": bytes,
            "run_id": int,
            "roster_hash": bytes,
            "key": bytes,
        }
        body = record(loads(data, MAX_FILE, "model key"), "model key", kinds)
        if (body.pop("v"), body.pop("kind")) != (VERSION, KIND):
            raise ProtocolError("model key: another kind of file, or another version")
        return cls(**body)
