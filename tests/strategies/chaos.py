"""A federation under a clock of its own, whose relay, nodes and server fail as they are told.

A node works when its message arrives, and sleeping is what moves the clock. Beside what is watched of
nodes (`tests.strategies.watching`) stands what must hold of a server's runs.
"""

from __future__ import annotations

import heapq
import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flwr.app import Context, Message, RecordDict

from flhe.errors import QuorumError, StoreError
from flhe.mods import HEMod, records
from flhe.strategies import FlasheFedAvg, HEStrategy
from flhe.strategies import federation as federation_module
from flhe.strategies import grid as grid_module
from flhe.strategies import he_strategy as strategy_module
from flhe.testing import UNAVAILABLE, InProcessGrid, _Packed
from flhe.training.session import Session
from flhe.wire import codes
from tests.strategies.puppets import Clock, Node, stage_of
from tests.strategies.reference import Arrays, trained
from tests.strategies.watching import Outcome, Watch

MAX = 64
ROUND, STAGE, CONNECT = 60.0, 10.0, 20.0
"""Seconds that the strategy waits."""

MAX_OPERATIONS = 5000
"""Of the server on the grid, in one run; a run of two rounds takes some hundred."""

MAX_NODES = 5


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


@dataclass
class Site:
    """A node, whatever the grid calls it."""

    home: Path
    config: dict[str, Any]
    there: bool = True


def start_arrays() -> Arrays:
    """A model as small as it can be with floats, a narrow float and integers in it."""
    return {
        "w": np.array([[0.5, -0.25, 0.125]], np.float32),
        "half": np.array([0.25], np.float16),
        "steps": np.array(3, np.int64),
    }


def fast_directory() -> Path:
    """A directory of its own, in memory where there is such a place."""
    return Path(tempfile.mkdtemp(prefix="flhe-", dir=SHM if SHM.is_dir() else None))


class World(Watch):
    """State directories, the clock, the faults to come, and what was seen so far."""

    def __init__(
        self,
        path: Path,
        nodes: int,
        how: dict[str, Any],
        *,
        secret: bool = False,
        make: Callable[..., HEStrategy] = FlasheFedAvg,
    ) -> None:
        super().__init__(path)
        self.clock, self.strategy = Clock(), None
        self.refused: set[int] = set()
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.snapshot: Path | None = None
        self.fails: Callable[[], BaseException] = Killed
        """What a process is met by where it is to die."""
        self._count = self._dies = 0
        self._torn = self.app_fails = False
        for module in (grid_module, strategy_module, federation_module):
            self.patch.setattr(module, "time", self.clock)
        self.patch.setattr(os, "fsync", self.fsync)
        self.how, self.secret, self.make = how, secret, make
        for _ in range(nodes):
            self.add()
        self.app = Node(HEMod(initial=lambda context: records.from_numpy(start_arrays())))
        self.app.trained = self._trained
        self.faults: list[Fault] = []
        self.plans: list[tuple[int, Callable[[], None]]] = []
        self.server_dies = self.server_dies_writing = 0
        self.server_tears = False
        self.served: Counter[int] = Counter()
        self.writes: list[tuple[int | None, int]] = []
        """Whose writes a run of the server had, and over which of the messages to that node."""
        self.operations = self.generation = self.federation = self.target = 0
        self.last: dict[tuple[int, str], RecordDict] = {}
        self.patch.setattr(Session, "threads", 1)

    # --- nodes ---

    def add(self) -> None:
        index = len(self.sites)
        home = self.path / f"node-{index}"
        config = {"partition-id": index, "flhe-home": str(home), "flhe-trust": "first-use"}
        config["flhe-fresh-keys"] = False
        self.sites.append(Site(home, config))

    def wipe(self, index: int) -> None:
        shutil.rmtree(self.sites[index].home, ignore_errors=True)
        self.drafts = {key: kept for key, kept in self.drafts.items() if key[0] != index}

    def save(self, node: int) -> None:
        if self.sites[node].home.exists():
            self.snapshot = self.path / f"copy-{self.count()}"
            shutil.copytree(self.sites[node].home, self.snapshot)

    def put_back(self, node: int) -> None:
        """A backup of a node that knew less, or of another one."""
        if self.snapshot is not None:
            self.wipe(node)
            shutil.copytree(self.snapshot, self.sites[node].home)
            self.restored.add(node)

    def later(self, operation: int, what: Callable[[], None]) -> None:
        """Do something at that operation of the server's next run; now if it is 0."""
        if operation:
            self.plans.append((operation, what))
        else:
            what()

    def take(self, node: int, stage: str) -> Fault | None:
        """The fault that meets a message, which is then used up."""
        for fault in self.faults:
            if fault.node == node and fault.stage in ("", stage):
                fault.after -= 1
                if fault.after < 0:
                    self.faults.remove(fault)
                    return fault
        return None

    def answer(self, node: int, message: Message, context: Context, fault: Fault | None) -> Any:
        """What a node makes of a message; None if it dies over it."""
        self.served[node] += 1
        return self.act(node, fault, lambda: self.app(message, context))

    def _trained(self, arrays: Any, partition: int) -> Arrays:
        if self.app_fails:
            raise ValueError("a patient's name")
        return trained(arrays, partition)

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

    def die(self, handle: int, left: int, torn: bool) -> None:
        """The end of a process, if this is its last write."""
        if left == 1:
            if torn and stat.S_ISREG(os.fstat(handle).st_mode):
                os.ftruncate(handle, 0)
            raise self.fails()

    # --- the server ---

    def operation(self) -> None:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            self.breach("the run does not end")
            raise Killed
        due = [what for at, what in self.plans if at <= self.operations]
        self.plans = [(at, what) for at, what in self.plans if at > self.operations]
        for what in due:
            what()
        if self.server_dies and self.operations == self.server_dies:
            self.server_dies = 0
            raise self.fails()

    def calm(self) -> None:
        """Nothing fails any more, and everybody is there, with an identity of its own."""
        self.faults.clear()
        self.plans.clear()
        self.server_dies = self.server_dies_writing = 0
        known: set[str] = set()
        for index, site in enumerate(self.sites):
            site.there = True
            site.config.pop("flhe-leave", None)
            if self.identity(index) in known:  # what the strategy's error asks for
                self.wipe(index)
            known.add(self.identity(index))

    def rekey(self) -> None:
        if self.strategy is not None:
            self.strategy.rekey()

    def advance(self, rounds: int) -> Outcome:
        """One run of the server: from where the last one stood to `rounds` further than that got."""
        self.generation += 1
        self.operations, self.writes = 0, []
        ledger = self.path / "server" / "ledger"
        resume = ledger.exists()
        if not resume:
            self.federation, self.target = 1000 + self.generation, 0
        if not self.outcomes or self.outcomes[-1][0] == "done" or not resume:
            self.target += rounds
        grid = ChaosGrid(self)
        strategy = self.make(
            max_examples=MAX,
            round_timeout=ROUND,
            stage_timeout=STAGE,
            connect_timeout=CONNECT,
            state_dir=self.path / "server",
            **self.how,
        )
        initial = None if self.secret else records.from_numpy(start_arrays())
        self.strategy, text = strategy, ""
        outcome: Outcome = "done"
        try:
            strategy.start(grid, initial, num_rounds=self.target, resume=resume)
        except QuorumError as error:
            outcome, text = "quorum", str(error)
        except Killed:
            outcome = "killed"
        except (StoreError, ConnectionError) as error:
            outcome, text = "stopped", str(error)
        finally:
            grid.close()
            self.strategy, self.plans = None, []
            self.server_dies = self.server_dies_writing = 0
        self.outcomes.append((outcome, text))
        self.check(strategy)
        return outcome

    def fsync(self, handle: int) -> None:
        """Whoever writes may die here: before a file is known to be on disk, or behind that."""
        self.writes.append((self.actor, self.served[self.actor or 0]))
        if self.actor is not None:
            self._dies -= bool(left := self._dies)
            self.die(handle, left, self._torn)
        else:
            self.server_dies_writing -= bool(left := self.server_dies_writing)
            self.die(handle, left, self.server_tears)


