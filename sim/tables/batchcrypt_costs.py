"""BatchCrypt, Table 1 and Figure 10: Paillier by the length of its key, and by the width of a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from flhe.coding.slots import Slots
from flhe.schemes.batchcrypt.batch_mac import TAG_BITS
from flhe_lab.bench import Contender, Setting
from flhe_lab.tables import turns
from flhe_lab.tables.batchcrypt_paper import (
    BATCH,
    COHORT,
    LINK,
    MB,
    TABLE_1,
    TABLE_1_VALUES,
)
from flhe_lab.tables.learned import VALUES, batch_s, training_step
from flhe_lab.tables.marked import counted
from flhe_lab.tables.phase_costs import PHE, PHE_BATCHED
from flhe_lab.tables.result import Group
from flhe_lab.tables.rounds import parts, played
from flhe_lab.tables.section import Found, Plan, Say, Section, Step
from flhe_lab.tables.table import Line, Table, section
from flhe_lab.tables.turns import Cost

ARITHMETIC, WHOLE = "flhe, a value a ciphertext", "BatchCrypt (flhe), 16 bits"
KEYS = tuple(line.key_bits for line in TABLE_1)
KEY_BITS = 2048
"""Of Figure 10, as of all that the paper trains."""

PER = "values a ciphertext"


def _key(bits: int) -> str:
    return f"key of {bits} bits"


def _bits(bits: int) -> str:
    return f"{bits} bits"


def steps_1(plan: Plan) -> list[Step]:
    """Everybody at every length of a key, in turns."""
    return [_keys_step(plan)]


def _keys_step(plan: Plan) -> Step:
    count, sample = (256, 25_000) if plan.quick else (2048, 300_000)
    return Step(
        f"batchcrypt-keys-{TABLE_1_VALUES}-{count}-{sample}",
        lambda say: measure_keys(TABLE_1_VALUES, count, sample, plan.repeats, say),
        "Paillier with keys of 1024, 2048 and 3072 bits",
        weight=8 if plan.quick else 45,
    )


def measure_keys(
    values: int,
    count: int,
    sample: int,
    repeats: int,
    say: Say,
    key_bits: Sequence[int] = KEYS,
) -> dict[str, Any]:
    """Time python-paillier, our arithmetic and our batches by length of key; JSON values."""
    from flhe.schemes.batchcrypt.keys import KEY_BITS as ALLOWED
    from flhe.schemes.batchcrypt.keys import SecretKey
    from flhe_lab.bench.phe import phe_keys, phe_values
    from flhe_lab.tables.batchcrypt_ways import batches, paillier_values

    setting = Setting(values, 2)
    updates = setting.updates()
    contenders: dict[str, Contender] = {}
    for bits in key_bits:
        say(f"{_key(bits)}, making ready")
        contenders[f"{PHE}|{bits}"] = phe_values(setting, updates, phe_keys(bits))
        contenders[f"{ARITHMETIC}|{bits}"] = paillier_values(setting, updates, bits, count)
        if bits in ALLOWED:
            key = SecretKey.generate(bits)
            made = batches(setting, updates, 16, key, sample)
            contenders[f"{WHOLE}|{bits}"] = replace(made, name=f"{made.name}, {_key(bits)}")
    return turns.timed(contenders, repeats, say)


def table_1(measured: Mapping[str, Any], values: int) -> list[Line]:
    """Bytes and seconds by length of key, of what `measure_keys` gave for `values`."""
    groups: dict[str, Group] = {name: "peer" for name in measured if name.partition("|")[0] == PHE}
    out = []
    for name, cost in turns.costs(measured, groups).items():
        who, _, bits = name.partition("|")
        numbers = {
            "plaintext": counted(4 * values / MB),
            "ciphertext": cost.upload_bytes / MB,
            "encryption": cost.encrypt_s,
            "decryption": cost.decrypt_s,
        }
        out.append(Line(_key(int(bits)), who, cost.group, numbers))
    for line in TABLE_1:
        told = {
            "plaintext": line.plain_mb,
            "ciphertext": line.cipher_mb,
            "encryption": line.encrypt_s,
            "decryption": line.decrypt_s,
        }
        out.append(Line(_key(line.key_bits), PHE, "paper", told))
    return sorted(out, key=lambda line: int(line.row.split()[2]))


def _table_1(plan: Plan, found: Found) -> list[Line]:
    return table_1(found[_keys_step(plan).key], TABLE_1_VALUES)


def steps_10(plan: Plan) -> list[Step]:
    """LSTM's update at three widths, in turns, and training."""
    return [_widths_step(plan), training_step("lstm", plan)]


