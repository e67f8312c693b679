"""What a reply says of a ciphertext, besides it: where its sender starts, its receipt, its shares."""

from __future__ import annotations

from flwr.app import ConfigRecord

from flhe.errors import ProtocolError
from flhe.mods import records
from flhe.strategies.epoch_parameters import EpochParameters
from flhe.sums import receipts
from flhe.sums.secure_sum import SecureSum
from flhe.training.start import Start


def start_in(answer: ConfigRecord) -> Start:
    """What a reply says that it starts from; a sum sees that it was encrypted for that."""
    app_inputs_hash: bytes = records.field(answer, "app_inputs_hash", bytes)
    digest: bytes = records.field(answer, "digest", bytes)
    if len(app_inputs_hash) != 32:
        raise ProtocolError("what its app was told is no hash")
    return Start(app_inputs_hash, digest)


def receipt_in(
    parameters: EpochParameters, node: int, answer: ConfigRecord, of: SecureSum
) -> bytes:
    """What a member signed of the result that it starts from; members go by it, not the server."""
    sender = parameters.epoch.members[node]
    data: bytes = records.field(answer, "receipt", bytes)
    receipt = receipts.opened(data, sender, of.slot, of.number, of.policy_hash)
    if receipt.history != of.slot.history:
        raise ProtocolError("its receipt is for another result than its update")
    return data


def shares_in(parameters: EpochParameters, node: int, answer: ConfigRecord) -> list[bytes]:
    """The shares of an update's seed, where there are seeds.

    ProtocolError unless there is one for each other member.
    """
    if not parameters.terms.scheme.per_sum_keys:
        return []
    agreed, size = parameters.epoch, parameters.circle.box_bytes
    shares, rank = records.bytes_list(answer, "shares"), agreed.rank(node)
    if [len(s) for s in shares] != [size * (i != rank) for i in range(len(agreed.members))]:
        raise ProtocolError("its update came without one share of its seed for each other member")
    return shares
