"""One synchronous round on a network: who works, who sends, who waits.

A round runs from the sum of the last one, in the server's hands, to its own. The server sends that sum
to everybody at once; each client receives it, opens it (`decrypt_s`), trains, encodes and encrypts, and
uploads; the server adds uploads one after the other as they arrive; stages that follow, such as SASH's
unmasking, begin when all of that is done.

What is assumed:

- A transfer takes the link's latency, and its bytes at the link's speed. Links are full duplex, the
  server's never limits. A message of no bytes takes no time.
- The server adds on one thread, in the order of arrival. Nothing else of it takes time but `server_s`.
- All clients work alike, and nobody drops out.
- Work that needs no update, such as masks computed ahead (`prepare_s`), is done while a client would
  wait. Only where that is too short for it does it show, as encryption. How that in turn shifts others'
  waiting is not followed up.
- Key agreement, evaluation and Flower's own time for a message are no part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flhe_lab.advise.wan import MEGABIT, Link

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Exchange:
    """One more stage of a round: the server asks everybody, who answer."""

    name: str
    up_bytes: int  # Of one client's answer
    down_bytes: int  # Of what one client is asked
    client_s: float  # Seconds of one client's work before it answers
    server_s: float  # Seconds of the server's work after the last answer


@dataclass(frozen=True, slots=True)
class Work:
    """What a round asks of each client, and of the server."""

    train_s: float  # Seconds of one client that is as fast as it was measured
    encrypt_s: float  # The same: encoding and encrypting its update
    decrypt_s: float  # The same: opening and decoding a sum
    add_s: float  # Seconds of the server for each upload
    upload_bytes: int  # One client's update
    download_bytes: int  # The sum or model that it receives
    exchanges: tuple[Exchange, ...] = ()  # Further stages, in order
    prepare_s: float = 0.0  # Seconds of one client that can be spent at any time before it encrypts


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where one client's round went; its seconds but `total_s` add up to that."""

    train_s: float  # Its own work
    encrypt_s: float  # The same
    decrypt_s: float  # The same, with that of exchanges
    transfer_s: float  # Its own messages under way, both ways
    idle_s: float  # It waits for others
    server_s: float
    """All wait for the server: additions after the last upload, and its part of exchanges."""
    total_s: float  # The round
    bytes_up: int  # What it sent
    bytes_down: int  # What it received


def simulate(work: Work, links: Sequence[Link]) -> tuple[Breakdown, ...]:
    """Play one round, of many alike; returns where each client's time went.

    `links` has one a client, at least one.
    """
    ahead = [0.0] * len(links)  # of each client's preparation, what finds no time while it waits
    found = _play(work, links, ahead)
    if work.prepare_s:
        for rank, seen in enumerate(found):
            rest = work.prepare_s - seen.transfer_s - seen.server_s
            ahead[rank] = rest if rest > seen.idle_s else 0.0
        found = _play(work, links, ahead)
    return found


def typical(breakdowns: Iterable[Breakdown]) -> Breakdown:
    """One client for all: who waits least for others."""
    return min(breakdowns, key=lambda b: b.idle_s)


def _play(work: Work, links: Sequence[Link], ahead: Sequence[float]) -> tuple[Breakdown, ...]:
    now, idle = np.zeros((2, len(links)))
    own = ("train_s", "encrypt_s", "decrypt_s", "transfer_s")
    spent = dict(zip(own, np.zeros((len(own), len(links))), strict=True))
    server_s = 0.0

    def spend(what: str, seconds: Floats | float) -> None:
        """Have all be busy with `what` that long."""
        spent[what] += seconds
        now[:] += seconds

    def send(way: Literal["up", "down"], nbytes: int) -> None:
        """Move a message of each client, all of one size."""
        if nbytes:
            speeds = [getattr(link, f"{way}_mbps") * MEGABIT / 8 for link in links]
            spend("transfer_s", nbytes / np.array(speeds) + [link.latency_s for link in links])

    def serve(seconds: float) -> None:
        """Have all wait for the last one, and then so long for the server."""
        nonlocal server_s
        last = float(now.max())
        idle[:] += last - now
        now[:] = last + seconds
        server_s += seconds

    send("down", work.download_bytes)
    for what in ("decrypt_s", "train_s", "encrypt_s"):
        spend(what, getattr(work, what) + (np.array(ahead) if what == "encrypt_s" else 0.0))
    send("up", work.upload_bytes)
    done = 0.0
    for arrival in np.sort(now).tolist():
        done = max(done, arrival) + work.add_s
    serve(done - float(now.max()))
    for exchange in work.exchanges:
        send("down", exchange.down_bytes)
        spend("decrypt_s", exchange.client_s)
        send("up", exchange.up_bytes)
        serve(exchange.server_s)
    up = work.upload_bytes + sum(exchange.up_bytes for exchange in work.exchanges)
    down = work.download_bytes + sum(exchange.down_bytes for exchange in work.exchanges)
    return tuple(
        Breakdown(
            **{what: float(seconds[i]) for what, seconds in spent.items()},
            idle_s=float(idle[i]),
            server_s=server_s,
            total_s=float(now[i]),
            bytes_up=up,
            bytes_down=down,
        )
        for i in range(len(links))
    )
