"""Flower's records <-> arrays and bytes: the one place that knows both.

A ciphertext travels as `Array(stype="flhe.sealed/1")`. Flower's own averaging refuses that stype, so
nothing averages ciphertext by accident. Long ones are cut into several arrays, because Flower holds
three to four times an array's size while it unpacks it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from flhe.coding.flatten import BFLOAT16
from flhe.errors import ProtocolError
from flhe.sealed import Sealed

SEALED = "flhe.sealed/1"
CHECKPOINT = "flhe.checkpoint/1"
STAGE, REPLY, UPDATE, SUM = "flhe.stage", "flhe.reply", "flhe.update", "flhe.sum"
"""Names of our records in a message; everything else in it belongs to the app."""

MEANS = "flhe.means."
"""With a round's number behind it: mean training metrics, as the teller opened them."""

PREFIX = "flhe."
PIECE = 64 << 20
"""Bytes of ciphertext in one Array."""


def to_numpy(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Arrays of a model, by name; a bfloat16 array comes as two-byte voids."""
    arrays = {}
    for name, array in record.items():
        if array.stype.startswith(PREFIX):
            raise ProtocolError(f"array {name!r} is ciphertext where a model was expected")
        arrays[name] = array.numpy()
    return arrays


def from_numpy(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Inverse of `to_numpy`."""
    return ArrayRecord({name: _array(a) for name, a in arrays.items()})


def _array(array: NDArray[Any]) -> Array:
    if array.dtype != np.dtype("V2"):
        return Array(array)
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return Array(BFLOAT16, tuple(array.shape), "numpy.ndarray", buffer.getvalue())


def from_sealed(sealed: Sealed) -> ArrayRecord:
    """The ciphertext of `sealed`, in pieces; its header travels beside it."""
    data = sealed.data.data
    return ArrayRecord(
        {
            f"{i:04d}": Array("uint8", (len(part),), SEALED, part.tobytes())
            for i, part in enumerate(
                data[at : at + PIECE] for at in range(0, max(len(data), 1), PIECE)
            )
        }
    )


def to_sealed(header: bytes, record: ArrayRecord) -> Sealed:
    """Rebuild a ciphertext; one piece is not copied.

    Raises
    ------
    ProtocolError
        Arrays of another stype, or pieces that are missing or out of order.
    """
    names = list(record)
    if not names or names != [f"{i:04d}" for i in range(len(names))]:
        raise ProtocolError("ciphertext pieces are missing or out of order")
    pieces = []
    for array in record.values():
        if array.stype != SEALED:
            raise ProtocolError(f"expected ciphertext ({SEALED}), got {array.stype!r}")
        pieces.append(np.frombuffer(array.data, np.uint8))
    data = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    return Sealed.from_parts(header, data)


def from_checkpoint(box: bytes) -> ArrayRecord:
    """A sealed checkpoint, as what a strategy's result holds."""
    return ArrayRecord({"checkpoint": Array("uint8", (len(box),), CHECKPOINT, box)})


def home_record(home: Path) -> ConfigRecord:
    """What a Context remembers of us: where the state directory is, and nothing secret."""
    return ConfigRecord({"home": str(home)})


def stage_record(stage: str, **fields: Any) -> ConfigRecord:
    """What the server asks a client's mod for."""
    return ConfigRecord({"v": 1, "stage": stage, **fields})


def find_config(content: RecordDict, name: str) -> ConfigRecord | None:
    """The ConfigRecord called `name`, or None."""
    record = content.get(name)
    return record if isinstance(record, ConfigRecord) else None


def field(record: ConfigRecord, name: str, kind: type) -> Any:
    """One field of a record, of exactly one type.

    Raises
    ------
    ProtocolError
        Missing, or of another type.
    """
    value = record.get(name)
    if type(value) is not kind:
        raise ProtocolError(f"field {name!r} of a stage must be {kind.__name__}")
    return value


def bytes_list(record: ConfigRecord, name: str) -> list[bytes]:
    """One field that is a list of byte strings; missing means empty."""
    value = record.get(name, [])
    if not isinstance(value, list) or not all(type(v) is bytes for v in value):
        raise ProtocolError(f"field {name!r} of a stage must be a list of bytes")
    return [v for v in value if isinstance(v, bytes)]
