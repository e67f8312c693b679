"""FLASHE, Table 2: bytes and seconds of its peers, with a value and with a batch a ciphertext."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flhe.sim.bench import Contender, Setting
from flhe.sim.tables import turns
from flhe.sim.tables.dots import dots
from flhe.sim.tables.flashe_paper import COHORT, PLAIN_BYTES, TABLE_2, Line
from flhe.sim.tables.marked import counted, published
from flhe.sim.tables.phase_costs import (
    BFV,
    BFV_PAPER,
    CKKS,
    CKKS_PAPER,
    FLASHE,
    PHE,
    PHE_BATCHED,
    PLAIN,
    WHO,
)
from flhe.sim.tables.result import Entry, Result
from flhe.sim.tables.section import Found, Plan, Say, Section, Step
from flhe.sim.tables.turns import Cost

BFV_VALUES, CKKS_VALUES = "TenSEAL BFV, a value each", "TenSEAL CKKS, a value each"
NAMES = (PHE, PHE_BATCHED, BFV_VALUES, BFV_PAPER, BFV, CKKS_VALUES, CKKS_PAPER, CKKS, FLASHE)
"""In the order of the paper's table."""

SIZES = tuple(PLAIN_BYTES)
SIZE, VALUE_SIZE = "size", "size of a value"
TIMES = ("encryption", "decryption", "addition of 10")

NOTES = (
    "One client's vector, from float32 to ciphertext and from the sum of ten to float32, on one "
    "thread; the paper's numbers are of 16 virtual processors. Addition is of ten ciphertexts: "
    "nine additions. A python-paillier key has 2048 bits, as in the paper; python-paillier with "
    "a value each adds an exponent of 4 bytes to a ciphertext of 512.",
    "FV is BFV by TenSEAL; the paper took Pyfhel. Batched, its parameters are the paper's (n = "
    "8192, plain modulus 1,964,769,281), and beside them the shortest that hold a sum of ten, n "
    "= 4096. With a value each, the paper has n = 2048 and plain modulus 128: TenSEAL takes "
    "neither. It has no encoder that spreads an integer's bits over coefficients, so the plain "
    "modulus must hold the sum of ten 16-bit integers, and with n = 2048 SEAL's one modulus "
    "leaves it no key to switch to. So n = 4096 there, with SEAL's own moduli. CKKS has the "
    "paper's parameters (n = 8192, SEAL's own moduli, scale 2^40); the shortest has scale 2^33, a "
    "modulus of 38 bits for the data and one of 60 for keys.",
    "A value a ciphertext is sampled: 16 ciphertexts are run, so memory, of which the paper ran "
    "out, is no matter here.",
    "The paper's plaintext of 16,384 16-bit integers has 40.02 KB: 20 bits a value, as wide as "
    "a sum of ten. FLASHE's ciphertext is as wide, here too. That is 1.25 times the integers "
    "that it holds, and 0.625 times the float32 that a plain update sends.",
)


def table_2(plan: Plan) -> tuple[Step, ...]:
    """One step a size: all contenders in turns."""
    sizes = SIZES[:2] if plan.quick else SIZES
    return tuple(_step(values, plan.repeats) for values in sizes)


def _step(values: int, repeats: int) -> Step:
    return Step(
        f"flashe-table-2-{values}",
        lambda say: measure(values, repeats, say),
        f"FLASHE's Table 2, {values:,} values",
        weight=5 + values * repeats / 4e5,
    )


def measure(values: int, repeats: int, say: Say) -> dict[str, Any]:
    """Time everybody of Table 2; JSON values."""
    from flhe.sim.tables.flashe_peers import tenseal_values

    setting = Setting(values, COHORT)
    updates = setting.updates()
    contenders: dict[str, Contender] = {}
    for name in NAMES:
        say(f"{name}, making ready")
        if name in WHO:
            contenders[name] = WHO[name].make(setting, updates)
        else:
            contenders[name] = tenseal_values(setting, updates, bfv=name == BFV_VALUES)
    return turns.timed(contenders, repeats, say, sampled=(BFV_VALUES, CKKS_VALUES))


def report_table_2(plan: Plan, found: Found) -> list[Result]:
    """Ours, peers and the paper, size by size."""
    entries: list[Entry] = []
    for step, values in zip(table_2(plan), SIZES, strict=False):
        row = f"{values:,} values"
        size = counted(4 * values)
        entries += [
            Entry(row, "plain, float32", "ours", SIZE, "KiB", size / 1024),
            Entry(row, "plain, float32", "ours", VALUE_SIZE, "bytes", size / values),
        ]
        costs = turns.costs(found[step.key], GROUPS)
        for name in NAMES:
            entries += _ours(row, values, costs[name])
        number = published(PLAIN_BYTES[values])
        entries += [
            Entry(row, "plaintext", "paper", SIZE, "KiB", number / 1024),
            Entry(row, "plaintext", "paper", VALUE_SIZE, "bytes", number / values),
        ]
        for line in TABLE_2:
            if line.values == values:
                entries += _papers(row, line)
    chart = dots(entries, (VALUE_SIZE, *TIMES), log=True)
    title = "ciphertexts of one vector, by scheme and size"
    return [Result("flashe-table-2", "FLASHE, Table 2", title, tuple(entries), chart, NOTES)]


GROUPS = {name: WHO[name].group if name in WHO else "peer" for name in (*NAMES, PLAIN)}


def _ours(row: str, values: int, cost: Cost) -> list[Entry]:
    who, group, size = cost.who, cost.group, cost.upload_bytes
    seconds = (cost.encrypt_s, cost.decrypt_s, cost.add_s * (COHORT - 1))
    return [
        Entry(row, who, group, SIZE, "KiB", size / 1024),
        Entry(row, who, group, VALUE_SIZE, "bytes", size / values),
        *(Entry(row, who, group, what, "s", s) for what, s in zip(TIMES, seconds, strict=True)),
    ]


def _papers(row: str, line: Line) -> list[Entry]:
    size = published(line.size)
    out = [
        Entry(row, line.method, "paper", SIZE, "KiB", size / 1024),
        Entry(row, line.method, "paper", VALUE_SIZE, "bytes", size / line.values),
    ]
    for what, seconds in zip(TIMES, (line.encrypt_s, line.decrypt_s, line.add_s), strict=True):
        if seconds is not None:
            out.append(Entry(row, line.method, "paper", what, "s", published(seconds)))
    return out


SECTIONS: Sequence[Section] = (
    Section("flashe-table-2", "FLASHE", table_2, report_table_2, ("Table 2",)),
)
