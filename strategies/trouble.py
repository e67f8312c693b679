"""Failures of nodes: logged, and named in the error when too few nodes are left."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from logging import WARNING, getLogger
from typing import NoReturn, TypeVar

from flhe.errors import QuorumError

log = getLogger("flwr").log  # Flower's own log: one place to read a run

T = TypeVar("T", bound=Hashable)


def most_common(values: Iterable[T]) -> T:
    """Return the most frequent value; of equals, the first."""
    told = list(values)
    return max(told, key=told.count)


def warn(text: str, trouble: Mapping[int, str]) -> None:
    """Log `text`, which has places for a node and its reason, once for each node."""
    for node, why in trouble.items():
        log(WARNING, text, node, why)


def give_up(what: str, trouble: dict[int, str]) -> NoReturn:
    """Raise QuorumError: `what` happened, for these reasons."""
    raise QuorumError(f"{what} ({reasons(trouble)})")


def reasons(trouble: Mapping[int, str]) -> str:
    """Return the failures by node, each reason once."""
    nodes: dict[str, list[int]] = {}
    for node, why in sorted(trouble.items()):
        nodes.setdefault(why, []).append(node)
    said = [
        f"{'node' if len(n) == 1 else f'{len(n)} nodes, first'} {n[0]}: {why}"
        for why, n in nodes.items()
    ]
    return "; ".join(said[:5]) or "no node reported an error"
