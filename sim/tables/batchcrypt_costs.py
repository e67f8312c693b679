"""BatchCrypt, Table 1 and Figure 10: Paillier by the length of its key, and by the width of a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flhe.coding.slots import Slots
from flhe.schemes.tags import TAG_BITS
from flhe.sim.bench import Contender, Setting
from flhe.sim.tables import turns
from flhe.sim.tables.batchcrypt_paper import (
    BATCH,
    COHORT,
    MB,
    TABLE_1,
    TABLE_1_VALUES,
)
from flhe.sim.tables.batchcrypt_round import LINK, SETTING, everybodys_mb
from flhe.sim.tables.chart import Chart
from flhe.sim.tables.dots import dots
from flhe.sim.tables.learned import VALUES, batch_s, training_step
from flhe.sim.tables.marked import counted, published
from flhe.sim.tables.phase_costs import PHE, PHE_BATCHED
from flhe.sim.tables.result import Entry, Group, Result, ratios
from flhe.sim.tables.rounds import TOTAL, entries, parts, played
from flhe.sim.tables.section import Found, Plan, Say, Section, Step
from flhe.sim.tables.turns import Cost

ARITHMETIC, WHOLE = "flhe, a value a ciphertext", "BatchCrypt (flhe), 16 bits"
KEYS = tuple(line.key_bits for line in TABLE_1)
KEY_BITS = 2048
"""Of Figure 10, as of all that the paper trains."""

PLAINTEXT, CIPHERTEXT = "plaintext", "ciphertext"
ENCRYPTION, DECRYPTION = "encryption", "decryption"
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
    from flhe.schemes.paillier_keys import KEY_BITS as ALLOWED
    from flhe.schemes.paillier_keys import SecretKey
    from flhe.sim.bench.phe import phe_keys, phe_values
    from flhe.sim.tables.batchcrypt_ways import batches, paillier_values

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


def report_1(plan: Plan, found: Found) -> list[Result]:
    """Bytes and seconds of 900,000 values by length of key."""
    return [table_1(found[_keys_step(plan).key], TABLE_1_VALUES)]


def table_1(measured: Mapping[str, Any], values: int) -> Result:
    """Of what `measure_keys` gave."""
    groups: dict[str, Group] = {name: "peer" for name in measured if name.partition("|")[0] == PHE}
    out: list[Entry] = []
    for name, cost in turns.costs(measured, groups).items():
        who, _, bits = name.partition("|")
        row = _key(int(bits))
        sizes = {PLAINTEXT: counted(4 * values / MB), CIPHERTEXT: cost.upload_bytes / MB}
        out += entries(row, who, cost.group, sizes, "MB")
        seconds = {ENCRYPTION: cost.encrypt_s, DECRYPTION: cost.decrypt_s}
        out += entries(row, who, cost.group, seconds, "s")
    for line in TABLE_1:
        told = {PLAINTEXT: line.plain_mb, CIPHERTEXT: line.cipher_mb}
        times = {ENCRYPTION: line.encrypt_s, DECRYPTION: line.decrypt_s}
        for numbers, unit in ((told, "MB"), (times, "s")):
            marked = {what: published(number) for what, number in numbers.items()}
            out += entries(_key(line.key_bits), PHE, "paper", marked, unit)
    out.sort(key=lambda e: int(e.row.split()[2]))
    out += [*ratios(out, ENCRYPTION, ARITHMETIC), *ratios(out, DECRYPTION, ARITHMETIC)]
    notes = (
        f"{values:,} values; slots of batches have room for two summands. MB of 2^20 bytes. The "
        "paper's line is python-paillier too, on a machine of 16 virtual processors: how many of them "
        "it computed on, the paper does not say; here it is one. Its plaintexts have 8 bytes a value, "
        "here they are float32.",
        "flhe refuses keys of 1024 bits (112 bits of security are the least, at 2048), so its "
        "BatchCrypt has no line there. What is below that policy, the same ciphertexts of a value "
        "each out of flhe's arithmetic, has: it knows the primes and draws r^n from tables, and "
        "encrypts integers of 16 bits. That line to python-paillier's is what the arithmetic "
        "brings, BatchCrypt's to that line what batching brings.",
        "The paper's text has sizes and times grow linearly with the key. Its own times grow with "
        "the 2.4th power of it.",
    )
    chart = dots(out, (CIPHERTEXT, ENCRYPTION, DECRYPTION), log=True)
    title = "Paillier by length of key"
    return Result("batchcrypt-table-1", "BatchCrypt, Table 1", title, tuple(out), chart, notes)


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
    from flhe.schemes.paillier_keys import SecretKey
    from flhe.sim.bench.phe import phe_batches, phe_keys
    from flhe.sim.tables.batchcrypt_ways import batches

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
        theirs = Cost(
            PHE_BATCHED,
            "peer",
            phe.encrypt_s * share,
            phe.add_s * share,
            phe.decrypt_s * share,
            phe.upload_bytes * share,
        )
        out[bits] = [ours, theirs]
    return out


def report_10(plan: Plan, found: Found) -> list[Result]:
    """Where an iteration of LSTM goes, and what it transfers, by bits of a value."""
    values = VALUES["lstm"]
    train, links = batch_s("lstm", found, plan), LINK.links(COHORT)
    out: list[Entry] = []
    for bits, costs in by_width(found[_widths_step(plan).key], values).items():
        row = _bits(bits)
        for cost in costs:
            who = cost.who if cost.group == "peer" else "BatchCrypt (flhe)"
            out += entries(row, who, cost.group, parts(played(cost, train, links)), "s")
            traffic = everybodys_mb(cost)
            out.append(Entry(row, who, cost.group, "traffic", "MB", traffic))
            out.append(Entry(row, who, cost.group, PER, "", counted(slots(bits).per)))
        out.append(Entry(row, "BatchCrypt", "paper", PER, "", published(BATCH[bits])))
    notes = (
        f"LSTM, {values:,} values, a key of 2048 bits. {SETTING}",
        "Sampled, ciphertexts being alike. python-paillier's seconds were run at 16 bits and go "
        "with the number of ciphertexts. Traffic is of all nine clients, MB of 2^20 bytes.",
        "Fig. 10 is a picture without numbers, but for the batch sizes in its caption. 200 values "
        "of 8 bits do not fit 2048 bits as the paper lays them out: with two sign bits and two "
        "zeros they would take 2,400. Here a slot has room for the sum of nine and a ciphertext a "
        "tag.",
        "The paper finds 8 bits too few for LSTM and CIFAR (Sec. 6.2).",
    )
    chart = Chart("bars", (ENCRYPTION, DECRYPTION, "idle", TOTAL, "traffic"), log=True)
    title = "an iteration of LSTM by bits of a value"
    return [
        Result("batchcrypt-figure-10", "BatchCrypt, Figure 10", title, tuple(out), chart, notes)
    ]


SECTIONS: Sequence[Section] = (
    Section("batchcrypt-table-1", "BatchCrypt", steps_1, report_1, ("Table 1",)),
    Section("batchcrypt-figure-10", "BatchCrypt", steps_10, report_10, ("Figure 10",)),
)
