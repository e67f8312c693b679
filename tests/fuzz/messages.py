"""Mutants of Flower's messages, as a server or a node may send them: anything in them changed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from tests.fuzz.mutations import change

KINDS: dict[str, Any] = {kind.__name__: kind for kind in (ArrayRecord, ConfigRecord, MetricRecord)}


def _tree(content: RecordDict) -> dict[str, Any]:
    """{name of a record: [its kind, what is in it]}; an array is a list of what it is made of."""
    return {name: [type(record).__name__, _inside(record)] for name, record in content.items()}


def _inside(record: Any) -> dict[str, Any]:
    if not isinstance(record, ArrayRecord):
        return {k: list(v) if isinstance(v, list) else v for k, v in record.items()}
    return {n: [a.dtype, list(a.shape), a.stype, a.data] for n, a in record.items()}


def _message(tree: dict[str, Any]) -> RecordDict:
    """The message that a tree stands for; what Flower does not send is an error of its own."""
    out = RecordDict()
    for name, (kind, inside) in tree.items():
        if kind == ArrayRecord.__name__:
            arrays = {
                n: Array(d, tuple(s), stype, data) for n, (d, s, stype, data) in inside.items()
            }
            out[name] = ArrayRecord(arrays)
        else:
            out[name] = KINDS[kind](inside)
            out[name].deflate()
    return out


def copied(content: RecordDict) -> RecordDict:
    """A message of its own: nodes take theirs apart."""
    return _message(_tree(content))


def mutated(
    content: RecordDict, others: Sequence[RecordDict], random: Random
) -> tuple[RecordDict, str]:
    """One mutant of a message, and what was changed in it.

    Parameters
    ----------
    content : RecordDict
        The message; it stays as it is.
    others : sequence of RecordDict
        Other messages, parts of which may come into it.
    random : Random
        Source of all choices.
    """
    honest = _tree(content)
    while True:
        tree, other = honest, _tree(random.choice(others))
        match random.randrange(20):
            case 0:
                tree = {**tree, random.choice(list(other)): random.choice(list(other.values()))}
            case 1:
                name, (kind, inside) = random.choice(list(tree.items()))
                _, borrowed = other.get(name, (kind, {}))
                taken = dict(random.sample(list(borrowed.items()), min(1, len(borrowed))))
                tree = {**tree, name: [kind, {**inside, **taken}]}
            case 2:
                name = random.choice(list(tree))
                renamed = random.choice((name + "x", "flhe.sum.7", "flhe.checkpoint", "arrays"))
                tree = {renamed if n == name else n: record for n, record in tree.items()}
            case _:
                tree = change(tree, random)
        try:
            names = [name for name in {**honest, **tree} if honest.get(name) != tree.get(name)]
            return _message(tree), ", ".join(names)
        except Exception:  # nothing of it would be sent
            continue