def _widths_step(plan: Plan) -> Step:
    values, sample = VALUES["lstm"], 40_000 if plan.quick else 300_000
    return Step(
        f"batchcrypt-widths-{values}-{sample}",
        lambda say: measure_widths(values, sample, plan.repeats, say),
        f"BatchCrypt with values of 8, 16 and 32 bits, {values:,} values",
        weight=8 if plan.quick else 40,
    )


def measure_widths(values: int, sample: int, repeats: int, say: Say) -> dict[str, Any]:
    """Time ours at the paper's widths, python-paillier on batches of 16 bits; JSON values."""
    from flhe.schemes.batchcrypt.keys import SecretKey
    from flhe_lab.bench.phe import phe_batches, phe_keys
    from flhe_lab.tables.batchcrypt_ways import batches

    setting = Setting(values, COHORT)
    updates = setting.updates()
    key = SecretKey.generate(KEY_BITS)
    contenders: dict[str, Contender] = {}
    for bits in BATCH:
        say(f"{_bits(bits)}, making ready")
        contenders[_bits(bits)] = batches(setting, updates, bits, key, sample)
    say(f"{PHE_BATCHED}, making ready")
    contenders[PHE_BATCHED] = phe_batches(setting, updates, phe_keys(KEY_BITS))
    return turns.timed(contenders, repeats, say)


def slots(bits: int) -> Slots:
    """How values of so many bits lie in a ciphertext of Figure 10's key."""
    return Slots((1 << (bits - 1)) - 1, COHORT, KEY_BITS - 1, TAG_BITS)


def by_width(measured: Mapping[str, Any], values: int) -> dict[int, list[Cost]]:
    """Bits -> ours, and python-paillier's, which goes with the number of ciphertexts."""
    read = turns.costs(measured, {PHE_BATCHED: "peer"})
    phe, whole = read[PHE_BATCHED], slots(16).batches(values)
    out = {}
    for bits in BATCH:
        ours, share = read[_bits(bits)], slots(bits).batches(values) / whole
        numbers = (phe.encrypt_s, phe.add_s, phe.decrypt_s, phe.upload_bytes)
        theirs = Cost(PHE_BATCHED, "peer", *(number * share for number in numbers))
        out[bits] = [ours, theirs]
    return out


def _figure_10(plan: Plan, found: Found) -> Iterator[Line]:
    values = VALUES["lstm"]
    train, links = batch_s("lstm", found, plan), LINK.links(COHORT)
    for bits, costs in by_width(found[_widths_step(plan).key], values).items():
        for cost in costs:
            who = cost.who if cost.group == "peer" else "BatchCrypt (flhe)"
            numbers = parts(played(cost, train, links))
            numbers["traffic"] = cost.upload_bytes * (2 * COHORT) / MB
            numbers[PER] = counted(slots(bits).per)
            yield Line(_bits(bits), who, cost.group, numbers)
        yield Line(_bits(bits), "BatchCrypt", "paper", {PER: BATCH[bits]})


SECTIONS: Sequence[Section] = (
    section(steps_1, Table("batchcrypt-table-1", _table_1)),
    section(steps_10, Table("batchcrypt-figure-10", _figure_10)),
)
