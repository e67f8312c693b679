"""SASH's Figures 3 and 4, its 20x over SecAgg, and its inflation factor.

A point is one setting: one client and the server of everybody who takes part, in turns. The paper adds
the two up; both are shown. SecAgg takes part twice: flhe's own, whose masks are AES and whose server is
compiled, and Flower's SecAgg+ as it is installed, with all other clients as neighbours where there are
no more than 101, which is SecAgg.

Source: SASH, Sec. 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from flhe.keys.masking import PACKED_FROM
from flhe.sim.bench.flower_parts import Round
from flhe.sim.bench.flower_secagg import Projection
from flhe.sim.bench.sash_members import SashMembers
from flhe.sim.bench.secure_sums import (
    DEGREE,
    FLOWERS,
    SASH,
    SASH_PLUS,
    SECAGG,
    SECAGG_PLUS,
    Maker,
    Setting,
    timed,
)
from flhe.sim.tables.chart import Chart
from flhe.sim.tables.marked import Marked, counted, measured, published, sampled
from flhe.sim.tables.result import Entry, Group, Result, ratios
from flhe.sim.tables.section import Found, Plan, Say, Section, Step

TOTAL, CLIENT, SERVER = "client + server", "client", "server"
VALUES = 100_000
FEW = 50
HEADLINE = Setting(FEW, VALUES, 0.3)
"""Where the paper says 20x."""

OURS = {SASH.name: "SASH", SASH_PLUS.name: "SASH+", SECAGG.name: "SecAgg, flhe's"}
OURS[SECAGG_PLUS.name] = "SecAgg+, flhe's"
FLOWER = "SecAgg+, Flower's"
NOTE = (
    "One client's seconds and the server's from the last answer to the sum, on one thread, minima; "
    "nobody waits for a network. The paper's implementation is in C++ and its figures are pictures "
    "without numbers: published are only 20x at N = 50, M = 100,000, 30% dropped out, and the shapes. "
    "Not alike: Flower's client agrees on keys with all others in each round, flhe's once an epoch, "
    "which is not in these seconds; Flower's quantizes too, which takes milliseconds; of Flower's "
    "whole server one run is taken, and no turn warms up; with 500 clients SASH has 14 bits a value, "
    "where SecAgg has 16 and Flower's 22. "
)
NEIGHBOURS = (
    f"SASH+ and SecAgg+ have {DEGREE} neighbours, and no point where that would be everybody. "
    f"Flower's SecAgg+ shares with all others up to {DEGREE + 1} clients, which is SecAgg, and with "
    f"{DEGREE} beyond."
)


def many(plan: Plan) -> int:
    """N where it does not vary: the paper's 500; fewer where it must be quick."""
    return 200 if plan.quick else 500


