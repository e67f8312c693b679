"""Nodes under a clock of their own, whose machines and messages fail as they are told.

Everything happens in one thread and in one order: what is late waits in a queue until the clock has
come so far. What must always hold is watched from inside, by wrapping what encrypts and what opens;
`Watch.wrong` has breaches.
"""

from __future__ import annotations

import functools
import heapq
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
from flwr.app import Message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.node.journal import Journal
from flhe.schemes.esafl.adder import EsaflOpener, EsaflSealer
from flhe.schemes.flashe.adder import FlasheOpener, FlasheSealer
from flhe.schemes.sash.adder import SashOpener, SashSealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.model import Model
from flhe.wire import codes
from tests.strategies.puppets import Clock

SHM = Path("/dev/shm")

What = Literal[
    "lose request",
    "lose reply",
    "late request",
    "late reply",
    "twice request",
    "late copy",
    "twice reply",
    "stale reply",
    "unavailable",
    "app fails",
    "kill",
]


class Killed(BaseException):
    """The end of a process, wherever it was."""


@dataclass
class Fault:
    """What goes wrong with the next message of `stage` to `node`; "" stands for any stage."""

    what: What
    amount: int = 0
    """Seconds late, or the disk write that a node does not survive."""
    node: int = 0
    stage: str = ""
    after: int = 0
    """How many such messages pass before."""
    torn: bool = False
    """Whether the file that it wrote last is cut short."""


def faults(amounts: Sequence[int], writes: int, **where: Any) -> st.SearchStrategy[Fault]:
    """Messages that are lost, late or doubled, and nodes that die over one."""
    kinds = [what for what in get_args(What) if what != "kill"]
    disturbed = st.builds(Fault, st.sampled_from(kinds), st.sampled_from(amounts), **where)
    killed = st.builds(Fault, st.just("kill"), st.integers(1, writes), **where, torn=st.booleans())
    return disturbed | disturbed | killed


@dataclass
class Made:
    """An update that a node encrypted."""

    asked: int
    """The server's run that asked for it."""
    node: int
    slot: Slot
    lanes: NDArray[Any]
    data: bytes
    coords: NDArray[np.uint32] | None = None
    beside: bool = False
    """These are no update: mean squares, which travel before it, or an evaluation after it."""


def data_of(sealed: Sealed) -> bytes:
    """What must not change of an update."""
    return sealed.mode.encode() + sealed.data.tobytes()


def summed(parts: list[Made]) -> NDArray[np.int64]:
    """What a sum of these opens to: values of the coordinates that somebody sent, then extras."""
    if parts[0].coords is None:
        return np.sum([part.lanes for part in parts], axis=0)
    union = np.unique(np.concatenate([part.coords for part in parts]))
    values = np.zeros(union.size, np.int64)
    extras = np.zeros(parts[0].lanes.size - parts[0].coords.size, np.int64)
    for part in parts:
        values[np.searchsorted(union, part.coords)] += part.lanes[: part.coords.size]
        extras += part.lanes[part.coords.size :]
    return np.concatenate([values, extras])


