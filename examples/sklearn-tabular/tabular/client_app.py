"""tabular: a site trains on its own rows."""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flhe.mods import HEMod
from tabular.task import evaluated, fitted, load_data, to_record

app = ClientApp(mods=[HEMod()])


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the received model on this site's rows."""
    rows, labels, _, _ = own_data(context)
    model = fitted(msg.content["arrays"], rows, labels, context.run_config["local-epochs"])
    arrays = to_record(model.coef_, model.intercept_)
    loss, _ = evaluated(arrays, rows, labels)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the received model on this site's held-out rows."""
    _, _, rows, labels = own_data(context)
    loss, accuracy = evaluated(msg.content["arrays"], rows, labels)
    metrics = {"loss": loss, "accuracy": accuracy, "num-examples": len(labels)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)


def own_data(context: Context) -> tuple:
    """Return this site's rows; a real site reads them from a file that its node config names."""
    return load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
