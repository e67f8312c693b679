"""What does not add up in the papers' own tables: numbers that they print, and arithmetic.

Source: FLASHE, Sec. 2.3, Tables 2 and 4; FedML-HE, Tables 4, 5, 7 and 8; BatchCrypt, Tables 1, 2 and 4,
Sec. 3.1; ESAFL, Tables 2, 3 and 5.
"""

from __future__ import annotations

import math

from flhe_lab.advise.prices import GB
from flhe_lab.papers.convergence import reported
from flhe_lab.papers.corrections.proof import Found
from flhe_lab.papers.published import rows

FLASHE_4 = {
    name: tuple(
        reported("FLASHE", model, mode)
        for mode in ("plain", "FLASHE", "Paillier+batch", "FV+batch", "CKKS+batch")
    )
    for name, model in (("ResNet", "ResNet-20"), ("GRU", "GRU"), ("CNN", "CNN"))
}
"""FLASHE, Table 4: plain and FLASHE; Paillier, FV and CKKS, batched."""

FLASHE_MODELS = {"ResNet": (270_000, 374), "GRU": (660_000, 95), "CNN": (1_200_000, 277)}
"""FLASHE, Sec. 6.1 and 6.3: values, epochs."""

CIPHERTEXT_KB, SLOTS = 266.0, 4096
"""FedML-HE, Table 4: the linear model of 101 values is one ciphertext; Sec. 4.1: values in one."""


def _flashe_savings() -> Found:
    models = {
        m: [1 - (lines[1].usd or 0) / (peer.usd or 1) for peer in lines[2:]]
        for m, lines in FLASHE_4.items()
    }
    schemes = [sorted(m[i] for m in models.values()) for i in range(3)]
    by_model = ", ".join(f"{min(v):.0%} to {max(v):.0%}" for v in models.values())
    by_scheme = ", ".join(f"{v[0]:.0%} to {v[-1]:.0%}" for v in schemes)
    return Found(
        f"Savings by Table 4: {by_scheme} against Paillier, FV and CKKS. The text's ranges are "
        f"those of the models: {by_model}.",
        by_model == "26% to 73%, 49% to 89%, 69% to 94%" and by_scheme != by_model,
    )


def _flashe_speedups() -> Found:
    ratios = {
        m: [peer.hours / lines[1].hours for peer in lines[2:]] for m, lines in FLASHE_4.items()
    }
    low = min(min(r) for r in ratios.values())
    high = [max(r[i] for r in ratios.values()) for i in range(3)]
    return Found(
        f"By Table 4: {low:.2f} to {max(high):.1f} times. {high[0]:.1f} is the most against "
        "Paillier, not the least.",
        low < 1.4 and round(high[0], 1) == 3.2,
    )


def _flashe_baseline() -> Found:
    printed = 40.02 * 1024 * 8 / 16384
    up = 16
    down = (10 * (2**up - 1)).bit_length()
    traffic = [
        lines[0].traffic_gb * 2**30 * 8 / (2 * n * epochs)
        for lines, (n, epochs) in zip(FLASHE_4.values(), FLASHE_MODELS.values(), strict=True)
    ]
    return Found(
        f"Table 2: the plaintext of 16,384 numbers of 16 bits is 40.02 KB, {printed:.2f} bits "
        "each; 16 would be 32 KB. Plain training in Table 4 sends "
        f"{', '.join(f'{t:.1f}' for t in traffic)} bits a value. A sum of ten takes {down} bits in "
        f"clear, too; an input takes {up}. So FLASHE adds {down / up - 1:.0%} up and nothing down: "
        f"{2 * down / (up + down) - 1:.0%} in all.",
        abs(printed - down) < 0.05 and all(down - 1 < t < down + 1 for t in traffic),
    )


def _flashe_network() -> Found:
    values, factor, speed, said = 40e6, 2.4, 40e6, 45.0
    times = [values * bits * factor / speed for bits in (16, 20)]
    return Found(
        f"40 million values of 16 bits, {factor} times, at 40 Mb/s: {times[0]:.1f} s; of 20 bits, "
        f"which Table 2's {factor} is relative to, {times[1]:.1f} s.",
        all(abs(t / said - 1) > 0.05 for t in times),
    )


def _flashe_minutes() -> Found:
    low, high = (s / 16384 * 1.2e6 / 60 for s in (20.02, 66.74))
    return Found(
        f"By Table 2, {low:.1f} to {high:.1f} minutes for 1.2 million values.",
        round(low) == 24 and round(high) == 81,
    )


