"""Files of a state directory and of a server: a bad disk, or somebody who got at it, wrote them.

What is taken encodes to the same bytes, so nothing is lost or made up on the way. Most are read as a
node and a server read them, in directories of theirs.
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
from flhe.node.node import Node, _output
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.ledger import Ledger
from flhe.training.chain import Link
from flhe.training.contract import Contract
from flhe.training.draft import MAGIC as DRAFT
from flhe.training.draft import Draft
from flhe.training.model import MAGIC as MODEL
from flhe.training.model import Model
from flhe.wire import canonical
from tests.fuzz.decoders import ANY, Decoder, Encode
from tests.fuzz.group import IDS, ROSTER, RUN, exchange, scratch, source
from tests.fuzz.plain import LAYOUT, dense, sparse
from tests.fuzz.signed import KEY
from tests.keys.agreement import CONTRACT

# --- a node's directory ---


@functools.cache
def node() -> Node:
    """A node with an agreement under way, an epoch and an update that is kept."""
    home = scratch() / "node"
    store = Store(home)
    Path(home / "identity.key").write_bytes(bytes([1]) * 32)
    (home / "identity.key").chmod(0o600)
    mine = Node(Policy(home, trust="first-use"), store, store.identity(), RUN)
    mine.save_agreement(exchange().advertised[0], Contract())
    mine.start_session(exchange().epochs[0], Contract())
    mine.save_agreement(exchange().confirmed[0], Contract())
    mine.save_output(sparse(), b"envelope")
    return mine


def _output_bytes(kept: tuple[Any, bytes]) -> bytes:
    sealed, envelope = kept
    head = canonical.dumps([sealed.header(), envelope])
    return len(head).to_bytes(4, "big") + head + b"".join(map(bytes, sealed.body()))


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


def _whole() -> Ledger:
    """With the round of its checkpoint as it is written, whether or not the file is of that round."""
    kept = ledger()
    body = canonical.loads((server() / "ledger").read_bytes(), 1 << 20, "ledger")
    kept.box_round = body["box_round"]
    return kept


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
    epoch = f"epochs/{exchange().epochs[0].id.hex()}"

    def at_node(name: str, file: str, read: Callable[[Node], Any], *how: Any, **more: Any) -> Any:
        return file_of(name, lambda: node().policy.home / file, lambda: read(node()), *how, **more)

    def at_server(name: str, file: str, read: Callable[[], Any], *how: Any, **more: Any) -> Any:
        return file_of(name, lambda: server() / file, read, *how, **more)

    def box() -> Any:
        return ledger().box, ledger().box_round, ledger().vouchers

    return (
        at_node("keys of an epoch", epoch, Node.usable_epoch, ANY),
        at_node("journal", f"runs/{RUN}/journal", lambda mine: mine.book.enter(), ANY),
        at_node(
            "kept update",
            f"runs/{RUN}/outbox",
            lambda mine: mine._kept("outbox", _output),
            _output_bytes,
            head=0,
        ),
        at_node("agreement under way", f"runs/{RUN}/agreement", Node._agreement, ANY),
        at_node("identity", "identity.key", lambda mine: mine.store.identity(), ANY),
        at_server("ledger", "ledger", _whole, Ledger.to_bytes),
        at_server("kept sum of a ledger", "sum-3", lambda: ledger().sums[3], _sum_bytes, head=0),
        at_server("kept checkpoint of a ledger", "checkpoint", box, ANY, head=len(BOX)),
        Decoder("model", [*map(_joined, models())], Model.from_bytes, _joined, head=len(MODEL)),
        Decoder("draft", [*map(_joined, drafts())], Draft.from_bytes, _joined, head=len(DRAFT)),
    )
