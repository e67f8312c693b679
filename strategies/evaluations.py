"""What nodes tell of an evaluation, and what of it can be averaged: each has a policy of its own."""

from __future__ import annotations

from collections.abc import Iterable
from logging import WARNING, getLogger

from flwr.app import Message, MetricRecord, RecordDict

from flhe.errors import ProtocolError
from flhe.mods import records
from flhe.strategies.federation import LOST, Federation
from flhe.strategies.trouble import give_up, warn

log = getLogger("flwr").log


def told(fed: Federation, replies: Iterable[Message], needed_by: str) -> list[RecordDict]:
    """What the nodes' apps tell, without our own records.

    `needed_by` says what comes to nothing without any; "" where none is awaited.

    Raises QuorumError: no node could evaluate the model.
    """
    trouble: dict[int, str] = {}

    def own(node: int, reply: Message) -> RecordDict:
        if reply.has_error():
            raise ProtocolError(fed.refused(node, reply))
        fed.heard(node, reply.content)
        return RecordDict(
            {n: r for n, r in reply.content.items() if not n.startswith(records.PREFIX)}
        )

    contents = [content for _, content in fed.grid.fold(replies, trouble, own)]
    warn("aggregate_evaluate: node %d failed: %s", trouble)
    refused = any(fed.model_round(node) == LOST for node in trouble)  # the sum, not the app
    if needed_by and not contents and not refused:
        give_up(f"{needed_by}: no evaluations, 1 needed", trouble)
    return contents


def comparable(contents: list[RecordDict], key: str) -> list[RecordDict]:
    """Contents that can be averaged: with the metrics that all nodes told, and a weight each.

    A mean over some of the nodes, divided by the weight of all, would be wrong without a word. The
    weight is the nodes' own where all of them tell it, otherwise 1 for everyone. Whoever tells nothing,
    or no numbers, is left out.
    """
    numbers = [_numbers(content, key) for content in contents]
    numbers = [t for t in numbers if t]
    if not numbers:
        return []
    names = set.intersection(*(set(t) for t in numbers))
    kept = {n: set.intersection(*(set(t[n]) for t in numbers)) for n in names}
    if lost := {k for t in numbers for n, m in t.items() for k in set(m) - kept.get(n, set())}:
        log(WARNING, "metrics that only some nodes let leave are left out: %s", sorted(lost))
    out = []
    for t in numbers:
        averaged = RecordDict()
        for name, keys in kept.items():
            if keys - {key}:
                values = {k: v for k, v in t[name].items() if k in keys}
                averaged[name] = MetricRecord({key: 1, **values})
        if len(averaged):
            out.append(averaged)
    return out


def _numbers(content: RecordDict, key: str) -> dict[str, dict[str, float]]:
    """What a node told that can be averaged: single numbers, and a weight only if it is one."""
    found = {}
    for name, metrics in content.metric_records.items():
        numbers = {k: v for k, v in metrics.items() if isinstance(v, (int, float))}
        if numbers.get(key, 1) > 0 and set(numbers) - {key}:
            found[name] = numbers
    return found
