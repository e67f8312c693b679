"""A member that stops key agreements, or has single sites left out of them.

It works: docs/limits.md says so. Nobody learns anything; the other sites' logs name the member.
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
from tests.strategies.puppets import Puppets, put_identity
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
