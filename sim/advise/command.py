"""`flhe advise`: what it reads from the command line."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Annotated

from flhe.answer import Answer
from flhe.command_group import option
from flhe.errors import ConfigError
from flhe_lab.advise.prices import FLASHE, Prices

if TYPE_CHECKING:
    from rich.console import RenderableType

    from flhe_lab.advise.check import Line
    from flhe_lab.advise.wan import Wan

COUNTS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9}
SPEEDS = {
    f"{prefix}{unit}": scale * bits
    for prefix, scale in (("k", 1e-3), ("m", 1.0), ("g", 1e3))
    for unit, bits in (("bps", 1), ("bit/s", 1), ("B/s", 8))
}
"""Units -> what they stand for; in lower case, but for the B of bytes in a speed. Speeds are Mbps."""


_federation, _network, _trust, _privacy = (
    functools.partial(option, rich_help_panel=panel)
    for panel in ("Federation", "Machines and network", "Trust", "Differential privacy")
)


def advise(
    params: Annotated[str, _federation("Values of the model, such as 25M or 1.2k.")],
    clients: Annotated[int, _federation("Clients of a round.")],
    uplink: Annotated[str, _network("Uplink of each client, such as 40Mbps, 1Gbps or 5MB/s.")] = "",
    downlink: Annotated[str, _network("Downlink of each client; default: as --uplink.")] = "",
    wan: Annotated[str, _network("A paper's network by name, or a .toml, instead of links.")] = "",
    dropout: Annotated[
        float, _federation("Chance that a client's update is missing from a round.")
    ] = 0.0,
    rounds: Annotated[int | None, _federation("Rounds to convergence; default: 100.")] = None,
    train: Annotated[float, _federation("Seconds that a client trains in a round.")] = 0.0,
    server_may_see_model: Annotated[
        bool, _trust("The server may read each round's sum.", None, "--server-may-see-model")
    ] = False,
    members_may_collude: Annotated[
        bool,
        _trust(
            "A third of the clients may conspire with the server.", None, "--members-may-collude"
        ),
    ] = False,
    clear_part: Annotated[
        bool, _trust("A part of each update may travel in clear.", None, "--clear-part")
    ] = False,
    sparse: Annotated[
        bool,
        _trust(
            "A tenth of each update may be sent, and the server may see which.", None, "--sparse"
        ),
    ] = False,
    epsilon: Annotated[
        float, _privacy("Privacy budget; print the noise multiplier that keeps to it.")
    ] = 0.0,
    delta: Annotated[float, _privacy("Delta of that budget.")] = 1e-5,
    sampling: Annotated[
        float,
        _privacy("Probability of a record to be in a round's batch; 1: of members."),
    ] = 1.0,
    client_usd: Annotated[
        float, _network("USD an hour of a client's machine.")
    ] = FLASHE.client_usd_per_hour,
    server_usd: Annotated[
        float, _network("USD an hour of the server's machine.")
    ] = FLASHE.server_usd_per_hour,
    calibrate: Annotated[
        bool, option("Measure this machine anew: half a minute.", None, "--calibrate")
    ] = False,
    check: Annotated[
        bool, option("The same, and compare predictions with measurements.", None, "--check")
    ] = False,
) -> Answer:
    """Rank the schemes for a federation by seconds a round, with the reasons against the others.

    The first run measures the speed of each scheme on this machine, for half a minute.
    """
    from flhe_lab.advise import calibration, ranking, report
    from flhe_lab.advise import check as checking
    from flhe_lab.advise.demand import ROUNDS, Demand
    from flhe_lab.bench.table import progress

    demand = Demand(
        round(quantity("--params", params, COUNTS, "25M, 1.2k or 1_200_000")),
        clients,
        network(uplink, downlink, wan, clients),
        Prices(client_usd, server_usd),
        dropout=dropout,
        rounds=ROUNDS if rounds is None else rounds,
        train_s=train,
        server_may_see_model=server_may_see_model,
        clear_part=clear_part,
        sparse=sparse,
        members_may_collude=members_may_collude,
    )
    lines: list[Line] = []
    with progress() as advance:
        if check:
            speeds, lines = checking.checked(advance)
        else:
            speeds = calibration.load(renew=calibrate, progress=advance)
    answer = ranking.advise(demand, speeds)
    shown: list[RenderableType] = [checking.table(lines)] if check else []
    shown += [report.table(answer), *report.reasons(answer), answer.sentence()]
    if epsilon:
        shown.append(report.noise(epsilon, delta, sampling, demand.rounds))
    off = any(line.verdict == "OFF" for line in lines)
    return Answer(report.to_data(answer, lines), *shown, failed=off)


def quantity(option: str, text: str, units: dict[str, float], like: str) -> float:
    """A number above 0 with its unit, such as 25M or 40Mbps, in what `units` stand for.

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


def network(uplink: str, downlink: str, name: str, clients: int) -> Wan:
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
        return wan.named(name)
    down = speed("--downlink", downlink) if downlink else None
    return wan.uniform(speed("--uplink", uplink), down, clients)
