"""The workflow that drives `flhe.keys.epoch` over a Grid: the server only carries messages.

Three relays: ADVERTISE, SHARE, CONFIRM; the CONFIRMs then travel with the first message of a round,
and each member verifies them before it encrypts anything. A node that falls silent on the way ends
the attempt; the next one starts over, with fresh keys, among those that answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import INFO, WARNING, getLogger
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from flhe import records
from flhe.errors import FlheError, ProtocolError, QuorumError
from flhe.keys.epoch import MAX_MESSAGE, announced
from flhe.keys.messages import Envelope
from flhe.mods.codes import explain
from flhe.rounds.terms import Terms
from flhe.strategies.grid import StreamGrid

log = getLogger("flwr").log  # Flower's own log: one place to read a run

ATTEMPTS = 3
MIN_MEMBERS = 3
"""A sum over two shows each of them the other's update."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """What the server knows of an epoch: everything but its key.

    Parameters
    ----------
    number : int
        The server's own count of epochs.
    epoch : bytes
        Epoch id, as the members confirmed it.
    roster_hash : bytes
        Roster hash that they confirmed.
    members : dict[int, bytes]
        Identity key of each node that takes part, by node id.
    confirms : tuple[bytes, ...]
        Everyone's CONFIRM, for delivery.
    """

    number: int
    epoch: bytes
    roster_hash: bytes
    members: dict[int, bytes]
    confirms: tuple[bytes, ...]

    def rank(self, node: int) -> int:
        """Rank of a node: the place of its key among the members' keys."""
        return sorted(self.members.values()).index(self.members[node])


def agree(
    grid: StreamGrid, nodes: Iterable[int], terms: Terms, *, run_id: int, timeout: float
) -> Agreed:
    """Agree on an epoch among `nodes`, leaving out those that do not answer in time.

    Parameters
    ----------
    timeout : float
        Seconds that each relay waits.

    Raises
    ------
    QuorumError
        Too few answered, or every attempt was broken off; the text says by whom.
    """
    present = list(nodes)
    trouble: dict[int, str] = {}
    for number in range(ATTEMPTS):
        try:
            return _attempt(grid, present, terms, run_id, number, timeout, trouble)
        except ProtocolError as error:
            log(WARNING, "key agreement, attempt %d: %s", number + 1, error)
            last = error
        present = [node for node in present if node not in trouble]
        if len(present) < MIN_MEMBERS:
            break
    raise QuorumError(f"no key was agreed on: {last}") from last


def _attempt(
    grid: StreamGrid,
    nodes: list[int],
    terms: Terms,
    run_id: int,
    number: int,
    timeout: float,
    trouble: dict[int, str],
) -> Agreed:
    def relay(stage: str, to: Iterable[int], **fields: Any) -> dict[int, ConfigRecord]:
        """Send one stage to all of `to`; give the replies, note who had trouble."""
        record = records.stage_record(stage, number=number, terms=terms.to_bytes(), **fields)
        content = RecordDict({records.STAGE: record})
        messages = [Message(content, node, "train") for node in to]
        replies: dict[int, ConfigRecord] = {}
        for message in grid.send_and_receive(messages, timeout=timeout):
            node = grid.node_of(message)
            if message.has_error():
                trouble[node] = explain(message.error.code, message.error.reason)
                continue
            reply = records.find_config(message.content, records.REPLY)
            if reply is None:
                trouble[node] = "its app has no HEMod: put HEMod() first in ClientApp(mods=[...])"
            else:
                replies[node] = reply
        for node in grid.silent:
            trouble[node] = f"no answer within {timeout:g} s"
        return replies

    def parsed(
        replies: dict[int, ConfigRecord], read: Callable[[ConfigRecord], Any]
    ) -> dict[int, Any]:
        """Read each reply; whoever sent something else had trouble."""
        out = {}
        for node, reply in replies.items():
            try:
                out[node] = read(reply)
            except FlheError as error:
                trouble[node] = str(error)
        return out

    def advertised(reply: ConfigRecord) -> tuple[bytes, bytes]:
        message = records.field(reply, "envelope", bytes)
        envelope = Envelope.from_bytes(message, MAX_MESSAGE)
        envelope.verify({"stage": "advertise", "run_id": run_id, "epoch": number}, senders=None)
        return envelope.header.sender, message

    hellos = parsed(relay("advertise", nodes), advertised)
    members = {node: public for node, (public, _) in hellos.items()}
    if len(set(members.values())) < len(members):
        raise ProtocolError("two nodes share one identity: give each a state directory of its own")
    if len(members) < MIN_MEMBERS:
        raise QuorumError(_too_few("advertised a key", len(members), trouble))
    for node, why in trouble.items():
        log(WARNING, "key agreement: node %d is left out: %s", node, why)
    left_out = set(trouble)
    order = sorted(members, key=members.__getitem__)
    hello_list = [hellos[node][1] for node in order]

    shares = parsed(
        relay("share", order, messages=hello_list), lambda r: records.bytes_list(r, "envelopes")
    )
    _all_of(order, shares, "shared", trouble, left_out)
    share_list = [message for node in order for message in shares[node]]

    confirms = parsed(
        relay("confirm", order, messages=share_list), lambda r: records.field(r, "envelope", bytes)
    )
    _all_of(order, confirms, "confirmed", trouble, left_out)
    confirm_list = [confirms[node] for node in order]
    roster_hash, epoch_id = announced(confirm_list)
    log(INFO, "key agreement: %d members, epoch %s", len(order), epoch_id.hex()[:8])
    return Agreed(
        number, epoch_id, roster_hash, {n: members[n] for n in order}, tuple(confirm_list)
    )


def _all_of(
    order: list[int],
    replies: dict[int, Any],
    verb: str,
    trouble: dict[int, str],
    left_out: set[int],
) -> None:
    if missing := [node for node in order if node not in replies]:
        why = {node: trouble[node] for node in missing if node in trouble}
        raise ProtocolError(_too_few(verb, len(replies), why or trouble))
    # A relay must not blame a node of an earlier one.
    for node in set(trouble) - left_out:
        del trouble[node]


def _too_few(verb: str, count: int, trouble: dict[int, str]) -> str:
    return f"only {count} nodes {verb}, {MIN_MEMBERS} or more are needed ({reasons(trouble)})"


def reasons(trouble: dict[int, str]) -> str:
    """What went wrong at which nodes, each reason once."""
    nodes: dict[str, list[int]] = {}
    for node, why in sorted(trouble.items()):
        nodes.setdefault(why, []).append(node)
    said = [
        f"{'node' if len(n) == 1 else f'{len(n)} nodes, first'} {n[0]}: {why}"
        for why, n in nodes.items()
    ]
    return "; ".join(said[:5]) or "no node reported an error"
