"""ownstrategy: a node trains, and masks its model before it replies."""

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from flhe.mods import MaskingKeyMod, masking_key
from ownstrategy import task
from ownstrategy.strategy import RECORD, masked

app = ClientApp(mods=[MaskingKeyMod()])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the received weights on this node's rows."""
    rows, target = task.load_data(context.node_config["partition-id"])
    weights = task.train(msg.content["arrays"]["w"].numpy(), rows, target)
    reply = masked(weights, len(rows), masking_key(msg))
    return Message(RecordDict({RECORD: reply}), reply_to=msg)
