"""A group of members and a server that mask for each other in one process, for tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flhe.errors import FlheError
from flhe.keys import pairwise, pairwise_server
from flhe.keys.epoch import Epoch
from flhe.keys.graph import Graph
from flhe.keys.identity import Identity
from flhe.keys.pairwise import Plan
from flhe.keys.roster import Member, Roster


@functools.cache
def group(size: int, collusion: int = 0) -> tuple[tuple[Identity, ...], tuple[Epoch, ...]]:
    """Identities and epochs by rank, as an agreement would leave them."""
    made = sorted(
        (Identity((i + 1).to_bytes(32, "big")) for i in range(size)), key=lambda i: i.public
    )
    members = tuple(Member(f"site-{i}", each.public) for i, each in enumerate(made))
    roster = Roster(members, collusion, 2, ("*",))

    def key(a: int, b: int) -> bytes:
        return b"" if a == b else bytes([min(a, b), max(a, b)]) * 16

    epochs = tuple(
        Epoch(
            id=bytes(range(16)),
            number=4,
            run_id=2**64 - 3,
            roster=roster,
            members=roster.publics,
            rank=rank,
            group_key=bytes(32),
            pair_keys=tuple(key(rank, other) for other in range(size)),
        )
        for rank in range(size)
    )
    return tuple(made), epochs


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
    stored: bool = False,
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
            held = state
            if stored and state is not None:
                data = state.to_bytes()
                held = type(state).from_bytes(data, identities[rank], epochs[rank], plan)
                assert held == state
            try:
                out.states[rank], sent[rank] = work(rank, held)
            except FlheError as error:
                out.ends[rank] = error
        return sent

    def now() -> dict[int, Any]:
        return {rank: out.states[rank] for rank in out.states}

    everyone = dict.fromkeys(range(len(plan.members)))
    out.keys = step(
        "key", everyone, lambda r, _: pairwise.advertise(identities[r], epochs[r], plan)
    )
    keys = pairwise_server.to_neighbours(plan, out.keys)
    out.boxes = step("share", now(), lambda r, s: pairwise.share(s, keys[r]))
    if until == "share":
        return out
    boxes = pairwise_server.to_receivers(plan, out.boxes)
    out.masked = step("mask", now(), lambda r, s: pairwise.mask(s, boxes[r], vectors[r]))
    if until == "mask":
        return out
    out.senders = tuple(sorted(out.masked))
    statements = pairwise_server.to_neighbours(
        plan, {rank: out.states[rank].message for rank in out.senders}
    )
    out.signatures = step(
        "set", now(), lambda r, s: pairwise.consist(s, out.senders, statements[r])
    )
    sets = pairwise_server.to_neighbours(plan, out.signatures)
    out.answers = step("open", now(), lambda r, s: pairwise.unmask(s, sets[r]))
    if until == "open" or not out.masked:
        return out
    out.total = pairwise_server.unmask_sum(
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
