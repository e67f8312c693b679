"""What does not add up in BatchCrypt's and ESAFL's own tables.

Numbers that the papers print, and arithmetic; nothing is measured here.

Source: BatchCrypt, Tables 1, 2 and 4, Sec. 3.1; ESAFL, Tables 2, 3 and 5.
"""

from __future__ import annotations

import math

from flhe_lab.advise.prices import GB
from flhe_lab.papers.convergence import reported
from flhe_lab.papers.corrections.proof import Found, shows
from flhe_lab.papers.published import rows

MODES = ("FATE", "BatchCrypt", "plain")
BATCHCRYPT_4 = {
    dataset: tuple(
        (line.hours, line.traffic_gb)
        for line in (reported("BatchCrypt", model, mode) for mode in MODES)
    )
    for dataset, model in (("FMNIST", "FCN"), ("CIFAR", "AlexNet"), ("LSTM", "LSTM"))
}
"""BatchCrypt, Table 4: stock FATE, BatchCrypt, plain; hours, GB."""

_ITERATIONS = rows("batchcrypt", "iterations", lambda *row: row)
BATCHCRYPT_ITERATION = {
    dataset: row[1:4] for dataset, row in zip(BATCHCRYPT_4, _ITERATIONS, strict=True)
}
"""BatchCrypt, Sec. 3.1: stock FATE's seconds and GB of an iteration; times the plain one's seconds."""

BATCHCRYPT_PLAIN_MB = tuple(row[4] for row in _ITERATIONS)
"""BatchCrypt, Sec. 3.1: MB of 2^20 bytes of a plain iteration, all clients, up and down."""

BATCHCRYPT_EPOCHS = (40, 285, 20)
"""BatchCrypt, Table 4: epochs of stock FATE, and of plain training."""

ESAFL_5 = {
    model: {mode: reported("ESAFL", model, mode) for mode in (*MODES[:2], "ESAFL", "plain")}
    for model in ("FCN", "AlexNet", "LSTM")
}
"""ESAFL, Table 5."""


@shows("esafl-one-way")
def _fcn() -> Found:
    packed, plain, unpacked = 1.867, 0.78, 26.15
    ours, clear, batch = (ESAFL_5["FCN"][mode].traffic_gb for mode in ("ESAFL", "plain", MODES[1]))
    ratio = ours / 34 / (clear / 36)
    return Found(
        f"Table 3: {unpacked} MB for 7 ciphertexts are 2 x {unpacked / 14:.3f}, up and down; 1.87 "
        f"MB for one is up only. Table 5 follows it: {ratio:.2f} times the plain traffic an "
        f"epoch, 1.87 / 0.78 = {packed / plain:.2f}. Both ways it is {2 * ours:.1f} GB, where "
        f"BatchCrypt has {batch}: {batch / (2 * ours):.2f} times, not 2.",
        abs(ratio - packed / plain) < 0.05 and batch / (2 * ours) < 1.05,
    )


@shows("esafl-borrowed")
def _borrowed() -> Found:
    ours, theirs = [], []
    for batch, mine in zip(BATCHCRYPT_4.values(), ESAFL_5.values(), strict=True):
        for mode in MODES[:2]:
            ours += [mine[mode].hours, mine[mode].traffic_gb]
        theirs += [*batch[0], *batch[1]]
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    other = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    a, b = other[0]
    return Found(
        f"{same} of {len(ours)} numbers of FATE and BatchCrypt in its Table 5 are BatchCrypt's "
        f"own; the other is {a} for {b} GB, which makes AlexNet's saving {a / 180.6:.2f} instead "
        f"of {b / 180.6:.2f}.",
        same == len(ours) - 1 and len(other) == 1,
    )


@shows("esafl-slowdown")
def _slowdown() -> Found:
    pairs = [(mine["ESAFL"], mine["plain"]) for mine in ESAFL_5.values()]
    times = [ours.hours / plain.hours for ours, plain in pairs]
    traffic = [ours.traffic_gb / plain.traffic_gb for ours, plain in pairs]
    return Found(
        f"Table 5: {', '.join(f'{t:.2f}' for t in times)} times the plain hours, "
        f"{', '.join(f'{t:.2f}' for t in traffic)} times the traffic. The text prints these less "
        "one, beside speedups that are ratios.",
        min(times) > 2.6,
    )


