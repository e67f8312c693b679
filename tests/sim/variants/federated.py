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


def to_neighbours(plan: Plan, messages: Mapping[int, bytes]) -> dict[int, list[bytes]]:
    """Messages for all neighbours ("mask-key", "-with", "-set"): by sender -> for each sender."""
    return {
        rank: [messages[other] for other in plan.graph.around(rank) if other in messages]
        for rank in messages
    }


def to_receivers(
    plan: Plan, boxes: Mapping[int, Mapping[int, bytes]]
) -> dict[int, dict[int, bytes]]:
    """Boxes ("mask-share") by sender and receiver -> by receiver and sender, among who sent any."""
    return {
        rank: {
            other: boxes[other][rank]
            for other in plan.graph.neighbours(rank)
            if other in boxes and rank in boxes[other]
        }
        for rank in boxes
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
    given = {"purpose": "test", "round": 3, "attempt": 1, **more}
    epoch = group(size, collusion)[1][0]
    return Plan.of(epoch, length=length, elements=elements, graph=graph, **given)


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
    signatures: dict[int, bytes] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)


def run(
    plan: Plan,
    vectors: Mapping[int, NDArray[Any]],
    *,
    collusion: int = 0,
    gone: Mapping[str, Collection[int]] | None = None,
    until: str = "sum",
) -> Run:
    """Run the protocol honestly; `gone` says who is not heard of any more from which message on."""
    identities, epochs = group(len(plan.members), collusion)
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

    def now() -> dict[int, Any]:
        return {rank: out.states[rank] for rank in out.states}

    everyone = dict.fromkeys(range(len(plan.members)))
    out.keys = step(
        "key", everyone, lambda r, _: pairwise.advertise(identities[r], epochs[r], plan)
    )
    keys = to_neighbours(plan, out.keys)
    out.boxes = step("share", now(), lambda r, s: pairwise.share(s, keys[r]))
    if until == "share":
        return out
    boxes = to_receivers(plan, out.boxes)
    out.masked = step("mask", now(), lambda r, s: pairwise.mask(s, boxes[r], vectors[r]))
    if until == "mask":
        return out
    out.senders = tuple(sorted(out.masked))
    statements = to_neighbours(plan, {rank: out.states[rank].message for rank in out.senders})
    out.signatures = step(
        "set", now(), lambda r, s: pairwise.consist(s, out.senders, statements[r])
    )
    sets = to_neighbours(plan, out.signatures)
    out.answers = step("open", now(), lambda r, s: (s, pairwise.unmask(s, sets[r])))
    if until == "open" or not out.masked:
        return out
    out.total = server.unmask_sum(
        plan,
        add(plan, [out.masked[rank] for rank in out.senders]),
        keys=out.keys,
        sharers=list(out.boxes),
        senders=out.senders,
        answers=list(out.answers.values()),
    )
    return out


def add(plan: Plan, vectors: list[NDArray[Any]]) -> NDArray[Any]:
    """Their sum in the plan's ring, by Python's integers."""
    modulus = 2**64 - 2**32 + 1 if plan.elements else 2**32
    rows = [[int(x) for x in vector] for vector in vectors]
    dtype = np.uint64 if plan.elements else np.uint32
    return np.array([sum(column) % modulus for column in zip(*rows, strict=True)], dtype)


def vectors_for(plan: Plan, seed: int = 1) -> dict[int, NDArray[Any]]:
    """One vector a member, over the whole ring."""
    rng = np.random.default_rng(seed)  # test data; keys and masks never come from here
    high = 2**64 - 2**32 + 1 if plan.elements else 2**32
    dtype = np.uint64 if plan.elements else np.uint32
    return {
        rank: rng.integers(0, high, plan.length, dtype=dtype) for rank in range(len(plan.members))
    }
