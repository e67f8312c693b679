"""A federation under a clock of its own, whose relay, nodes and server fail as they are told.

Everything happens in one thread and in one order: a node works when its message arrives, what is late
waits in a queue until the clock has come so far, and sleeping is what moves the clock. What must always
hold is watched from inside, by wrapping what encrypts, opens and keeps; `World.wrong` has breaches.
"""

from __future__ import annotations

import functools
import heapq
import logging
import os
import re
import shutil
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.errors import QuorumError, StoreError
from flhe.mods import HEMod, records
from flhe.node.node import Node as NodeState
from flhe.schemes.esafl.scheme import EsheOpener, EsheSealer
from flhe.schemes.flashe import scheme as flashe
from flhe.schemes.sealed import Sealed, Slot
from flhe.strategies import HEStrategy, flashe_fedavg
from flhe.strategies import federation as federation_module
from flhe.strategies import grid as grid_module
from flhe.strategies import he_strategy as strategy_module
from flhe.strategies.grid import StreamGrid
from flhe.strategies.ledger import Ledger
from flhe.testing import UNAVAILABLE, InProcessGrid, _Packed
from flhe.training import session as session_module
from flhe.training.draft import Draft
from flhe.training.model import Model, next_history
from flhe.training.session import Session
from flhe.wire import codes as refusals
from tests.strategies.puppets import Node, stage_of
from tests.strategies.reference import COUNTS, Arrays, trained

MAX = 64
ROUND, STAGE, CONNECT = 60.0, 10.0, 20.0
"""Seconds that the strategy waits."""

MAX_OPERATIONS = 5000
"""Of the server on the grid, in one run; a run of two rounds takes some hundred."""

MAX_NODES = 5

What = Literal[
    "lose request",
    "lose reply",
    "late request",
    "late reply",
    "twice request",
    "late copy",
    "late copy",
    "twice reply",
    "stale reply",
    "unavailable",
    "app fails",
    "kill",
]
Outcome = Literal["done", "quorum", "killed", "stopped"]


class Killed(BaseException):
    """The end of a process, wherever it was."""


@dataclass
class Fault:
    """What goes wrong with the next message of `stage` to `node`; "" stands for any stage."""

    node: int
    stage: str
    what: What
    amount: int = 0
    """Seconds late, or the disk write that a node does not survive."""
    after: int = 0
    """How many such messages pass before."""
    torn: bool = False
    """Whether the file that it wrote last is cut short."""


@dataclass
class Made:
    """An update that a node encrypted."""

    asked: int
    """The server's run that asked for it."""
    node: int
    identity: str
    rank: int
    slot: Slot
    lanes: NDArray[Any]
    coords: NDArray[np.uint32] | None = None
    squares: bool = False
    """These are mean squares, which travel before the update."""


@dataclass
class Site:
    """A node, whatever the grid calls it."""

    home: Path
    config: dict[str, Any]
    there: bool = True

    def identity(self) -> str:
        """What tells it from a node that began anew in the same place."""
        path = self.home / "identity.key"
        return path.read_bytes().hex() if path.exists() else ""


def start_arrays() -> Arrays:
    """A model as small as it can be with floats, a narrow float and integers in it."""
    return {
        "w": np.array([[0.5, -0.25, 0.125]], np.float32),
        "half": np.array([0.25], np.float16),
        "steps": np.array(3, np.int64),
    }


