"""Values that anybody may have written: what is taken of them has one encoding."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord

from flhe.coding.flatten import Entry, Layout
from flhe.coding.limb_packing import LimbPacking
from flhe.coding.pack import Packing
from flhe.coding.support import Support
from flhe.errors import ProtocolError
from flhe.keys.agreement import answers, epoch
from flhe.mods import records
from flhe.node.audit import Entry as AuditEntry
from flhe.schemes import selective
from flhe.schemes.esafl import keys as eshe_keys
from flhe.schemes.sealed import Sealed, from_bytes, to_bytes
from flhe.training import optimizers
from flhe.training.client_optimizer import ClientOptimizer
from flhe.training.optimizer import ServerOptimizer
from flhe.wire import canonical
from tests.fuzz.decoders import ANY, Decoder
from tests.fuzz.group import exchange, slot

LIMIT = 1 << 20


def fields(data: bytes) -> Any:
    """What a decoder of values is given: some CBOR that is canonical."""
    return canonical.loads(data, LIMIT, "value")


def value(decode: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    return lambda data: decode(fields(data))


def encoded(encode: Callable[[Any], Any]) -> Callable[[Any], bytes]:
    return lambda value: canonical.dumps(encode(value))


# --- ciphertexts and their headers ---

FLOATS = 100
BODY = np.arange(24, dtype=np.uint8)


@functools.cache
def supports() -> tuple[Support, Support]:
    some = np.array([0, 3, 4, 50, 99], np.uint32)
    return Support.of(some, FLOATS), Support.of(np.arange(0, FLOATS, 2, dtype=np.uint32), FLOATS)


def dense() -> Sealed:
    return Sealed("flashe", slot(), (0, 2), 12, BODY, "double")


def sparse() -> Sealed:
    return Sealed("flashe", slot(1), (1, 3), 12, BODY, "double", supports())


def _raw(parts: Sequence[Any]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def _sparse_header(data: bytes) -> Sealed:
    return Sealed.from_parts(data, np.frombuffer(_raw(sparse().body()), np.uint8), floats=FLOATS)


def _sparse_body(data: bytes) -> Sealed:
    return Sealed.from_parts(sparse().header(), np.frombuffer(data, np.uint8), floats=FLOATS)


def _taken_supports(data: bytes) -> bytes:
    """The coordinates, read out of their encoding a second time, and written again."""
    held = Support.from_bytes(data, FLOATS)
    return Support.of(held.coords, FLOATS).data


# --- Flower's records ---


def _record(data: bytes) -> ArrayRecord:
    """Arrays as a sender may write them: [[name, dtype, shape, stype, bytes], ...]."""
    record = ArrayRecord()
    match fields(data):
        case list(items):
            for item in items:
                match item:
                    case [str(name), str(dtype), list(shape), str(stype), bytes(content)] if all(
                        type(size) is int for size in shape
                    ):
                        record[name] = Array(dtype, tuple(shape), stype, content)
                    case _:
                        raise ProtocolError("no such record can be sent")
            return record
    raise ProtocolError("no such record can be sent")


def _flat(record: ArrayRecord) -> bytes:
    return canonical.dumps(
        [[n, a.dtype, list(a.shape), a.stype, a.data] for n, a in record.items()]
    )


def _from_record(record: ArrayRecord) -> Sealed:
    return records.to_sealed(dense().header(), record, floats=0)


def _stage(data: bytes) -> Any:
    """All readers of a stage's fields."""
    found = fields(data)
    if not isinstance(found, dict):
        raise ProtocolError("no record")
    try:
        record = ConfigRecord(found)
    except (TypeError, ValueError):  # Flower's own refusal: nothing of it arrives
        raise ProtocolError("no such record can be sent") from None
    names = ("v", "stage", "messages", "number")
    kinds = (int, str, list, int)
    for name, kind in zip(names, kinds, strict=True):
        records.field(record, name, kind)
    records.optional(record, "mode", "")
    return records.bytes_list(record, "messages")


# --- layouts and optimizers ---

LAYOUT = Layout(
    (Entry("w", (3, 4), "float32"), Entry("b", (), "bfloat16"), Entry("n", (2,), "int64"))
)


def _optimizers() -> list[bytes]:
    servers = ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad")
    all_of = [ServerOptimizer(name) for name in servers]  # type: ignore[arg-type]
    clients = [ClientOptimizer(name) for name in ("sgd", "adam", "rmsprop")]  # type: ignore[arg-type]
    return [canonical.dumps(each.parameters()) for each in (*all_of, *clients)]


# --- packed lanes ---

PACKING = Packing(13)
LIMBS = LimbPacking(57, ((1 << 57) - 13, (1 << 56) - 5))


def _residues(data: bytes) -> Any:
    held = np.frombuffer(data, np.uint8)
    if held.size != LIMBS.nbytes(40):  # as all callers see to
        raise ProtocolError("another length")
    LIMBS.check(held, 40)
    rows = np.empty((2, 40), np.uint64)
    for limb in range(2):
        LIMBS.read(held, 40, limb, 0, rows[limb])
    return rows


def _packed_residues(rows: Any) -> bytes:
    out = np.empty(LIMBS.nbytes(40), np.uint8)
    for limb in range(2):
        LIMBS.write(rows[limb], out, 40, limb, 0)
    return out.tobytes()


def _some_residues() -> list[bytes]:
    rows = np.arange(80, dtype=np.uint64).reshape(2, 40) << np.uint64(45)
    return [_packed_residues(rows)]