def _parts(setting: Setting) -> Projection:
    """Flower's by its parts, also where it could be run whole."""
    shares = min(DEGREE + 1, setting.clients)
    return Projection(
        Round(setting.clients, setting.values, shares, shares // 2 + 1, setting.dropouts)
    )


PARTS = Maker(FLOWERS.name, _parts, max_repeats=1)


def _point(setting: Setting, plan: Plan) -> Step:
    """Everybody in one setting."""
    flower = PARTS if plan.quick else FLOWERS
    makers = [SASH, SASH_PLUS, SECAGG, SECAGG_PLUS]
    # Beyond, each takes seconds at a time: left to the long run.
    if not plan.quick or setting.clients <= FEW:
        makers.append(flower)
    n, m, d = setting.clients, setting.values, setting.dropout
    key = f"secagg-{n}-{m}-{d:g}" + ("-quick" if plan.quick else "")
    repeats = plan.repeats

    def work(say: Say) -> dict[str, Any]:
        found = timed(setting, makers, repeats=repeats, progress=lambda _n, _m, what: say(what))
        return {
            name: {phase: times.min for phase, times in each.times.items()}
            | {"sampled": bool(each.contender.projected)}
            for name, each in found.items()
        }

    weight = 1.0 + n / 50 * (1 if plan.quick else 6) + (0 if plan.quick else 20)
    return Step(key, work, f"secure aggregation, {n} clients, {m:,} values, dropout {d:g}", weight)


def over_values(plan: Plan) -> list[Setting]:
    """Fig. 3a: over M, nobody drops out."""
    sizes = (10_000, 100_000) if plan.quick else (10_000, 30_000, 100_000, 300_000, 1_000_000)
    return [Setting(many(plan), m) for m in sizes]


def over_clients(plan: Plan) -> list[Setting]:
    """Fig. 3b and 4: over N at M = 100,000 and a dropout of 0.1."""
    counts = (50, 200) if plan.quick else (50, 100, 200, 300, 400, 500)
    return [Setting(n, VALUES, 0.1) for n in counts]


def over_dropout(clients: int, plan: Plan) -> list[Setting]:
    """Fig. 3c, N = 50, and Fig. 4: over the dropout at M = 100,000."""
    rates = (0.0, 0.1, 0.3) if plan.quick else (0.0, 0.1, 0.2, 0.3)
    return [Setting(clients, VALUES, d) for d in rates]


def entries(
    plan: Plan, found: Found, settings: Iterable[Setting], axis: str, who: Sequence[str]
) -> tuple[Entry, ...]:
    """Seconds of all in `who` in each setting, and how many times SASH's they are."""
    out: list[Entry] = []
    for setting in settings:
        row, x = _place(setting, axis)
        for contender, taken in found[_point(setting, plan).key].items():
            name = OURS.get(contender, FLOWER)
            if name not in who:
                continue
            group: Group = "peer" if name == FLOWER else "ours"
            client, server = _sides(taken)
            for what, number in ((TOTAL, client + server), (CLIENT, client), (SERVER, server)):
                out.append(Entry(row, name, group, what, "s", number, x))
    return (*out, *ratios(out, TOTAL, "SASH"))


def _place(setting: Setting, axis: str) -> tuple[str, float]:
    """Row and place on the axis."""
    if axis == "values":
        return f"{setting.values:,} values", setting.values
    if axis == "clients":
        return f"{setting.clients} clients", setting.clients
    return f"dropout {setting.dropout:g}", setting.dropout


def _sides(taken: Any) -> tuple[Marked, Marked]:
    """Client's seconds and server's."""
    server = sampled(taken["server"]) if taken["sampled"] else measured(taken["server"])
    return measured(taken["client"]), server


def ratio_step(plan: Plan) -> Step:
    """The run of the headline: N = 50, M = 100,000, 30% dropped out."""
    return _point(HEADLINE, plan)


def ratio_of(plan: Plan, found: Found, contender: str = FLOWERS.name) -> Marked:
    """How many times SASH's seconds, client and server together, SecAgg takes there.

    `contender` is Flower's (FLOWERS.name), or flhe's own (SECAGG.name).
    """
    taken = found[ratio_step(plan).key]
    theirs, ours = _sides(taken[contender]), _sides(taken[SASH.name])
    return (theirs[0] + theirs[1]) / (ours[0] + ours[1])


THREE = ("SASH", "SecAgg, flhe's", FLOWER)
FOUR = ("SASH", "SASH+", "SecAgg, flhe's", "SecAgg+, flhe's", FLOWER)


def _figure_3(plan: Plan, found: Found) -> list[Result]:
    charts = [
        Chart("lines", (TOTAL, CLIENT, SERVER), log=True, log_x=axis == "values", xlabel=label)
        for axis, label in (("values", "values"), ("clients", "clients"), ("d", "dropout rate"))
    ]
    last = entries(plan, found, over_dropout(FEW, plan), "dropout", THREE)
    row, x = _place(HEADLINE, "dropout")
    what = f"{TOTAL}, to SASH"
    paper = Entry(row, "SecAgg", "paper", what, "x", published(20.0), x)
    ours = ratio_of(plan, found, SECAGG.name).value
    flower = ratio_of(plan, found).value
    notes = (
        NOTE + NEIGHBOURS,
        f"At N = {FEW} with 30% dropped out SASH takes {flower:,.0f} times less than Flower's SecAgg+ "
        f"as installed, and {ours:.1f} times less than flhe's own SecAgg. The paper's baseline is "
        "neither of the two but its own SecAgg, in C++.",
    )
    return [
        Result(
            "sash-figure-3a",
            "SASH, Figure 3a",
            f"running time over model size, {many(plan)} clients",
            entries(plan, found, over_values(plan), "values", THREE),
            charts[0],
            (NOTE + NEIGHBOURS,),
        ),
        Result(
            "sash-figure-3b",
            "SASH, Figure 3b",
            f"running time over clients, {VALUES:,} values, dropout 0.1",
            entries(plan, found, over_clients(plan), "clients", THREE),
            charts[1],
            (NOTE + NEIGHBOURS,),
        ),
        Result(
            "sash-figure-3c",
            "SASH, Figure 3c",
            f"running time over the dropout, {VALUES:,} values, {FEW} clients",
            (*last, paper),
            charts[2],
            notes,
        ),
    ]


def _figure_4(plan: Plan, found: Found) -> list[Result]:
    out = []
    for part, settings, axis, label, title in (
        ("a", over_clients(plan), "clients", "clients", "clients, dropout 0.1"),
        (
            "b",
            over_dropout(many(plan), plan),
            "dropout",
            "dropout rate",
            f"the dropout, {many(plan)} clients",
        ),
    ):
        chart = Chart("lines", (TOTAL, CLIENT, SERVER), log=True, xlabel=label)
        found_here = entries(plan, found, settings, axis, FOUR)
        about = f"SASH+, SecAgg+, SecAgg and SASH over {title}, {VALUES:,} values"
        source = f"SASH, Figure 4{part}"
        out.append(
            Result(f"sash-figure-4{part}", source, about, found_here, chart, (NOTE + NEIGHBOURS,))
        )
    return out


INFLATED = 500
"""Clients at which the paper says 2.06."""

PLAIN_BYTES = 2
"""Of one value of w = 16 bits, which the paper's inflation is relative to."""


def _bytes_step(_plan: Plan) -> Step:
    def work(say: Say) -> dict[str, Any]:
        say("counting")
        found = {}
        for clients in (FEW, INFLATED):
            members = SashMembers(
                Setting(clients, 1_000)
            )  # the agreement's bytes have no M in them
            upload = members.scheme.nbytes(1_000_000)
            found[str(clients)] = {"upload": upload, "agreement": members.client_bytes}
        return found

    return Step("sash-bytes", work, "bytes of SASH's agreement", 2.0)


def _inflation(plan: Plan, found: Found) -> list[Result]:
    out: list[Entry] = []
    for clients, sizes in found[_bytes_step(plan).key].items():
        row = f"{clients} clients, 1,000,000 values"
        upload, agreement = counted(sizes["upload"]), counted(sizes["agreement"])
        factor = (upload + agreement) / (PLAIN_BYTES * 1_000_000)
        for what, unit, number in (
            ("upload", "MB", upload / 1e6),
            ("key agreement, up and down", "MB", agreement / 1e6),
            ("inflation, to 16 bits a value", "x", factor),
        ):
            out.append(Entry(row, "SASH", "ours", what, unit, number))
    row, what = f"{INFLATED} clients, 1,000,000 values", "inflation, to 16 bits a value"
    out.append(Entry(row, "SASH", "paper", what, "x", published(2.06)))
    note = (
        "Bytes of one client in a round: its ciphertext, and shares and signatures of the masking-key "
        f"agreement, sent and received; below {PACKED_FROM} clients shares are not packed. Everybody "
        "sends 32 bits a value; of these, ours can carry as many as N leaves room for (20 at 50 "
        "clients, 14 at 500), the paper's are 16. MB are of 10^6 bytes."
    )
    title = "inflation factor of traffic"
    return [Result("sash-inflation", "SASH, Section 4.1.1", title, tuple(out), None, (note,))]


def _three(plan: Plan) -> list[Step]:
    settings = [*over_values(plan), *over_clients(plan), *over_dropout(FEW, plan)]
    return [_point(setting, plan) for setting in settings]


def _four(plan: Plan) -> list[Step]:
    return [
        _point(setting, plan) for setting in (*over_clients(plan), *over_dropout(many(plan), plan))
    ]


SECTIONS: Sequence[Section] = (
    Section("sash-figure-3", "SASH", _three, _figure_3, ("Figure 3", "20x (abstract)")),
    Section("sash-figure-4", "SASH", _four, _figure_4, ("Figure 4",)),
    Section("sash-inflation", "SASH", lambda p: [_bytes_step(p)], _inflation, ("Section 4.1.1",)),
)
