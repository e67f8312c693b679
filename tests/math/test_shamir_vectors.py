"""Shamir, a second time: Horner's rule and Lagrange's formula, one share at a time; the vectors.

python -m tests.math.test_shamir_vectors
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flhe import errors
from flhe.math.shamir import Shamir
from tests.math.reference import Q, at, root, words

FILE = pathlib.Path(__file__).parents[1] / "vectors/shamir.json"


def named(number: int) -> bytes:
    return hashlib.sha256(f"shamir {number}".encode()).digest()


def stream(number: int, length: int) -> bytes:
    """Bytes that stand for random ones."""
    blocks = range(-(-length // 32))
    return b"".join(hashlib.sha256(named(number) + bytes([i])).digest() for i in blocks)[:length]


class Tape:
    """Gives out bytes in order."""

    def __init__(self, data: bytes) -> None:
        self.data, self.used = data, 0

    def __call__(self, length: int) -> bytes:
        self.used += length
        assert self.used <= len(self.data)
        return self.data[self.used - length : self.used]


def drawn(random: Callable[[int], bytes], count: int) -> list[int]:
    """Elements of eight bytes each; those that are no use are drawn again after all others."""
    out = [0] * count
    todo = list(range(count))
    while todo:
        data = random(8 * len(todo))
        for i, place in enumerate(todo):
            out[place] = int.from_bytes(data[8 * i : 8 * i + 8], "little")
        todo = [place for place in todo if out[place] >= Q]
    return out


def point(members: int, rank: int) -> int:
    order = 1
    while order < members:
        order *= 2
    return pow(root(order), rank, Q)


def shared(
    members: int, threshold: int, privacy: int, secrets: list[int], random: Callable[[int], bytes]
) -> list[list[int]]:
    """Shares of each member: one value of each polynomial."""
    packing = threshold - privacy
    parts = [secrets[i : i + packing] for i in range(0, len(secrets), packing)]
    fresh = drawn(random, privacy * len(parts))
    polynomials = [
        part + [0] * (packing - len(part)) + fresh[i * privacy : (i + 1) * privacy]
        for i, part in enumerate(parts)
    ]
    return [[at(p, point(members, rank)) for p in polynomials] for rank in range(members)]


def lowest(points: list[int], values: list[int], count: int) -> list[int]:
    """The lowest coefficients of the polynomial through all of them, by Lagrange's formula."""
    total = [0] * len(points)
    for i, (x, y) in enumerate(zip(points, values, strict=True)):
        basis, scale = [1], y
        for j, other in enumerate(points):
            if j != i:
                shifted, scaled = [0, *basis], [*basis, 0]
                basis = [(s - c * other) % Q for s, c in zip(shifted, scaled, strict=True)]
                scale = scale * pow(x - other, -1, Q) % Q
        total = [(t + scale * c) % Q for t, c in zip(total, basis, strict=True)]
    return total[:count]


# --- vectors ---

SCHEMES = [(3, 3, 2), (4, 3, 1), (5, 4, 3), (8, 6, 3), (9, 5, 1), (10, 7, 3)]


def parameters(scheme: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip(("members", "threshold", "privacy"), scheme, strict=True))


