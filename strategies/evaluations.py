"""Which evaluation metrics can be averaged over nodes with policies of their own."""

from __future__ import annotations

from logging import WARNING, getLogger

from flwr.app import MetricRecord, RecordDict

log = getLogger("flwr").log


def comparable(contents: list[RecordDict], key: str) -> list[RecordDict]:
    """Contents that can be averaged: with the metrics that all nodes told, and a weight each.

    A mean over some of the nodes, divided by the weight of all, would be wrong without a word. The
    weight is the nodes' own where all of them tell it, otherwise 1 for everyone. Whoever tells nothing,
    or no numbers, is left out.
    """
    told = [_numbers(content, key) for content in contents]
    told = [t for t in told if t]
    if not told:
        return []
    names = set.intersection(*(set(t) for t in told))
    kept = {n: set.intersection(*(set(t[n]) for t in told)) for n in names}
    if lost := {k for t in told for n, m in t.items() for k in set(m) - kept.get(n, set())}:
        log(WARNING, "metrics that only some nodes let leave are left out: %s", sorted(lost))
    out = []
    for t in told:
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