class ChaosGrid(InProcessGrid):
    """A grid of one run of the server, over the nodes of a World, which it calls by other ids."""

    def __init__(self, world: World) -> None:
        self.world = world
        super().__init__(world.app, 0, run_id=1000 + world.generation)
        self._sites: dict[int, int] = {}
        self._again: dict[str, _Packed] = {}

    def _find(self) -> None:
        """Give ids to nodes that are new here."""
        world = self.world
        for index, site in enumerate(world.sites):
            if index not in self._sites.values():
                # Another order every time, for what is sorted by id.
                place = (index * 3 + world.generation) % 7
                node = 1000 * world.generation + 100 + place
                self._sites[node] = index
                self.contexts[node] = Context(
                    run_id=self.run.run_id,
                    node_id=node,
                    node_config=site.config,
                    state=RecordDict(),
                    run_config={},
                )

    def get_node_ids(self) -> list[int]:
        self.world.operation()
        self._find()
        return [n for n in self.contexts if self.world.sites[self._sites[n]].there]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.world.operation()
            self.world.sees(message.content)
            node = message.metadata.dst_node_id
            if not self.world.sites[self._sites[node]].there:
                ids.append("")
                continue
            self._count += 1
            ids.append(f"{self._count:064x}")
            self._send(node, message, ids[-1])
        return ids

    def _send(self, node: int, message: Message, name: str) -> None:
        world, index, stage = self.world, self._sites[node], stage_of(message.content)
        fault = world.take(index, stage)
        what, amount = (fault.what, fault.amount) if fault else ("", 0)
        copies = 2 if what in ("twice request", "late copy") else 1
        packed = [self._pack("down", node, message, name) for _ in range(copies)]
        if what == "unavailable":
            self._put(name, self._error(packed.pop().unpack(), UNAVAILABLE, "Node unavailable"))
            return

        def hear(reply: Message) -> None:
            box = self._again if name in self._box else self._box
            box[name] = self._pack("up", node, reply, name + "-reply")

        def arrives() -> None:
            if not world.sites[index].there:
                return
            reply = world.answer(index, packed.pop().unpack(), self.contexts[node], fault)
            if reply is None:  # another process will have a context of its own
                self.contexts[node].state = RecordDict()
                return
            if not reply.has_error():
                content = reply.content
                if what == "stale reply":
                    reply.content = world.last.get((index, stage), content)
                world.last[index, stage] = content
            if what != "lose reply":
                for _ in range(2 if what == "twice reply" else 1):
                    world.post(amount if what == "late reply" else 0, lambda: hear(reply))

        if what != "lose request":
            world.post(amount if what == "late request" else 0, arrives)
        if copies == 2:
            world.post(amount if what == "late copy" else 0, arrives)

    def wait_for_reply(self, seconds: float) -> None:
        grid_module.time.sleep(seconds)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = list(message_ids)
        self.world.arrive()
        there = [box.pop(i) for i in wanted for box in (self._box, self._again) if i in box]
        if there:
            self.world.operation()
        return [packed.unpack() for packed in there]
