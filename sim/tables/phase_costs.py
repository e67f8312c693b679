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
from flhe_lab.bench.contender import PHASES, Contender, Make, Setting, part_of
from flhe_lab.bench.turns import measure as in_turns
from flhe_lab.tables.result import Group, Marked, proportional
from flhe_lab.tables.table import Plan, Say, Step

PLAIN = "plain"
FLASHE, SASH, BATCHCRYPT, ESAFL, FEDML = "FLASHE", "SASH", "BatchCrypt", "ESAFL", "FedML-HE"
FLASHE_TENTH, ESAFL_NARROW, FEDML_TENTH = (
    "FLASHE, top 10%",
    "ESAFL, rns-8192",
    "FedML-HE, 10% encrypted",
)
BATCHCRYPT_2048 = "BatchCrypt, 2048 bits"
PHE, PHE_BATCHED = "python-paillier", "python-paillier, batched"
BFV_PAPER, BFV = "TenSEAL BFV, as in FLASHE", "TenSEAL BFV, shortest"
CKKS_PAPER, CKKS = "TenSEAL CKKS, as in FLASHE", "TenSEAL CKKS, shortest"
BFV_VALUES, CKKS_VALUES = "TenSEAL BFV, a value each", "TenSEAL CKKS, a value each"
PEERS = ("python-paillier", "TenSEAL")
"""How the names of peers begin."""

Rows = dict[str, dict[str, Any]]
"""Name -> [number, mark] by phase, and of "bytes" and "down" (the sum's), and the mean's "error"."""


def _phe(make: Callable[..., Contender]) -> Make:
    return lambda setting, updates: make(setting, updates, phe.phe_keys(2048))


WHO: Mapping[str, Make] = {
    PLAIN: schemes.plain,
    FLASHE: schemes.flashe,
    FLASHE_TENTH: partial(sparse.sparse, top_k=0.1),
    SASH: schemes.sash,
    ESAFL: schemes.esafl,
    ESAFL_NARROW: partial(schemes.esafl, ring_name=schemes.NARROW),
    FEDML: schemes.fedml,
    FEDML_TENTH: partial(schemes.fedml, share=0.1),
    BATCHCRYPT: part_of(schemes.batchcrypt, 300_000),
    BATCHCRYPT_2048: part_of(partial(schemes.batchcrypt, key_bits=2048), 300_000),
    PHE: _phe(phe.phe_values),
    PHE_BATCHED: _phe(phe.phe_batches),
    # FLASHE's peer (Sec. 5.4): SEAL's own moduli, 218 bits, and its plain modulus.
    BFV_PAPER: partial(peers.bfv, dimension=8192, modulus=1_964_769_281),
    BFV: peers.bfv,
    CKKS_PAPER: peers.ckks,
    CKKS: peers.shortest_ckks,
    # The shortest ring that TenSEAL takes with such sums; an update would take gigabytes.
    BFV_VALUES: part_of(partial(peers.bfv, slots=1), phe.SAMPLE),
    CKKS_VALUES: part_of(partial(peers.ckks, slots=1), phe.SAMPLE),
}
"""How to make everybody who can be timed take part, by name as tables call it."""


NUMBERS = ("encrypt_s", "add_s", "decrypt_s", "upload_bytes", "down_bytes")
"""Of a Cost."""


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
        numbers: dict[str, Any] = {name: getattr(self, name) for name in NUMBERS}
        numbers |= {n: each and proportional(each, factor) for n, each in numbers.items()}
        return replace(self, **numbers)

    def mixed(self, share: float, clear: Cost, who: str) -> Cost:
        """The cost, under a name, if only a share were as this one and the rest as `clear`."""
        some, rest = self.scaled(share), clear.scaled(1 - share)
        numbers: dict[str, Any] = {
            name: getattr(some, name) + getattr(rest, name) for name in NUMBERS
        }
        return replace(self, who=who, **numbers)


def step(values: int, cohort: int, names: Sequence[str], plan: Plan) -> Step:
    """The measurement of `names` at `values` values and `cohort` clients.

    Sections that ask for the same share one measurement; what is to be compared must be in one.
    """
    digest = hashlib.sha256("+".join(sorted(names)).encode()).hexdigest()
    return Step(
        f"costs-{values}-{cohort}-{digest[:8]}",
        lambda say: measure(values, cohort, {n: WHO[n] for n in names}, plan.repeats, say),
        f"{len(names)} contenders, {values:,} values, {cohort} clients",
    )


def measure(
    values: int,
    cohort: int,
    makes: Mapping[str, Make],
    repeats: int,
    say: Say,
) -> Rows:
    """Time everybody in turns at one size, each by the name it has in `makes`."""
    setting = Setting(values, cohort)
    updates = setting.updates()
    contenders: dict[str, Contender] = {}
    for name, make in makes.items():
        say(f"{name}, making ready")
        contenders[name] = make(setting, updates)
    return timed(contenders, repeats, say, cohort)


def timed(
    contenders: Mapping[str, Contender],
    repeats: int,
    say: Say,
    cohort: int = 1,
) -> Rows:
    """Time everybody in turns; JSON values that `read` takes.

    What is done once for the sum, "close", is shared by `cohort` additions.

    Raises FlheError: a mean that is not the mean.
    """
    # The minimum of seven turns is not to be compared with that of three: all have as many.
    repeats = min(repeats, *(contender.max_repeats for contender in contenders.values()))
    taking = [replace(contender, name=name) for name, contender in contenders.items()]
    seen = in_turns(taking, repeats, lambda _n, _m, who: say(who))
    found: Rows = {}
    for name, contender in contenders.items():
        seconds = seen[name].least
        if "close" in seconds:
            seconds["add"] += seconds.pop("close") / cohort
        mark = "measured" if contender.projection == 1.0 else "sampled"
        row: dict[str, Any] = {phase: [s, mark] for phase, s in seconds.items()}
        counted = "counted" if contender.counted else "sampled"
        for what, size in (("bytes", contender.upload_bytes), ("down", contender.sum_bytes)):
            if size is not None:
                row[what] = [size, counted]
        found[name] = row | {"error": seen[name].error}
    return found


def read(found: Mapping[str, Any]) -> dict[str, Cost]:
    """Name -> cost, of what `timed` gave."""
    out = {}
    for name, row in found.items():
        group: Group = "peer" if name.startswith(PEERS) else "ours"
        encrypt_s, add_s, decrypt_s, size = (Marked(*row[key]) for key in (*PHASES, "bytes"))
        down = Marked(*row["down"]) if "down" in row else None
        out[name] = Cost(name, group, encrypt_s, add_s, decrypt_s, size, down)
    return out
