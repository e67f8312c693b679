"""App message: what an app is told, put together by its own node.

A server must not make one site's app behave otherwise than the rest while all sign the same hash. So
whatever two messages could differ in beside what is hashed is not passed on: the order of records and
of their keys, metadata (ids, group, times), and records that are neither the model nor settings.
"""

from __future__ import annotations

import time

from flwr.app import DEFAULT_TTL, ConfigRecord, Context, Message, Metadata, RecordDict

from flhe.mods import records
from flhe.training.model import Model


def settings_in(content: RecordDict) -> dict[str, ConfigRecord]:
    """The settings that a message has for the app, in order: no model, and no records of ours."""
    return {
        name: ConfigRecord(dict(sorted(record.items())))
        for name, record in sorted(content.items())
        if isinstance(record, ConfigRecord) and not name.startswith(records.PREFIX)
    }


def app_message(message: Message, context: Context, arrays_key: str, model: Model) -> Message:
    """What the app gets in place of `message`, whose content is dropped: the model and its settings."""
    told = settings_in(message.content)
    told.pop(arrays_key, None)
    message.content = RecordDict()  # sums and boxes: memory that training needs
    content = RecordDict({arrays_key: records.from_numpy(model.arrays()), **told})
    metadata = Metadata(
        run_id=context.run_id,
        message_id="",
        src_node_id=0,
        dst_node_id=context.node_id,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=DEFAULT_TTL,
        message_type=message.metadata.message_type,
    )
    return Message(content, metadata=metadata)
