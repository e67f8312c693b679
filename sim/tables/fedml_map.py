"""FedML-HE's Figure 5: how sensitive each parameter of a LeNet is, layer by layer, drawn.

The network, fresh, and the images are those of `flhe audit`; the map is the paper's, by labels.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe_app import style
from flhe_lab.tables.result import Result, counted, measured
from flhe_lab.tables.table import Found, Line, Plan, Say, Step, Table, section

IMAGES = 8
LAYERS = ("convolution 1", "convolution 2", "convolution 3", "linear")
TENTH = 0.1
LEAST = 0.01  # Of the largest: what is less sensitive is drawn as this

Map = Mapping[str, NDArray[np.float32]]
"""Layer -> sensitivities, a row for each output: of its inputs' weights, and of its bias."""


def _step(_plan: Plan) -> Step:
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


def _read(plan: Plan, found: Found) -> Map:
    parts = [
        np.frombuffer(base64.b64decode(each["data"]), "<f4").reshape(each["shape"][0], -1)
        for each in found[_step(plan).key].values()
    ]
    pairs = zip(LAYERS, parts[::2], parts[1::2], strict=True)  # weights and biases
    return {layer: np.hstack(pair) for layer, *pair in pairs}


def told_of(layers: Map) -> dict[str, Any]:
    """What the table says of a map."""
    whole = np.concatenate([part.reshape(-1) for part in layers.values()])
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
        "size": whole.size,
        "top": 100 * float(whole[whole >= border].sum() / total),
        "low": 100 * float((whole < 0.1 * most).mean()),
    }


def _lines(plan: Plan, found: Found) -> Iterator[Line]:
    for layer, numbers in told_of(_read(plan, found))["layers"].items():
        marked = {
            what: counted(number) if what == "parameters" else measured(number)
            for what, number in numbers.items()
        }
        yield Line(layer, "by labels", "ours", marked)


def draw(layers: Map, path: Path) -> None:
    """One panel a layer, all on one logarithmic scale."""
    from matplotlib.colors import LogNorm

    most, top = max(float(part.max()) for part in layers.values()), told_of(layers)["top"]
    says = f"A tenth of LeNet's parameters holds {top:.0f}% of all sensitivity"
    how: Any = {"aspect": "auto", "interpolation": "none", "cmap": "cividis"}
    footer = "FedML-HE, Figure 5. Rows: outputs of a layer; columns: its inputs, the bias last."
    with style.drawn(path, says, 6.2, grid=(len(layers), 1), footer=footer) as (figure, axes):
        for axis, (layer, part) in zip(axes, layers.items(), strict=True):
            shown = axis.imshow(np.maximum(part / most, LEAST), norm=LogNorm(LEAST, 1), **how)
            axis.set(title=f"{layer}, {part.size:,} parameters", ylabel="output")
            axis.grid(visible=False)
        axes[-1].set_xlabel("input")
        bar = figure.colorbar(shown, ax=axes, label="sensitivity, of the largest", format="%g")
        bar.minorticks_off()


TABLE = Table("fedml-figure-5", _lines, lambda plan, found: told_of(_read(plan, found)))


def _report(plan: Plan, found: Found) -> list[Result]:
    result = TABLE.result(plan, found)
    return [replace(result, chart=partial(draw, _read(plan, found)))]


FIGURE_5 = replace(section(lambda plan: [_step(plan)], TABLE), report=_report)
