"""A member that stops key agreements, or has single sites left out of them.

With SHAREs it works: docs/limits.md says so. Nobody learns anything; the other sites' logs name the
member.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from flhe.errors import QuorumError
from flhe.keys.agreement.messages import MAX_MESSAGE, Envelope
from flhe.keys.identity import Identity
from flhe.mods import records
from flhe.schemes.esafl.scheme import Esafl
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import agree
from flhe.training.contract import Contract
from flhe.training.terms import Terms
from flhe.wire.canonical import dumps
from tests.strategies.puppets import Puppets, put_identity, told
from tests.strategies.test_key_agreement import agreed

pytestmark = pytest.mark.usefixtures("quick")

NODES = 5


def signed_anew(
    identity: Identity, data: bytes, change: Callable[[Envelope], bytes | None]
) -> bytes:
    """A message with what `change` makes of its payload, signed by its sender."""
    envelope = Envelope.from_bytes(data, MAX_MESSAGE)
    payload = change(envelope)
    return data if payload is None else Envelope.seal(identity, envelope.header, payload).to_bytes()


def lie(grid: Puppets, index: int, receivers: set[bytes]) -> Callable[[int, Message], None]:
    """SHAREs that these receivers cannot decrypt."""
    identity = grid.identity(index)

    def changed(envelope: Envelope) -> bytes | None:
        there = envelope.header.receiver in receivers
        return bytes(len(envelope.payload)) if there else None

    def of(_: int, reply: Message) -> None:
        record: Any = reply.content[records.REPLY]
        shares = [signed_anew(identity, each, changed) for each in record["envelopes"]]
        reply.content[records.REPLY] = ConfigRecord({**record, "envelopes": shares})

    return of


LOW_ORDER, EVERYONE = bytes(32), range(1, NODES)
EVIL: dict[str, tuple[str, Callable[[Envelope], bytes | None]]] = {
    "a key of low order": ("advertise", lambda e: dumps([LOW_ORDER, bytes(32)])),
    "a key in another spelling": ("advertise", lambda e: dumps([b"\xff" * 32, bytes(32)])),
    "no key": ("advertise", lambda e: b"no key"),
    "no proof": ("confirm", lambda e: b"no proof"),
    "another transcript": ("confirm", lambda e: dumps([bytes(32), bytes(32)])),
}


@pytest.mark.parametrize("how", EVIL)
def test_what_the_server_can_see_costs_its_sender_alone(tmp_path: Path, how: str) -> None:
    """It is signed by a member, so the others would refuse all of it, and be left out."""
    grid, (stage, change) = Puppets(tmp_path, NODES), EVIL[how]
    put_identity(grid.homes[0], bytes([1]) * 32)

    def of(_: int, reply: Message) -> None:
        record: Any = reply.content[records.REPLY]
        said = signed_anew(grid.identity(0), record["envelope"], change)
        reply.content[records.REPLY] = ConfigRecord({**record, "envelope": said})

    grid.lies([100], stage, of)
    assert sorted(agreed(grid).members) == [100 + i for i in EVERYONE]


def test_a_member_that_runs_two_nodes_costs_no_other_member(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, NODES)
    for i in (0, 1):
        put_identity(grid.homes[i], bytes(32))
    assert sorted(agreed(grid).members) == [102, 103, 104]


def test_an_unsigned_share_of_a_joint_key_costs_its_sender(tmp_path: Path) -> None:
    grid = Puppets(tmp_path, NODES)
    grid.lies([100], "joint", lambda _, reply: told(reply).update(envelope=b"no share"))
    contract = Contract(Terms(Esafl(keys="joint")))
    try:
        done = agree(StreamGrid(grid), grid.get_node_ids(), contract, run_id=7, timeout=60)
    finally:
        grid.close()
    assert sorted(done.members) == [100 + i for i in EVERYONE]


def test_an_ephemeral_key_that_two_advertise_costs_one_of_them(tmp_path: Path) -> None:
    grid, kept = Puppets(tmp_path, NODES), list[bytes]()
    for i in (0, 1):
        put_identity(grid.homes[i], bytes([i + 1]) * 32)

    def of(node: int, reply: Message) -> None:
        record: Any = reply.content[records.REPLY]
        kept.append(Envelope.from_bytes(record["envelope"], MAX_MESSAGE).payload)
        identity = grid.identity(node - 100)
        said = signed_anew(identity, record["envelope"], lambda _: kept[0])
        reply.content[records.REPLY] = ConfigRecord({**record, "envelope": said})

    grid.lies([100, 101], "advertise", of)
    assert set(agreed(grid).members) >= {102, 103, 104}


@pytest.mark.parametrize("victims", [1, NODES - 1])
def test_a_share_that_does_not_open_costs_its_receivers(tmp_path: Path, victims: int) -> None:
    grid = Puppets(tmp_path, NODES)
    for i, home in enumerate(grid.homes):
        put_identity(home, bytes([i + 1]) * 32)
    keys = {grid.identity(i).public for i in range(1, victims + 1)}
    grid.lies([100], "share", lie(grid, 0, keys))
    if victims == 1:
        assert 101 not in agreed(grid).members
    else:
        with pytest.raises(QuorumError):
            agreed(grid)
    said = (grid.homes[1] / "errors.log").read_text()
    assert f"share message by {grid.identity(0).public.hex()[:16]}: it does not decrypt" in said
