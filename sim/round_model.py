"""One synchronous round on a network: who works, who sends, who waits.

A round runs from the sum of the last one, in the server's hands, to its own. The server sends that sum
to everybody at once; each client receives it, opens it (`decrypt_s`), trains, encodes and encrypts, and
uploads; the server adds uploads one after the other as they arrive; stages that follow, such as SASH's
unmasking, begin when all of that is done, and ask those alone whose uploads came, all of whom answer.
Beside its stages, a round so has one download and one upload a client, and nobody waits between
opening a sum and training.

What is assumed:

- A transfer takes the link's latency, and its bytes at the link's speed. Links are full duplex. A
  server's link of finite speed is shared fairly among transfers that are under way at a time: each has
  an equal part, or as much as its client's link takes, and the rest is for the others (max-min). A
  message of no bytes is none, and takes no time.
- The server adds on one thread, in the order of arrival. Nothing else of it takes time but `server_s`
  of the stages.
- Who drops out is gone before the round: it receives and sends nothing. The server cannot know, and
  waits until `timeout_s`, counted from the start of the round; who has not uploaded by then is given up
  on, in whatever it does, and is no survivor either. When all uploads are there, nobody waits longer.
- Work that needs no update, such as masks computed ahead (`prepare_s`), is done while a client would
  wait: in its transfers, in the server's time, and while others are slower. Only where that is too
  short for it does it show, as encryption. How that in turn shifts others' waiting is not followed up.
- Key agreement, evaluation and Flower's own time for a message are no part of it.

Fair sharing has an effect that surprises: where the server's link limits, a client that becomes faster
can make the round longer, since its upload then takes a part of the link while a slow one needs it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flhe.errors import ConfigError, FlheError
from flhe.sim.round_clients import Client, send
from flhe.sim.toml_files import check_amounts
from flhe.sim.wan import Link


@dataclass(frozen=True, slots=True)
class Exchange:
    """One more stage of a round: the server asks everybody, who answer.

    Parameters
    ----------
    name : str
    up_bytes, down_bytes : int
        Of one client's answer, and of what it is asked.
    client_s, server_s : float
        Seconds of one client's work before it answers, of the server's after the last answer.
    """

    name: str
    up_bytes: int
    down_bytes: int
    client_s: float
    server_s: float

    def __post_init__(self) -> None:
        amounts = {"up_bytes": self.up_bytes, "down_bytes": self.down_bytes}
        seconds = {"client_s": self.client_s, "server_s": self.server_s}
        check_amounts(f"Exchange {self.name}", **amounts, **seconds)


@dataclass(frozen=True, slots=True)
class Work:
    """What a round asks of each client, and of the server.

    Parameters
    ----------
    train_s, encrypt_s, decrypt_s : float
        Seconds of one client that is as fast as it was measured: training; encoding and encrypting
        its update; opening and decoding a sum.
    add_s : float
        Seconds of the server for each upload.
    upload_bytes, download_bytes : int
        One client's update, and the sum or model that it receives.
    exchanges : tuple[Exchange, ...]
        Further stages, in order.
    prepare_s : float
        Seconds of one client that can be spent at any time before it encrypts.
    """

    train_s: float
    encrypt_s: float
    decrypt_s: float
    add_s: float
    upload_bytes: int
    download_bytes: int
    exchanges: tuple[Exchange, ...] = ()
    prepare_s: float = 0.0

    def __post_init__(self) -> None:
        names = ("train_s", "encrypt_s", "decrypt_s", "add_s", "prepare_s")
        amounts = {name: getattr(self, name) for name in (*names, "upload_bytes", "download_bytes")}
        check_amounts("Work", **amounts)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where one client's round went; its seconds but `total_s` add up to that.

    Parameters
    ----------
    train_s, encrypt_s, decrypt_s : float
        Its own work; that of exchanges counts as decryption.
    transfer_s : float
        Its own messages under way, both ways.
    idle_s : float
        It waits for others.
    server_s : float
        All wait for the server: additions after the last upload, and its part of exchanges.
    total_s : float
        The round.
    bytes_up, bytes_down : int
        What it sent and received; of a transfer that was cut short, the part that went through.
    survivors : int
        Clients whose updates are in the sum.
    survived : bool
        Whether its own is.
    """

    train_s: float
    encrypt_s: float
    decrypt_s: float
    transfer_s: float
    idle_s: float
    server_s: float
    total_s: float
    bytes_up: int
    bytes_down: int
    survivors: int
    survived: bool = True


