"""What `flhe advise` reads from the command line, and how it answers."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flhe.errors import ConfigError
from flhe.json_option import console, write_json
from flhe.sim import prices, wan
from flhe.sim.advise import calibrate
from flhe.sim.advise.demand import ROUNDS, Demand, a_third, billed, machine_memory
from flhe.sim.advise.ranking import Advice, Prediction, advise
from flhe.sim.bench import machine
from flhe.sim.bench.table import progress
from flhe.sim.wan import SERVER, Link, Wan

_COUNT = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9}
_BYTES = {"kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}
_SPEED = {
    f"{prefix}{unit}": scale * bits
    for prefix, scale in (("k", 1e-3), ("m", 1.0), ("g", 1e3))
    for unit, bits in (("bps", 1), ("bit/s", 1), ("b/s", 8))
}
"""Units in lower case -> Mbps. `b/s` stands for bytes, and is taken as B/s only."""


def _split(option: str, text: str, like: str) -> tuple[float, str]:
    found = re.fullmatch(r"\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([A-Za-z/]*)\s*", text)
    if found is None:
        raise ConfigError(f"{option} {text!r}: must be a number as in {like}")
    return float(found[1].replace("_", "").replace(",", "")), found[2]


def count(option: str, text: str) -> int:
    """Values of a model: 25M, 1.2k, 1_200_000; ConfigError for what is none."""
    number, unit = _split(option, text, "25M, 1.2k or 1_200_000")
    if unit.lower() not in _COUNT:
        raise ConfigError(f"{option} {text!r}: {unit!r} is none of k, M and B; write 25M or 1.2k")
    return round(number * _COUNT[unit.lower()])


def speed(option: str, text: str) -> float:
    """Mbps, of 40Mbps, 1Gbps or 5MB/s; ConfigError for what is none."""
    number, unit = _split(option, text, "40Mbps, 1Gbps or 5MB/s")
    if not unit:
        raise ConfigError(
            f"{option} {text!r}: say the unit, as in {number:g}Mbps or {number:g}MB/s"
        )
    if unit.lower() not in _SPEED or unit.endswith("b/s"):
        raise ConfigError(f"{option} {text!r}: {unit!r} is no unit; write Mbps, Gbps or MB/s")
    if not number > 0:
        raise ConfigError(f"{option} {text!r}: must be more than 0")
    return number * _SPEED[unit.lower()]


def memory(option: str, text: str) -> int:
    """Bytes, of 8GB or 512MB, in powers of 2; ConfigError for what is none."""
    number, unit = _split(option, text, "8GB or 512MB")
    if unit.lower() not in _BYTES:
        raise ConfigError(f"{option} {text!r}: {unit!r} is no unit; write MB or GB")
    if not number > 0:
        raise ConfigError(
            f"{option} {text!r}: must be more than 0; leave it out for this machine's"
        )
    return round(number * _BYTES[unit.lower()])


def conspiring(
    clients: int, *, members_may_collude: bool, colluders: int | None, passive_server: bool
) -> int:
    """Members that may collude, of what was said of them; ConfigError where that says nothing."""
    if members_may_collude and colluders == 0:
        raise ConfigError("--members-may-collude with --colluders 0: leave out one of them")
    if colluders is None:
        colluders = a_third(clients) if members_may_collude else 0
    if passive_server and not colluders:
        raise ConfigError(
            "--passive-server is of a server that members conspire with: say --members-may-collude or "
            "--colluders, or leave it out"
        )
    return colluders


def network(uplink: str, downlink: str, server_link: str, name: str, clients: int) -> Wan:
    """The network that was asked for; ConfigError where it is none, or two."""
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
        found = replace(found, server=Link(both, both))
    return found


def command(
    *,
    params: str,
    clients: int,
    uplink: str,
    downlink: str,
    server_link: str,
    wan_name: str,
    prices_name: str,
    memory_size: str,
    rounds: int | None,
    members_may_collude: bool,
    colluders: int | None,
    passive_server: bool,
    calibrate_anew: bool,
    json_file: Path | None,
    **demands: Any,
) -> None:
    """Ask, calibrate where this machine was not yet, answer."""
    found = network(uplink, downlink, server_link, wan_name, clients)
    withstood = conspiring(
        clients,
        members_may_collude=members_may_collude,
        colluders=colluders,
        passive_server=passive_server,
    )
    demand = Demand(
        count("--params", params),
        clients,
        found,
        billed(prices.named(prices_name), found),
        rounds=ROUNDS if rounds is None else rounds,
        colluders=withstood,
        passive_server=passive_server,
        memory_bytes=memory("--memory", memory_size) if memory_size else machine_memory(),
        **demands,
    )
    with progress(Console(stderr=True)) as advance:
        speeds = calibrate.load(renew=calibrate_anew, progress=advance)
    answer = advise(demand, speeds)
    if json_file is not None:
        write_json(json_file, to_json(answer))
    out = console(json_file)
    out.print(table(answer))
    if answer.excluded:
        out.print(reasons(answer))
    out.print(answer.sentence(), markup=False, highlight=False)


def table(answer: Advice) -> Table:
    """All that are ranked, and FedAvg in clear below them."""
    demand = answer.demand
    out = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 0),
        title=f"{demand.values:,} values, {demand.clients} clients, {demand.wan.name}, "
        f"dropout {demand.dropout:g}",
        caption=f"projected: seconds of this machine on one thread, nothing computed ahead; links as "
        f"told; {demand.train_s:g} s of training a round; nobody waits for who is missing, and what is "
        f"done again is counted. GB are of 2^30 bytes, of all clients. USD for {demand.rounds} rounds, "
        f"by prices {demand.prices.name!r}{_egress(demand)}",
    )
    for heading in (
        "seconds of",
        "a round",
        "encode+\nencrypt",
        "add, a\nclient",
        "decrypt+\ndecode",
        "other\nstages",
        "GB a\nround",
        "USD",
    ):
        name = heading == "seconds of"
        out.add_column(
            heading,
            justify="left" if name else "right",
            no_wrap=not name,
            min_width=18 if name else None,
        )
    for row in answer.ranked:
        out.add_row(*_cells(row), end_section=row is answer.ranked[-1])
    out.add_row(*_cells(answer.plain))
    return out


def _egress(demand: Demand) -> str:
    """What leaving costs, where it is one price for all clients."""
    prices = demand.prices.on(demand.wan)
    sites = {prices.egress(site.name) for site in demand.wan.sites}
    if len(sites) > 1:
        return ", site by site"
    return (
        f": {min(sites):.3g} for a GB that leaves a client, {prices.egress(SERVER):.3g} the server"
    )


def reasons(answer: Advice) -> Table:
    """Why not the others."""
    out = Table("excluded", "because", box=box.SIMPLE_HEAD)
    for each in answer.excluded:
        out.add_row(each.name, Text("; ".join(each.reasons)))  # brackets are no markup
    return out


def _cells(row: Prediction) -> tuple[str, ...]:
    seconds = (row.round_s, row.encrypt_s, row.add_s, row.decrypt_s, row.exchange_s)
    shown = [_short(one) if one else "" for one in seconds]
    return (row.name, *shown, f"{row.round_gb:.3g}", f"{row.usd:.3g}")


def _short(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds >= 0.01 else f"{seconds:.2g}"


def to_json(answer: Advice) -> str:
    """Everything, as one JSON document."""
    demand = asdict(answer.demand)
    document = {
        "machine": machine(),
        "asked": demand,
        "ranked": [asdict(row) for row in answer.ranked],
        "plain": asdict(answer.plain),
        "excluded": [asdict(row) for row in answer.excluded],
        "roster": answer.roster,
        "advice": answer.sentence(),
    }
    return json.dumps(document, indent=2)
