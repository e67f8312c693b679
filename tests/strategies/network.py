"""Nodes and what carries their messages, under a clock of its own.

Everything happens in one thread; what is late waits in a queue until the clock has come so far. What
must always hold is watched by `tests.strategies.watching`; `tests.strategies.relay` says what is asked.
"""

from __future__ import annotations

import heapq
import logging
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
from flwr.app import ConfigRecord, Message

from flhe.mods import records
from flhe.node import store as store_module
from flhe.schemes.sealed import Sealed
from tests.mods.harness import CONFIG, SECRET, App, Site, initial
from tests.strategies.chaos import Clock, Killed
from tests.strategies.watching import Watch

SIZE = 4
VICTIM = 0
"""The one node whose directory is put back: one may be rolled back with its whole machine, unnoticed,
and a sum takes more of them."""

What = Literal[
    "arrives",
    "lose request",
    "lose reply",
    "late request",
    "late reply",
    "twice",
    "late copy",
    "app fails",
    "kill",
]


@dataclass(frozen=True)
class Fate:
    """What becomes of one message.

    Parameters
    ----------
    what : str
        See `What`.
    amount : int
        Seconds late, or the disk write that a node does not survive.
    """

    what: What = "arrives"
    amount: int = 0


@dataclass(frozen=True)
class Letter:
    """A message as it was sent: it can be delivered any number of times."""

    site: int
    stage: str
    kind: str
    content: Mapping[str, Any]
    fields: Mapping[str, Any]
    sums: tuple[Sealed, ...]
    epoch: int
    """Which agreement of the relay's it belongs to."""
    among: tuple[int, ...] = ()
    """Ranks of the set that it is about."""

    def records(self) -> dict[str, Any]:
        """Fresh ones: a node takes apart what it gets."""
        made = {**self.content, "config": ConfigRecord(dict(CONFIG)), "arrays": initial()}
        for i, total in enumerate(self.sums):
            made[f"{records.SUM}.{i}"] = records.from_sealed(total)
        return made


class Moody(App):
    """An app that fails when it is told to, with words that must not travel."""

    fails = False

    def content(self, message: Message) -> Any:
        if self.fails:
            raise ValueError(SECRET)
        return super().content(message)


class Network:
    """Nodes, the messages between them and a relay, and what becomes of both."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = Clock()
        self.sites = [self.process(i) for i in range(SIZE)]
        self.watch = Watch(self.sites)
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.sent: list[Letter] = []
        self.copies = 0
        self.copy: Path | None = None
        self._count, self._dies, self._torn = 0, 0, False
        self._patch = pytest.MonkeyPatch()
        for name in ("flwr", "flhe"):  # what thousands of runs log would fill the memory
            self._patch.setattr(logging.getLogger(name), "handlers", [logging.NullHandler()])
            self._patch.setattr(logging.getLogger(name), "propagate", False)
        self._patch.setattr(store_module, "time", self.clock)
        self._patch.setattr(os, "fsync", self._fsync)
        self.watch.begin(self._patch)

    def close(self) -> None:
        """Undo what was patched, and remove the directories."""
        self._patch.undo()
        shutil.rmtree(self.path)

    # --- nodes ---

    def process(self, index: int) -> Site:
        """A process of a node, which knows its directory and nothing else."""
        home = self.path / f"node-{index}"
        return Site(home, index, app=Moody(step=0.125 * (index + 1), examples=10 + 20 * index))

    def restart(self, index: int) -> None:
        """End a node's process, and begin another."""
        self.sites[index] = self.process(index)

    def save(self) -> None:
        """Copy the victim's directory."""
        if self.sites[VICTIM].home.exists():
            self.copies += 1
            self.copy = self.path / f"copy-{self.copies}"
            shutil.copytree(self.sites[VICTIM].home, self.copy)

    def put_back(self) -> None:
        """Put the last copy in its place."""
        if self.copy is not None:
            shutil.rmtree(self.sites[VICTIM].home)
            shutil.copytree(self.copy, self.sites[VICTIM].home)
            self.restart(VICTIM)

    def handle(self, letter: Letter, fate: Fate) -> Message | None:
        """What a node answers; None if it dies over it."""
        site, began = self.sites[letter.site], self.clock.now
        self._dies = fate.amount if fate.what == "kill" else 0
        self._torn = fate.amount % 2 == 0
        site.app.fails = fate.what == "app fails"
        self.watch.actor = letter.site
        try:
            reply = site.ask(letter.stage, letter.kind, letter.records(), **letter.fields)
        except Killed:
            self.restart(letter.site)
            return None
        except BaseException as error:
            self.watch.breach(f"node {letter.site} raised {error!r} at {letter.stage}")
            return None
        finally:
            self.watch.actor, self._dies, site.app.fails = None, 0, False
        if self.clock.now != began:
            self.watch.breach(f"node {letter.site} waited at {letter.stage}")
        self.watch.reads(letter.site, reply)
        return reply

    def _fsync(self, handle: int) -> None:
        """A node may die here: before a file is known to be on disk, or behind that."""
        if self.watch.actor is not None and self._dies:
            self._dies -= 1
            if not self._dies:
                if self._torn and stat.S_ISREG(os.fstat(handle).st_mode):
                    os.ftruncate(handle, 0)
                raise Killed

    # --- messages ---

    def post(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something arrive later; what is due at one time arrives in order."""
        self._count += 1
        heapq.heappush(self.queue, (self.clock.now + seconds, self._count, what))

    def pass_time(self, seconds: float) -> None:
        """Let the clock run, and what is due arrive."""
        until = self.clock.now + seconds
        while self.queue and self.queue[0][0] <= until:
            due, _, what = heapq.heappop(self.queue)
            self.clock.now = max(self.clock.now, due)
            what()
        self.clock.now = until

    def send(self, letter: Letter, fate: Fate) -> None:
        """Send it, and see what becomes of it."""
        self.sent.append(letter)
        if fate.what == "lose request":
            return
        self.post(
            fate.amount if fate.what == "late request" else 0, partial(self.serve, letter, fate)
        )
        if fate.what in ("twice", "late copy"):
            late = fate.amount if fate.what == "late copy" else 0
            self.post(late, partial(self.serve, letter, Fate()))

    def serve(self, letter: Letter, fate: Fate) -> None:
        """A message arrives at its node."""
        reply = self.handle(letter, fate)
        if reply is not None and fate.what != "lose reply" and not reply.has_error():
            late = fate.amount if fate.what == "late reply" else 0
            self.post(late, partial(self.hear, letter, reply))

    def hear(self, letter: Letter, reply: Message) -> None:
        """An answer arrives at the relay."""
        raise NotImplementedError
