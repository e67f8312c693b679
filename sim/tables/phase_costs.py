"""What one update costs by everybody, in turns, at one size: the measurement that most tables share.

Seconds are of one client's encryption (from float32 update to what is uploaded), of adding one upload,
and of opening the sum; bytes are of one upload and of the sum that comes back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flhe_lab.bench import peers, phe, schemes, sparse
from flhe_lab.bench.contender import PHASES, Contender, Setting
from flhe_lab.bench.schemes import Make
from flhe_lab.bench.turns import measure as in_turns
from flhe_lab.tables.marked import Marked, proportional
from flhe_lab.tables.result import Group
from flhe_lab.tables.section import Plan, Say, Step


@dataclass(frozen=True, slots=True)
class Who:
    """One that takes part."""

    name: str  # As tables call it
    group: Group  # Whose code it is
    make: Make  # (setting, updates) -> contender
    sample: int = 0
    """Values that it is given at most, the rest being projected; 0 for no bound. Peers that
    sample by themselves have none."""
    counted: bool = True  # Whether it tells the bytes of a whole update, or of a sample


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
BFV_VALUES, CKKS_VALUES = "TenSEAL BFV, a value each", "TenSEAL CKKS, a value each"

WHO: Mapping[str, Who] = {
    who.name: who
    for who in (
        Who(PLAIN, "ours", schemes.plain),
        Who(FLASHE, "ours", schemes.flashe),
        Who(FLASHE_TENTH, "ours", partial(sparse.sparse, top_k=0.1)),
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
        # FLASHE's peer (Sec. 5.4): SEAL's own moduli, 218 bits, and its plain modulus.
        Who(
            BFV_PAPER,
            "peer",
            partial(peers.bfv, moduli=None, dimension=8192, modulus=1_964_769_281),
        ),
        Who(BFV, "peer", peers.bfv),
        Who(CKKS_PAPER, "peer", peers.ckks),
        Who(CKKS, "peer", peers.shortest_ckks),
        # The shortest ring that TenSEAL takes with such sums.
        Who(BFV_VALUES, "peer", partial(peers.bfv, moduli=None, slots=1), counted=False),
        Who(CKKS_VALUES, "peer", peers.ckks_values, counted=False),
    )
}
"""Everybody who can be timed, by name."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one contender took for one update."""

    who: str  # As in Entry
    group: Group  # As in Entry
    encrypt_s: Marked  # Seconds of a client, the least of the turns
    add_s: Marked  # The same, of one upload that is added
    decrypt_s: Marked  # The same, of a client
    upload_bytes: Marked  # One client's upload
    down_bytes: Marked | None = None  # What comes back; by default as long

    def work_s(self, additions: int) -> Marked:
        """A client's encryption and decryption, and the server's additions."""
        return self.encrypt_s + self.decrypt_s + self.add_s * additions

    def scaled(self, factor: float) -> Cost:
        """The cost of `factor` times as many values."""
        names = ("encrypt_s", "add_s", "decrypt_s", "upload_bytes", "down_bytes")
        numbers: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name, number in numbers.items():
            numbers[name] = number and proportional(number, factor)
        return replace(self, **numbers)


def step(values: int, cohort: int, names: Sequence[str], plan: Plan, key: str = "costs") -> Step:
    """The measurement of `names` at `values` values and `cohort` clients.

    The step's key holds values, cohort and names: sections that ask for the same share one measurement;
    what is to be compared must be in one. One with a `key` of its own is named by that and the values.
    """
    repeats, whole = plan.repeats, f"{key}-{values}"
    if key == "costs":
        slug = "+".join(sorted("".join(c for c in n.lower() if c.isalnum()) for n in names))
        whole = f"costs-{values}-{cohort}-{slug}"
        if len(whole) > 120:
            digest = hashlib.sha256(slug.encode()).hexdigest()
            whole = f"costs-{values}-{cohort}-{digest[:16]}"
    return Step(
        whole,
        lambda say: measure(values, cohort, names, repeats, say),
        f"{len(names)} contenders, {values:,} values, {cohort} clients",
        weight=1 + values * len(names) * repeats / 3e6,
    )


def measure(
    values: int, cohort: int, names: Sequence[str], repeats: int, say: Say
) -> dict[str, Any]:
    """Time everybody in turns; JSON values that `read` takes.

    Raises FlheError: a mean that is not the mean.
    """
    setting = Setting(values, cohort)
    updates = setting.updates()
    contenders: dict[str, Contender] = {}
    scales: dict[str, float] = {}
    for name in names:
        say(f"{name}, making ready")
        who = WHO[name]
        taken = min(values, who.sample or values)
        contenders[name] = who.make(Setting(taken, cohort), [u[:taken] for u in updates])
        scales[name] = values / taken
    return timed(contenders, repeats, say, scales)


def timed(
    contenders: Mapping[str, Contender],
    repeats: int,
    say: Say,
    scales: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Time everybody in turns; JSON values that `read` takes.

    A contender with a `projection` ran one part in so many, and tells the bytes of all; one in `scales`
    was given one part in so many, and knows nothing of the rest.

    Raises FlheError: a mean that is not the mean; two contenders of one name.
    """
    # The minimum of seven turns is not to be compared with that of three: all have as many.
    repeats = min(repeats, *(contender.max_repeats for contender in contenders.values()))
    taken = in_turns([*contenders.values()], repeats, lambda _n, _m, who: say(who))
    found: dict[str, Any] = {}
    for name, contender in contenders.items():
        seen, scale = taken[contender.name], (scales or {}).get(name, 1.0)
        mark = "measured" if contender.projection * scale == 1.0 else "sampled"
        row: dict[str, Any] = {"note": contender.note, "error": seen.error}
        for phase in PHASES:
            row[phase] = [seen.times[phase].min * scale, mark]
        size = contender.upload_bytes
        assert size is not None
        counted = scale == 1.0 and (name not in WHO or WHO[name].counted)
        row["bytes"] = [size * scale, "counted" if counted else "sampled"]
        found[name] = row
    return found


def read(found: Mapping[str, Any]) -> dict[str, Cost]:
    """Name -> cost, of what `timed` gave; what follows a bar in a name says how, not who."""
    out = {}
    for name, row in found.items():
        numbers = (Marked(*row[key]) for key in (*PHASES, "bytes"))
        who = WHO.get(name.partition("|")[0])
        out[name] = Cost(name, who.group if who else "ours", *numbers)
    return out
