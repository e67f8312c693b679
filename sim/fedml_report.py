"""What `fedml_tables` prints: Tables 4 and 7 of FedML-HE's paper, each beside what was measured."""

from __future__ import annotations

from rich.table import Table

from flhe.sim.fedml_models import MB
from flhe.sim.fedml_tables import Costs, Table4, Table7, beyond_clear
from flhe.sim.fedml_ways import Cost, PlainWay

PHASES = ("encrypt", "aggregate", "decrypt")
CAPTION = (
    "processor seconds on one thread: one client's, the server's on three uploads, one client's; MB of "
    "2^20 bytes, one client's upload; ratios: to plain; TenSEAL, server or client: who multiplies by "
    "weights; the paper: 8 cores, PALISADE"
)


def tables(four: Table4, seven: Table7) -> list[Table]:
    """Both tables."""
    return [_table_4(four), _table_7(seven)]


def _table_4(found: Table4) -> Table:
    out = _new("everything encrypted (Table 4)")
    for model, costs in found.items():
        name = f"{model.name}\n{model.values:,}"
        plain, encrypted = (model.plain_s, model.plain_bytes), (model.he_s, model.he_bytes)
        out.add_row(name, "the paper's, plain", *_paper(plain, plain))
        out.add_row("", "the paper's", *_paper(encrypted, plain), end_section=True)
        _measured(out, costs, "")
    return out


def _table_7(found: Table7) -> Table:
    values = max((cost.values for costs in found.values() for cost in costs.values()), default=0)
    out = _new(f"a part encrypted, of {values:,} values (Table 7)")
    ratios = {selection.ratio for selection in found}
    first = next((selection for selection in found if selection.ratio == 0), None)
    for selection, costs in found.items():
        if first is not None:
            plain = (first.seconds, first.nbytes)
            cells = _paper((selection.seconds, selection.nbytes), plain)
            out.add_row(f"p = {selection.ratio:g}", "the paper's", *cells)
        _measured(out, costs, "")
    if {0.0, 0.1, 1.0} <= ratios:
        said = [
            f"{name}: {time:.3f} in time, {size:.3f} in bytes"
            for name in next(iter(found.values()))
            if name != PlainWay.name
            for time, size in [beyond_clear(found, name, 0.1)]
        ]
        out.caption = (
            f"{CAPTION}\nencrypting 10% costs of encrypting all, beyond the clear part: "
            f"{'; '.join(said)}; the paper's: 0.139 in time, 0.100 in bytes"
        )
    return out


def _new(title: str) -> Table:
    out = Table(title=title, caption=CAPTION)
    out.add_column("")
    out.add_column("")
    for heading in (*PHASES, "total", "ratio", "MB", "ratio"):
        out.add_column(heading, justify="right")
    out.add_column("")
    return out


def _measured(out: Table, costs: Costs, name: str) -> None:
    plain = costs[PlainWay.name]
    for i, (way, cost) in enumerate(costs.items()):
        out.add_row(name, way, *_cells(cost, plain), end_section=i == len(costs) - 1)


def _cells(cost: Cost, plain: Cost) -> list[str]:
    phases = [_seconds(getattr(cost, f"{phase}_s")) for phase in PHASES]
    time, size = cost.total_s / plain.total_s, cost.upload_bytes / plain.upload_bytes
    return [
        *phases,
        _seconds(cost.total_s),
        _ratio(time),
        _mb(cost.upload_bytes),
        _ratio(size),
        cost.origin,
    ]


def _paper(cost: tuple[float, float], plain: tuple[float, float]) -> list[str]:
    (seconds, nbytes), (plain_seconds, plain_bytes) = cost, plain
    time, size = _ratio(seconds / plain_seconds), _ratio(nbytes / plain_bytes)
    return ["", "", "", _seconds(seconds), time, _mb(nbytes), size, "paper"]


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}" if seconds >= 0.01 else f"{seconds:.2g}"


def _mb(nbytes: float) -> str:
    size = nbytes / MB
    return f"{size:,.2f}" if size >= 1 else f"{size:.2g}"


def _ratio(ratio: float) -> str:
    return f"{ratio:,.2f}" if ratio < 100 else f"{ratio:,.0f}"
