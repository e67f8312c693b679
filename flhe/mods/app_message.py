"""App message: what an app is told, put together by its own node.

A server must not make one site's app behave otherwise than the rest. So an app gets its model and what
the contract says of the round, in one order, and nothing that the server sent: no other records, and
no metadata (ids, group, times).
"""

from __future__ import annotations

import time
from typing import Literal

from flwr.app import DEFAULT_TTL, ConfigRecord, Context, Message, Metadata, RecordDict

from flhe.mods import records
from flhe.training.contract import Contract
from flhe.training.model import Model


def app_message(
    kind: Literal["train", "evaluate"],
    context: Context,
    contract: Contract,
    model: Model,
    round_: int,
) -> Message:
    """A message that asks the app to train from `model` in a round, or to evaluate it."""
    told = ConfigRecord(dict(contract.told(kind, round_)))
    arrays = records.from_numpy(model.arrays())
    content = RecordDict({contract.terms.arrays_key: arrays, contract.config_key: told})
    metadata = Metadata(
        run_id=context.run_id,
        message_id="",
        src_node_id=0,
        dst_node_id=context.node_id,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=DEFAULT_TTL,
        message_type=kind,
    )
    made: Message = Message(content, metadata=metadata)  # type: ignore[call-overload]  # Flower has it
    return made
