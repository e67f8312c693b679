"""Mutants of Flower's messages, as a server or a node may send them: anything in them changed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from tests.fuzz.mutations import mutate
from tests.fuzz.recorded import copied

INTEGERS = (0, 1, -1, 2, 3, 7, 2**31, 2**32 - 1, 2**32, 2**63 - 1, -(2**63))
"""Flower sends 64 bits, signed."""
TEXTS = ("", "x", "double", "single", "adaptive", "round", "\0", "é" * 50, "../../etc", "a" * 5000)


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
    out = copied(content)
    name = random.choice(list(out))
    match random.randrange(20):
        case 0:
            del out[name]
            return out, f"without {name}"
        case 1:
            other = copied(random.choice(others))
            taken = random.choice(list(other))
            out[taken] = other[taken]
            return out, f"{taken} of another message"
        case 2:
            record = out[name]
            del out[name]
            out[random.choice((name + "x", "", "flhe.sum.7", "flhe.checkpoint", "arrays"))] = record
            return out, f"{name} renamed"
        case 3:
            out[name] = random.choice((ConfigRecord(), MetricRecord(), ArrayRecord()))
            return out, f"{name} of another kind"
        case _:
            return out, f"{name}: {_in_record(out, name, others, random)}"


def _in_record(content: RecordDict, name: str, others: Sequence[RecordDict], random: Random) -> str:
    record: Any = content[name]
    if isinstance(record, ArrayRecord):
        if len(record):
            return _in_arrays(record, random)
        record["0000"] = Array("uint8", (1,), "flhe.sealed/1", b"x")
        return "an array"
    fields = dict(record)
    if not fields:
        return "nothing"
    key = random.choice(list(fields))
    what = key
    match random.randrange(12):
        case 0:
            del fields[key]
        case 1:
            fields[random.choice(("v2", "", "history", "epoch", "mode", "told", "base"))] = leaf(
                random
            )
        case 2:
            found = [o[name] for o in others if name in o and not isinstance(o[name], ArrayRecord)]
            other: Any = random.choice(found) if found else {}
            fields[key] = other.get(key, leaf(random))
        case _:
            fields[key] = another(fields[key], random)
    content[name] = (MetricRecord if isinstance(record, MetricRecord) else ConfigRecord)(
        _sent(fields, isinstance(record, MetricRecord))
    )
    return what


def another(value: Any, random: Random) -> Any:
    """Another value of a field."""
    if random.random() < 0.1:
        return leaf(random)
    if isinstance(value, list):
        return _in_list(value, random)
    if isinstance(value, bytes):
        return mutate([value], random)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice([*INTEGERS, value + 1, value - 1])
    odd: list[Any] = [float("nan"), float("inf"), 0.0, 1e308]
    if isinstance(value, str):
        odd = [*TEXTS, value + "x", value[:-1]]
    return random.choice(odd)


def _in_list(value: list[Any], random: Random) -> list[Any]:
    items = list(value)
    if not items:
        return [random.choice((b"", b"x", 0))]
    at = random.randrange(len(items))
    match random.randrange(8):
        case 0:
            del items[at]
        case 1:
            items.insert(at, random.choice(items))
        case 2:
            random.shuffle(items)
        case 3:
            items.append(items[at])
        case _:
            items[at] = another(items[at], random)
    kinds = {type(item) for item in items}
    return items if len(kinds) < 2 and list not in kinds else value[:at]  # as Flower takes lists


def leaf(random: Random) -> Any:
    """Anything that a field may hold."""
    return random.choice(
        [b"", bytes(32), bytes(16), "", "x", 0, -1, 2**40, 1.5, True, [], [b""], [0], ["x"], [0.5]]
    )


def _sent(fields: dict[str, Any], metrics: bool) -> dict[str, Any]:
    """As Flower takes it: metrics are numbers."""
    if not metrics:
        return fields
    numbers = (int, float, list)
    return {
        k: v if isinstance(v, numbers) and type(v) is not bool else 1 for k, v in fields.items()
    }


def _in_arrays(record: ArrayRecord, random: Random) -> str:
    key = random.choice(list(record))
    array = record[key]
    match random.randrange(10):
        case 0:
            del record[key]
            return f"{key} is missing"
        case 1:
            del record[key]
            record[random.choice((key + "x", "0001", "0000", ""))] = array
            return f"{key} renamed"
        case 2:
            stype = random.choice(("flhe.sealed/1", "flhe.checkpoint/1", "numpy.ndarray", "", "x"))
            record[key] = Array(array.dtype, array.shape, stype, array.data)
            return f"{key} of another type"
        case 3:
            record[key + "0"] = array
            return f"{key} twice"
        case _:
            data = mutate([array.data], random)
            record[key] = Array(array.dtype, array.shape, array.stype, data)
            return f"data of {key}"