def good(number: int, scheme: tuple[int, int, int], count: int, *, again: bool) -> dict[str, Any]:
    """Shares, and some ranks whose shares give the secrets; `again`: the first draw is no use."""
    members, threshold, privacy = scheme
    secrets = [x % Q for x in drawn(Tape(stream(number, 800)), count)]
    secrets[-1] = Q - 1
    needed = 8 * privacy * -(-count // (threshold - privacy))
    data = stream(number + 100, needed)
    if again:
        data = b"\xff" * 8 + data[8:] + stream(number + 200, 8)
    shares = shared(*scheme, secrets, Tape(data))
    chosen = sorted(range(members), key=lambda rank: hashlib.sha256(bytes([number, rank])).digest())
    points = [point(members, rank) for rank in chosen[:threshold]]
    for i in range(-(-count // (threshold - privacy))):  # the shares do give the secrets
        first = i * (threshold - privacy)
        part = secrets[first : first + threshold - privacy]
        found = lowest(points, [shares[rank][i] for rank in chosen[:threshold]], len(part))
        assert found == part
    return {
        "name": "shared",
        **parameters(scheme),
        "secrets": words(secrets),
        "random": data.hex(),
        "shares": [words(share) for share in shares],
        "ranks": [chosen[:threshold], chosen],
    }


def negatives() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for scheme in ((3, 4, 2), (3, 2, 2), (3, 2, 0), (0, 0, 0), (2**16 + 1, 3, 2)):
        at_, error = {"at": "configure"}, {"error": "ConfigError"}
        found.append({"name": "refused", **parameters(scheme), **at_, **error})
    scheme = (10, 4, 2)
    base = {"name": "refused", **parameters(scheme)}
    found += [
        {**base, "secrets": words([1, x]), "at": "share", "error": "RangeError"}
        for x in (Q, 2**64 - 1)
    ]
    shares = shared(*scheme, [1, 2, 3], Tape(stream(50, 32)))

    def combined(ranks: list[int], given: list[list[int]], error: str, text: str) -> None:
        found.append(
            {
                **base,
                "count": 3,
                "ranks": ranks,
                "shares": [words(share) for share in given],
                "at": "combine",
                "error": error,
                "text": text,
            }
        )

    def changed(*ranks: int) -> list[list[int]]:
        return [[(x + (r in ranks) * (r + i + 1)) % Q for i, x in enumerate(s)]
                for r, s in enumerate(shares)]  # fmt: skip

    combined([0, 1, 2], shares[:3], "QuorumError", "")
    combined([0, 1, 2, 2], shares[:4], "ProtocolError", "")
    combined([0, 1, 2, 10], shares[:4], "ProtocolError", "")
    combined([-1, 1, 2, 3], shares[:4], "ProtocolError", "")
    combined([0, 1, 2, 3], [share[:1] for share in shares[:4]], "ProtocolError", "")
    combined([0, 1, 2, 3], shares[:5], "ProtocolError", "")
    beyond = [[x + Q * (r == 3 and i == 1) for i, x in enumerate(share)]
              for r, share in enumerate([[0, 0]] * 4)]  # fmt: skip
    combined([4, 5, 6, 7], beyond, "ProtocolError", "ranks 7 ")
    whole = list(range(10))
    combined(whole, changed(6), "SharesError", "ranks 6 ")
    combined(whole, changed(0, 4, 9), "SharesError", "ranks 0, 4, 9 ")
    combined(whole[:6], changed(2)[:6], "SharesError", "ranks 2 ")
    combined(whole[:5], changed(2)[:5], "ProtocolError", "disagree")  # one to spare: nobody knows
    combined(whole, changed(0, 2, 4, 9), "ProtocolError", "disagree")
    return found


def contents() -> dict[str, Any]:
    return {
        "version": 1,
        "made_by": "tests/math/test_shamir_vectors.py, one share at a time",
        "modulus": f"{Q:016x}",
        "cases": [
            *(good(i, scheme, 7, again=False) for i, scheme in enumerate(SCHEMES)),
            good(20, (5, 4, 2), 1, again=True),
            *negatives(),
        ],
    }


CASES = json.loads(FILE.read_text())["cases"] if FILE.exists() else []
GOOD = [case for case in CASES if "error" not in case]
BAD = [case for case in CASES if "error" in case]


def scheme_of(case: dict[str, Any]) -> Shamir:
    return Shamir(case["members"], case["threshold"], case["privacy"])


def array(rows: Any) -> NDArray[np.uint64]:
    as_ints = [[int(x, 16) for x in row] if isinstance(row, list) else int(row, 16) for row in rows]
    return np.array(as_ints, np.uint64)


def test_the_file_is_what_the_second_implementation_writes() -> None:
    assert json.loads(FILE.read_text()) == contents()


@pytest.mark.parametrize(
    "case", GOOD, ids=lambda c: f"{c['members']}-{c['threshold']}-{c['privacy']}"
)
def test_vector(case: dict[str, Any]) -> None:
    scheme, secrets, shares = scheme_of(case), array(case["secrets"]), array(case["shares"])
    random = Tape(bytes.fromhex(case["random"]))
    assert np.array_equal(scheme.share(secrets, random), shares)
    assert random.used == len(random.data)
    assert shares.shape[1] == scheme.width(secrets.size)
    for ranks in case["ranks"]:
        assert np.array_equal(scheme.combine(ranks, shares[ranks], secrets.size), secrets)


@pytest.mark.parametrize("case", BAD, ids=lambda c: f"{c['at']}-{c['error']}")
def test_vector_that_must_fail(case: dict[str, Any]) -> None:
    reached = []

    def run() -> None:
        reached.append("configure")
        scheme = scheme_of(case)
        reached.append(case["at"])
        if case["at"] == "share":
            scheme.share(array(case["secrets"]))
        else:
            scheme.combine(case["ranks"], array(case["shares"]), case["count"])

    with pytest.raises(errors.FlheError) as caught:
        run()
    assert type(caught.value).__name__ == case["error"]
    assert reached[-1] == case["at"]
    assert case.get("text", "") in str(caught.value)


if __name__ == "__main__":
    FILE.write_text(json.dumps(contents()).replace('{"name"', '\n{"name"') + "\n")
