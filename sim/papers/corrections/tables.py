"""What does not add up in FLASHE's and FedML-HE's own tables.

Numbers that the papers print, and arithmetic; nothing is measured here.

Source: FLASHE, Sec. 2.3, Tables 2 and 4; FedML-HE, Tables 4, 5, 7 and 8.
"""

from __future__ import annotations

from flhe_lab.papers.convergence import reported
from flhe_lab.papers.corrections.proof import Found, shows
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


@shows("flashe-savings")
def _reductions() -> Found:
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


@shows("flashe-speedups")
def _speedups() -> Found:
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


@shows("flashe-baseline")
def _baseline() -> Found:
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


@shows("flashe-network")
def _network() -> Found:
    values, factor, speed, said = 40e6, 2.4, 40e6, 45.0
    times = [values * bits * factor / speed for bits in (16, 20)]
    return Found(
        f"40 million values of 16 bits, {factor} times, at 40 Mb/s: {times[0]:.1f} s; of 20 bits, "
        f"which Table 2's {factor} is relative to, {times[1]:.1f} s.",
        all(abs(t / said - 1) > 0.05 for t in times),
    )


@shows("flashe-minutes")
def _minutes() -> Found:
    low, high = (s / 16384 * 1.2e6 / 60 for s in (20.02, 66.74))
    return Found(
        f"By Table 2, {low:.1f} to {high:.1f} minutes for 1.2 million values.",
        round(low) == 24 and round(high) == 81,
    )


@shows("fedml-cnn")
def _cnn() -> Found:
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


@shows("fedml-forty")
def _forty() -> Found:
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


@shows("fedml-tenth")
def _tenth() -> Found:
    seconds = dict(rows("fedml", "table_7", lambda share, seconds, _size: (share, seconds)))
    shares = {p: (s - seconds[0]) / (seconds[1] - seconds[0]) for p, s in seconds.items()}
    texts = ", ".join(f"{shares[p]:.3f} at {p:.0%}" for p in (0.1, 0.3, 0.5, 0.7))
    return Found(
        f"Table 7, a tenth encrypted: {seconds[0.1] / seconds[0]:.2f} times the time and "
        f"{844.49 / 329.62:.2f} times the bytes of plain. Share of the whole overhead in time: "
        f"{texts}.",
        shares[0.1] > 0.13 and 844.49 / 329.62 > 2.5,
    )


@shows("fedml-llama")
def _llama() -> Found:
    bits = 13.5 * 1e9 * 8 / 6.74e9
    others = 417.72 * 2**20 * 8 / 109_482_240
    return Found(
        f"Llama 2 in clear has {bits:.0f} bits a value, BERT {others:.0f}: against 32 bits, 30.92 "
        f"times is {30.92 / 2:.1f}.",
        round(bits) == 16 and round(others) == 32,
    )


@shows("fedml-efficient")
def _efficient() -> Found:
    to_plain = [1 - opt / plain for plain, opt in ((47.98, 19.03), (417.72, 16.66))]
    to_cipher = [1 - opt / ct for ct, opt in ((796.70, 19.03), (6.78 * 1024, 16.66))]
    return Found(
        f"Relative to plaintext, Opt is less by {', '.join(f'{r:.3f}' for r in to_plain)}; "
        "relative to the ciphertext in the column beside, by "
        f"{', '.join(f'{r:.3f}' for r in to_cipher)}.",
        [round(r, 2) for r in to_plain] == [0.6, 0.96]
        and [round(r, 2) for r in to_cipher] != [0.6, 0.96],
    )
