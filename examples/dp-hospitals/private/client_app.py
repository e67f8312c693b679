"""private: a hospital sends the gradients of a random batch, each clipped."""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch.nn.functional import cross_entropy

from flhe.dpsgd import clipped_gradients, poisson_batch, reply
from flhe.mods import HEMod
from private.task import load_data, new_model

app = ClientApp(mods=[HEMod()])  # adds this hospital's share of the noise, and encrypts


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Return the sum of the clipped gradients; the reply says how they were made."""
    norm, sampling = (context.run_config[name] for name in ("max-grad-norm", "sampling"))
    model, node = new_model(), context.node_config
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    rows, labels = load_data(node["partition-id"], node["num-partitions"])
    batch = torch.from_numpy(poisson_batch(len(labels), sampling))
    sums = clipped_gradients(model, cross_entropy, rows[batch], labels[batch], max_norm=norm)
    return reply(msg, sums, max_norm=norm, sampling=sampling)
