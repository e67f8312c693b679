"""What one update costs by everybody, in turns, at one size: the measurement that most tables share.

Seconds are of one client's encryption (from float32 update to what is uploaded), of adding one upload,
and of opening the sum; bytes are of one upload and of the sum that comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flhe.errors import ConfigError
from flhe_lab.bench import Contender, Setting, Vector, peers, phe, schemes
from flhe_lab.bench.schemes import Make
from flhe_lab.bench.sparse import sparse
from flhe_lab.tables.result import Group
from flhe_lab.tables.section import Plan, Say, Step
from flhe_lab.tables.turns import Cost, costs, timed


@dataclass(frozen=True, slots=True)
class Who:
    """One that takes part.

    Parameters
    ----------
    name : str
        As tables call it.
    group : "ours" or "peer"
        Whose code it is.
    make : callable
        (setting, updates) -> contender.
    sample : int
        Values that it is given at most, the rest being projected; 0 for no bound. Peers that sample
        by themselves have none.
    """

    name: str
    group: Group
    make: Make
    sample: int = 0


def _sparse(setting: Setting, updates: Sequence[Vector]) -> Contender:
    return sparse(setting, updates, 0.1)


def _phe(make: Callable[..., Contender]) -> Make:
    return lambda setting, updates: make(setting, updates, phe.phe_keys(2048))


PLAIN = "plain"
FLASHE, SASH, BATCHCRYPT, ESAFL, FEDML = "FLASHE", "SASH", "BatchCrypt", "ESAFL", "FedML-HE"
FLASHE_TENTH, ESAFL_NARROW, FEDML_TENTH = (
    "FLASHE, top 10%",
    "ESAFL, rns-8192",
    "FedML-HE, 10% encrypted",
)
FEDML_CLEAR = "FedML-HE's clear part, 90%"
"""Alone: what encrypting a tenth costs is beyond it."""

BATCHCRYPT_2048 = "BatchCrypt, 2048 bits"
PHE, PHE_BATCHED = "python-paillier", "python-paillier, batched"
BFV_PAPER, BFV = "TenSEAL BFV, as in FLASHE", "TenSEAL BFV, shortest"
CKKS_PAPER, CKKS = "TenSEAL CKKS, as in FLASHE", "TenSEAL CKKS, shortest"

WHO: Mapping[str, Who] = {
    who.name: who
    for who in (
        Who(PLAIN, "ours", schemes.plain),
        Who(FLASHE, "ours", schemes.flashe),
        Who(FLASHE_TENTH, "ours", _sparse),
        Who(SASH, "ours", schemes.sash),
        Who(ESAFL, "ours", schemes.esafl),
        Who(ESAFL_NARROW, "ours", partial(schemes.esafl, ring_name=schemes.NARROW)),
        Who(FEDML, "ours", schemes.fedml),
        Who(FEDML_TENTH, "ours", partial(schemes.fedml, share=0.1)),
        Who(FEDML_CLEAR, "ours", partial(schemes.fedml_clear, share=0.1)),
        Who(BATCHCRYPT, "ours", schemes.batchcrypt, 300_000),
        Who(BATCHCRYPT_2048, "ours", partial(schemes.batchcrypt, key_bits=2048), 300_000),
        Who(PHE, "peer", _phe(phe.phe_values)),
        Who(PHE_BATCHED, "peer", _phe(phe.phe_batches)),
        Who(BFV_PAPER, "peer", peers.paper_bfv),
        Who(BFV, "peer", peers.bfv),
        Who(CKKS_PAPER, "peer", peers.ckks),
        Who(CKKS, "peer", peers.shortest_ckks),
    )
}
"""Everybody who can be timed, by name."""


def step(values: int, cohort: int, names: Sequence[str], plan: Plan) -> Step:
    """The measurement of `names` at `values` values and `cohort` clients.

    The key holds values, cohort and names: sections that ask for the same share one measurement; what
    is to be compared must be in one.

    Raises
    ------
    ConfigError
        A name that is not in WHO.
    """
    for name in names:
        if name not in WHO:
            raise ConfigError(f"{name!r}: choose from {', '.join(WHO)}")
    repeats = plan.repeats
    slug = "+".join(sorted("".join(c for c in n.lower() if c.isalnum()) for n in names))
    key = f"costs-{values}-{cohort}-{slug}"
    if len(key) > 120:
        import hashlib

        key = f"costs-{values}-{cohort}-{hashlib.sha256(slug.encode()).hexdigest()[:16]}"
    return Step(
        key,
        lambda say: measure(values, cohort, names, repeats, say),
        f"{len(names)} contenders, {values:,} values, {cohort} clients",
        weight=1 + values * len(names) * repeats / 3e6,
    )


def measure(
    values: int, cohort: int, names: Sequence[str], repeats: int, say: Say
) -> dict[str, Any]:
    """Time everybody in turns; JSON values that `read` takes.

    Raises
    ------
    FlheError
        A mean that is not the mean.
    """
    setting = Setting(values, cohort)
    updates = setting.updates()
    contenders: dict[str, tuple[Contender, float]] = {}
    for name in names:
        say(f"{name}, making ready")
        who = WHO[name]
        taken = min(values, who.sample or values)
        part = Setting(taken, cohort)
        mine = [u[:taken] for u in updates]
        contenders[name] = who.make(part, mine), values / taken
    scales = {name: scale for name, (_, scale) in contenders.items()}
    return timed({name: c for name, (c, _) in contenders.items()}, repeats, say, scales)


def read(found: Mapping[str, Any]) -> dict[str, Cost]:
    """Name -> cost, of what `measure` gave."""
    return costs(found, {who.name: who.group for who in WHO.values()})
