"""Field, ring and masks: the vectors, which `reference` makes, and what the library makes of them.

python -m tests.math.test_ring_vectors
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe import errors
from flhe.math import ring
from flhe.math.prg import AesCtr, FieldElements
from flhe.math.ring import Ring
from tests.math.reference import (
    P,
    Q,
    at,
    back,
    elements,
    nearest,
    product,
    root,
    transform,
    word,
    words,
)

FILE = pathlib.Path(__file__).parents[1] / "vectors/ring.json"

# --- vectors ---


def named(number: int) -> bytes:
    return hashlib.sha256(f"ring {number}".encode()).digest()


EDGES = [0, 1, 2, P - 2, P - 1, P, P + 1, Q // 2, Q // 2 + 1, 2**63 - 1, 2**63, 2**63 + 1]
EDGES += [Q - x for x in (P + 1, P, P - 1, 2, 1)]


def borders() -> Iterator[int]:
    """The last x that is rounded to a number, and the first that is rounded to the next."""
    for y in (0, 1, 2, 2**31 - 1, 2**31, 2**31 + 1, P - 2, P - 1):
        first = -(-(2 * y + 1) * Q // (2 * P))
        yield from (first - 1, first)


def arithmetic() -> dict[str, Any]:
    pairs = [(x, y) for x in EDGES for y in EDGES]
    return {
        "name": "arithmetic",
        "a": words([x for x, _ in pairs]),
        "b": words([y for _, y in pairs]),
        "sum": words([(x + y) % Q for x, y in pairs]),
        "difference": words([(x - y) % Q for x, y in pairs]),
        "product": words([x * y % Q for x, y in pairs]),
    }


def rounding() -> dict[str, Any]:
    xs = sorted({*EDGES, *borders()})
    return {"name": "rounding", "x": words(xs), "rounded": [nearest(x) for x in xs]}


def blocks(number: int, first: int, amount: int, n: int) -> dict[str, Any]:
    key = named(number)
    made = [elements(key, j, n) for j in range(first, first + amount)]
    places = range(first * n, (first + amount) * n)
    return {
        "name": "elements",
        "key": key.hex(),
        "first": first,
        "n": n,
        "redrawn": sum(word(key, 0, i) >= Q for i in places),
        "blocks": [words(block) for block in made],
    }


def ring_product(number: int, n: int) -> dict[str, Any]:
    a, b = (elements(named(number), j, n) for j in (0, 1))
    if number == 0:
        a, b = [Q - 1] * n, [Q - 1] * n
    return {
        "name": "ring product",
        "n": n,
        "a": words(a),
        "b": words(b),
        "a_hat": words(transform(a)),
        "b_hat": words(transform(b)),
        "product": words(product(a, b)),
    }


def values(number: int, n: int) -> dict[str, Any]:
    """At all powers of a root of order n."""
    a = elements(named(number), 0, n)
    made = [at(a, pow(root(n), i, Q)) for i in range(n)]
    return {"name": "values", "coefficients": words(a), "values": words(made)}


def ring_masks(number: int, n: int, amount: int) -> dict[str, Any]:
    """A seed from one key, the transforms of a from another: the sums of products, rounded."""
    seed = elements(named(number), 0, n)
    made = [
        [nearest(x) for x in product(back(elements(named(number + 1), j, n)), seed)]
        for j in range(amount)
    ]
    return {
        "name": "ring masks",
        "key": named(number + 1).hex(),
        "seed": words(seed),
        "masks": made,
    }


def matrix_masks(number: int, mu: int, amount: int) -> dict[str, Any]:
    """Rows of a matrix times a seed: rounded modulo Q, and by the paper's own parameters."""
    seed = elements(named(number), 0, mu)
    rows = [elements(named(number + 1), d, mu) for d in range(amount)]
    sums = [sum(x * y for x, y in zip(row, seed, strict=True)) for row in rows]
    return {
        "name": "matrix masks",
        "key": named(number + 1).hex(),
        "seed": words(seed),
        "masks": [nearest(x % Q) for x in sums],
        "floor_masks": [x % 2**64 // P for x in sums],
    }


def negatives() -> list[dict[str, Any]]:
    base = {"name": "refused"}
    return [
        *({**base, "n": n, "at": "ring", "error": "ConfigError"} for n in (0, 1, 3, 24, 2**14)),
        *(
            {**base, "n": 8, "x": words([0] * size), "at": at, "error": "ConfigError"}
            for at in ("forward", "inverse")
            for size in (1, 7, 16)
        ),
        *(
            {**base, "x": words([0] * size), "at": "evaluate", "error": "ConfigError"}
            for size in (0, 3, 12)
        ),
        *(
            {**base, "x": words([0, x]), "at": "check", "error": "RangeError"}
            for x in (Q, Q + 1, 2**64 - 1)
        ),
    ]


REDRAWN = [(207_245_832, 4), (2_323_365_690, 5)]
"""Where words 828,983,335 and 11,616,828,459 under key 0 lie: they are no use, as one in 2**32."""


def contents() -> dict[str, Any]:
    by = "tests/math/reference.py, one product and one AES block at a time"
    return {
        "version": 1,
        "made_by": by,
        "modulus": f"{Q:016x}",
        "cases": [
            arithmetic(),
            rounding(),
            *(blocks(1, first, 2, n) for first, n in ((0, 4), (3, 5), (2**40, 3))),
            *(blocks(0, first, 3, n) for first, n in REDRAWN),
            *(ring_product(number, n) for number in (0, 1) for n in (2, 4, 8, 64)),
            *(values(2, n) for n in (1, 2, 4, 32)),
            *(ring_masks(4, n, 2) for n in (4, 64)),
            *(matrix_masks(6, mu, 2) for mu in (1, 7, 736)),
            *negatives(),
        ],
    }


CASES = json.loads(FILE.read_text())["cases"] if FILE.exists() else []


def cases(name: str) -> list[dict[str, Any]]:
    return [case for case in CASES if case["name"] == name]


def array(numbers: list[str]) -> NDArray[np.uint64]:
    return np.array([int(x, 16) for x in numbers], np.uint64)


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert json.loads(FILE.read_text()) == contents()


def test_the_file_has_what_it_should() -> None:
    """Words drawn again, products and sums of the largest, all of the rounding's borders."""
    assert sum(case["redrawn"] for case in cases("elements")) >= 2
    assert set(cases("rounding")[0]["x"]) >= set(words([*borders(), 2**63]))
    assert {case["n"] for case in cases("ring product") if case["a"][0] == f"{Q - 1:016x}"}


def test_arithmetic() -> None:
    for case in cases("arithmetic"):
        a, b = array(case["a"]), array(case["b"])
        assert words(ring.add(a, b).tolist()) == case["sum"]
        assert words(ring.subtract(a, b).tolist()) == case["difference"]
        assert words(ring.times(a, b).tolist()) == case["product"]


def test_rounding() -> None:
    for case in cases("rounding"):
        assert ring.rounded(array(case["x"])).tolist() == case["rounded"]


@pytest.mark.parametrize("case", cases("elements"), ids=lambda c: f"{c['first']}-{c['n']}")
def test_elements(case: dict[str, Any]) -> None:
    made = FieldElements(AesCtr(), bytes.fromhex(case["key"]))
    blocks = made.blocks(case["first"], len(case["blocks"]), case["n"])
    assert [words(block) for block in blocks.tolist()] == case["blocks"]
    for i, block in enumerate(case["blocks"]):
        assert words(made.block(case["first"] + i, case["n"]).tolist()) == block


@pytest.mark.parametrize("case", cases("ring product"), ids=lambda c: str(c["n"]))
def test_ring_product(case: dict[str, Any]) -> None:
    on = Ring(case["n"])
    a, b = array(case["a"]), array(case["b"])
    assert words(on.forward(a).tolist()) == case["a_hat"]
    assert words(on.inverse(array(case["b_hat"])).tolist()) == case["b"]
    assert words(on.multiply(a, b).tolist()) == case["product"]


def test_values() -> None:
    for case in cases("values"):
        assert words(ring.evaluate(array(case["coefficients"])).tolist()) == case["values"]


@pytest.mark.parametrize("case", cases("ring masks"), ids=lambda c: str(len(c["seed"])))
def test_ring_masks(case: dict[str, Any]) -> None:
    n = len(case["seed"])
    a_hat = FieldElements(AesCtr(), bytes.fromhex(case["key"])).blocks(0, len(case["masks"]), n)
    on = Ring(n)
    assert on.masks(on.forward(array(case["seed"])), a_hat).tolist() == case["masks"]


@pytest.mark.parametrize("case", cases("matrix masks"), ids=lambda c: str(len(c["seed"])))
def test_matrix_masks(case: dict[str, Any]) -> None:
    seed, amount = array(case["seed"]), len(case["masks"])
    rows = FieldElements(AesCtr(), bytes.fromhex(case["key"])).blocks(0, amount, seed.size)
    assert ring.lwr_masks(seed, rows).tolist() == case["masks"]
    assert ring.lwr_masks(seed, rows, floor=True).tolist() == case["floor_masks"]


@pytest.mark.parametrize("case", cases("refused"), ids=lambda c: f"{c['at']}-{len(c.get('x', []))}")
def test_vector_that_must_fail(case: dict[str, Any]) -> None:
    reached = []

    def run() -> None:
        x = array(case.get("x", []))
        if "n" in case:
            reached.append("ring")
            on = Ring(case["n"])
            reached.append(case["at"])
            getattr(on, case["at"])(x)
        else:
            reached.append(case["at"])
            getattr(ring, case["at"])(x)

    with pytest.raises(errors.FlheError) as caught:
        run()
    assert type(caught.value).__name__ == case["error"]
    assert reached[-1] == case["at"]


if __name__ == "__main__":
    FILE.write_text(json.dumps(contents()).replace('{"name"', '\n{"name"') + "\n")
