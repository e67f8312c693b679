"""All schemes in the variants that a round has: what is said of federations is said of each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Result

from flhe.coding.select import Select
from flhe.schemes.registry import SCHEMES
from flhe.strategies import (
    BatchCryptFedAvg,
    EsaflFedAvg,
    FedmlHeFedAvg,
    FlasheFedAvg,
    HEStrategy,
    SashFedAvg,
    SchemeFedAvg,
)
from flhe_lab.variants.threshold.scheme import ThresholdCkks
from tests.strategies.puppets import MASKED, Puppets, play, same
from tests.strategies.reference import EQUAL, WEIGHTS, Reference, assert_like, close, tolerance

Make = Callable[..., HEStrategy]


@dataclass(frozen=True)
class Variant:
    """One way to run rounds."""

    make: Make
    how: dict[str, Any] = field(default_factory=dict)
    stages: tuple[str, ...] = ("round",)
    loose: float = 0.0
    """How far from FedAvg's mean it may be, in each weight; 0 is what quantization takes."""
    openers: int = 4
    """Of four members, those that are asked for what opens a sum."""
    exact: bool = True
    """Whether a round's sum is that of all that was trained, as no error feedback is in between."""

    @property
    def server_reads(self) -> bool:
        """Whether the model is the server's to read."""
        return self.make is SashFedAvg and "unmask" not in self.how

    @property
    def needs_all_members(self) -> bool:
        """Whether a sum opens only where it is of all members."""
        return self.make is EsaflFedAvg and self.how.get("keys") == "joint"

    @property
    def per_sum_keys(self) -> bool:
        """Whether survivors are signed: a round is void then if its server dies later."""
        return "unmask" in self.stages

    def nodes(self, path: Path, count: int, app: Any = None, **more: Any) -> Puppets:
        run_id = more.pop("run_id", 7)
        return Puppets(path, count, app, run_id=run_id, config=lambda _: {**ALLOWED, **more})

    def play(self, grid: Puppets, rounds: int = 3, **how: Any) -> tuple[HEStrategy, Result]:
        return play(self.make, grid, rounds, **{**self.how, **how})

    def check(
        self, grid: Puppets, result: Result, rounds: Sequence[Iterable[int]], members: Iterable[int]
    ) -> None:
        """Members, or the server, have the mean of rounds with these partitions' updates."""
        weights: Mapping[int, float] = WEIGHTS if self.how.get("weighted", True) else EQUAL
        reference = Reference.of(rounds, weights)
        if self.server_reads:
            arrays = {name: array.numpy() for name, array in result.arrays.items()}
            assert_like(arrays, reference, 1e-5)
            return
        model = same(grid, members)
        bound = sum(tolerance(list(senders), 1, weights is WEIGHTS) for senders in rounds)
        if self.exact:
            close(model, reference, self.loose or 2 * bound)


ALLOWED: dict[str, Any] = {
    "flhe-min-bits": 112,
    "flhe-unpermuted": True,
    "flhe-min-select": 0.01,
    "flhe-select-rules": "sensitivity,magnitude,random,layers",
    "flhe-schemes": ",".join(SCHEMES.names()),
}
SHORT: dict[str, Any] = {"key_bits": 2048}
TOP: dict[str, Any] = {"top_k": 0.3, "small": 0, "warmup": 0}
FITTED: dict[str, Any] = {"clip": "exchange", "bits": 20}
HALF: dict[str, Any] = {"weighted": False, "select": Select(0.5, "random")}

VARIANTS: dict[str, Variant] = {
    "flashe": Variant(FlasheFedAvg),
    "flashe, single masks": Variant(FlasheFedAvg, {"masking": "single"}),
    "flashe, sparse": Variant(FlasheFedAvg, TOP, ("round", "update"), exact=False),
    "flashe, sparse, adaptive, fitted": Variant(
        FlasheFedAvg,
        {**TOP, **FITTED, "masking": "adaptive"},
        ("round", "supports", "update"),
        exact=False,
    ),
    "flashe, fitted": Variant(FlasheFedAvg, FITTED, ("round", "update"), 0.05),
    "flashe, half in clear": Variant(FlasheFedAvg, HALF),
    "sash": Variant(SashFedAvg, {"clip": 8.0}, MASKED),
    "sash, clients read": Variant(SashFedAvg, {"clip": 8.0, "unmask": "clients"}, MASKED),
    "batchcrypt": Variant(BatchCryptFedAvg, {**SHORT, "clip": 1.0}),
    "batchcrypt, scaled in advance": Variant(
        BatchCryptFedAvg,
        {**SHORT, "clip": 1.0, "advance": True},
        loose=6 * tolerance(range(5), 1, bits=13),
    ),
    "batchcrypt, fitted": Variant(BatchCryptFedAvg, {**SHORT, **FITTED}, ("round", "update"), 0.05),
    "batchcrypt, half in clear": Variant(BatchCryptFedAvg, {**SHORT, **HALF, "clip": 1.0}),
    "esafl": Variant(EsaflFedAvg, {"keys": "joint"}),
    "esafl, fitted": Variant(EsaflFedAvg, {"keys": "joint", **FITTED}, ("round", "update"), 0.05),
    "esafl, keys of a round": Variant(EsaflFedAvg, stages=MASKED),
    "fedml-he": Variant(FedmlHeFedAvg),
    "threshold-ckks": Variant(partial(SchemeFedAvg, ThresholdCkks()), stages=MASKED, openers=3),
    "fedml-he, half in clear": Variant(FedmlHeFedAvg, HALF),
}
MAIN = [name for name in VARIANTS if not re.search("fitted|clear|advance|single", name)]
"""Those whose rounds differ in more than what is encoded."""
