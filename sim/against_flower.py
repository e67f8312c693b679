"""SASH beside Flower's own SecAgg+, at a million values: one client, and the server's unmasking.

    python -m flhe.sim.against_flower [--json FILE]

Flower's is measured as installed (`legacy_secagg`), twice: every client sharing with every other
one, which is what it takes to withstand what SASH withstands (a third dropping out, a third
colluding), and with the paper's 100 neighbours or, in a group of 100, with 20. In a group of 500
its server is left out: a round of it would take hours. All take turns on one processor; the first
turn is not counted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from flhe.errors import FlheError
from flhe.json_option import JsonFile, console, write_json
from flhe.sim.aggregation_contenders import Contender, Setting
from flhe.sim.bench import Progress, Times, machine, pinned
from flhe.sim.legacy_secagg import LegacySecAgg, LegacySetting, Projection
from flhe.sim.sash_aggregation import SashMembers

VALUES = 1_000_000
REPEATS = 7
OURS = "SASH"


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one contender in one setting."""

    name: str
    clients: int
    values: int
    dropout: float
    client_s: Times
    server_s: Times | None
    projected: bool
    """Whether the server's seconds are added up from those of its parts."""


def _legacy(setting: Setting, shares: int, *, whole: bool) -> LegacySecAgg | Projection:
    # As many shares as are left when a third is gone, and more than half of them.
    threshold = max(shares // 2 + 1, shares - shares // 3 - 1)
    if shares < setting.clients:
        threshold = shares // 3
    asked = LegacySetting(setting.clients, setting.values, shares, threshold, setting.dropouts)
    return LegacySecAgg(asked) if whole else Projection(asked)


def compare(
    settings: Sequence[tuple[Setting, bool]],
    *,
    repeats: int = REPEATS,
    progress: Progress | None = None,
) -> list[Measured]:
    """Measure all contenders in `settings`, each with whether Flower's server takes part.

    Raises
    ------
    FlheError
        A sum that is not the sum.
    """
    found: list[Measured] = []
    for at, (setting, serves) in enumerate(settings):
        few = 21 if setting.clients <= 100 else 101
        few = min(few, setting.clients)

        def say(what: str, at: int = at, setting: Setting = setting) -> None:
            if progress is not None:
                progress(at, len(settings), f"{setting.clients} clients: {what}")

        say("SASH")
        ours = SashMembers(setting)
        theirs: list[tuple[str, Contender]] = []
        for shares in sorted({few, setting.clients}):
            name = "all others" if shares == setting.clients else f"{shares - 1} neighbours"
            say(f"Flower, {name}")
            whole = serves and shares < setting.clients
            theirs.append((f"Flower SecAgg+, {name}", _legacy(setting, shares, whole=whole)))
        times: dict[str, tuple[list[float], list[float]]] = {}
        with pinned(1):
            for turn in range(repeats + 1):
                say(f"turn {turn} of {repeats}")
                for name, contender in [(OURS, ours), *theirs]:
                    if name != OURS and turn != 1:
                        continue  # who takes minutes, once
                    seconds = contender.client()
                    more = contender.server() if name == OURS or serves else None
                    if turn == 0:
                        continue
                    clients, servers = times.setdefault(name, ([], []))
                    clients.append(seconds)
                    servers += [] if more is None else [more]
        for name, contender in [(OURS, ours), *theirs]:
            clients, servers = times[name]
            client = Times.of(clients)
            assert client is not None
            found.append(
                Measured(
                    name,
                    setting.clients,
                    setting.values,
                    setting.dropout,
                    client,
                    Times.of(servers),
                    contender.projected,
                )
            )
    return found


def table(found: Sequence[Measured]) -> Table:
    """Minima, and how many times SASH's they are."""
    out = Table(
        title=f"{found[0].values:,} values, one thread",
        caption="minima in seconds, and how many times SASH's; ~ is added up from parts",
    )
    for heading in ("clients", "dropout", "", "a client", "", "server, unmasking", ""):
        out.add_column(heading, justify="left" if heading == "" else "right")
    ours: dict[tuple[int, float], Measured] = {}
    for row in found:
        key = row.clients, row.dropout
        ours.setdefault(key, row)
        base = ours[key]
        cells = [f"{row.client_s.min:.4f}", _times(row.client_s, base.client_s, row is base)]
        if row.server_s is None or base.server_s is None:
            cells += ["", ""]
        else:
            mark = "~" if row.projected else ""
            cells.append(f"{mark}{row.server_s.min:.4f}")
            cells.append(_times(row.server_s, base.server_s, row is base))
        out.add_row(f"{row.clients}", f"{row.dropout:.0%}", row.name, *cells)
    return out


def _times(row: Times, base: Times, own: bool) -> str:
    return "" if own else f"{row.min / base.min:,.0f}x"


def to_data(found: Sequence[Measured]) -> dict[str, Any]:
    """Machine and rows."""
    return {"machine": machine(), "rows": [asdict(row) for row in found]}


def main(
    values: Annotated[int, typer.Option(help="Values in an update.")] = VALUES,
    quick: Annotated[bool, typer.Option("--quick", help="Small, to see that it works.")] = False,
    json_file: JsonFile = None,
) -> None:
    """Measure SASH beside Flower's own SecAgg+."""
    from flhe.sim.bench_table import progress

    many, group = (20, 9) if quick else (500, 100)
    settings = [(Setting(group, values, d), True) for d in (0.0, 0.3)]
    settings.append((Setting(many, values, 0.1), False))
    try:
        with progress(Console(stderr=True)) as advance:
            found = compare(settings, repeats=2 if quick else REPEATS, progress=advance)
    except FlheError as error:
        typer.echo(f"flhe: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None
    if json_file is not None:
        write_json(json_file, json.dumps(to_data(found), indent=2))
    console(json_file, 110).print(table(found))


if __name__ == "__main__":
    typer.run(main)
