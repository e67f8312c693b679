"""adapters: a site trains adapters on its own notes."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from adapters.task import adapters, base, fit, notes
from flhe.mods import HEMod

app = ClientApp(mods=[HEMod()])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the received adapters on this site's notes."""
    config, text = context.run_config, notes(context.node_config["partition-id"])
    model = base(config["base-steps"])
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict(), strict=False)
    loss = fit(model, text, config["local-steps"], lr=1e-2)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(text)})
    content = {"arrays": ArrayRecord(adapters(model)), "metrics": metrics}
    return Message(RecordDict(content), reply_to=msg)
