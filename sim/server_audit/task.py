"""What sites train in the experiments: softmax regression on made-up data, in NumPy.

Every site has other data and another example count. Training draws nothing at random, so a site that is
asked twice from one model makes one update: the best case for a server that takes differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flhe.mods import records

Floats = NDArray[np.float64]
Arrays = dict[str, NDArray[Any]]

LEAST, MOST = 60, 400
"""Example counts of the sites."""
VICTIM = 0
"""The site whose update the server is after."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One federation; its model has (features + 1) * classes values."""

    sites: int = 5  # How many there are
    features: int = 24
    classes: int = 16
    rate: float = 0.5  # Learning rate that the run has for all sites
    steps: int = 3  # Of gradient descent in a round, each over all of a site's data
    rounds: int = 3  # Whose metrics a server collects
    seed: int = 0  # Of the data and the first model

    @property
    def values(self) -> int:
        """Length of the model."""
        return (self.features + 1) * self.classes

    def first(self) -> Floats:
        """The model that round 1 starts from, shape (values,)."""
        rng = np.random.default_rng([self.seed, 1 << 20])
        return (0.1 * rng.standard_normal(self.values)).astype(np.float32).astype(np.float64)

    def arrays(self, model: Floats) -> Arrays:
        """A model, shape (values,), as apps know it."""
        cut = self.features * self.classes
        shaped = model[:cut].reshape(self.features, self.classes)
        return {"w": shaped.astype(np.float32), "b": model[cut:].astype(np.float32)}

    def training(self, model: Floats, rate: float) -> RecordDict:
        """A message of plain Flower that asks for training."""
        arrays = records.from_numpy(self.arrays(model))
        return RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": rate})})

    def update(self, site: int) -> Floats:
        """What a site's training changes in round 1, shape (values,)."""
        first = self.arrays(self.first())
        return flat(Site(self, site).train(first, self.rate)) - flat(first)

    def counts(self) -> tuple[int, ...]:
        """Example count of each site."""
        return tuple(Site(self, site).examples for site in range(self.sites))


def flat(arrays: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]]) -> Floats:
    """A model in one piece, shape (values,)."""
    found = arrays.values() if isinstance(arrays, Mapping) else arrays
    return np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in found])


def in_clear(answer: Message, before: Floats) -> Floats | None:
    """The update in an answer, shape (values,); None where no array record is as long as a model."""
    for arrays in () if answer.has_error() else answer.content.array_records.values():
        if sum(array.numpy().size for array in arrays.values()) == before.size:
            return flat(records.to_numpy(arrays)) - before
    return None


class Site:
    """A site's data, and what its app does with it.

    A site beyond those of the setting is the server's own: it has one example and never trains.
    """

    def __init__(self, setting: Setting, index: int) -> None:
        rng = np.random.default_rng([setting.seed, index])  # test data, no keys
        shared = np.random.default_rng([setting.seed, 1 << 21])
        self.idle = index >= setting.sites
        self.examples = 1 if self.idle else int(rng.integers(LEAST, MOST + 1))
        self.steps = setting.steps
        centres = shared.standard_normal((setting.classes, setting.features))
        shares = rng.dirichlet(np.full(setting.classes, 0.3))
        self.labels = rng.choice(setting.classes, self.examples, p=shares)
        noise = rng.standard_normal((self.examples, setting.features))
        self.inputs = centres[self.labels] + noise + 0.5 * rng.standard_normal(setting.features)

    def train(self, arrays: Arrays, rate: float) -> Arrays:
        """The model after this site's steps."""
        w, b = (arrays[name].astype(np.float64) for name in ("w", "b"))
        for _ in range(0 if self.idle else self.steps):
            error = self._chances(w, b)
            error[np.arange(self.examples), self.labels] -= 1
            w -= rate * self.inputs.T @ error / self.examples
            b -= rate * error.mean(axis=0)
        return {"w": w.astype(np.float32), "b": b.astype(np.float32)}

    def evaluate(self, arrays: Arrays) -> dict[str, float]:
        """Loss and accuracy of a model on this site's data."""
        w, b = (arrays[name].astype(np.float64) for name in ("w", "b"))
        chances = self._chances(w, b)
        right = int((chances.argmax(axis=1) == self.labels).sum())
        own = chances[np.arange(self.examples), self.labels]
        return {"loss": float(-np.log(own).mean()), "accuracy": right / self.examples}

    def _chances(self, w: Floats, b: Floats) -> Floats:
        logits = self.inputs @ w + b
        grown = np.exp(logits - logits.max(axis=1, keepdims=True))
        found: Floats = grown / grown.sum(axis=1, keepdims=True)
        return found


def client_app(setting: Setting, *mods: Any) -> ClientApp:
    """The app of every site: it trains with the rate that it is told, and tells its metrics."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        site = _site(setting, context)
        before = records.to_numpy(message.content.array_records["arrays"])
        rate = float(message.content.config_records["config"]["lr"])  # type: ignore[arg-type]
        told = {f"train_{name}": value for name, value in site.evaluate(before).items()}
        content = RecordDict({"arrays": records.from_numpy(site.train(before, rate))})
        content["metrics"] = MetricRecord({"num-examples": site.examples, **told})
        return Message(content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        site = _site(setting, context)
        told = site.evaluate(records.to_numpy(message.content.array_records["arrays"]))
        metrics = MetricRecord({"num-examples": site.examples, **told})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def legacy_app(setting: Setting, *mods: Any) -> ClientApp:
    """The same as a client of Flower's older kind, which its SecAgg+ mod takes."""
    return ClientApp(lambda context: _Legacy(_site(setting, context)).to_client(), list(mods))


class _Legacy(NumPyClient):
    """Fits and evaluates with arrays in a list."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def fit(self, parameters: Any, config: dict[str, Any]) -> Any:
        before = dict(zip(("w", "b"), parameters, strict=True))
        told = {f"train_{name}": value for name, value in self._site.evaluate(before).items()}
        after = self._site.train(before, float(config["lr"]))
        return list(after.values()), self._site.examples, told

    def evaluate(self, parameters: Any, config: dict[str, Any]) -> Any:
        del config
        told = self._site.evaluate(dict(zip(("w", "b"), parameters, strict=True)))
        return told["loss"], self._site.examples, {"accuracy": told["accuracy"]}


def _site(setting: Setting, context: Context) -> Site:
    return Site(setting, int(context.node_config["partition-id"]))