class Watch:
    """Nodes, a clock and a queue; breaches of what must always hold.

    Parameters
    ----------
    path : Path
        Where state directories are.
    log : logging.Handler
        What hears all that is said aloud; thousands of runs would fill the memory.
    clocked : sequence of module
        Modules whose time is the clock's.
    """

    strict = False
    """Whether no mask may be used twice, not even for the same values."""

    def __init__(self, path: Path, log: logging.Handler, clocked: Sequence[Any]) -> None:
        self.path, self.clock = path, Clock()
        self.sites: list[Any] = []
        self.actor: int | None = None
        self.asked = 0
        self.wrong: list[str] = []
        self.refused: set[int] = set()
        self.made: dict[tuple[Slot, int], Made] = {}
        self.opened: dict[tuple[str, int, int, str], bytes] = {}
        self.models: dict[tuple[str, int, bytes], bytes] = {}
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.snapshot: Path | None = None
        self.fails: Callable[[], BaseException] = Killed
        """What a process is met by where it is to die."""
        self._count = self._dies = 0
        self._torn = self.app_fails = False
        self.patch = pytest.MonkeyPatch()
        for name in ("flwr", "flhe"):
            self.patch.setattr(logging.getLogger(name), "handlers", [log])
            self.patch.setattr(logging.getLogger(name), "propagate", False)
        for module in clocked:
            self.patch.setattr(module, "time", self.clock)
        self.patch.setattr(os, "fsync", self.fsync)
        for sealer in (FlasheSealer, SashSealer, EsaflSealer):
            self.wrap(sealer, "encrypt", after=self.encrypts)
        for opener in (FlasheOpener, SashOpener, EsaflOpener):
            self.wrap(opener, "decrypt", self.opens, self.sums)

    def close(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.path)

    def wrap(self, kind: type, name: str, before: Any = None, after: Any = None) -> None:
        """Call `before` with what a method is called with, and `after` with what it gave, too."""
        honest = getattr(kind, name)

        @functools.wraps(honest)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if before is not None:
                before(*args, **kwargs)
            value = honest(*args, **kwargs)
            if after is not None:
                after(value, *args, **kwargs)
            return value

        self.patch.setattr(kind, name, wrapped)

    def breach(self, text: str) -> None:
        self.wrong.append(text)

    def count(self) -> int:
        """The next of a row of numbers: what comes later has a higher one."""
        self._count += 1
        return self._count

    # --- messages ---

    def post(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something arrive later; what is due at one time arrives in order."""
        heapq.heappush(self.queue, (self.clock.now + seconds, self.count(), what))

    def arrive(self) -> None:
        """Let what is due by now arrive."""
        while self.queue and self.queue[0][0] <= self.clock.now:
            heapq.heappop(self.queue)[2]()

    def deliver(
        self,
        fault: Fault | None,
        serve: Callable[[], Message | None],
        hear: Callable[[Message], None],
    ) -> None:
        """Send a message, and see what becomes of it: `serve` is its node, `hear` who asked."""
        what, amount = (fault.what, fault.amount) if fault else ("", 0)

        def arrives() -> None:
            reply = serve()
            if reply is not None and what != "lose reply":
                for _ in range(2 if what == "twice reply" else 1):
                    self.post(amount if what == "late reply" else 0, lambda: hear(reply))

        if what not in ("lose request", "unavailable"):
            self.post(amount if what == "late request" else 0, arrives)
        if what in ("twice request", "late copy"):
            self.post(amount if what == "late copy" else 0, arrives)

    # --- nodes ---

    def act(self, node: int, fault: Fault | None, ask: Callable[[], Message]) -> Message | None:
        """What a node answers; None if it dies over it. A refusal is a code that is known."""
        self.actor = node
        kills = fault is not None and fault.what == "kill"
        self._dies, self._torn = (fault.amount, fault.torn) if kills else (0, False)
        self.app_fails = fault is not None and fault.what == "app fails"
        try:
            reply = ask()
        except Killed:
            return None
        except BaseException as error:
            self.breach(f"node {node} raised {error!r}")
            return None
        finally:
            self.actor, self._dies, self.app_fails = None, 0, False
        if reply.has_error():
            self.refused.add(reply.error.code)
            refusal = codes.find(reply.error.code)
            if refusal is None or reply.error.reason != refusal.slug:
                self.breach(f"node {node} answered {reply.error.reason!r}")
            if refusal is codes.INTERNAL:
                log = (self.sites[node].home / "errors.log").read_text()
                self.breach(f"node {node} failed: {log[-1500:]}")
        return reply

    def fsync(self, handle: int) -> None:
        """A node may die here: before a file is known to be on disk, or behind that."""
        if self.actor is not None:
            self._dies -= bool(left := self._dies)
            self.die(handle, left, self._torn)

    def die(self, handle: int, left: int, torn: bool) -> None:
        """The end of a process, if this is its last write."""
        if left == 1:
            if torn and stat.S_ISREG(os.fstat(handle).st_mode):
                os.ftruncate(handle, 0)
            raise self.fails()

    def identity(self, node: int) -> str:
        """What tells a node from one that began anew in the same place."""
        path = self.sites[node].home / "identity.key"
        return path.read_bytes().hex() if path.exists() else ""

    def save(self, node: int) -> None:
        if self.sites[node].home.exists():
            self.snapshot = self.path / f"copy-{self.count()}"
            shutil.copytree(self.sites[node].home, self.snapshot)

    def put_back(self, node: int) -> None:
        """Put the last copy in the place of a node's state directory, whosever it was."""
        if self.snapshot is not None:
            shutil.rmtree(self.sites[node].home, ignore_errors=True)
            shutil.copytree(self.snapshot, self.sites[node].home)

    # --- what must hold ---

    def encrypts(self, sealed: Sealed, sealer: Any, plain: Plain, slot: Slot, **_: Any) -> None:
        """No mask is used for two updates."""
        lanes = np.concatenate([plain.values, plain.extras]).astype(np.int64)
        beside, data = plain.values.size == 0, data_of(sealed)
        made = Made(self.asked, self.actor, slot, lanes, data, plain.coords, beside)
        before = self.made.setdefault((slot, sealer.rank), made)
        if before is not made and (self.strict or before.data != data):
            self.breach(f"a mask is used twice: round {slot.round}, attempt {slot.attempt}")
        self.made[slot, sealer.rank] = made

    def opens(self, _opener: Any, total: Sealed) -> None:
        """A node opens one sum of a round, once it is written down that it does."""
        slot, digest, node = total.slot, total.digest(), self.actor
        what = slot.purpose if self.made[slot, total.senders[0]].beside else "update"
        key = self.identity(node), slot.run_id, slot.round, what
        if self.opened.setdefault(key, digest) != digest:
            self.breach(f"node {node} {what}: two sums of round {slot.round}")
        path = self.sites[node].home / "runs" / str(slot.run_id) / "journal"
        journal = Journal.from_bytes(path.read_bytes())
        if journal.opened.get(what, {}).get(slot.round) != digest:
            self.breach(f"node {node} {what} of round {slot.round} before it was recorded")

    def sums(self, lanes: NDArray[Any], _opener: Any, total: Sealed) -> None:
        """What is opened is the sum of what its senders encrypted."""
        parts = [self.made[total.slot, rank] for rank in total.senders]
        if not np.array_equal(summed(parts), lanes):
            self.breach(f"the sum of round {total.slot.round} is not what its senders sent")

    def look(self) -> None:
        for path in (path for site in self.sites for path in site.home.glob("runs/*/model")):
            data = path.read_bytes()
            model = Model.from_bytes(data)
            key = path.parent.name, model.round, model.history
            if self.models.setdefault(key, data) != data:
                self.breach(f"two members differ at round {model.round}")


class Machine(RuleBasedStateMachine):
    """A machine over what is watched, which in the end is left in peace."""

    world: Any = None

    @invariant()
    def nothing_was_wrong(self) -> None:
        assert self.world is None or not self.world.wrong, "\n".join(self.world.wrong)

    def teardown(self) -> None:
        if self.world is not None:
            try:
                self.goes_on()
                self.nothing_was_wrong()
            finally:
                self.world.close()

    def goes_on(self) -> None:
        """A federation that is left in peace gets on."""
        raise NotImplementedError


def fast_directory() -> Path:
    """A directory of its own, in memory where there is such a place."""
    return Path(tempfile.mkdtemp(prefix="flhe-", dir=SHM if SHM.is_dir() else None))


def run_machine(machine: type[Machine], runs: int, steps: int) -> None:
    how = settings(
        max_examples=runs,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=how)