class Clock:
    """Stands in for `time`: what sleeps moves it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.perf_counter = time.perf_counter

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += max(seconds, 1e-6)


class Words(logging.Handler):
    """What the server and the nodes said aloud."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self.world = world
        self.said: list[tuple[int, int | None, str]] = []
        self.plans: dict[str, Callable[[], None]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        self.said.append((self.world.round(), self.world.actor, text))
        for part, what in self.plans.items():
            if part in text:
                what()


class World:
    """State directories, the clock, the faults to come, and what was seen so far."""

    def __init__(
        self,
        path: Path,
        nodes: int,
        how: dict[str, Any],
        *,
        secret: bool = False,
        make: Callable[..., HEStrategy] = flashe_fedavg,
    ) -> None:
        self.make = make
        self.path, self.how, self.secret = path, how, secret
        self.clock = Clock()
        self.sites: list[Site] = []
        for _ in range(nodes):
            self.add()
        app = Node(HEMod(initial=lambda context: records.from_numpy(start_arrays())))
        app.trained = self._trained
        self.app = app
        self.actor: int | None = None
        self.asked = 0
        self.faults: list[Fault] = []
        self.plans: list[tuple[int, Callable[[], None]]] = []
        self.server_dies = self.server_dies_writing = 0
        self.server_tears = False
        self.fails: Callable[[], BaseException] = Killed
        """What a process is met by where it is to die."""
        self.served: Counter[int] = Counter()
        self.writes: list[tuple[int | None, int]] = []
        """Whose writes a run of the server had, and over which of the messages to that node."""
        self.ledger: Ledger | None = None
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.operations = self.generation = self.federation = self.target = 0
        self.outcomes: list[tuple[Outcome, str]] = []
        self.strategy: HEStrategy | None = None
        self.ids: dict[int, int] = {}
        self.snapshot: Path | None = None
        self.wrong: list[str] = []
        # What was seen: by mask, by (federation, round), by history.
        self.masks: dict[tuple[bytes, int], Made] = {}
        self.made: dict[tuple[Slot, int], Made] = {}
        self.opened: dict[tuple[str, int, int, str], bytes] = {}
        self.open_sums: dict[tuple[int, int, str], bytes] = {}
        self.sent_sums: dict[tuple[int, int], bytes] = {}
        self.kept: dict[tuple[int, bytes], Sealed] = {}
        self.references: dict[tuple[int, bytes], tuple[Arrays, int]] = {}
        self.restored: set[int] = set()
        """Nodes that may hold a residual of some time ago, of a backup, or have given theirs up."""
        self.drafts: dict[tuple[int, int], list[tuple[Draft, NDArray[np.float32]]]] = {}
        """What may be a node's last draft, and the residual before it; two if it died writing."""
        self._drafted: Any = None
        self._dies = self._count = 0
        self._torn = self._app_fails = False
        self.last: dict[tuple[int, str], RecordDict] = {}
        self.refused: set[int] = set()
        self._patch = pytest.MonkeyPatch()
        self._words = Words(self)
        for name in ("flwr", "flhe"):  # what thousands of runs log would fill the memory
            logger = logging.getLogger(name)
            self._patch.setattr(logger, "handlers", [self._words])
            self._patch.setattr(logger, "propagate", False)
        self._watch()

    def close(self) -> None:
        """Undo all that was patched, and remove the directories."""
        self._patch.undo()
        shutil.rmtree(self.path)

    def count(self) -> int:
        """The next of a row of numbers: what comes later has a higher one."""
        self._count += 1
        return self._count

    def round(self) -> int:
        """The round that the server is at; 0 before it has begun."""
        fed = None if self.strategy is None else self.strategy._fed
        return 0 if fed is None else fed.ledger.round

    def breach(self, text: str) -> None:
        """Note that something happened that never may."""
        self.wrong.append(text)

    # --- nodes ---

    def add(self) -> None:
        """A new node."""
        index = len(self.sites)
        home = self.path / f"node-{index}"
        config = {"partition-id": index, "flhe-home": str(home), "flhe-trust": "first-use"}
        self.sites.append(Site(home, config))

    def wipe(self, index: int) -> None:
        """A node loses its state directory."""
        shutil.rmtree(self.sites[index].home, ignore_errors=True)
        self.drafts = {key: kept for key, kept in self.drafts.items() if key[0] != index}

    def save(self, index: int) -> None:
        """Copy a node's state directory."""
        if self.sites[index].home.exists():
            self.snapshot = self.path / f"copy-{self.count()}"
            shutil.copytree(self.sites[index].home, self.snapshot)

    def put_back(self, index: int) -> None:
        """Put the last copy in the place of a node's state directory, whosever it was."""
        if self.snapshot is not None:
            self.wipe(index)
            shutil.copytree(self.snapshot, self.sites[index].home)
            self.restored.add(index)

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
        self.actor = node
        self.served[node] += 1
        kills = fault is not None and fault.what == "kill"
        self._dies, self._torn = (fault.amount, fault.torn) if kills and fault else (0, False)
        self._app_fails = fault is not None and fault.what == "app fails"
        try:
            return self.app(message, context)
        except Killed:
            return None
        except BaseException as error:
            self.breach(f"node {node} raised {error!r}")
            return None
        finally:
            self.actor, self._dies, self._app_fails = None, 0, False

    def _trained(self, arrays: Any, partition: int) -> Arrays:
        if self._app_fails:
            raise ValueError("a patient's name")
        return trained(arrays, partition)

    # --- the server ---

    def operation(self) -> None:
        """The server does something on the grid."""
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

    def arrive(self) -> None:
        """Let what is due by now arrive."""
        while self.queue and self.queue[0][0] <= self.clock.now:
            heapq.heappop(self.queue)[2]()

    def post(self, seconds: float, what: Callable[[], None]) -> None:
        """Have something arrive later."""
        heapq.heappush(self.queue, (self.clock.now + seconds, self.count(), what))

    def calm(self) -> None:
        """Nothing fails any more, and everybody is there, with an identity of its own."""
        self.faults.clear()
        self.plans.clear()
        self.server_dies = self.server_dies_writing = 0
        known: set[str] = set()
        for index, site in enumerate(self.sites):
            site.there = True
            site.config.pop("flhe-leave", None)
            if site.identity() in known:  # what the strategy's error asks for
                self.wipe(index)
            known.add(site.identity())

    def rekey(self) -> None:
        """Somebody asks for fresh keys."""
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
        self.strategy, began, text = strategy, self.clock.now, ""
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
        if (waited := self.clock.now - began) > (bound := self.bound(strategy)):
            self.breach(f"the run took {waited:g} s, {bound:g} s at most were due")
        self.check(strategy)
        return outcome

    def bound(self, strategy: HEStrategy) -> float:
        """Seconds that a run may take: each timeout as often as its stage may be asked."""
        nodes, rounds = len(self.sites), self.target
        settle = STAGE * (4 + nodes)
        prepare = CONNECT + STAGE * (1 + 3 * 3 + nodes) + 3 * settle
        attempts = strategy.retries + 1
        each = attempts * (prepare + ROUND + 2 * STAGE) + ROUND + nodes * STAGE
        return CONNECT + prepare + rounds * each + settle + nodes * STAGE + 1.0

    # --- what must hold ---

    def check(self, strategy: HEStrategy) -> None:
        """Look at what only shows once a run is over."""
        self._check_models()
        fed = strategy._fed
        if fed is not None and self.outcomes[-1][0] == "done":
            self.ledger = fed.ledger
            self._check_lost(fed.ledger)

    @property
    def senders(self) -> dict[int, set[int]]:
        """Nodes whose updates are in the model, by round."""
        assert self.ledger is not None
        found = {}
        for round_, history in sorted(self.ledger.chain.items()):
            if round_ > 0:
                total = self.kept[self.ledger.federation, history]
                found[round_] = {self.made[total.slot, rank].node for rank in total.senders}
        return found

    def _check_models(self) -> None:
        seen: dict[tuple[str, int, bytes], bytes] = {}
        for site in self.sites:
            for path in site.home.glob("runs/*/model"):
                data = path.read_bytes()
                model = Model.from_bytes(data)
                key = (path.parent.name, model.round, model.history)
                if seen.setdefault(key, data) != data:
                    self.breach(f"two members differ at round {model.round}")

    def _check_lost(self, ledger: Ledger) -> None:
        """Every update is in the sum of its round, or somebody said that it is not."""
        # By node, not by identity: one that was wiped in mid-round trains again under a new one.
        inside: set[tuple[int, int]] = set()
        before = b""
        for round_ in sorted(ledger.chain):
            history = ledger.chain[round_]
            if round_ > 0:
                total = self.kept[ledger.federation, history]
                if total.slot.history != before:
                    self.breach(f"the sum of round {round_} does not follow from the one before")
                for rank in total.senders:
                    inside.add((round_, self.made[total.slot, rank].node))
                opened = (ledger.federation, round_, "opened") in self.open_sums
                if round_ not in ledger.sums and not opened:
                    self.breach(f"the sum of round {round_} was dropped, and nobody opened it")
            before = history
        for made in self.made.values():
            slot = made.slot
            if (
                made.squares
                or slot.run_id != ledger.federation
                or self.outcomes[made.asked - 1][0] != "done"
            ):
                continue
            if (slot.round, made.node) not in inside and not self._said(made):
                self.breach(
                    f"round {slot.round}, attempt {slot.attempt}: the update of node {made.node} "
                    "was lost without a word"
                )

    def on_word(self, part: str, what: Callable[[], None]) -> None:
        """Do something whenever a warning holds `part`."""
        self._words.plans[part] = what

    def names(self, index: int, part: str) -> bool:
        """Whether the server warned of that node, in a text that holds `part`."""
        ids = [f"node {i} " for i, node in self.ids.items() if node == index]
        return any(
            part in text and any(i in text for i in ids)
            for _, actor, text in self._words.said
            if actor is None
        )

    def _said(self, made: Made) -> bool:
        names = "|".join(str(i) for i, node in self.ids.items() if node == made.node)
        out = re.compile(rf"aggregate_train: node ({names}) is left out")
        void = f"(the sum of )?round {made.slot.round} (opened for nobody|is void)"
        own = f"round {made.slot.round}: this node's update is not in the sum"
        return any(
            re.match(void, text) or (round_ == made.slot.round and bool(out.match(text)))
            if actor is None
            else actor == made.node and own in text
            for round_, actor, text in self._words.said
        )

    def _watch(self) -> None:
        """Wrap what encrypts, opens, keeps and waits."""
        patch = self._patch
        patch.setattr(session_module.Session, "threads", 1)
        for module in (grid_module, strategy_module, federation_module):
            patch.setattr(module, "time", self.clock)
        patch.setattr(os, "fsync", self._fsync)
        open_, keep, ask = Session.open, Ledger.keep, StreamGrid.send_and_receive
        draft_, save, leave = Session.draft, NodeState.save_draft, NodeState.leave

        def opened(session: Session, model: Model, total: Sealed, *args: Any) -> Any:
            after, totals = open_(session, model, total, *args)
            self._applies(session, model, total, after)
            return after, totals

        def drafted(session: Session, *args: Any) -> Draft:
            draft = draft_(session, *args)
            self._drafts(session, args[0], args[5], draft)
            return draft

        def saved(node: NodeState, draft: Draft) -> None:
            assert self.actor is not None
            key = (self.actor, node.run_id)
            self.drafts.setdefault(key, []).append(self._drafted)
            save(node, draft)
            self.drafts[key] = [self._drafted]

        def left(node: NodeState) -> None:
            assert self.actor is not None
            self.restored.add(self.actor)  # what it had not sent goes with its keys
            leave(node)

        def kept(
            ledger: Ledger, total: Sealed, history: bytes, release: bytes = b""
        ) -> ArrayRecord:
            self._keeps(ledger, total, history)
            return keep(ledger, total, history, release)

        def asked(grid: StreamGrid, messages: Any, *, timeout: float | None = None) -> Any:
            if timeout not in (ROUND, STAGE):
                self.breach(f"the server waits {timeout} s")
            began = self.clock.now
            return self._in_time(ask(grid, messages, timeout=timeout), began + (timeout or 0))

        for sealer in (flashe.FlasheSealer, EsheSealer):
            patch.setattr(sealer, "encrypt", self._encrypting(sealer.encrypt))
        for opener in (flashe.FlasheOpener, EsheOpener):
            patch.setattr(opener, "decrypt", self._opening(opener.decrypt))
        patch.setattr(Session, "open", opened)
        patch.setattr(Session, "draft", drafted)
        patch.setattr(NodeState, "save_draft", saved)
        patch.setattr(NodeState, "leave", left)
        patch.setattr(Ledger, "keep", kept)
        patch.setattr(StreamGrid, "send_and_receive", asked)

    def _encrypting(self, encrypt: Callable[..., Sealed]) -> Callable[..., Sealed]:
        @functools.wraps(encrypt)
        def wrapped(sealer: Any, plain: Plain, slot: Slot, **how: Any) -> Sealed:
            self._encrypts(sealer, plain, slot, how.get("mode", ""))
            return encrypt(sealer, plain, slot, **how)

        return wrapped

    def _opening(self, decrypt: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(decrypt)
        def wrapped(opener: Any, total: Sealed) -> Any:
            lanes = decrypt(opener, total)
            self._opens(total, lanes)
            return lanes

        return wrapped

    def _in_time(self, replies: Iterator[Message], deadline: float) -> Iterator[Message]:
        for reply in replies:
            if self.clock.now > deadline + 1e-3:
                self.breach("a reply was taken after its deadline")
            yield reply
        if self.clock.now > deadline + 1e-3:
            self.breach("the server waited beyond its deadline")

    def _fsync(self, handle: int) -> None:
        """What writes may die here: before a file is known to be on disk, or behind that."""
        self.writes.append((self.actor, self.served[self.actor or 0]))
        if self.actor is None:
            self.server_dies_writing -= bool(left := self.server_dies_writing)
            torn = self.server_tears
        else:
            self._dies -= bool(left := self._dies)
            torn = self._torn
        if left == 1:
            if torn and stat.S_ISREG(os.fstat(handle).st_mode):
                os.ftruncate(handle, 0)
            raise self.fails()

    def _encrypts(self, sealer: Any, plain: Plain, slot: Slot, mode: str) -> None:
        assert self.actor is not None
        site = self.sites[self.actor]
        lanes = np.concatenate([plain.values, plain.extras]).astype(np.int64)
        squares = plain.values.size == 0
        made = Made(
            self.asked, self.actor, site.identity(), sealer.rank, slot, lanes, plain.coords, squares
        )
        key = b"%r %d" % (slot.epoch + bytes(str((slot.round, slot.attempt)), "ascii"), squares)
        if isinstance(sealer, flashe.FlasheSealer):
            scheme = sealer.scheme
            key = flashe._round_key(scheme, sealer.group_key, slot, scheme.mode_of(mode))
        mask = key, sealer.rank
        if mask in self.masks or (slot, sealer.rank) in self.made:
            self.breach(f"a mask is used twice: round {slot.round}, attempt {slot.attempt}")
        self.masks[mask] = self.made[slot, sealer.rank] = made

    def _opens(self, total: Sealed, lanes: NDArray[Any]) -> None:
        assert self.actor is not None
        slot, digest = total.slot, total.digest()
        site = self.sites[self.actor]
        parts = [self.made[slot, rank] for rank in total.senders]
        what = "ranges" if parts[0].squares else "opened"
        of_site = (site.identity(), slot.run_id, slot.round, what)
        if self.opened.setdefault(of_site, digest) != digest:
            self.breach(f"node {self.actor} {what}: two sums of round {slot.round}")
        if self.open_sums.setdefault((slot.run_id, slot.round, what), digest) != digest:
            self.breach(f"{what}: two sums of round {slot.round}")
        recorded = site.home / "used" / slot.epoch.hex() / f"{what}-{slot.round}"
        if not recorded.exists() or recorded.read_bytes() != digest:
            self.breach(f"node {self.actor} {what} of round {slot.round} before it was recorded")
        if not np.array_equal(_summed(parts), lanes):
            self.breach(f"the sum of round {slot.round} is not what its senders sent")

    def _applies(self, session: Session, model: Model, total: Sealed, after: Model) -> None:
        """The same in float64 and in plain, from the model before as it is there."""
        federation = session.epoch.run_id
        if model.round == 0:
            arrays = {n: a.astype(np.float64) for n, a in start_arrays().items()}
            self.references.setdefault((federation, model.history), (arrays, 0))
        before, rounds = self.references[federation, model.history]
        nodes = [self.made[total.slot, rank].node for rank in sorted(total.senders)]
        weight = sum(COUNTS[node] for node in nodes)
        reference: Arrays = {}
        sent = _cast(before)
        for name, old in before.items():
            changes = [COUNTS[n] * (trained(sent, n)[name] - old) for n in nodes]
            mean = sum(changes) / weight
            whole = start_arrays()[name].dtype.kind != "f"
            reference[name] = np.asarray(old + (np.floor(mean + 0.5) if whole else mean))
        self.references[federation, after.history] = reference, rounds + 1
        if total.supports:  # what was left out comes later: `_drafts` watches over that
            return
        if session.terms.clip == "history":  # who comes with far larger updates is clipped at first
            return
        step = len(nodes) * MAX / weight / (2**15 - 1)
        if session.terms.clip == "exchange":
            step *= 4  # thresholds of their own
        for name, expected in reference.items():
            slack = 2e-3 if name == "half" else 0.0
            bound = (rounds + 1) * (3 * step + slack) + 1e-5
            if not np.allclose(after.masters[name], expected, atol=bound, rtol=0):
                self.breach(f"round {total.slot.round}: {name!r} is not the plain mean")

    def _drafts(
        self, session: Session, old: Model, residual: NDArray[np.float32] | None, draft: Draft
    ) -> None:
        """A client adds what it has not sent so far, no more and no less."""
        assert self.actor is not None
        if draft.residual is None:
            return
        nothing = np.zeros(session.layout.floats, np.float32)
        had = nothing if residual is None else residual.copy()
        key = (self.actor, session.epoch.run_id)
        due = self._due(key, old, nothing)
        stale = self.actor in self.restored
        self.restored.discard(self.actor)
        if not stale and not any(np.array_equal(had, whole) for whole in due):
            self.breach(f"node {self.actor} lost or doubled an update before round {draft.round}")
        self._drafted = draft, had

    def _due(
        self, key: tuple[int, int], old: Model, nothing: NDArray[np.float32]
    ) -> list[NDArray[np.float32]]:
        """What may be left over of a client's draft before this one, where the model is `old` now."""
        kept = self.drafts.get(key, [])
        return [due for last in kept for due in self._left(key, old, *last)] or [nothing]

    def _left(
        self, key: tuple[int, int], old: Model, before: Draft, had: NDArray[np.float32]
    ) -> list[NDArray[np.float32]]:
        """What may be left over if `before` is the last draft."""
        if before.history == old.history:  # its round came to nothing, and is trained anew
            return [had]
        assert before.residual is not None
        sent, back = before.residual, before.given_back().residual
        assert back is not None
        at, total = old.history, None
        while at != before.history:
            if (total := self.kept.get((key[1], at))) is None:
                return [sent, back, had]  # not of this model's past: its sum was void
            at = total.slot.history
        assert total is not None
        counted = total.slot.round == before.round and key[0] in {
            self.made[total.slot, rank].node for rank in total.senders
        }
        saw = (self.sites[key[0]].identity(), key[1], total.slot.round, "opened") in self.opened
        if counted:
            return [sent]
        return [back] if saw else [had, sent]  # by a checkpoint: nobody told it who was in the sum

    def _keeps(self, ledger: Ledger, total: Sealed, history: bytes) -> None:
        if len(set(total.senders)) != len(total.senders):
            self.breach(f"a sender counts twice in round {total.slot.round}")
        if next_history(ledger.history, total.digest()) != history:
            self.breach(f"the history of round {total.slot.round} is another sum's")
        self.kept[ledger.federation, history] = Sealed(
            total.scheme, total.slot, total.senders, total.length, np.empty(0, np.uint8)
        )

    def sees(self, content: RecordDict) -> None:
        """Look at what the server sends: one sum a round, to everybody."""
        record = records.find_config(content, records.STAGE)
        for i, header in enumerate(records.bytes_list(record, "sums") if _has_sums(record) else ()):
            arrays = content[f"{records.SUM}.{i}"]
            assert isinstance(arrays, ArrayRecord)
            total = records.to_sealed(header, arrays)
            key, digest = (total.slot.run_id, total.slot.round), total.digest()
            if self.sent_sums.setdefault(key, digest) != digest:
                self.breach(f"the server sent two sums of round {total.slot.round}")


def _summed(parts: list[Made]) -> NDArray[np.int64]:
    """What a sum of these opens to: values of the coordinates that somebody sent, then extras."""
    if parts[0].coords is None:
        whole: NDArray[np.int64] = np.sum([part.lanes for part in parts], axis=0)
        return whole
    places = [part.coords for part in parts if part.coords is not None]
    union = np.unique(np.concatenate(places))
    values = np.zeros(union.size, np.int64)
    extras = np.zeros(parts[0].lanes.size - places[0].size, np.int64)
    for part, coords in zip(parts, places, strict=True):
        values[np.searchsorted(union, coords)] += part.lanes[: coords.size]
        extras += part.lanes[coords.size :]
    return np.concatenate([values, extras])


def _has_sums(record: ConfigRecord | None) -> bool:
    return record is not None and "sums" in record


def _cast(arrays: Arrays) -> Arrays:
    return {n: np.asarray(a, start_arrays()[n].dtype) for n, a in arrays.items()}


class ChaosGrid(InProcessGrid):
    """A grid of one run of the server, over the nodes of a World, which it calls by other ids."""

    def __init__(self, world: World) -> None:
        self.world = world
        super().__init__(world.app, 0, run_id=1000 + world.generation)
        self._generation = world.generation
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
                world.ids[node] = index
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
        world, index = self.world, self._sites[node]
        stage = stage_of(message.content)
        fault = world.take(index, stage)
        what = fault.what if fault else ""
        if what == "lose request":
            return
        if what == "unavailable":
            packed = self._pack("down", node, message, name)
            self._put(name, self._error(packed.unpack(), UNAVAILABLE, "Node unavailable"))
            return
        copies = 2 if what in ("twice request", "late copy") else 1
        seconds = fault.amount if fault and what in ("late request", "late copy") else 0
        for i in range(copies):
            packed = self._pack("down", node, message, name)
            late = seconds if what == "late request" or i else 0
            world.post(late, partial(self._serve, node, stage, packed, name, fault))

    def _serve(
        self, node: int, stage: str, packed: _Packed, name: str, fault: Fault | None
    ) -> None:
        world, index = self.world, self._sites[node]
        if not world.sites[index].there:
            return
        world.asked = self._generation
        reply = world.answer(index, packed.unpack(), self.contexts[node], fault)
        if reply is None:  # another process will have a context of its own
            self.contexts[node].state = RecordDict()
            return
        if reply.has_error():
            self._check_refusal(index, reply)
        what = fault.what if fault else ""
        if what == "lose reply":
            return
        if not reply.has_error():
            content = reply.content
            if what == "stale reply":
                reply.content = world.last.get((index, stage), content)
            world.last[index, stage] = content
        packed_reply = self._pack("up", node, reply, name + "-reply")
        again = [self._pack("up", node, reply, name + "-reply")] if what == "twice reply" else []
        seconds = fault.amount if fault and what == "late reply" else 0

        def put() -> None:
            self._box[name] = packed_reply
            if again:
                self._again[name] = again[0]

        world.post(seconds, put)

    def _check_refusal(self, index: int, reply: Message) -> None:
        """A code and its slug travel, and no code says that something unexpected happened."""
        self.world.refused.add(reply.error.code)
        refusal = refusals.find(reply.error.code)
        if refusal is None or reply.error.reason != refusal.slug:
            self.world.breach(f"node {index} answered {reply.error.reason!r}")
        if refusal is refusals.INTERNAL:
            log = self.world.sites[index].home / "errors.log"
            self.world.breach(f"node {index} failed: {log.read_text()[-1500:]}")

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        wanted = list(message_ids)
        self.world.arrive()
        there = [box.pop(i) for i in wanted for box in (self._box, self._again) if i in box]
        if there:
            self.world.operation()
        return [packed.unpack() for packed in there]
