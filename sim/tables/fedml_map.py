"""FedML-HE's Figure 5: how sensitive the parameters of a LeNet are, layer by layer.

The network, fresh, and the images are those of `flhe audit`; the map is the paper's, by labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from flhe_lab.tables.result import counted, measured
from flhe_lab.tables.table import Found, Line, Plan, Say, Step, Table, section

IMAGES = 8
LAYERS = ("convolution 1", "convolution 2", "convolution 3", "linear")
TENTH = 0.1


def _step(_plan: Plan) -> Step:
    return Step(f"fedml-map-lenet-{IMAGES}", _measure, "sensitivity of LeNet")


def _measure(_say: Say) -> dict[str, Any]:
    """Parameters and sensitivity of each layer, and of the most sensitive tenth; JSON values."""
    import torch

    from flhe.coding.sensitivity import sensitivity
    from flhe_lab.audit.images import samples
    from flhe_lab.audit.lenet import lenet

    images = samples(IMAGES)
    batch = torch.from_numpy(images.pixels), torch.from_numpy(images.labels)
    found = sensitivity(lenet(0), torch.nn.functional.cross_entropy, [batch])
    parts = [part.numpy().reshape(-1) for part in found.values()]
    pairs = zip(LAYERS, parts[::2], parts[1::2], strict=True)  # weights and biases
    return told_of({layer: np.concatenate(pair) for layer, *pair in pairs})


def told_of(layers: dict[str, Any]) -> dict[str, Any]:
    """What the table says of a map: layer -> sensitivities, (parameters,)."""
    whole = np.concatenate(list(layers.values()))
    most, border, total = float(whole.max()), float(np.quantile(whole, 1 - TENTH)), whole.sum()
    return {
        "layers": {
            layer: {
                "parameters": part.size,
                "mean": float(part.mean() / most),
                "median": float(np.median(part) / most),
                "largest": float(part.max() / most),
                "in the top tenth": 100 * float((part >= border).mean()),
                "part of the whole": 100 * float(part.sum() / total),
            }
            for layer, part in layers.items()
        },
        "top": 100 * float(whole[whole >= border].sum() / total),
        "low": 100 * float((whole < 0.1 * most).mean()),
    }


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    for layer, numbers in found[_step(plan).key]["layers"].items():
        marked = {
            what: counted(number) if what == "parameters" else measured(number)
            for what, number in numbers.items()
        }
        yield Line(layer, "by labels", "ours", marked)


def _told(plan: Plan, found: Found) -> dict[str, object]:
    seen = found[_step(plan).key]
    size = sum(layer["parameters"] for layer in seen["layers"].values())
    return {"size": size, "top": seen["top"], "low": seen["low"]}


FIGURE_5 = section(lambda plan: [_step(plan)], Table("fedml-figure-5", _lines, _told))
