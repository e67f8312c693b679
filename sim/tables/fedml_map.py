"""FedML-HE's Figure 5: how sensitive each parameter of a LeNet is, layer by layer, drawn.

The network, fresh, and the images are those of `flhe audit`; the map is the paper's, by labels.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe_app import style
from flhe_lab.tables.chart import Own
from flhe_lab.tables.result import counted, measured
from flhe_lab.tables.table import Found, Line, Plan, Say, Step, Table, section

IMAGES = 8
LAYERS = ("convolution 1", "convolution 2", "convolution 3", "linear")
TENTH = 0.1
LEAST = 0.01  # Of the largest: what is less sensitive is drawn as this

Map = Mapping[str, NDArray[np.float32]]
"""Layer -> sensitivity of its weights, a row for each output (outputs, inputs), and of its biases."""


def _step(plan: Plan) -> Step:
    return Step(f"fedml-map-lenet-{IMAGES}", _measure, "sensitivity of LeNet")


def _measure(_say: Say) -> dict[str, Any]:
    import torch

    from flhe.coding.sensitivity import sensitivity
    from flhe_lab.audit.images import samples
    from flhe_lab.audit.lenet import lenet

    images = samples(IMAGES)
    batch = torch.from_numpy(images.pixels), torch.from_numpy(images.labels)
    found = sensitivity(lenet(0), torch.nn.functional.cross_entropy, [batch])
    return {
        name: {
            "shape": list(part.shape),
            "data": base64.b64encode(part.numpy().astype("<f4").tobytes()).decode("ascii"),
        }
        for name, part in found.items()
    }


def read(found: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Layer -> its map, one row an output: weights, and the bias in the last column."""
    parts = [
        np.frombuffer(base64.b64decode(each["data"]), "<f4").reshape(each["shape"][0], -1)
        for each in found.values()
    ]
    pairs = zip(LAYERS, parts[::2], parts[1::2], strict=True)
    return {layer: np.hstack([weights, biases]) for layer, weights, biases in pairs}


def _whole(layers: Map) -> tuple[NDArray[np.float32], float]:
    """All of it, and the least of its most sensitive tenth."""
    whole = np.concatenate([part.reshape(-1) for part in layers.values()])
    return whole, float(np.quantile(whole, 1 - TENTH))


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    layers = read(found[_step(plan).key])
    whole, border = _whole(layers)
    most = whole.max()
    for layer, part in layers.items():
        numbers = {
            "parameters": counted(part.size),
            "mean": measured(float(part.mean() / most)),
            "median": measured(float(np.median(part) / most)),
            "largest": measured(float(part.max() / most)),
            "in the top tenth": measured(100 * float((part >= border).mean())),
            "part of the whole": measured(100 * float(part.sum() / whole.sum())),
        }
        yield Line(layer, "by labels", "ours", numbers)


def _told(plan: Plan, found: Found) -> dict[str, object]:
    whole, border = _whole(read(found[_step(plan).key]))
    top = whole[whole >= border].sum() / whole.sum()
    low = (whole < 0.1 * whole.max()).mean()
    return {"size": whole.size, "top": 100 * top, "low": 100 * low}


def _chart(plan: Plan, found: Found) -> Own:
    return partial(draw, read(found[_step(plan).key]), _told(plan, found)["top"])


def draw(layers: Map, top: object, path: Path) -> None:
    """One panel a layer, all on one logarithmic scale; `top` is the percentage of the top tenth."""
    from matplotlib.colors import LogNorm

    most = max(float(part.max()) for part in layers.values())
    says = f"A tenth of LeNet's parameters holds {top:.0f}% of all sensitivity"
    footer = "FedML-HE, Figure 5. Rows: outputs of a layer; columns: its inputs, the bias last."
    with style.drawn(path, says, 6.2, grid=(len(layers), 1), footer=footer) as (figure, axes):
        for axis, (layer, part) in zip(axes, layers.items(), strict=True):
            shown = axis.imshow(
                np.maximum(part, most * LEAST),
                aspect="auto",
                interpolation="none",
                cmap="cividis",
                norm=LogNorm(most * LEAST, most),
            )
            axis.set(title=f"{layer}, {part.size:,} parameters", ylabel="output")
            axis.grid(visible=False)
        axes[-1].set_xlabel("input")
        bar = figure.colorbar(shown, ax=axes, label="sensitivity, of the largest")
        shares = (LEAST, 0.03, 0.1, 0.3, 1)
        bar.set_ticks([most * share for share in shares], labels=[f"{share:g}" for share in shares])
        bar.minorticks_off()


FIGURE_5 = section(lambda plan: [_step(plan)], Table("fedml-figure-5", _lines, _told, chart=_chart))
