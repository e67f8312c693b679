"""Make tests/vectors/rounds.json without flhe: what whole federations come to, in whole numbers.

Nothing in it depends on how a key, a message or a ciphertext is written. Changes are small multiples
of one quantization step, and every weight divides them into whole steps, so stochastic rounding has
nothing to round: a sum of integers is known before anything is encrypted.

    python tests/strategies/make_round_vectors.py
"""

from __future__ import annotations

import json
import math
import pathlib
from typing import Any

VECTORS = pathlib.Path(__file__).parents[1] / "vectors" / "rounds.json"
BITS = 16
MAX_EXAMPLES = 8
SHAPES: dict[str, list[int]] = {"w": [2, 4], "b": [3], "steps": []}
FLOATS = ("w", "b")
ROUNDS = 3

WEIGHTS = [8, 4, 16, 2]
"""Example counts: one fills the range of values, one is beyond it."""

STEPS = {
    # Every product with n / max_examples is whole; 16 / 8 doubles.
    "by examples": [[8, -4, 0, 4, -8, 8, 4, 0, -4, 8, 4], [4, 4, -8, 0, 8, -4, 0, 8, 4, 0, -4]],
    # No two of a layer have one magnitude, so the largest are known.
    "alike": [[1, -2, 3, -4, 5, -6, 7, -8, 2, -5, 7], [-8, 7, 6, 5, -4, 3, -2, 1, -7, 5, 2]],
}


def changes(weighing: str, node: int, round_: int) -> list[int]:
    """What a node's training changes in a round, in steps: w, then b."""
    base = STEPS[weighing][(node + round_) % 2]
    at = (3 * node + round_) % 8
    turned = base[at:8] + base[:at] + base[8:]
    return [-k for k in turned] if node == 2 else turned


def counted(node: int, round_: int) -> int:
    """How far a node's integer buffer moves."""
    return 3 + node + round_


LAYERS = (range(8), range(8, 11))


def kept_apart(values: list[int], share: float) -> tuple[list[int], list[int]]:
    """The largest of each layer and zeros for the others; and what is left."""
    sent = [0] * len(values)
    for layer in LAYERS:
        count = math.ceil(share * len(layer))
        order = sorted(layer, key=lambda d: -abs(values[d]))
        assert abs(values[order[count - 1]]) > abs(values[order[count]]), "a tie decides"
        for d in order[:count]:
            sent[d] = values[d]
    return sent, [v - s for v, s in zip(values, sent, strict=True)]


def opened(weighing: str, away: dict[int, int], share: float, layers: str) -> list[dict[str, Any]]:
    """Each round's senders, weight and sum in steps times weight.

    `away` says who is not there in which round; of each layer a `share` is sent and the rest waits for
    the next round; `layers` is the one layer that is sent, "" for both.
    """
    rest = [[0] * 11 for _ in range(4)]
    rounds = []
    for round_ in range(1, ROUNDS + 1):
        senders = [node for node in range(4) if away.get(round_) != node]
        weights = [WEIGHTS[node] if weighing == "by examples" else 1 for node in senders]
        total = [0] * 11
        for node, n in zip(senders, weights, strict=True):
            k = changes(weighing, node, round_)
            if share < 1:
                k, rest[node] = kept_apart(
                    [a + b for a, b in zip(k, rest[node], strict=True)], share
                )
            if layers == "w":
                k = k[:8] + [0] * 3
            total = [a + n * b for a, b in zip(total, k, strict=True)]
        moved = sum(n * counted(node, round_) for node, n in zip(senders, weights, strict=True))
        rounds.append(
            {
                "senders": senders,
                "weight": sum(weights),
                "sum": {"w": total[:8], "b": total[8:]},
                "steps": (2 * moved + sum(weights)) // (2 * sum(weights)),
            }
        )
    return rounds


ALL: dict[str, Any] = {"weighing": "by examples"}
ALIKE: dict[str, Any] = {"weighing": "alike"}
VARIANTS: dict[str, dict[str, Any]] = {
    "flashe, double": ALL,
    "flashe, single": ALL,
    "flashe, adaptive": ALL,
    "flashe, top half": {**ALIKE, "share": 0.5},
    "flashe, top half, single, in place": {**ALIKE, "share": 0.5},
    "flashe, layer w": {**ALIKE, "layers": "w"},
    "sash, server reads": ALL,
    "sash, members read": ALL,
    "batchcrypt": ALL,
    "batchcrypt, 2048": ALL,
    "esafl, joint keys": ALL,
    "esafl, keys of a round": ALL,
    "esafl, rns-8192": ALL,
    "fedml-he": ALL,
    "fedml-he, layer w, rest in clear": ALIKE,
    "fedml-he, layer w": {**ALIKE, "layers": "w"},
}
"""Every scheme and its main variants, by names of our own."""

REFUSALS = {
    "the app raises": 1001,
    "the node does not allow the scheme": 1010,
    "a plain message": 1010,
    "no array of the model": 1018,
    "no example count": 1018,
    "a counter leaps": 1016,
    "the node leaves": 1021,
    "another version": 1025,
    "NaN": 1027,
    "mostly clipped": None,
    "no examples": 1029,
}
"""What one node refuses, and its code; None for what it must not refuse."""

REFUSING = (
    "flashe, double",
    "flashe, top half",
    "sash, server reads",
    "sash, members read",
    "batchcrypt, 2048",
    "esafl, joint keys",
    "esafl, keys of a round",
    "fedml-he",
)
"""The variants under which it does: all ways that a round can go."""


def main() -> None:
    cases = [
        {
            "variant": name,
            "away": {str(round_): node for round_, node in away.items()},
            "rounds": opened(how["weighing"], away, how.get("share", 1.0), how.get("layers", "")),
        }
        for name, how in VARIANTS.items()
        for away in ({}, {2: 3})
    ]
    vectors = {
        "version": 1,
        "made_by": "tests/strategies/make_round_vectors.py: FedAvg in whole numbers; no flhe code",
        "unit": "a step of 2**-15, which 16 bits give at a clipping threshold of 32767 / 32768",
        "bits": BITS,
        "max_examples": MAX_EXAMPLES,
        "shapes": SHAPES,
        "weights": WEIGHTS,
        "variants": VARIANTS,
        "changes": {
            weighing: [
                [changes(weighing, node, round_) for node in range(4)]
                for round_ in range(1, ROUNDS + 1)
            ]
            for weighing in STEPS
        },
        "counted": [[counted(n, r) for n in range(4)] for r in range(1, ROUNDS + 1)],
        "cases": cases,
        "refusals": [
            {"variant": v, "what": w, "code": code}
            for v in VARIANTS
            if v in REFUSING
            for w, code in REFUSALS.items()
        ],
    }
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
