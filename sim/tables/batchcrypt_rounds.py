"""BatchCrypt, Figures 7 to 9 and 11 and Table 4: an iteration, its traffic, training to the end.

Table 1 and Figure 10 are in `batchcrypt_costs`, learning curves (Figure 6) in `learned`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from flhe.sim.advise import prices
from flhe.sim.advise.wan import SERVER
from flhe.sim.tables import batchcrypt_costs
from flhe.sim.tables.batchcrypt_paper import (
    BATCHCRYPT,
    COHORT,
    FATE,
    MODELS,
    PLAIN,
    iteration_s,
    line,
    traffic_mb,
)
from flhe.sim.tables.batchcrypt_round import (
    AGGREGATION,
    GIGABYTES,
    HOURS,
    LINK,
    TRAFFIC,
    breakdown,
    convergence,
    notes,
    result,
    steps,
    to_the_end,
    told,
    traffic,
)
from flhe.sim.tables.marked import projected, published
from flhe.sim.tables.phase_costs import BATCHCRYPT as OURS_3072
from flhe.sim.tables.phase_costs import BATCHCRYPT_2048 as OURS
from flhe.sim.tables.phase_costs import PHE, PHE_BATCHED
from flhe.sim.tables.phase_costs import PLAIN as OUR_PLAIN
from flhe.sim.tables.result import Entry, Result, ratios
from flhe.sim.tables.rounds import TOTAL, entries, row
from flhe.sim.tables.section import Found, Plan, Section

ENCRYPTED = (PHE, PHE_BATCHED, OURS, OURS_3072)
NAMES = (*ENCRYPTED, OUR_PLAIN)
BILL = ("instances", "network", "total")
PAPERS = (FATE, BATCHCRYPT, PLAIN)

EPOCHS = (
    "Projected as the paper does: an iteration, times the iterations of the epochs that it took "
    "(stock FATE 40, 285 and 20; batches of 16 bits 68, 279 and 23; plain as FATE), which are "
    "taken over for whoever stands for them. An epoch has 52, 44 and 174 iterations: the paper "
    "tells no number, but its FATE's hours by its seconds of an iteration say so. Traffic is of "
    "all nine clients, up and down, GB of 2^30 bytes."
)
WRONG = (
    "The paper's GB do not go with its iterations: those of CIFAR (AlexNet) and LSTM are of a "
    "tenth of the iterations that its hours are of, under FATE and BatchCrypt, and plain's are a "
    "further ninth of that, one client's. FMNIST's (FCN's) are of all nine and of all iterations, "
    "but for plain's, which are four fifths of those."
)
PLAIN_TWICE = (
    "Of plain the paper has two durations: an iteration of 2.2, 20 and 57 s (Sec. 3.1, shown "
    "here), and Table 4's hours, which make 5.5, 9.8 and 12.7 s."
)


def report_7(plan: Plan, found: Found) -> list[Result]:
    """Where an iteration goes."""
    out = breakdown(plan, found, ENCRYPTED)
    out += told(TOTAL, "s", iteration_s, (FATE, BATCHCRYPT))
    out += [*ratios(out, TOTAL, OURS), *ratios(out, TOTAL, BATCHCRYPT, group="paper")]
    said = notes(
        plan,
        "Fig. 7 is a picture without numbers. The paper's iterations are FATE's seconds of Sec. "
        "3.1, and those divided by Sec. 6.3's speedups (23.3, 70.8, 92.8). It leaves training "
        "out of the picture; here it is a column. The server's additions happen as uploads "
        "arrive: only what is left after the last one is in a client's idle time.",
    )
    whats = ("encryption", "decryption", "idle", AGGREGATION, TOTAL)
    return [result("BatchCrypt", "Figure 7", "time of an iteration", out, whats, said)]


def report_8(plan: Plan, found: Found) -> list[Result]:
    """What an iteration transfers."""
    out = traffic(plan, found, ENCRYPTED)
    out += told(TRAFFIC, "MB", traffic_mb, (FATE, BATCHCRYPT))
    out += [*ratios(out, TRAFFIC, OURS), *ratios(out, TRAFFIC, BATCHCRYPT, group="paper")]
    said = notes(
        plan,
        "All nine clients, up and down, MB of 2^20 bytes. Fig. 8 is a picture without numbers: the "
        "paper's are FATE's GB of Sec. 3.1, and those divided by 66, 71 and 101 (Sec. 6.3). FATE "
        "sent 625 to 654 bytes a value where python-paillier's ciphertext and exponent have 516: "
        "each of its numbers carries the public key along (Sec. 6.3).",
    )
    return [result("BatchCrypt", "Figure 8", "traffic of an iteration", out, (TRAFFIC,), said)]


def report_9(plan: Plan, found: Found) -> list[Result]:
    """BatchCrypt beside no encryption at all."""
    names = (PHE_BATCHED, OURS, OURS_3072, OUR_PLAIN)
    times = [e for e in breakdown(plan, found, names) if e.what == TOTAL]
    out = [*times, *traffic(plan, found, names)]
    papers = (BATCHCRYPT, PLAIN)
    out += told(TOTAL, "s", iteration_s, papers)
    out += told(TRAFFIC, "MB", traffic_mb, papers)
    out += [*ratios(out, TOTAL, PLAIN), *ratios(out, TRAFFIC, PLAIN)]
    said = notes(
        plan,
        "Plain is float32 here. Fig. 9 is a picture without numbers; the paper's here are those "
        "of Figs. 7 and 8, and Sec. 3.1's plain, 8 bytes a value and iteration. Traffic is of all "
        "nine clients, MB of 2^20 bytes.",
        PLAIN_TWICE,
    )
    return [
        result("BatchCrypt", "Figure 9", "an iteration, beside plain", out, (TOTAL, TRAFFIC), said)
    ]


def report_table_4(plan: Plan, found: Found) -> list[Result]:
    """Hours and GB until convergence."""
    out = convergence("BatchCrypt", plan, found, NAMES, PAPERS)
    for what, _ in (HOURS, GIGABYTES):
        out += ratios(out, what, PLAIN)
    said = notes(plan, EPOCHS, WRONG, PLAIN_TWICE)
    title = "training to convergence: hours and traffic"
    return [result("BatchCrypt", "Table 4", title, out, (HOURS[0], GIGABYTES[0]), said)]


def report_11(plan: Plan, found: Found) -> list[Result]:
    """What training to convergence costs."""
    out: list[Entry] = []
    for model in MODELS:
        for name, (cost, end) in to_the_end("BatchCrypt", model, plan, found, NAMES).items():
            usd = (end.instance_usd, end.network_usd, end.total_usd)
            numbers = dict(zip(BILL, map(projected, usd), strict=True))
            out += entries(row(model), name, cost.group, numbers, "USD")
        for mode in PAPERS:
            usd = paper_usd(model, mode)
            numbers = dict(zip(BILL, map(published, usd), strict=True))
            out += entries(row(model), mode, "paper", numbers, "USD")
    out += [*ratios(out, BILL[-1], OURS), *ratios(out, BILL[-1], BATCHCRYPT, group="paper")]
    said = notes(
        plan,
        f"Prices: {prices.BATCHCRYPT.source}, of machines of 16 processors, of which one works "
        "here. Half of the traffic leaves the clients, half the "
        "server, in Oregon. Fig. 11 is a picture without numbers; the paper's here are its Table "
        "4's hours and GB at its own prices, so the network of its CIFAR and LSTM is a tenth of "
        "what its own iterations would cost (see Table 4).",
        EPOCHS,
    )
    title = "price of training to convergence"
    return [result("BatchCrypt", "Figure 11", title, out, BILL, said)]


def paper_usd(model: str, mode: str) -> tuple[float, float, float]:
    """Machines, network and both: a line of Table 4 at the prices of Sec. 6.5."""
    said = line("BatchCrypt", model, mode)
    half = said.traffic_gb / 2
    sites = Counter(site.name for site in LINK.placed(COHORT))
    leaving = {name: half * count / COHORT for name, count in sites.items()} | {SERVER: half}
    bill = prices.cost(prices.BATCHCRYPT.on(LINK), said.hours, leaving, COHORT)
    return bill.instance_usd, bill.network_usd, bill.total


SECTIONS: Sequence[Section] = (
    *batchcrypt_costs.SECTIONS,
    Section("batchcrypt-figure-7", "BatchCrypt", steps, report_7, ("Figure 7",)),
    Section("batchcrypt-figure-8", "BatchCrypt", steps, report_8, ("Figure 8",)),
    Section("batchcrypt-figure-9", "BatchCrypt", steps, report_9, ("Figure 9",)),
    Section("batchcrypt-table-4", "BatchCrypt", steps, report_table_4, ("Table 4",)),
    Section("batchcrypt-figure-11", "BatchCrypt", steps, report_11, ("Figure 11",)),
)
