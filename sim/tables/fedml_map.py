"""FedML-HE's Figure 5: how sensitive each parameter of a LeNet is, layer by layer, drawn.

The network is `flhe.sim.lenet`, fresh, and the data are the sample images of `flhe audit`; the map is
the paper's, by labels.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.sim.bench import figures
from flhe.sim.tables.chart import Chart
from flhe.sim.tables.marked import counted, measured
from flhe.sim.tables.result import Entry, Result
from flhe.sim.tables.section import Found, Plan, Say, Section, Step

IMAGES = 8
LAYERS = ("convolution 1", "convolution 2", "convolution 3", "linear")
TENTH = 0.1

Map = Mapping[str, NDArray[np.float32]]
"""Layer -> sensitivity of its weights, a row for each output (outputs, inputs), and of its biases."""


def _step(plan: Plan) -> Step:
    return Step(f"fedml-map-lenet-{IMAGES}", _measure, "sensitivity of LeNet", weight=3.0)


def _measure(_say: Say) -> dict[str, Any]:
    import torch

    from flhe.coding.sensitivity import sensitivity
    from flhe.sim.audit.images import samples
    from flhe.sim.lenet import lenet

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


def report(plan: Plan, found: Found) -> list[Result]:
    """Fig. 5 of a step's result."""
    layers = read(found[_step(plan).key])
    whole = np.concatenate([part.reshape(-1) for part in layers.values()])
    border = np.quantile(whole, 1 - TENTH)
    entries: list[Entry] = []
    for layer, part in layers.items():
        each = (
            ("parameters", "", counted(part.size)),
            ("mean", "of the largest", measured(float(part.mean() / whole.max()))),
            ("median", "of the largest", measured(float(np.median(part) / whole.max()))),
            ("largest", "of the largest", measured(float(part.max() / whole.max()))),
            ("in the top tenth", "%", measured(100 * float((part >= border).mean()))),
            ("part of the whole", "%", measured(100 * float(part.sum() / whole.sum()))),
        )
        entries += [Entry(layer, "by labels", "ours", *what) for what in each]
    top = whole[whole >= border].sum() / whole.sum()
    low = (whole < 0.1 * whole.max()).mean()
    notes = (
        f"A fresh LeNet of {whole.size:,} parameters with sigmoids, as in `flhe audit`, and its "
        f"{IMAGES} sample images; the paper's LeNet has 88,648 and its images are not told. The most "
        f"sensitive tenth has {100 * top:.0f}% of all sensitivity; {100 * low:.0f}% of the parameters "
        "have less than a tenth of the largest. Rows of the picture are outputs of a layer, columns "
        "its inputs, the last one the bias; darker is more sensitive.",
        "Sensitive by this map does not mean revealing: docs/fedml_he.md has what attacks found.",
    )
    chart = Chart("own", (), own=lambda path: draw(layers, path))
    return [
        Result(
            "fedml-figure-5", "FedML-HE, Figure 5", "the privacy map of LeNet",
            tuple(entries), chart, notes,
        )
    ]  # fmt: skip


def draw(layers: Map, path: Path) -> None:
    """One panel a layer, all on one logarithmic scale."""
    from matplotlib.colors import LogNorm

    most = max(float(part.max()) for part in layers.values())
    with figures.look():
        figure = figures.new(7.4, 6.0)
        axes = figure.subplots(len(layers), 1)
        for axis, (layer, part) in zip(axes, layers.items(), strict=True):
            shown = axis.imshow(
                np.maximum(part, most * 1e-4),
                aspect="auto",
                interpolation="nearest",
                cmap="Greys",
                norm=LogNorm(most * 1e-4, most),
            )
            axis.set(title=f"{layer}, {part.size:,} parameters", ylabel="output")
            axis.grid(visible=False)
        axes[-1].set_xlabel("input")
        figure.colorbar(shown, ax=list(axes), label="sensitivity")
        figures.save(figure, path)


FIGURE_5 = Section("fedml-figure-5", "FedML-HE", lambda p: [_step(p)], report, ("Figure 5",))
