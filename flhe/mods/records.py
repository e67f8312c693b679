"""Conversion between Flower's records and arrays or bytes; no other module knows both.

A ciphertext travels as `Array(stype="flhe.sealed/1")`, which Flower's own averaging refuses. Long
ones are cut into several arrays: while unpacking, Flower holds a message twice, and one array twice
more.
"""

from __future__ import annotations

import functools
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from numpy.typing import NDArray

from flhe.coding.flatten import BFLOAT16
from flhe.coding.support import Support
from flhe.errors import ConfigError, ProtocolError, VersionError, logger
from flhe.keys.identity import Identity, verify_statement
from flhe.schemes.sealed import Sealed
from flhe.wire import outgoing
from flhe.wire.outgoing import Held, Outgoing

T = TypeVar("T")

PROTOCOL = 7
"""Version of the protocol, in every stage and every reply."""

SEALED = "flhe.sealed/1"
CHECKPOINT = "flhe.checkpoint/1"
STAGE, REPLY, UPDATE, SUM = "flhe.stage", "flhe.reply", "flhe.update", "flhe.sum"
"""Names of our records in a message; everything else in it belongs to the app."""

BOX, CANDIDATE = "flhe.checkpoint", "flhe.candidate"
"""Names of a sealed checkpoint in a message, either way; the second one is only verified."""

MEANS, EVALUATION = "flhe.means.", "flhe.evaluation."
"""Prefixes, before a round's number, of reported mean metrics: of training, or of a model."""

PIECE = 10 << 20
"""Bytes of ciphertext in one Array: two chunks of Flower's. Unpacking 26 MB takes 3.0 times that in
one piece, 2.2 times in these; smaller ones save little more."""

NUMPY = "numpy.ndarray"


