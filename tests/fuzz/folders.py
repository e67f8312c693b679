"""Files in the directories of a node and of a server, read as those read them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord

from flhe.keys.identity import Identity
from flhe.mods import records
from flhe.node.node import Node
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.strategies.key_agreement import Agreed
from flhe.strategies.ledger import Ledger
from flhe.training.terms import Terms
from flhe.wire import canonical
from tests.fuzz.decoders import ANY, Decoder
from tests.fuzz.group import IDS, ROSTER, RUN, TERMS, exchange, scratch
from tests.fuzz.plain import LAYOUT, dense, sparse

# --- a node's directory ---


@functools.cache
def node() -> Node:
    """A node with an agreement under way, an epoch and an update that is kept."""
    home = scratch() / "node"
    store = Store(home)
    Path(home / "identity.key").write_bytes(bytes([1]) * 32)
    (home / "identity.key").chmod(0o600)
    mine = Node(Policy(home, trust="first-use"), store, store.identity(), RUN)
    epoch = exchange().epochs[0]
    mine.start_session(epoch, Terms())
    mine.save_agreement(exchange().confirmed[0])
    mine.save_output(sparse(), b"envelope")
    return mine


def _at(name: str) -> Path:
    node()
    return scratch() / "node" / name


def _file(name: str, decode: Callable[[Node], Any]) -> tuple[Callable[[], list[bytes]], Any]:
    """Honest content of a file, and a decoder that puts another one in its place."""

    @functools.cache
    def honest() -> list[bytes]:
        return [_at(name).read_bytes()]

    def read(data: bytes) -> Any:
        honest()
        _at(name).write_bytes(data)
        return decode(node())

    return honest, read


def _output_bytes(kept: tuple[Any, bytes]) -> bytes:
    sealed, envelope = kept
    head = canonical.dumps([sealed.header(), envelope])
    return len(head).to_bytes(4, "big") + head + b"".join(map(bytes, sealed.body()))


OUTBOX = _file(f"runs/{RUN}/outbox", lambda mine: mine._output("outbox"))
SESSION = _file(f"runs/{RUN}/session", lambda mine: mine._read_session())
AGREEMENT = _file(f"runs/{RUN}/agreement", lambda mine: mine._agreement())


def _claims(mine: Node) -> Any:
    """What the store makes of the file of an epoch, whatever it asks it for."""
    epoch_id, store = exchange().epochs[0].id, mine.store
    return store.opened(epoch_id), store.last_claim(epoch_id), store.usable(epoch_id)


EPOCH = _file(f"epochs/{exchange().epochs[0].id.hex()}", _claims)


def _session_bytes(session: tuple[bytes, bytes]) -> bytes:
    return canonical.dumps({"v": 1, "epoch": session[0], "terms": session[1]})


# --- a server's directory ---


@functools.cache
def _ledger() -> Path:
    directory = scratch() / "server"
    kept = Ledger.create(directory, RUN, TERMS)
    members = {100 + i: each.public for i, each in enumerate(IDS)}
    epoch = exchange().epochs[0]
    confirms = tuple(exchange().confirms)
    kept.agreed = Agreed(0, epoch.id, ROSTER.hash, members, confirms, 1, 3, b"public")
    kept.layout, kept.chain = LAYOUT, {2: bytes(32)}
    kept.begin(3, 0)
    kept.keep_ranges(dense())
    kept.told[3] = bytes([3]) * 32
    kept.keep(dense(), bytes([2]) * 32, b"release")
    kept.keep_box(records.from_pieces([b"abc", b"defg"]), 2)
    return directory


def _ledger_file(
    name: str, value: Callable[[Ledger], Any]
) -> tuple[Callable[[], list[bytes]], Any]:
    @functools.cache
    def honest() -> list[bytes]:
        return [(_ledger() / name).read_bytes()]

    def read(data: bytes) -> Any:
        before = honest()[0]
        (_ledger() / name).write_bytes(data)
        try:
            return value(Ledger.load(_ledger(), TERMS))
        finally:
            (_ledger() / name).write_bytes(before)

    return honest, read


def _whole(kept: Ledger) -> Ledger:
    """With the round of its checkpoint as it is written, whether or not the file is of that round."""
    body = canonical.loads((_ledger() / "ledger").read_bytes(), 1 << 20, "ledger")
    kept.box_round = body["box_round"]
    return kept


LEDGER = _ledger_file("ledger", _whole)
KEPT_SUM = _ledger_file("sum-3", lambda kept: kept.sums[3])
KEPT_BOX = _ledger_file("checkpoint", lambda kept: (kept.box, kept.box_round))


def _sum_bytes(kept: tuple[bytes, ArrayRecord]) -> bytes:
    header, record = kept
    return len(header).to_bytes(4, "big") + header + b"".join(a.data for a in record.values())


def _identity(data: bytes) -> Identity:
    _at("identity.key").write_bytes(data)
    return node().store.identity()


def entries() -> Sequence[Decoder]:
    """All of them."""
    return (
        Decoder("key file in a store", EPOCH[0], EPOCH[1], ANY),
        Decoder("kept update", OUTBOX[0], OUTBOX[1], _output_bytes, head=0),
        Decoder("session", SESSION[0], SESSION[1], _session_bytes),
        Decoder("agreement under way", AGREEMENT[0], AGREEMENT[1], ANY),
        Decoder("identity", lambda: [bytes([1]) * 32], _identity, ANY),
        Decoder("ledger", LEDGER[0], LEDGER[1], Ledger._to_bytes),
        Decoder("kept sum of a ledger", KEPT_SUM[0], KEPT_SUM[1], _sum_bytes, head=0),
        Decoder("kept checkpoint of a ledger", KEPT_BOX[0], KEPT_BOX[1], ANY, head=0),
    )
