"""Whole federations against tests/vectors/rounds.json: who is in each sum, what opens, what is refused.

`MAKE` alone knows how a strategy is built; the rest sees models, reports and codes.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from flhe.coding.select import Select
from flhe.errors import FlheError
from flhe.mods import records
from flhe.strategies import (
    BatchCryptFedAvg,
    EsaflFedAvg,
    FedmlHeFedAvg,
    FlasheFedAvg,
    HEStrategy,
    SashFedAvg,
)
from tests.strategies.puppets import Fate, Puppets
from tests.strategies.variants import ALLOWED

pytestmark = pytest.mark.usefixtures("quick")

VECTORS = json.loads((pathlib.Path(__file__).parents[1] / "vectors" / "rounds.json").read_text())
UNIT = 2.0**-15
CLIP = 32767 / 32768
SHAPES: dict[str, list[int]] = VECTORS["shapes"]
ONLY_W = Select(rule="layers:w")
DROPPED = Select(rule="layers:w", rest="drop")

MAKE: dict[str, tuple[Callable[..., HEStrategy], dict[str, Any]]] = {
    "flashe, double": (FlasheFedAvg, {}),
    "flashe, single": (FlasheFedAvg, {"masking": "single"}),
    "flashe, adaptive": (FlasheFedAvg, {"masking": "adaptive"}),
    "flashe, top half": (FlasheFedAvg, {"top_k": 0.5, "small": 0, "warmup": 0}),
    "flashe, top half, single, in place": (
        FlasheFedAvg,
        {"top_k": 0.5, "small": 0, "warmup": 0, "masking": "single", "permute": False},
    ),
    "flashe, layer w": (FlasheFedAvg, {"select": DROPPED}),
    "sash, server reads": (SashFedAvg, {}),
    "sash, members read": (SashFedAvg, {"unmask": "clients"}),
    "batchcrypt": (BatchCryptFedAvg, {}),
    "batchcrypt, 2048": (BatchCryptFedAvg, {"key_bits": 2048}),
    "esafl, joint keys": (EsaflFedAvg, {"keys": "joint"}),
    "esafl, keys of a round": (EsaflFedAvg, {"keys": "round"}),
    "esafl, rns-8192": (EsaflFedAvg, {"ring": "rns-8192", "keys": "joint"}),
    "fedml-he": (FedmlHeFedAvg, {}),
    "fedml-he, layer w, rest in clear": (FedmlHeFedAvg, {"select": ONLY_W}),
    "fedml-he, layer w": (FedmlHeFedAvg, {"select": DROPPED}),
}


def strategy_of(variant: str, **how: Any) -> HEStrategy:
    """The strategy that a variant of the vectors is."""
    make, own = MAKE[variant]
    return make(
        bits=VECTORS["bits"],
        clip=CLIP,
        max_examples=VECTORS["max_examples"],
        weighted=VECTORS["variants"][variant]["weighing"] == "by examples",
        **own,
        **how,
    )


def start() -> ArrayRecord:
    """The model that all of them start from: zeros, on the grid."""
    return records.from_numpy(
        {n: np.zeros(s, np.int64 if n == "steps" else np.float32) for n, s in SHAPES.items()}
    )


def federation(path: pathlib.Path, variant: str, **node_config: Any) -> Puppets:
    """Four nodes whose apps change what the vectors say; the model itself counts the rounds."""
    program = VECTORS["changes"][VECTORS["variants"][variant]["weighing"]]
    allowed = {**ALLOWED, "flhe-min-select": 0.1}
    own = lambda i: {**allowed, **(node_config if i == 1 else {})}  # noqa: E731
    grid = Puppets(path, 4, config=own)
    app: Any = grid.app
    app.examples = VECTORS["weights"].__getitem__

    def trained(arrays: Mapping[str, NDArray[Any]], node: int) -> dict[str, NDArray[Any]]:
        round_ = int(app.configs[-1]["server-round"]) - 1
        k = np.array(program[round_][node], np.float32) * np.float32(UNIT)
        return {
            "w": arrays["w"] + k[:8].reshape(2, 4),
            "b": arrays["b"] + k[8:],
            "steps": np.asarray(arrays["steps"] + VECTORS["counted"][round_][node]),
        }

    app.trained = trained
    return grid


def play(grid: Puppets, strategy: HEStrategy, rounds: int = 3) -> list[dict[str, Any]]:
    """The model after each round, as its readers have it."""
    models: list[dict[str, Any]] = []
    server = strategy.terms.scheme.reader == "server"

    def here(_round: int, arrays: ArrayRecord) -> None:
        models.append({n: a.copy() for n, a in records.to_numpy(arrays).items()})

    if not server:
        models.append({n: a.copy() for n, a in records.to_numpy(start()).items()})
        grid.before = dict.fromkeys(
            range(2, rounds + 2), lambda: models.append(grid.model(0).arrays())
        )
        grid.timed(strategy)
    try:
        strategy.start(grid, start(), num_rounds=rounds, evaluate_fn=here if server else None)
    finally:
        grid.close()
    return models


def cases() -> list[Any]:
    """Those with all there in each round say what those with one away in the second say, and less."""
    made, like_others = [], ("batchcrypt", "esafl, rns-8192", "fedml-he, layer w")
    for case in VECTORS["cases"]:
        slow = not case["away"] or case["variant"] in like_others
        name = case["variant"] + (", one away" if case["away"] else "")
        made.append(pytest.param(case, id=name, marks=[pytest.mark.sweep] if slow else []))
    return made


@pytest.mark.parametrize("case", cases())
def test_a_federation_comes_to_what_is_written(tmp_path: pathlib.Path, case: Any) -> None:
    variant = case["variant"]
    grid = federation(tmp_path, variant)
    away = {int(round_): 100 + node for round_, node in case["away"].items()}
    now = 0

    def fate(node: int, stage: str, round_: int) -> Fate:
        """Whoever is away answers nothing from the round's first message until its evaluation."""
        nonlocal now
        if stage in ("round", "evaluate"):
            now = round_ if stage == "round" else 0
        return "dead" if away.get(now) == node else None

    grid.fate = fate
    models = play(grid, strategy_of(variant))
    assert len(models) == 1 + len(case["rounds"])
    weighted = VECTORS["variants"][variant]["weighing"] == "by examples"
    for before, after, expected in zip(models, models[1:], case["rounds"], strict=False):
        weights = [VECTORS["weights"][n] if weighted else 1 for n in expected["senders"]]
        assert sum(weights) == expected["weight"]
        for name, total in expected["sum"].items():
            change = (after[name].astype(np.float64) - before[name]) / UNIT * expected["weight"]
            assert np.rint(change).ravel().tolist() == total, name
            assert np.abs(change - np.rint(change)).max() < 0.05
        assert int(after["steps"] - before["steps"]) == expected["steps"]


