"""Values that anybody may have written: what is taken of them has one encoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flhe.coding.flatten import Entry, Layout
from flhe.coding.pack import Packing
from flhe.coding.support import Support
from flhe.keys.agreement import epoch
from flhe.keys.agreement.answers import pack, unpack
from flhe.node.audit import Entry as AuditEntry
from flhe.schemes import shell
from flhe.schemes.esafl import keys as eshe_keys
from flhe.schemes.sealed import Sealed, from_bytes, to_bytes
from flhe.wire import canonical
from tests.fuzz.decoders import ANY, Decoder
from tests.fuzz.group import exchange, slot

# --- ciphertexts and their headers ---

FLOATS = 100
BODY = np.arange(24, dtype=np.uint8)
SOME, EVEN = np.array([0, 3, 4, 50, 99], np.uint32), np.arange(0, FLOATS, 2, dtype=np.uint32)
SUPPORTS = (Support.of(SOME, FLOATS), Support.of(EVEN, FLOATS))


def dense() -> Sealed:
    return Sealed("flashe", slot(), (0, 2), 12, BODY, "double")


def sparse() -> Sealed:
    return Sealed("flashe", slot(1), (1, 3), 12, BODY, "double", SUPPORTS)


def _body(sealed: Sealed) -> bytes:
    return b"".join(map(bytes, sealed.body()))


def _sparse_of(header: bytes, body: bytes) -> Sealed:
    return Sealed.from_parts(header, np.frombuffer(body, np.uint8), floats=FLOATS)


def _taken_supports(data: bytes) -> bytes:
    """The coordinates, read out of their encoding a second time, and written again."""
    return Support.of(Support.from_bytes(data, FLOATS).coords, FLOATS).data


# --- layouts ---

LAYOUT = Layout(
    (Entry("w", (3, 4), "float32"), Entry("b", (), "bfloat16"), Entry("n", (2,), "int64"))
)

# --- packed lanes ---

PACKING = Packing(13)


def _some_clear() -> list[bytes]:
    return [shell.packed(PACKING, np.arange(-250, 250).astype(PACKING.signed)).tobytes()]


def _clear(data: bytes) -> Any:
    return shell.unpacked(PACKING, np.frombuffer(data, np.uint8), 500)


def _keys() -> list[bytes]:
    own = np.arange(-10, 10).astype(np.int8)
    return [eshe_keys.to_elements(own, 3).astype("<u8").tobytes()]


def _summed_keys(data: bytes) -> Any:
    elements = np.frombuffer(data[: len(data) // 8 * 8], "<u8").astype(np.uint64)
    return eshe_keys.from_elements(elements, 20, 3)


def _audit() -> list[bytes]:
    how: dict[str, Any] = {"run": 7, "seconds": 1.25, "time": 1_700_000_000}
    place: dict[str, Any] = {"epoch": bytes(16), "round": 3, "attempt": 0}
    went_well = AuditEntry(stage="round", answer="update", **place, **how)
    refused = AuditEntry(stage="evaluate", answer="refused", code=1014, **how)
    return [went_well.to_line(), refused.to_line()]


def entries() -> Sequence[Decoder]:
    """All of them."""
    confirms, header, body = exchange().confirms, sparse().header(), _body(sparse())
    pieces = [b"one", b"two"]

    return (
        Decoder("CONFIRM at the relay", [confirms[1]], epoch.announced, ANY),
        Decoder(
            "layout",
            [canonical.dumps(one.to_fields()) for one in (LAYOUT, Layout(()))],
            lambda data: Layout.from_fields(canonical.loads(data, 1 << 20, "layout")),
            lambda layout: canonical.dumps(layout.to_fields()),
        ),
        Decoder("ciphertext, small", [to_bytes(dense())], from_bytes, to_bytes),
        Decoder(
            "header of a sparse ciphertext",
            [header],
            lambda data: _sparse_of(data, body),
            Sealed.header,
        ),
        Decoder(
            "body of a sparse ciphertext", [body], lambda data: _sparse_of(header, data), _body
        ),
        Decoder("support", [s.data for s in SUPPORTS], _taken_supports, lambda again: again),
        Decoder("release", [pack(pieces)], unpack, pack),
        Decoder("values in clear", _some_clear, _clear, ANY),
        Decoder("sum of keys", _keys, _summed_keys, ANY),
        Decoder("line of the audit log", _audit, AuditEntry.from_line, AuditEntry.to_line),
    )