def _clear(data: bytes) -> Any:
    return selective.unpack_clear(PACKING, np.frombuffer(data, np.uint8), 500)


def _some_clear() -> list[bytes]:
    values = np.arange(-250, 250).astype(PACKING.signed)
    return [selective.pack_clear(PACKING, values).tobytes()]


def _summed_keys(data: bytes) -> Any:
    elements = np.frombuffer(data[: len(data) // 8 * 8], "<u8").astype(np.uint64)
    return eshe_keys.from_elements(elements, 20, 3)


def _audit() -> list[bytes]:
    how: dict[str, Any] = {"run": 7, "seconds": 1.25, "time": 1_700_000_000}
    return [
        AuditEntry(
            stage="round", answer="update", epoch=bytes(16), round=3, attempt=0, **how
        ).to_line(),
        AuditEntry(stage="evaluate", answer="refused", code=1014, **how).to_line(),
    ]


def entries() -> Sequence[Decoder]:
    """All of them."""
    e, keys = exchange(), "flhe.keys."
    return (
        Decoder(
            "canonical CBOR",
            lambda: [canonical.dumps([1, -1, b"x", "y", None, True, {"a": [2**64 - 1], "b": {}}])],
            fields,
            canonical.dumps,
            covers=("flhe.wire.canonical.loads",),
        ),
        Decoder(
            "CONFIRM at the relay",
            lambda: [e.confirms[1]],
            lambda data: epoch.announced([e.confirms[0], data]),
            ANY,
        ),
        Decoder(
            "optimizer",
            _optimizers,
            value(optimizers.from_parameters),
            encoded(lambda each: each.parameters()),
            covers=(
                "flhe.training.optimizers.from_parameters",
                "flhe.training.optimizer_base.BaseOptimizer.from_parameters",
            ),
        ),
        Decoder(
            "layout",
            lambda: [canonical.dumps(LAYOUT.to_fields()), canonical.dumps([])],
            value(Layout.from_fields),
            encoded(Layout.to_fields),
            covers=("flhe.coding.flatten.Layout.from_fields",),
        ),
        Decoder(
            "ciphertext, small",
            lambda: [to_bytes(dense())],
            from_bytes,
            to_bytes,
            covers=("flhe.schemes.sealed.from_bytes", "flhe.schemes.sealed.Sealed.from_parts"),
        ),
        Decoder(
            "header of a sparse ciphertext",
            lambda: [sparse().header()],
            _sparse_header,
            Sealed.header,
        ),
        Decoder(
            "body of a sparse ciphertext",
            lambda: [_raw(sparse().body())],
            _sparse_body,
            lambda sealed: _raw(sealed.body()),
        ),
        Decoder(
            "support",
            lambda: [s.data for s in supports()],
            _taken_supports,
            lambda again: again,
            covers=("flhe.coding.support.Support.from_bytes",),
        ),
        Decoder(
            "support of any length",
            lambda: [canonical.dumps([s.length, s.data]) for s in supports()],
            _support_of_length,
            lambda s: canonical.dumps([s.length, s.data]),
        ),
        Decoder(
            "ciphertext in a record",
            lambda: [_flat(records.from_sealed(dense()))],
            _sealed_record,
            ANY,
        ),
        Decoder(
            "checkpoint in a record",
            lambda: [_flat(records.from_pieces([b"abc", b"defg"]))],
            lambda data: records.to_pieces(_record(data)),
            ANY,
        ),
        Decoder("arrays in a record", _arrays, lambda data: records.to_numpy(_record(data)), ANY),
        Decoder(
            "stage",
            lambda: [
                canonical.dumps(
                    {"v": 1, "stage": "share", "messages": [b"a", b"b"], "number": 3, "mode": ""}
                )
            ],
            _stage,
            ANY,
        ),
        Decoder(
            "release",
            lambda: [answers.pack([b"one", b"two"])],
            answers.unpack,
            answers.pack,
            covers=(keys + "agreement.answers.unpack",),
        ),
        Decoder("residues in limbs", _some_residues, _residues, _packed_residues),
        Decoder(
            "values in clear",
            _some_clear,
            _clear,
            ANY,
            covers=("flhe.schemes.selective.unpack_clear",),
        ),
        Decoder(
            "sum of keys",
            lambda: [
                eshe_keys.to_elements(np.arange(-10, 10).astype(np.int8), 3).astype("<u8").tobytes()
            ],
            _summed_keys,
            ANY,
            covers=("flhe.schemes.esafl.keys.from_elements",),
        ),
        Decoder(
            "line of the audit log",
            _audit,
            AuditEntry.from_line,
            AuditEntry.to_line,
            covers=("flhe.node.audit.Entry.from_line",),
        ),
    )


def _support_of_length(data: bytes) -> Support:
    match fields(data):
        case [int(length), bytes(coded)] if type(length) is int:
            return Support.from_bytes(coded, length)
    raise ProtocolError("no support")


def _sealed_record(data: bytes) -> Sealed:
    return _from_record(_record(data))


def _arrays() -> list[bytes]:
    record = records.from_numpy(
        {
            "w": np.arange(6, dtype=np.float32).reshape(2, 3),
            "f": np.asfortranarray(np.arange(6, dtype=np.float64).reshape(2, 3)),
            "n": np.array(3, np.int64),
            "b": np.zeros(2, "V2"),
        }
    )
    return [_flat(record)]
