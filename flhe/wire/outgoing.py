"""Outgoing replies: what a site's identity signs of a whole reply, so that its gate can check it.

    statement = CBOR [run id, message id, [[record's name, kind, rows], ...]]

A row of a config or metric record is [name, value]. A float is written as {"f": hexadecimal}, for
canonical CBOR has none. A row of an array is [name, dtype, shape, stype, bytes, SHA-256 of them].
The signature's own field is left out. The order of records and rows counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from flhe.wire.canonical import dumps

FIELD = "signed"
"""The signature's field in `flhe.reply`, 64 bytes."""
KIND: Literal["reply"] = "reply"
"""The kind of an identity's statement that it is."""

Kind = Literal["array", "config", "metric"]


@dataclass(frozen=True, slots=True)
class Held:
    """An array: its form, its size and its SHA-256."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    size: int
    digest: bytes

    def row(self) -> list[Any]:
        """Return its part of a row."""
        return [self.dtype, list(self.shape), self.stype, self.size, self.digest]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record of a reply: rows are pairs of a name and a value, or a `Held`."""

    name: str
    kind: Kind
    rows: tuple[tuple[str, Any], ...]


def statement(run_id: int, message_id: str, records: Iterable[Outgoing]) -> bytes:
    """Return the signed bytes; ConfigError for a value that they cannot hold."""
    return dumps([run_id, message_id, [[r.name, r.kind, _rows(r)] for r in records]])


def _rows(record: Outgoing) -> list[list[Any]]:
    if record.kind == "array":
        return [[name, *held.row()] for name, held in record.rows]
    return [[name, _value(value)] for name, value in record.rows if name != FIELD]


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return {"f": value.hex()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_value(item) for item in value]
    return value
