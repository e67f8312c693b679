"""What a reply with a ciphertext must show before it is added: whose it is, and for which slot."""

from __future__ import annotations

from dataclasses import replace

from flwr.app import ConfigRecord

from flhe.errors import DriftError, ProtocolError
from flhe.keys.agreement.messages import open_detached
from flhe.mods import records
from flhe.schemes.sealed import Sealed, Slot
from flhe.strategies.epoch_parameters import EpochParameters
from flhe.sums import receipts
from flhe.training.start import Start


def start_in(answer: ConfigRecord) -> Start:
    """What a reply says that it starts from; `check_part` sees that it was encrypted for that."""
    app_inputs_hash: bytes = records.field(answer, "app_inputs_hash", bytes)
    digest: bytes = records.field(answer, "digest", bytes)
    if len(app_inputs_hash) != 32:
        raise ProtocolError("what its app was told is no hash")
    return Start(app_inputs_hash, digest)


def check_part(
    parameters: EpochParameters,
    node: int,
    answer: ConfigRecord,
    part: Sealed,
    slot: Slot,
    length: int,
    stage: str,
) -> None:
    """Refuse a ciphertext that is not this node's for `slot`.

    Raises
    ------
    DriftError
        It is for another history of the model.
    ProtocolError
        It is for another slot, another member's, or of another length.
    """
    agreed = parameters.epoch
    if replace(part.slot, history=slot.history) != slot:
        raise ProtocolError("the update belongs to another round, epoch or parameter set")
    if part.slot.history != slot.history:
        raise DriftError("its model has drifted: it has seen another initial model or sum")
    if part.senders != (agreed.rank(node),):
        raise ProtocolError("the update says that it is another member's")
    if part.length != length:
        raise ProtocolError("the update has another length than the model")
    open_detached(
        records.field(answer, "envelope", bytes),
        part.digest(),
        {
            "roster_hash": slot.roster_hash,
            "run_id": slot.run_id,
            "epoch": agreed.number,
            "round": slot.round,
            "attempt": slot.attempt,
            "stage": stage,
            "policy_hash": parameters.resolved.hash(),
            "layout_hash": slot.layout_hash,
        },
        senders=[agreed.members[node]],
    )


def receipt_in(parameters: EpochParameters, node: int, answer: ConfigRecord, slot: Slot) -> bytes:
    """What a member signed of the result that it starts from; members go by it, not the server."""
    agreed, policy = parameters.epoch, parameters.resolved.hash()
    data: bytes = records.field(answer, "receipt", bytes)
    receipt = receipts.opened(data, agreed.members[node], slot, agreed.number, policy)
    if receipt.history != slot.history:
        raise ProtocolError("its receipt is for another result than its update")
    return data


def shares_in(parameters: EpochParameters, node: int, answer: ConfigRecord) -> list[bytes]:
    """The shares of an update's seed; ProtocolError unless there is one for each other member."""
    agreed, size = parameters.epoch, parameters.circle.box_bytes
    shares, rank = records.bytes_list(answer, "shares"), agreed.rank(node)
    if [len(s) for s in shares] != [size * (i != rank) for i in range(len(agreed.members))]:
        raise ProtocolError("its update came without one share of its seed for each other member")
    return shares