@shows("batchcrypt-iterations")
def _iterations() -> Found:
    by = []
    for model, (stock, _, _) in BATCHCRYPT_4.items():
        seconds, gigabytes, _ = BATCHCRYPT_ITERATION[model]
        by.append((stock[0] * 3600 / seconds, stock[1] / gigabytes))
    texts = [f"{m} {a:,.0f} and {b:,.0f}" for m, (a, b) in zip(BATCHCRYPT_4, by, strict=True)]
    return Found(
        f"Iterations of stock FATE, by its hours and by its GB: {', '.join(texts)}.",
        all(9 < a / b < 11 for a, b in by[1:]) and abs(by[0][0] / by[0][1] - 1) < 0.1,
    )


@shows("batchcrypt-plain")
def _plain_hours() -> Found:
    ratios = [lines[0][0] / lines[2][0] for lines in BATCHCRYPT_4.values()]
    said = [row[2] for row in BATCHCRYPT_ITERATION.values()]
    slow = [lines[1][0] / lines[2][0] for lines in BATCHCRYPT_4.values()]
    return Found(
        f"Epochs are the same, so hours should be {', '.join(map(str, said))} times as many; they "
        f"are {', '.join(f'{r:.0f}' for r in ratios)} times. And BatchCrypt takes "
        f"{', '.join(f'{s:.2f}' for s in slow)} times the plain hours: the text prints these less "
        "one as slowdowns.",
        all(not 0.7 < r / s < 1.4 for r, s in zip(ratios, said, strict=True)),
    )


@shows("batchcrypt-plain-traffic")
def _plain_traffic() -> Found:
    few, parts = [], []
    for (model, (stock, _, plain)), told, epochs in zip(
        BATCHCRYPT_4.items(), BATCHCRYPT_PLAIN_MB, BATCHCRYPT_EPOCHS, strict=True
    ):
        by_hours = stock[0] * 3600 / BATCHCRYPT_ITERATION[model][0] / epochs
        by_traffic = plain[1] * 1024 / told / epochs
        few.append(by_hours / by_traffic)
        parts.append(f"{model} {by_hours:.0f} and {by_traffic:.3g}")
    return Found(
        "Iterations of an epoch, by stock FATE's hours and by plain GB over Sec. 3.1's "
        f"{', '.join(map(str, BATCHCRYPT_PLAIN_MB))} MB: {', '.join(parts)}. So plain GB of CIFAR "
        f"and LSTM are too few by {few[1]:.0f} and {few[2]:.0f} times.",
        few[0] < 1.5 and all(80 < each < 100 for each in few[1:]),
    )


@shows("esafl-links")
def _links() -> Found:
    from flhe_lab.advise.wan import named

    links = named("batchcrypt").links(9)
    by, printed = {}, {}
    for model, lines in ESAFL_5.items():
        for who in ("ESAFL", "plain"):
            bits = lines[who].traffic_gb * GB / 2 * 8  # half of it up, half of it down
            slowest = max(bits / link.up_mbps + bits / link.down_mbps for link in links)
            by[model, who], printed[model, who] = slowest / 1e6 / 3600, lines[who].hours
    texts = [f"{m} {w} {h:.2f} of {printed[m, w]} h" for (m, w), h in by.items()]
    short = {key for key, hours in by.items() if hours > printed[key] + 0.05}
    return Found(
        f"Traffic of Table 5 over the slowest of Table 2's links: {', '.join(texts)}.",
        short == {("FCN", "ESAFL"), ("FCN", "plain")},
    )


@shows("batchcrypt-table-1")
def _paillier() -> Found:
    least, usual, most = rows("batchcrypt", "table_1", lambda *row: row)
    size, power = (math.log(most[i] / least[i]) / math.log(most[0] / least[0]) for i in (2, 3))
    bits, plain = (usual[i] * 2**20 * 8 / 900_000 for i in (2, 1))
    return Found(
        f"Table 1: at 2048 bits a ciphertext has {bits:,.0f} bits, 4,096 of them modulo n^2: 128 "
        f"times a float, not 64. Time grows with the {power:.1f}th power of the key, size with "
        f"the {size:.2f}th. And its plaintexts "
        f"have {plain:.0f} bits each, not 32.",
        bits > 4096 and power > 2,
    )
