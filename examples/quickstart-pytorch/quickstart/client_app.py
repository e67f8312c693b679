"""quickstart: the node trains on its own digits."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flhe.mods import HEMod
from quickstart import task

app = ClientApp(mods=[HEMod()])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the received model on this node's data."""
    model, (loader, _) = task.Net(), task.load_data(context)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    epochs = context.run_config["local-epochs"]
    loss = task.train(model, loader, epochs, msg.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
    return Message(RecordDict(content), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the received model on this node's test data."""
    model, (_, loader) = task.Net(), task.load_data(context)
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    loss, accuracy = task.test(model, loader)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
