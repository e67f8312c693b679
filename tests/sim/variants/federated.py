"""A group of members and a server that mask for each other in one process, for tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import FlheError
from flhe_lab.variants.secagg import pairwise, server
from flhe_lab.variants.secagg.graph import Graph
from flhe_lab.variants.secagg.plan import Plan
from tests.keys.masking import group

Relayed = Mapping[int, Mapping[int, bytes]]


def relayed(plan: Plan, messages: Mapping[int, Any]) -> dict[int, dict[int, bytes]]:
    """Messages by sender, to all or by receiver -> what each sender gets of its neighbours."""
    return {
        rank: {
            other: told[rank] if isinstance(told := messages[other], dict) else told
            for other in plan.graph.neighbours(rank)
            if other in messages
        }
        for rank in messages
    }


def plan_for(
    size: int,
    *,
    collusion: int = 0,
    degree: int | None = None,
    elements: bool = False,
    length: int = 7,
    **more: Any,
) -> Plan:
    graph = None if degree is None else Graph(size, degree, bytes(range(16)))
    epoch = group(size, collusion)[1][0]
    return Plan.of(epoch, length=length, elements=elements, graph=graph, **{"round": 3, **more})


@dataclass
class Run:
    """What a run left behind."""

    total: NDArray[Any] | None = None
    ends: dict[int, FlheError] = field(default_factory=dict)
    states: dict[int, Any] = field(default_factory=dict)
    senders: tuple[int, ...] = ()
    keys: dict[int, bytes] = field(default_factory=dict)
    boxes: dict[int, dict[int, bytes]] = field(default_factory=dict)
    masked: dict[int, NDArray[Any]] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)


def run(
    plan: Plan,
    vectors: Mapping[int, NDArray[Any]],
    *,
    gone: Mapping[str, Collection[int]] | None = None,
    until: str = "sum",
) -> Run:
    """Run the protocol honestly; `gone` says who is not heard of any more from which message on."""
    identities, epochs = group(len(plan.members))
    gone, out = gone or {}, Run()
    left: set[int] = set()

    def step(name: str, states: dict[int, Any], work: Callable[[int, Any], tuple[Any, Any]]) -> Any:
        left.update(gone.get(name, ()))
        sent = {}
        for rank, state in states.items():
            if rank in left or rank in out.ends:
                continue
            try:
                out.states[rank], sent[rank] = work(rank, state)
            except FlheError as error:
                out.ends[rank] = error
        return sent

    everyone = dict.fromkeys(range(len(plan.members)))
    out.keys = step(
        "key", everyone, lambda r, _: pairwise.advertise(identities[r], epochs[r], plan)
    )
    keys = relayed(plan, out.keys)
    states = out.states
    out.boxes = step("share", dict(states), lambda r, s: pairwise.share(s, keys[r].values()))
    if until == "share":
        return out
    boxes = relayed(plan, out.boxes)
    out.masked = step("mask", dict(states), lambda r, s: pairwise.mask(s, boxes[r], vectors[r]))
    if until == "mask":
        return out
    out.senders = tuple(sorted(out.masked))
    told = relayed(plan, {rank: states[rank].message for rank in out.senders})
    signed = step(
        "set", dict(states), lambda r, s: pairwise.consist(s, out.senders, told[r].values())
    )
    sets = relayed(plan, signed)
    out.answers = step("open", dict(states), lambda r, s: (s, pairwise.unmask(s, sets[r].values())))
    if until == "open" or not out.masked:
        return out
    out.total = opened(plan, out)
    return out


def opened(plan: Plan, left: Run, answers: Collection[bytes] | None = None, **more: Any) -> Any:
    """What the server makes of a run."""
    known: dict[str, Any] = {
        "keys": left.keys,
        "sharers": list(left.boxes),
        "senders": left.senders,
        "answers": left.answers.values() if answers is None else answers,
    }
    total = add(plan, [left.masked[rank] for rank in left.senders])
    return server.unmask_sum(plan, total, **{**known, **more})


def modulus(plan: Plan) -> int:
    return 2**64 - 2**32 + 1 if plan.elements else 2**32


def add(plan: Plan, vectors: list[NDArray[Any]]) -> NDArray[Any]:
    """Their sum in the plan's ring, by Python's integers."""
    rows = [[int(x) for x in vector] for vector in vectors]
    sums = [sum(column) % modulus(plan) for column in zip(*rows, strict=True)]
    return np.array(sums, np.uint64 if plan.elements else np.uint32)


def vectors_for(plan: Plan) -> dict[int, NDArray[Any]]:
    """One vector a member, over the whole ring."""
    rng = np.random.default_rng(1)  # test data; keys and masks never come from here
    dtype = np.uint64 if plan.elements else np.uint32
    everyone = range(len(plan.members))
    return {rank: rng.integers(0, modulus(plan), plan.length, dtype=dtype) for rank in everyone}
