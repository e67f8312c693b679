"""Clients in a round: where the time of each goes, and how their messages share a link."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from flhe.sim.wan import MEGABIT, Link


class Client:
    """One client's round so far: where its time went, until it is given up on (`cut`)."""

    def __init__(self, link: Link, slow: float, until_s: float) -> None:
        self.link = link
        self.slow = slow
        self.until_s = until_s
        self.now_s = 0.0
        self.cut = False
        self.spent = dict.fromkeys(("train_s", "encrypt_s", "decrypt_s", "transfer_s"), 0.0)
        self.bytes = {"up": 0, "down": 0}
        self.idle_s = 0.0

    def spend(self, what: str, seconds: float) -> None:
        """Be busy with `what` that long, or until it is given up on."""
        if self.cut:
            return
        end = self.now_s + seconds
        if end > self.until_s:
            end, self.cut = self.until_s, True
        self.spent[what] += end - self.now_s
        self.now_s = end

    def wait(self, until_s: float) -> None:
        """Be idle until then."""
        self.idle_s += until_s - self.now_s
        self.now_s = until_s


def send(
    clients: Sequence[Client], way: Literal["up", "down"], nbytes: int, server: Link | None
) -> None:
    """Move a message of each client that is not cut, all of one size."""
    senders = [client for client in clients if not client.cut]
    if not (nbytes and senders):
        return
    speeds = [getattr(client.link, f"{way}_mbps") * MEGABIT / 8 for client in senders]
    capacity, latency = math.inf, 0.0
    if server is not None:
        other = server.down_mbps if way == "up" else server.up_mbps
        capacity, latency = other * MEGABIT / 8, server.latency_s
    starts = [client.now_s for client in senders]
    until = senders[0].until_s
    ends = finished(starts, speeds, nbytes, capacity, until)
    for client, (end, left) in zip(senders, ends, strict=True):
        client.bytes[way] += nbytes - math.ceil(left)
        client.spend("transfer_s", end + client.link.latency_s + latency - client.now_s)


def finished(
    starts: Sequence[float], speeds: Sequence[float], nbytes: int, capacity: float, until_s: float
) -> list[tuple[float, float]]:
    """When each transfer's last byte is through, and what is not by `until_s`: bytes left over.

    Speeds and `capacity`, which all share, are bytes a second. What is not through has no end.
    """
    left = [float(nbytes)] * len(starts)
    ends = [math.inf] * len(starts)
    now = min(starts)
    while now < until_s and (open_ := [i for i, end in enumerate(ends) if end == math.inf]):
        under_way = [i for i in open_ if starts[i] <= now]
        rates = fair([speeds[i] for i in under_way], capacity)
        due = [left[i] / rate for i, rate in zip(under_way, rates, strict=True)]
        events = [starts[i] - now for i in open_ if starts[i] > now] + due
        step = min(*events, until_s - now)
        for i, rate, wait in zip(under_way, rates, due, strict=True):
            if wait <= step:
                left[i], ends[i] = 0.0, now + step
            else:
                left[i] = max(left[i] - rate * step, 0.0)
        now += step
    return list(zip(ends, left, strict=True))


def fair(speeds: Sequence[float], capacity: float) -> list[float]:
    """Max-min fair parts of `capacity` for transfers that take no more than their own speed."""
    if capacity == math.inf:
        return list(speeds)
    parts = [0.0] * len(speeds)
    slowest_first = sorted(range(len(speeds)), key=speeds.__getitem__)
    for done, i in enumerate(slowest_first):
        parts[i] = min(speeds[i], capacity / (len(speeds) - done))
        capacity -= parts[i]
    return parts