# --- what is refused ---


def moved(name: str, by: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda out: {**out, name: np.asarray(out[name] + by)}


TRAINS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "NaN": moved("w", np.float32("nan")),
    "mostly clipped": moved("w", np.float32(99.0)),
    "a counter leaps": moved("steps", 1 << 40),
    "no array of the model": lambda out: {"w": out["w"]},
}
COUNTS: dict[str, Callable[[], Any]] = {
    "no examples": lambda: 0,
    "no example count": lambda: 4.5,
    "the app raises": lambda: 1 // 0,
}


def spoil(what: str, grid: Puppets) -> None:
    """Have node 1, its app or its relay do what a refusal is of."""
    app: Any = grid.app
    usual, examples = app.trained, app.examples
    train, count = TRAINS.get(what, dict), COUNTS.get(what, lambda: examples(1))
    app.trained = lambda arrays, node: (train if node == 1 else dict)(usual(arrays, node))
    app.examples = lambda node: count() if node == 1 else examples(node)

    def rewrite(node: int, stage: str, content: RecordDict) -> RecordDict:
        if node != 101 or stage in ("advertise", "share", "confirm", "status"):
            return content
        if what == "a plain message":
            return RecordDict({"arrays": start()})
        record = ConfigRecord({**content[records.STAGE], "v": 10_000})
        return RecordDict({**content, records.STAGE: record})

    if what in ("a plain message", "another version"):
        grid.rewrite = rewrite


AT_THE_NODE: dict[str, dict[str, Any]] = {
    "the node does not allow the scheme": {"flhe-schemes": "plain"},
    "the node leaves": {"flhe-leave": True},
}


WAYS = ("flashe, top half", "sash, members read")
"""One whose rounds have several stages, and one whose senders open sums, in turn; a sweep has all."""


def refusals() -> list[Any]:
    made, kinds = [], list(dict.fromkeys(case["what"] for case in VECTORS["refusals"]))
    for case in VECTORS["refusals"]:
        quick = case["variant"] == WAYS[kinds.index(case["what"]) % 2]
        marks = [] if quick else [pytest.mark.sweep]
        made.append(pytest.param(case, id=f"{case['variant']}: {case['what']}", marks=marks))
    return made


@pytest.mark.parametrize("case", refusals())
def test_one_node_refuses_and_says_which(tmp_path: pathlib.Path, case: Any) -> None:
    variant, what, code = case["variant"], case["what"], case["code"]
    grid = federation(tmp_path, variant, **AT_THE_NODE.get(what, {}))
    spoil(what, grid)
    with suppress(FlheError):  # where a sum needs all of them, or most
        play(grid, strategy_of(variant, retries=0), rounds=1)
    refused = {(n, reply.error.code) for n, _, reply in grid.replies if reply.has_error()}
    if code is None:
        assert refused == set()
    else:
        assert (101, code) in refused
        assert {node for node, _ in refused} == {101}
