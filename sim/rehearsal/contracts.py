"""What sites' audit logs say of the contracts that they signed, and whether that is what happened.

Where a run is stopped and resumed with another learning rate, that is another contract, which needs an
epoch of its own: every site's log must show the one up to then and the other one since, and no site may
have told its app a rate that its contract does not say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flhe.node import audit
from flhe.node.node import StoredSession
from flhe.node.store import Store
from flhe_lab.rehearsal.app import HOLD_ROUND, RATES, Plan
from flhe_lab.rehearsal.loopback import Loopback, Run
from flhe_lab.rehearsal.updates import notes_of

LINES = 10_000
"""Most lines of a log that are read."""


@dataclass(frozen=True, slots=True)
class Logged:
    """One site's log: what it shows of a run's rounds."""

    site: str
    contracts: tuple[tuple[int, str], ...]  # (round, first digits of the contract), each once
    epochs: tuple[tuple[int, str], ...]  # The same of epochs
    present: str  # The contract that the site has now, in hex
    rate: float  # Learning rate that this says of the last round


def logged(loopback: Loopback, run: Run, site: str) -> Logged:
    """What a site's log says of a run."""
    home = loopback.home(site)
    contracts, epochs = dict[tuple[int, str], None](), dict[tuple[int, str], None]()
    for entry in audit.last(Store(home), LINES):
        # Of a first federation the run id is the federation's, also where another run goes on with it.
        if entry is None or (entry.run, entry.stage) != (run.id, "round"):
            continue
        if entry.round is not None and entry.contract is not None and entry.epoch is not None:
            contracts[entry.round, entry.contract.hex()] = None
            epochs[entry.round, entry.epoch.hex()] = None
    session = StoredSession.from_bytes((home / "runs" / str(run.id) / "session").read_bytes())
    last = session.contract.config_at("train", loopback.plan.rounds)
    present = session.contract.hash().hex()
    return Logged(site, tuple(contracts), tuple(epochs), present, float(last["lr"]))  # type: ignore[arg-type]


def rates(loopback: Loopback, run: Run) -> tuple[tuple[int, float], ...]:
    """(round, learning rate) as apps were told, each once."""
    rounds = range(1, loopback.plan.rounds + 1)
    told = ((n, float(note["rate"])) for n in rounds for note in notes_of(loopback, run, n))
    return tuple(dict.fromkeys(told))


def wrong(
    plan: Plan, scheme: str, logs: Sequence[Logged], told: Sequence[tuple[int, float]]
) -> Iterator[str]:
    """All that is not as it must be, in words."""
    by_part: tuple[set[str], set[str]] = (set(), set())
    for log in logs:
        for number, contract in log.contracts:
            by_part[part(plan, number)].add(contract)
        shown = {part(plan, number) for number, _ in log.contracts}
        if shown != {part(plan, number) for number in (1, plan.rounds)}:
            yield f"{scheme}: the log of {log.site} does not show all contracts"
        if plan.renew and {e for n, e in log.epochs if part(plan, n)} & {
            e for n, e in log.epochs if not part(plan, n)
        }:
            yield f"{scheme}: the log of {log.site} shows one epoch under both contracts"
        latest = log.contracts[-1][1] if log.contracts else "none"
        if not log.present.startswith(latest) or log.rate != RATES[part(plan, plan.rounds)]:
            yield f"{scheme}: {log.site} keeps another contract than its log shows last"
    before, since = by_part
    if len(before) != 1 or len(since) != plan.renew:
        yield f"{scheme}: logs show {len(before)} contracts first and {len(since)} after that"
    elif before & since:
        yield f"{scheme}: logs show one contract under two learning rates"
    for number, rate in told:
        if rate != RATES[part(plan, number)]:
            yield f"{scheme}, round {number}: an app was told a rate of {rate:g}"


def part(plan: Plan, number: int) -> int:
    """0 for rounds under the first contract, 1 for rounds under the other one."""
    return int(plan.renew and number >= HOLD_ROUND)


def lines(scheme: str, logs: Sequence[Logged]) -> Iterator[str]:
    """What every log shows, in words."""
    for log in logs:
        rounds: dict[str, list[str]] = {}
        for number, contract in log.contracts:
            rounds.setdefault(contract, []).append(str(number))
        shown = "; ".join(f"{each} in round {', '.join(said)}" for each, said in rounds.items())
        yield f"{scheme}, log of {log.site}: contract {shown}; its learning rate now is {log.rate:g}"
