"""`flhe advise`: what it reads from the command line."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from flhe.errors import ConfigError
from flhe.json_option import JsonFile, console, write_json

if TYPE_CHECKING:
    from flhe_lab.advise.check import Line
    from flhe_lab.advise.wan import Wan

COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
BYTES = {"kb": 2.0**10, "mb": 2.0**20, "gb": 2.0**30, "tb": 2.0**40}
SPEEDS = {
    f"{prefix}{unit}": scale * bits
    for prefix, scale in (("k", 1e-3), ("m", 1.0), ("g", 1e3))
    for unit, bits in (("bps", 1), ("bit/s", 1), ("B/s", 8))
}
"""Units -> what they stand for; in lower case, but for the B of bytes in a speed. Speeds are Mbps."""


def advise(
    params: Annotated[str, typer.Option(help="Values of the model, such as 25M or 1.2k.")],
    clients: Annotated[int, typer.Option(help="Clients of a round.")],
    uplink: Annotated[
        str, typer.Option(help="What each sends with, such as 40Mbps, 1Gbps or 5MB/s.")
    ] = "",
    downlink: Annotated[str, typer.Option(help="What each receives with; as --uplink.")] = "",
    server_link: Annotated[
        str, typer.Option(help="The server's own link, both ways; else it never limits.")
    ] = "",
    wan: Annotated[
        str, typer.Option(help="Instead of links: a paper's network by name, or a .toml.")
    ] = "",
    dropout: Annotated[
        float, typer.Option(help="Chance that a client's update is missing from a round.")
    ] = 0.0,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds to convergence; 100 where nobody knows.")
    ] = None,
    train: Annotated[float, typer.Option(help="Seconds that a client trains in a round.")] = 0.0,
    server_may_see_model: Annotated[
        bool, typer.Option("--server-may-see-model", help="The server may read each round's sum.")
    ] = False,
    members_may_collude: Annotated[
        bool,
        typer.Option("--members-may-collude", help="A third may conspire with the server."),
    ] = False,
    trusted_dealer: Annotated[
        bool, typer.Option("--trusted-dealer", help="Somebody whom all trust deals keys.")
    ] = False,
    clear_part: Annotated[
        bool, typer.Option("--clear-part", help="A part of each update may travel in clear.")
    ] = False,
    sparse: Annotated[
        bool,
        typer.Option("--sparse", help="A tenth of each update may be sent, and which be seen."),
    ] = False,
    epsilon: Annotated[
        float, typer.Option(help="Privacy budget: say the noise multiplier that keeps to it.")
    ] = 0.0,
    delta: Annotated[float, typer.Option(help="Delta of that budget.")] = 1e-5,
    sampling: Annotated[
        float, typer.Option(help="Probability of a record to be in a round's batch; 1: of members.")
    ] = 1.0,
    memory: Annotated[
        str, typer.Option(help="Memory of each machine, such as 8GB; else this one's.")
    ] = "",
    prices: Annotated[
        str, typer.Option(help="Prices: batchcrypt or flashe, as in the papers, or a .toml.")
    ] = "flashe",
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine anew: half a minute.")
    ] = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="The same, and hold predictions against what it measures."),
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Say which scheme suits a federation: ranked by seconds a round, and why not the others.

    The first time it measures how fast this machine is at each scheme, for half a minute.
    """
    from rich.console import Console

    from flhe_lab.advise import calibrate as calibrating
    from flhe_lab.advise import check as checking
    from flhe_lab.advise import ranking, report
    from flhe_lab.advise.demand import ROUNDS, Demand, billed, machine_memory
    from flhe_lab.advise.prices import named
    from flhe_lab.bench.table import progress

    found = network(uplink, downlink, server_link, wan, clients)
    demand = Demand(
        round(quantity("--params", params, COUNTS, "25M, 1.2k or 1_200_000")),
        clients,
        found,
        billed(named(prices), found),
        dropout=dropout,
        rounds=ROUNDS if rounds is None else rounds,
        train_s=train,
        server_may_see_model=server_may_see_model,
        clear_part=clear_part,
        sparse=sparse,
        trusted_dealer=trusted_dealer,
        members_may_collude=members_may_collude,
        memory_bytes=(
            round(quantity("--memory", memory, BYTES, "8GB or 512MB"))
            if memory
            else machine_memory()
        ),
    )
    lines: list[Line] = []
    with progress(Console(stderr=True)) as advance:
        if check:
            speeds, lines = calibrating.checked(advance)
        else:
            speeds = calibrating.load(renew=calibrate, progress=advance)
    answer = ranking.advise(demand, speeds)
    if json_file is not None:
        write_json(json_file, report.to_json(answer, lines))
    out = console(json_file)
    if check:
        out.print(checking.table(lines))
    out.print(report.table(answer))
    if answer.excluded:
        out.print(report.reasons(answer))
    out.print(answer.sentence(), markup=False, highlight=False)
    if epsilon:
        said = report.noise(epsilon, delta, sampling, demand.rounds)
        out.print(said, markup=False, highlight=False)
    if any(line.verdict == "OFF" for line in lines):
        raise typer.Exit(1)


def quantity(option: str, text: str, units: dict[str, float], like: str) -> float:
    """A number above 0 with its unit, such as 25M, 40Mbps or 8GB, in what `units` stand for.

    Raises ConfigError: something else; it says how to write it.
    """
    found = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z/]*)\s*", text)
    if found is None:
        raise ConfigError(f"{option} {text!r}: must be a number as in {like}")
    number, unit = float(found[1].replace("_", "").replace(",", "")), found[2].lower()
    if found[2].endswith("B/s"):  # b/s is neither: some write it for bits, some for bytes
        unit = unit.replace("b/s", "B/s")
    if unit not in units:
        wrong = f"{found[2]!r} is no unit" if unit else "say the unit"
        raise ConfigError(f"{option} {text!r}: {wrong}; write {like}")
    if not number > 0:
        raise ConfigError(f"{option} {text!r}: must be more than 0")
    return number * units[unit]


def speed(option: str, text: str) -> float:
    """Mbps, of 40Mbps, 1Gbps or 5MB/s; ConfigError for what is none."""
    return quantity(option, text, SPEEDS, "40Mbps, 1Gbps or 5MB/s")


def network(uplink: str, downlink: str, server_link: str, name: str, clients: int) -> Wan:
    """The network that was asked for; ConfigError where it is none, or two."""
    from flhe_lab.advise import wan

    if bool(name) == bool(uplink):
        raise ConfigError(
            "say how clients are connected: --uplink 40Mbps, or --wan with a name "
            f"({', '.join(wan.PUBLISHED)}) or a .toml file, and not both"
        )
    if downlink and not uplink:
        raise ConfigError("--downlink goes with --uplink; a --wan tells its own")
    if name:
        found = wan.named(name)
    else:
        down = speed("--downlink", downlink) if downlink else None
        found = wan.uniform(speed("--uplink", uplink), down, clients)
    if server_link:
        both = speed("--server-link", server_link)
        found = replace(found, server=wan.Link(both, both))
    return found
