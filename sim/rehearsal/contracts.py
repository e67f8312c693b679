"""What sites' audit logs say of the contracts that they signed, and whether that is what happened.

Where a run is stopped and resumed with another learning rate, that is another contract, which needs an
epoch of its own: every site's log must show the one up to then and the other one since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flhe.node import audit
from flhe.node.store import Store
from flhe_lab.rehearsal.app import HOLD_ROUND, Plan
from flhe_lab.rehearsal.loopback import Loopback, Run

LINES = 10_000
"""Most lines of a log that are read."""


@dataclass(frozen=True, slots=True)
class Logged:
    """One site's log: what it shows of a run's rounds."""

    site: str
    rounds: tuple[tuple[int, str, str], ...]
    """(round, first digits of the contract, of the epoch), each once."""


def logged(loopback: Loopback, run: Run, site: str) -> Logged:
    """What a site's log says of a run."""
    rounds = dict[tuple[int, str, str], None]()
    for entry in audit.last(Store(loopback.home(site)), LINES):
        # Of a first federation the run id is the federation's, also where another run goes on with it.
        if entry is None or (entry.run, entry.stage) != (run.id, "round"):
            continue
        if entry.round is not None and entry.contract is not None and entry.epoch is not None:
            rounds[entry.round, entry.contract.hex(), entry.epoch.hex()] = None
    return Logged(site, tuple(rounds))


def wrong(plan: Plan, scheme: str, logs: Sequence[Logged]) -> Iterator[str]:
    """All that is not as it must be, in words."""
    for log in logs:
        if {part(plan, n) for n, _, _ in log.rounds} != {part(plan, n) for n in (1, plan.rounds)}:
            yield f"{scheme}: the log of {log.site} does not show all contracts"
        before, since = ({e for n, _, e in log.rounds if part(plan, n) == p} for p in (0, 1))
        if before & since:
            yield f"{scheme}: the log of {log.site} shows one epoch under both contracts"
    shown = [(part(plan, n), contract) for log in logs for n, contract, _ in log.rounds]
    first, other = ({contract for p, contract in shown if p == which} for which in (0, 1))
    if (len(first), len(other)) != (1, plan.renew):
        yield f"{scheme}: logs show {len(first)} contracts first and {len(other)} after that"
    elif first & other:
        yield f"{scheme}: logs show one contract under two learning rates"


def part(plan: Plan, number: int) -> int:
    """0 for rounds under the first contract, 1 for rounds under the other one."""
    return int(plan.renew and number >= HOLD_ROUND)
