"""Shamir's scheme, a second time: Horner's rule and Lagrange's formula, one share at a time."""

from __future__ import annotations

from tests.reference.field import Q, at, root_of


def point(members: int, rank: int) -> int:
    """A power of a root whose order is the least power of two that there are members."""
    order = 1
    while order < members:
        order *= 2
    return pow(root_of(order), rank, Q)


def shared(
    members: int, threshold: int, secrets: list[int], given: dict[int, list[int]]
) -> list[list[int]]:
    """Shares of each member: one value of each polynomial, through secrets and given shares."""
    packing = threshold - len(given)
    points = {rank: point(members, rank) for rank in given}
    polynomials = []
    for i, start in enumerate(range(0, len(secrets), packing)):
        part = secrets[start : start + packing]
        part = part + [0] * (packing - len(part))
        # What is left of a share is x**packing times a polynomial.
        left = [
            (given[rank][i] - at(part, x)) * pow(x, -packing, Q) % Q for rank, x in points.items()
        ]
        polynomials.append(part + lowest(list(points.values()), left, len(given)))
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
