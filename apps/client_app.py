"""The client: an ordinary FedAvg app for Flower, and one mod that encrypts.

Policy and keys are not set here: the mod reads them from the node's own config.
"""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from torch.nn import functional

from flhe.coding.sensitivity import sensitivity
from flhe.dpsgd import clipped_gradients, poisson_batch, reply
from flhe.mods import HEMod, records
from flhe_app.dropouts import dropout
from flhe_app.settings import Settings
from flhe_app.tasks import base, task_named
from flhe_app.tasks.split import node_data


def sensitive(msg: Message, ctx: Context) -> dict[str, Tensor]:
    """Return how much the gradient of each parameter reveals of this node's images."""
    settings = Settings.from_config(ctx.run_config)
    batches = _data(settings, ctx).train.batches(settings.batch_size)
    return sensitivity(_model(settings, msg), functional.cross_entropy, batches, of="inputs")


app = ClientApp(mods=[dropout, HEMod(sensitivity=sensitive)])


@app.train()
def train_fn(msg: Message, ctx: Context) -> Message:
    """Train the received model on this node's part of the data."""
    settings = Settings.from_config(ctx.run_config)
    data = _data(settings, ctx)
    model = _model(settings, msg)
    server_round = msg.content.config_records["config"]["server-round"]
    assert isinstance(server_round, int)
    shuffle = base.shuffler(settings.seed, int(ctx.node_config["partition-id"]), server_round)
    if settings.gradients and settings.noise_multiplier:  # of a Poisson batch, clipped and added up
        chosen = torch.from_numpy(poisson_batch(len(data.train.labels), settings.sampling))
        inputs, labels = data.train.images[chosen], data.train.labels[chosen]
        measure, norm = functional.cross_entropy, settings.clip_norm
        sums = clipped_gradients(model, measure, inputs, labels, max_norm=norm)
        return reply(msg, sums, max_norm=norm, sampling=settings.sampling)
    if settings.gradients:
        batch = base.batch_gradient(
            model, data.train, batch_size=settings.batch_size, shuffle=shuffle
        )
        found = ArrayRecord({name: tensor.cpu() for name, tensor in batch.arrays.items()})
        return _trained(msg, found, batch.score, batch.examples)
    fair = settings.fair
    loss = base.evaluate(model, data.train).loss if fair else 0.0
    score = base.train(
        model,
        data.train,
        epochs=settings.local_epochs,
        learning_rate=settings.learning_rate,
        batch_size=settings.batch_size,
        shuffle=shuffle,
        proximal_mu=settings.proximal_mu,
    )
    arrays, weight = ArrayRecord(model.cpu().state_dict()), len(data.train.labels)
    if fair:
        received = records.to_numpy(msg.content.array_records["arrays"])
        contribution, weight = fair.contribution(received, records.to_numpy(arrays), loss)
        arrays = records.from_numpy(contribution)
    return _trained(msg, arrays, score, weight)


@app.evaluate()
def evaluate_fn(msg: Message, ctx: Context) -> Message:
    """Score the received model on this node's share of the test set."""
    settings = Settings.from_config(ctx.run_config)
    data = _data(settings, ctx)
    score = base.evaluate(_model(settings, msg), data.test)
    metrics = MetricRecord(
        {"loss": score.loss, "accuracy": score.accuracy, "num-examples": len(data.test.labels)}
    )
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)


def _trained(msg: Message, arrays: ArrayRecord, score: base.Score, weight: int) -> Message:
    """Return the reply to a round of training."""
    metrics = MetricRecord(
        {"train_loss": score.loss, "train_accuracy": score.accuracy, "num-examples": weight}
    )
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


def _model(settings: Settings, msg: Message) -> nn.Module:
    model = base.new_model(task_named(settings.task), settings.seed)
    model.load_state_dict(msg.content.array_records["arrays"].to_torch_state_dict())
    return model.to(settings.device)


def _data(settings: Settings, ctx: Context) -> base.Data:
    data = node_data(
        settings, int(ctx.node_config["partition-id"]), int(ctx.node_config["num-partitions"])
    )
    return base.Data(*(base.Examples(*(t.to(settings.device) for t in half)) for half in data))
