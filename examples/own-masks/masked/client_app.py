"""A node: one step of least squares on its own rows, masked."""

from __future__ import annotations

import numpy as np
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flhe.mods import MaskingKeyMod, masking_key
from masked.strategy import RECORD, masked

app = ClientApp(mods=[MaskingKeyMod()])
TRUTH = np.array([2.0, -1.0, 0.5])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Gradient descent on rows that are this node's own."""
    node = int(str(context.node_config["partition-id"]))
    draw = np.random.default_rng(node)
    rows = draw.normal(size=(40 + 10 * node, TRUTH.size))
    target = rows @ TRUTH
    weights = message.content.array_records["arrays"]["w"].numpy()
    for _ in range(10):
        weights = weights - 0.1 * rows.T @ (rows @ weights - target) / len(rows)
    reply = masked({"w": weights}, len(rows), masking_key(message))
    return Message(RecordDict({RECORD: reply}), reply_to=message)
