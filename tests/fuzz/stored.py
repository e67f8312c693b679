"""Files of a state directory and of a server that are more than a record, as a bad disk has them.

What is taken encodes to the same bytes, so nothing is lost or made up on the way.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from flhe.coding.support import Support
from flhe.keys.seal import MAGIC as BOX
from flhe.keys.seal import seal
from flhe.mods import records
from flhe.node.node import StoredOutput, _output
from flhe.schemes.sealed import Sealed
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.ledger import Ledger
from flhe.training.chain import Link
from flhe.training.draft import MAGIC as DRAFT
from flhe.training.draft import Draft
from flhe.training.model import MAGIC as MODEL
from flhe.training.model import Model
from flhe.wire.record import frame
from tests.fuzz.decoders import ANY, Decoder, Encode
from tests.fuzz.group import IDS, KEY, ROSTER, RUN, exchange, scratch, source
from tests.fuzz.plain import LAYOUT, dense, sparse
from tests.keys.agreement import CONTRACT


def _output_bytes(kept: tuple[Sealed, bytes]) -> bytes:
    sealed, envelope = kept
    return b"".join([frame(StoredOutput(sealed.header(), envelope)), *map(bytes, sealed.body())])


# --- a server's directory ---


@functools.cache
def server() -> Path:
    """The directory of one in its third round."""
    directory = scratch() / "server"
    kept = Ledger.create(directory, RUN, CONTRACT)
    members = {100 + i: each.public for i, each in enumerate(IDS)}
    epoch, confirms = exchange().epochs[0], tuple(exchange().confirms)
    kept.agreed = Agreed(
        0, epoch.id, ROSTER.hash, members, confirms, CONTRACT, CONTRACT, 3, 1, 3, b"public"
    )
    kept.layout, kept.chain = LAYOUT, {2: bytes(32)}
    kept.begin(3, 0)
    kept.keep_mean_squares(dense())
    kept.keep(dense(), bytes([2]) * 32, b"release")
    box = b"".join(seal(KEY, 2, 1, b"abcdefg", source("kept box")))
    kept.keep_box(records.from_pieces([box]), 2, (b"voucher",))
    return directory


def ledger() -> Ledger:
    return Ledger.load(server(), CONTRACT)


def _sum_bytes(kept: tuple[bytes, ArrayRecord]) -> bytes:
    header, record = kept
    return len(header).to_bytes(4, "big") + header + b"".join(a.data for a in record.values())


def file_of(
    name: str, path: Callable[[], Path], read: Callable[[], Any], encode: Encode, **how: Any
) -> Decoder:
    """A file in its directory, in whose place another one is put, and what comes of it."""

    @functools.cache
    def honest() -> list[bytes]:
        return [path().read_bytes()]

    def decode(data: bytes) -> Any:
        (before,) = honest()
        path().write_bytes(data)
        try:
            return read()
        finally:
            path().write_bytes(before)

    return Decoder(name, honest, decode, encode, **how)


# --- models ---

ONE_MODEL: dict[str, Any] = {
    "w": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4),
    "b": np.array(b"\x80\x3f", "V2"),
    "n": np.array([3, -4], np.int64),
}


def _joined(value: Model | Draft) -> bytes:
    return b"".join(bytes(chunk) for chunk in value.chunks())


def models() -> list[Model]:
    first = Model.initial(ONE_MODEL)
    lane = np.linspace(0, 1, LAYOUT.floats, dtype=np.float32)
    memory = {"norms": np.array([0.5, 0.25])}
    mask = Support.of(np.array([0, 5, 12], np.uint32), LAYOUT.floats)
    kept = {"moments": {"m": lane, "v": lane}, "memory": memory}
    later = dataclasses.replace(first, round=3, steps=1, **kept)
    later = later.linked(Link(3, first.history, bytes(32), bytes(16)))
    last = Link(4, later.history, bytes([1]) * 32, bytes(24))
    return [first, dataclasses.replace(later, round=4, mask=mask).linked(last)]


def drafts() -> list[Draft]:
    values, extras = np.array([0.5, -1.5], np.float32), np.array([7, -(2**40)], np.int64)
    residual, coords = np.zeros(5, np.float32), np.array([1, 4], np.uint32)
    dense_one = Draft(3, bytes(32), values, extras, base=bytes(32))
    return [dense_one, Draft(4, bytes([1]) * 32, values, extras, coords, residual)]


def entries() -> Sequence[Decoder]:
    """All of them."""

    def at_server(
        name: str, file: str, read: Callable[[], Any], encode: Encode, *, head: int
    ) -> Decoder:
        return file_of(name, lambda: server() / file, read, encode, head=head)

    def box() -> Any:
        return ledger().box, ledger().box_round, ledger().vouchers

    def output(data: bytes) -> Any:
        return _output(memoryview(data))

    kept = _output_bytes((sparse(), b"envelope"))
    return (
        Decoder("kept update", [kept], output, _output_bytes, head=0),
        at_server("kept sum of a ledger", "sum-3", lambda: ledger().sums[3], _sum_bytes, head=0),
        at_server("kept checkpoint of a ledger", "checkpoint", box, ANY, head=len(BOX)),
        Decoder("model", [*map(_joined, models())], Model.from_bytes, _joined, head=len(MODEL)),
        Decoder("draft", [*map(_joined, drafts())], Draft.from_bytes, _joined, head=len(DRAFT)),
    )