def simulate(
    work: Work,
    links: Sequence[Link],
    *,
    server: Link | None = None,
    slow: Sequence[float] = (),
    dropouts: Collection[int] = (),
    timeout_s: float | None = None,
) -> tuple[Breakdown, ...]:
    """Play one round, of many alike.

    Parameters
    ----------
    work : Work
    links : sequence of Link
        One a client.
    server : Link, optional
        Shared by all; None where it never limits.
    slow : sequence of float
        By what factor each client's work takes longer than measured; all 1 when empty.
    dropouts : collection of int
        Ranks of clients that are gone.
    timeout_s : float, optional
        Seconds after which the server goes on without those that are missing.

    Returns
    -------
    tuple[Breakdown, ...]
        One a client.

    Raises
    ------
    ConfigError
        Ranks or factors that do not fit the links; dropouts with nothing that ends the wait for them.
    FlheError
        No upload came within `timeout_s`.
    """
    factors = tuple(slow) or (1.0,) * len(links)
    _check(links, factors, dropouts, timeout_s)
    ahead = [0.0] * len(links)  # of each client's preparation, what finds no time while it waits
    found = _play(work, links, server, factors, ahead, dropouts, timeout_s)
    if work.prepare_s:
        for rank, seen in enumerate(found):
            rest = work.prepare_s * factors[rank] - seen.transfer_s - seen.server_s
            ahead[rank] = rest if rest > seen.idle_s else 0.0
        found = _play(work, links, server, factors, ahead, dropouts, timeout_s)
    return found


def typical(
    breakdowns: Iterable[Breakdown], which: Literal["slowest", "median"] = "slowest"
) -> Breakdown:
    """One client for all: of those that survived, who waits least for others, or the median.

    FlheError where none survived.
    """
    survivors = sorted((b for b in breakdowns if b.survived), key=lambda b: b.idle_s)
    if not survivors:
        raise FlheError("no client survived the round: there is no typical one")
    return survivors[0 if which == "slowest" else len(survivors) // 2]


def _check(
    links: Sequence[Link],
    factors: Sequence[float],
    dropouts: Collection[int],
    timeout_s: float | None,
) -> None:
    if not links:
        raise ConfigError("links: a round has at least one client")
    if len(factors) != len(links):
        raise ConfigError(f"slow: {len(factors)} factors for {len(links)} clients")
    for factor in factors:
        if not (math.isfinite(factor) and factor > 0):
            raise ConfigError(f"slow: a factor of {factor} must be finite and positive")
    for rank in dropouts:
        if not 0 <= rank < len(links):
            raise ConfigError(f"dropouts: there is no client {rank} among {len(links)}")
    if dropouts and timeout_s is None:
        raise ConfigError("dropouts without timeout_s: the server would wait for them forever")
    if timeout_s is not None and not (math.isfinite(timeout_s) and timeout_s > 0):
        raise ConfigError(f"timeout_s={timeout_s}: must be finite and positive; None waits for all")


def _play(
    work: Work,
    links: Sequence[Link],
    server: Link | None,
    factors: Sequence[float],
    ahead: Sequence[float],
    dropouts: Collection[int],
    timeout_s: float | None,
) -> tuple[Breakdown, ...]:
    until = math.inf if timeout_s is None else timeout_s
    clients = [Client(link, slow, until) for link, slow in zip(links, factors, strict=True)]
    for rank in dropouts:
        clients[rank].cut = True
    send(clients, "down", work.download_bytes, server)
    for client, more in zip(clients, ahead, strict=True):
        client.spend("decrypt_s", work.decrypt_s * client.slow)
        client.spend("train_s", work.train_s * client.slow)
        client.spend("encrypt_s", work.encrypt_s * client.slow + more)
    send(clients, "up", work.upload_bytes, server)

    there = [client for client in clients if not client.cut]
    if not there:
        raise FlheError(f"no upload within timeout_s={timeout_s}: give clients longer")
    arrivals = sorted(client.now_s for client in there)
    last = arrivals[-1] if len(there) == len(links) else until
    added = 0.0
    for arrival in arrivals:
        added = max(added, arrival) + work.add_s
    now, server_s = max(last, added), max(added - last, 0.0)
    for client in there:
        client.wait(last)
        client.now_s, client.until_s = now, math.inf
    for exchange in work.exchanges:
        send(there, "down", exchange.down_bytes, server)
        for client in there:
            client.spend("decrypt_s", exchange.client_s * client.slow)
        send(there, "up", exchange.up_bytes, server)
        last = max(client.now_s for client in there)
        now, server_s = last + exchange.server_s, server_s + exchange.server_s
        for client in there:
            client.wait(last)
            client.now_s = now
    for client in clients:
        if client.cut:
            client.wait(now)
    return tuple(
        Breakdown(
            **client.spent,
            idle_s=client.idle_s,
            server_s=0.0 if client.cut else server_s,
            total_s=now,
            bytes_up=client.bytes["up"],
            bytes_down=client.bytes["down"],
            survivors=len(there),
            survived=not client.cut,
        )
        for client in clients
    )