def to_numpy(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """Return a model's arrays by name, read-only; a bfloat16 array comes as two-byte voids.

    They are views of the record's own bytes, and keep those alive.
    """
    return {name: _view(name, array) for name, array in record.items()}


def _view(name: str, array: Array) -> NDArray[Any]:
    """Return an array over Flower's bytes, which are an .npy file; nothing is copied.

    Raises ProtocolError: other bytes, or a length other than in the header, which allocates
    nothing.
    """
    data = array.data
    if array.stype != NUMPY:
        raise ProtocolError(
            f"array {name!r} is ciphertext, or of another stype, where a model's ({NUMPY}) was expected"
        )
    try:
        stream = io.BytesIO(data)  # shares the bytes
        shape, fortran_order, dtype = _HEADERS[np.lib.format.read_magic(stream)](stream)
        start, count = stream.tell(), math.prod(shape)
        if dtype.hasobject or count * dtype.itemsize != len(data) - start:
            raise ValueError
        flat = np.frombuffer(data, dtype, count, start) if count else np.empty(0, dtype)
        view = flat.reshape(shape[::-1]).T if fortran_order else flat.reshape(shape)
    except Exception:  # a header is an expression, so parsing may raise anything
        raise ProtocolError(
            "an array of a model must be an .npy file; it is not, or was cut short"
        ) from None
    view.flags.writeable = False
    return view


_HEADERS: dict[tuple[int, int], Callable[..., tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def from_numpy(arrays: Mapping[str, NDArray[Any]]) -> ArrayRecord:
    """Convert arrays of `to_numpy` back to a record."""
    return ArrayRecord({name: from_array(a) for name, a in arrays.items()})


def from_array(array: NDArray[Any]) -> Array:
    """Convert one array of `to_numpy` back."""
    if array.dtype != np.dtype("V2"):
        return Array(array)
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return Array(BFLOAT16, tuple(array.shape), NUMPY, buffer.getvalue())


def from_sealed(sealed: Sealed, *, supports: bool = True) -> ArrayRecord:
    """Return the ciphertext of `sealed` and its supports, in pieces; its header travels separately."""
    body = sealed.body() if supports else sealed.body()[:1]
    if len(body) > 1:  # supports are a fraction of their ciphertext
        body = [memoryview(b"".join(body))]
    return _numbered(body, SEALED)


def to_sealed(
    header: bytes,
    record: ArrayRecord,
    *,
    take: bool = False,
    supports: Sequence[Support] | None = None,
    floats: int | None = None,
) -> Sealed:
    """Rebuild a ciphertext; one piece is not copied. For supports see `Sealed.from_parts`.

    `take` removes each copied piece from the record, so that memory never holds both in full.

    Raises ProtocolError: arrays of another stype, or pieces that are missing or out of order.
    """
    _check_pieces(record, SEALED, "ciphertext")
    if len(record) == 1:
        data = np.frombuffer(record["0000"].data, np.uint8)
    else:
        data, at = np.empty(sum(len(array.data) for array in record.values()), np.uint8), 0
        for name in list(record):
            piece = np.frombuffer((record.pop(name) if take else record[name]).data, np.uint8)
            data[at : at + piece.size] = piece
            at += piece.size
    return Sealed.from_parts(header, data, supports, floats=floats)


class SealedArrays(ArrayRecord):
    """Sealed checkpoint in a strategy's result; it raises instructions when used as a model."""

    def to_numpy_ndarrays(self, *, keep_input: bool = True) -> Any:
        """Refuse: ConfigError."""
        raise ConfigError(
            "the result is sealed, the server has no model: keep it with "
            "flhe.strategies.save_sealed(result, 'model.flhe'), and have a member open it: flhe open "
            "model.flhe --key DIR --output model.npz"
        )

    to_torch_state_dict = to_numpy_ndarrays


def from_pieces(pieces: Iterable[bytes]) -> ArrayRecord:
    """Return a record with a sealed checkpoint, filled in pieces during sealing."""
    return _numbered(pieces, CHECKPOINT)


def _numbered(pieces: Iterable[bytes | memoryview], stype: str) -> ArrayRecord:
    cut = [bytes(p[at : at + PIECE]) for p in pieces for at in range(0, len(p), PIECE)] or [b""]
    made = (Array("uint8", (len(piece),), stype, piece) for piece in cut)
    return ArrayRecord({f"{i:04d}": array for i, array in enumerate(made)})


def _check_pieces(record: ArrayRecord, stype: str, what: str) -> None:
    """Refuse a record without all pieces in order; see `to_sealed`."""
    if not record or list(record) != [f"{i:04d}" for i in range(len(record))]:
        raise ProtocolError(f"{what} pieces are missing or out of order")
    for array in record.values():
        if array.stype != stype:
            raise ProtocolError(f"expected a {what} ({stype}), got another stype")


def to_pieces(record: ArrayRecord) -> list[bytes]:
    """Return the pieces of a sealed checkpoint, not copied.

    Raises ProtocolError: arrays of another stype, or pieces that are missing or out of order.
    """
    _check_pieces(record, CHECKPOINT, "checkpoint")
    return [array.data for array in record.values()]


def stage_record(stage: str, **fields: Any) -> ConfigRecord:
    """Return a request to a client's mod; the release in it is for error messages only."""
    return ConfigRecord({"v": PROTOCOL, "flhe": release(), "stage": stage, **_present(fields)})


def reply(**fields: Any) -> RecordDict:
    """Return a mod's answer."""
    return RecordDict({REPLY: ConfigRecord({"v": PROTOCOL, **_present(fields)})})


def sign(identity: Identity, message: Message, content: RecordDict) -> None:
    """Sign a whole reply to `message`, in its record, for the site's gate and the server."""
    said = message.metadata
    body = _statement(said.run_id, said.message_id, content)
    content.config_records[REPLY][outgoing.FIELD] = identity.state(outgoing.KIND, body)


def check_signed(public: bytes, run_id: int, message_id: str, content: RecordDict) -> None:
    """Refuse a reply that this member has not signed whole, to that message; AuthenticationError."""
    signature: bytes = optional(content.config_records[REPLY], outgoing.FIELD, b"")
    body = _statement(run_id, message_id, content)
    verify_statement(public, signature, outgoing.KIND, body)


def _statement(run_id: int, message_id: str, content: RecordDict) -> bytes:
    found = [_outgoing(name, record) for name, record in content.items()]
    return outgoing.statement(run_id, message_id, found)


def _outgoing(name: str, record: ArrayRecord | ConfigRecord | MetricRecord) -> Outgoing:
    if isinstance(record, ArrayRecord):
        return Outgoing(name, "array", tuple((n, _held(array)) for n, array in record.items()))
    kind: outgoing.Kind = "metric" if isinstance(record, MetricRecord) else "config"
    return Outgoing(name, kind, tuple(record.items()))


def _held(array: Array) -> Held:
    digest = hashlib.sha256(array.data).digest()
    return Held(array.dtype, tuple(array.shape), array.stype, len(array.data), digest)


def _present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields without empty lists, texts and bytes: Flower's mods fail on their size."""
    return {
        name: value
        for name, value in fields.items()
        if not isinstance(value, list | str | bytes) or len(value) > 0
    }


@functools.cache
def release() -> str:
    """Return the installed release of flhe."""
    return version("flhe")


def check_version(record: ConfigRecord) -> None:
    """Refuse a stage of another version of the protocol; VersionError."""
    spoken = field(record, "v", int)
    if spoken == PROTOCOL:
        return
    named = record.get("flhe")
    told = f"flhe {named}, " if isinstance(named, str) and _RELEASE.fullmatch(named) else ""
    raise VersionError(
        f"the server speaks version {spoken} of flhe's protocol ({told}this node runs flhe "
        f"{release()}, version {PROTOCOL}): upgrade the older side"
    )


_RELEASE = re.compile(r"[0-9][0-9A-Za-z.+-]{0,31}")


def federation_name(federation: int) -> bytes:
    """Return a federation's id for stages: ConfigRecord has no unsigned 64-bit integers."""
    return federation.to_bytes(8, "big")


def find_config(content: RecordDict, name: str) -> ConfigRecord | None:
    """The ConfigRecord called `name`, or None."""
    record = content.get(name)
    return record if isinstance(record, ConfigRecord) else None


def find_reply(content: RecordDict) -> ConfigRecord | None:
    """Return our record in a node's reply; None if missing or of another version."""
    record = find_config(content, REPLY)
    if record is None or record.get("v") == PROTOCOL:
        return record
    logger.warning("a reply is of another version of flhe's protocol than %d: ignored", PROTOCOL)
    return None


def field(record: ConfigRecord, name: str, kind: type[T]) -> T:
    """Return one field of a record, of exactly one type.

    Raises ProtocolError: missing, or of another type.
    """
    value: Any = record.get(name)
    if type(value) is not kind:
        raise ProtocolError(f"field {name!r} of a stage must be {kind.__name__}")
    return value


def optional(record: ConfigRecord, name: str, default: T) -> T:
    """Return one field of a record, of exactly the type of `default`, by default that.

    Raises ProtocolError: of another type.
    """
    return field(record, name, type(default)) if name in record else default


def list_of(record: ConfigRecord, name: str, kind: type[T]) -> list[T]:
    """Return one field with a list of values of exactly one type; empty if missing.

    Raises ProtocolError: anything else.
    """
    value: Any = record.get(name, [])
    if not isinstance(value, list) or not all(type(each) is kind for each in value):
        raise ProtocolError(f"field {name!r} of a stage must be a list of {kind.__name__}")
    return list(value)


def bytes_list(record: ConfigRecord, name: str) -> list[bytes]:
    """Return one field with a list of byte strings; see `list_of`."""
    return list_of(record, name, bytes)


def message_bytes(content: RecordDict) -> int:
    """Count the bytes of payload in `content`: array data, and config and metric values."""
    total = 0
    for record in content.values():
        if isinstance(record, ArrayRecord):
            total += sum(len(array.data) for array in record.values())
        else:
            total += sum(_value_bytes(value) for value in record.values())
    return total


def _value_bytes(value: object) -> int:
    """Return the bytes of one config or metric value: 8 a number, 1 a bool, UTF-8 for text."""
    if isinstance(value, list):
        return sum(_value_bytes(item) for item in value)
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, str):
        return len(value.encode())
    return 1 if isinstance(value, bool) else 8