def _fedml_cnn() -> Found:
    values, printed, other, plain = 1_663_370, 103.15, 105.72, 6.35
    needs = -(-values // SLOTS)
    whole = needs * CIPHERTEXT_KB / 1024
    room = int(printed * 1024 / CIPHERTEXT_KB) * SLOTS
    return Found(
        f"The CNN's {values:,} values take {needs} ciphertexts of 266 KB, {whole:.2f} MB, as "
        f"Table 8 has it ({other}); {printed} MB has room for {room:,}. The ratio printed, 16.66, "
        f"is that of {other} ({whole / plain:.2f}), not of {printed} ({printed / plain:.2f}).",
        abs(whole - other) < 0.02 and room < values,
    )


def _fedml_forty() -> Found:
    most = {"ResNet-50": (8.68, 16.58), "BERT": (6.96, 16.62)}
    tenth = (112.504 / 30.874, 5.35 * 1024 / 844.49)
    return Found(
        "With nothing encrypted at all, Table 4 leaves "
        + ", ".join(
            f"{t} times less time and {b} times fewer bytes of {m}" for m, (t, b) in most.items()
        )
        + f". With a tenth, Table 7 has {tenth[0]:.1f} and {tenth[1]:.1f} times.",
        max(b for _, b in most.values()) < 40,
    )


def _fedml_tenth() -> Found:
    seconds = {row.share: row.seconds for row in rows("fedml", "table_7")}
    shares = {p: (s - seconds[0]) / (seconds[1] - seconds[0]) for p, s in seconds.items()}
    texts = ", ".join(f"{shares[p]:.3f} at {p:.0%}" for p in (0.1, 0.3, 0.5, 0.7))
    return Found(
        f"Table 7, a tenth encrypted: {seconds[0.1] / seconds[0]:.2f} times the time and "
        f"{844.49 / 329.62:.2f} times the bytes of plain. Share of the whole overhead in time: "
        f"{texts}.",
        shares[0.1] > 0.13 and 844.49 / 329.62 > 2.5,
    )


def _fedml_llama() -> Found:
    bits = 13.5 * 1e9 * 8 / 6.74e9
    others = 417.72 * 2**20 * 8 / 109_482_240
    return Found(
        f"Llama 2 in clear has {bits:.0f} bits a value, BERT {others:.0f}: against 32 bits, 30.92 "
        f"times is {30.92 / 2:.1f}.",
        round(bits) == 16 and round(others) == 32,
    )


def _fedml_efficient() -> Found:
    to_plain = [1 - opt / plain for plain, opt in ((47.98, 19.03), (417.72, 16.66))]
    to_cipher = [1 - opt / ct for ct, opt in ((796.70, 19.03), (6.78 * 1024, 16.66))]
    return Found(
        f"Relative to plaintext, Opt is less by {', '.join(f'{r:.3f}' for r in to_plain)}; "
        "relative to the ciphertext in the column beside, by "
        f"{', '.join(f'{r:.3f}' for r in to_cipher)}.",
        [round(r, 2) for r in to_plain] == [0.6, 0.96]
        and [round(r, 2) for r in to_cipher] != [0.6, 0.96],
    )


MODES = ("FATE", "BatchCrypt", "plain")
BATCHCRYPT_4 = {
    dataset: tuple(
        (line.hours, line.traffic_gb)
        for line in (reported("BatchCrypt", model, mode) for mode in MODES)
    )
    for dataset, model in (("FMNIST", "FCN"), ("CIFAR", "AlexNet"), ("LSTM", "LSTM"))
}
"""BatchCrypt, Table 4: stock FATE, BatchCrypt, plain; hours, GB."""

_ITERATIONS = rows("batchcrypt", "iterations")
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


def _esafl_one_way() -> Found:
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


def _esafl_borrowed() -> Found:
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


def _esafl_slowdown() -> Found:
    pairs = [(mine["ESAFL"], mine["plain"]) for mine in ESAFL_5.values()]
    times = [ours.hours / plain.hours for ours, plain in pairs]
    traffic = [ours.traffic_gb / plain.traffic_gb for ours, plain in pairs]
    return Found(
        f"Table 5: {', '.join(f'{t:.2f}' for t in times)} times the plain hours, "
        f"{', '.join(f'{t:.2f}' for t in traffic)} times the traffic. The text prints these less "
        "one, beside speedups that are ratios.",
        min(times) > 2.6,
    )


def _batchcrypt_iterations() -> Found:
    by = []
    for model, (stock, _, _) in BATCHCRYPT_4.items():
        seconds, gigabytes, _ = BATCHCRYPT_ITERATION[model]
        by.append((stock[0] * 3600 / seconds, stock[1] / gigabytes))
    texts = [f"{m} {a:,.0f} and {b:,.0f}" for m, (a, b) in zip(BATCHCRYPT_4, by, strict=True)]
    return Found(
        f"Iterations of stock FATE, by its hours and by its GB: {', '.join(texts)}.",
        all(9 < a / b < 11 for a, b in by[1:]) and abs(by[0][0] / by[0][1] - 1) < 0.1,
    )


def _batchcrypt_plain() -> Found:
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


def _batchcrypt_plain_traffic() -> Found:
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


def _esafl_links() -> Found:
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


def _batchcrypt_table_1() -> Found:
    least, usual, most = rows("batchcrypt", "table_1")
    size, power = (math.log(most[i] / least[i]) / math.log(most[0] / least[0]) for i in (2, 3))
    bits, plain = (usual[i] * 2**20 * 8 / 900_000 for i in (2, 1))
    return Found(
        f"Table 1: at 2048 bits a ciphertext has {bits:,.0f} bits, 4,096 of them modulo n^2: 128 "
        f"times a float, not 64. Time grows with the {power:.1f}th power of the key, size with "
        f"the {size:.2f}th. And its plaintexts "
        f"have {plain:.0f} bits each, not 32.",
        bits > 4096 and power > 2,
    )
