"""Where a round's seconds, bytes and memory go: each second and each byte belongs to one phase.

The server measures at its own end of the wire, and its phase follows from what it asks nodes for. Out
of the time that it waits it takes the slowest node's seconds of cryptography, which nodes tell in any
case. They tell no more: a node's seconds of training would say how many examples it has.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Message

from flhe.mods import records


def resident(key: str = "VmRSS", pid: int | str = "self") -> int:
    """Bytes of memory that a process holds; with `VmHWM` the most that it ever held.

    Where the system does not tell the most ever, it is what the process holds now.

    Raises ProcessLookupError: there is no such process.
    """
    if sys.platform != "linux":
        import psutil

        try:
            return int(psutil.Process(None if pid == "self" else int(pid)).memory_info().rss)
        except psutil.Error:
            raise ProcessLookupError(pid) from None
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    for line in lines.splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)  # it has ended, nobody has waited for it yet


KEYS, CATCH_UP, MASKING = "keys", "catch-up", "masking"
TRAIN, EXCHANGE, ENCRYPT, UPLOAD = "train", "exchange", "encrypt", "upload"
ADD, OPEN, EVALUATE, OTHER = "add", "open", "evaluate", "other"

PHASES = {
    KEYS: "key agreement",
    CATCH_UP: "nodes asked where they stand and brought to one model; sealed checkpoints",
    MASKING: "masking-key agreement: whose masks are in a sum, and what opens it",
    TRAIN: "a round's first request sent, and nodes waited for while they train and send",
    EXCHANGE: "the same, of a round's later requests: supports, and updates after them",
    ENCRYPT: "the slowest node's cryptography until its update is out, as it tells",
    UPLOAD: "what nodes send of a round fetched from Flower, and unpacked",
    ADD: "updates checked and added",
    OPEN: "the sum opened: by the server, or by the slowest node in evaluation, as it tells",
    EVALUATE: "the model sent, and nodes waited for while they evaluate",
    OTHER: "all else on the server: waiting for nodes to connect, its ledger, the user's own code",
}
"""Every phase, in the order in which a round comes to them, and what it is."""

STAGES = {
    **dict.fromkeys(("advertise", "share", "confirm"), KEYS),
    **dict.fromkeys(("key-pair", "take-pair", "joint", "joint-sum"), KEYS),
    **dict.fromkeys(("key-commit", "key-reveal", "key-shared"), KEYS),
    **dict.fromkeys(("status", "initial", "sync", "checkpoint", "verify"), CATCH_UP),
    **dict.fromkeys(("consist", "unmask", "void"), MASKING),
    **dict.fromkeys(("round", "query", "masking-key"), TRAIN),
    **dict.fromkeys(("supports", "update"), EXCHANGE),
    **dict.fromkeys(("evaluate", "total"), EVALUATE),
}
"""The phase of each stage that nodes are asked for (`flhe.mods.he_mod`)."""

_TOLD = {TRAIN: ENCRYPT, EXCHANGE: ENCRYPT, EVALUATE: OPEN}
"""What nodes' seconds of cryptography are, of those that the server waits in a phase."""

_SENDS = (TRAIN, EXCHANGE)
"""Phases in which what comes back is an upload."""

Clock = Callable[[], float]
Memory = Callable[[], tuple[int, int]]
"""() -> bytes that this process holds now, and the most that it ever held."""


@dataclass(frozen=True, slots=True)
class Phase:
    """What one phase took, all of its turns together.

    Parameters
    ----------
    name : str
        One of PHASES.
    seconds : float
        Wall-clock seconds, in no other phase.
    bytes_up, bytes_down : int
        Payload from all nodes to the server, and to them.
    server_bytes : int or None
        Most memory that the server's process was seen to hold: when the phase began or ended, or in
        between where that was the most ever. None where the system does not tell, and where seconds
        are a part of another phase's wait: `encrypt`, `upload`, and `open` by nodes.
    """

    name: str
    seconds: float
    bytes_up: int
    bytes_down: int
    server_bytes: int | None


@dataclass(frozen=True, slots=True)
class Spent:
    """What the time since the last account took.

    Parameters
    ----------
    wall_s : float
        Wall-clock seconds: what those of the phases add up to.
    phases : tuple of Phase
        Those that there were, in the order of PHASES.
    """

    wall_s: float
    phases: tuple[Phase, ...]

    @property
    def up(self) -> int:
        """Payload bytes from the nodes."""
        return sum(phase.bytes_up for phase in self.phases)

    @property
    def down(self) -> int:
        """Payload bytes to the nodes."""
        return sum(phase.bytes_down for phase in self.phases)

    @property
    def server_bytes(self) -> int | None:
        """Most memory that the server's process was seen to hold."""
        return max((p.server_bytes for p in self.phases if p.server_bytes), default=None)


def phase_of(message: Message) -> str:
    """The phase that sending `message` begins; of messages without our record it is their type's."""
    record = records.find_config(message.content, records.STAGE)
    if record is not None:
        return STAGES.get(str(record.get("stage")), OTHER)
    kind = message.metadata.message_type.partition(".")[0]
    return kind if kind in (TRAIN, EVALUATE) else OTHER


def sound(seconds: object) -> float:
    """Seconds that a node tells of; 0.0 for what can be none."""
    return seconds if isinstance(seconds, float) and 0 <= seconds < float("inf") else 0.0


def server_memory() -> tuple[int, int]:
    """What this process holds now, and the most that it ever held, in bytes; 0 where nobody tells."""
    try:
        return resident(), resident("VmHWM")
    except (ImportError, OSError):
        return 0, 0


@dataclass(slots=True)
class _Book:
    seconds: float = 0.0
    up: int = 0
    down: int = 0
    peak: int = 0
    told: dict[int, float] = field(default_factory=dict)


class Meter:
    """Keeps the account of one server, which is one thread.

    It is always in exactly one phase: that of the last request, until its replies are in, unless the
    server says what it does itself (`doing`).

    Parameters
    ----------
    clock : callable
        () -> seconds that never go back.
    memory : callable
        () -> bytes that this process holds, and the most that it ever held.
    """

    def __init__(self, clock: Clock = time.perf_counter, memory: Memory = server_memory) -> None:
        self._clock, self._memory = clock, memory
        self._asked = OTHER
        self._request = 0
        self._doing: list[str] = []
        self._books: dict[str, _Book] = {}
        self._began = self._since = clock()
        self._held, self._most = memory()

    def open(self, phase: str) -> int:
        """A request goes out: the phase until it is closed, or the next one is; returns its number."""
        self._turn()
        self._asked = phase
        self._request += 1
        return self._request

    def close(self, request: int) -> None:
        """The replies to a request are in; nothing where another one went out since."""
        if request == self._request:
            self._turn()
            self._asked = OTHER

    @contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        """The phase of what the server itself does in this context; inner ones count by themselves."""
        self._turn()
        self._doing.append(phase)
        try:
            yield
        finally:
            self._turn()
            self._doing.pop()

    def sent(self, phase: str, count: int) -> None:
        """Count payload bytes on their way to a node."""
        self._book(phase).down += count

    def received(self, count: int, seconds: float = 0.0) -> None:
        """Count payload bytes from a node, and of the present phase's seconds those that it took."""
        book = self._book(UPLOAD if self._asked in _SENDS else self._asked)
        book.up += count
        book.seconds += seconds
        self._book(self._phase).seconds -= seconds

    def told(self, node: int, seconds: float) -> None:
        """Note seconds of cryptography that a node tells of in its reply."""
        if self._asked in _TOLD:
            told = self._book(self._asked).told
            told[node] = told.get(node, 0.0) + seconds

    def take(self) -> Spent:
        """The account since the last call, which starts again from nothing."""
        self._turn()
        for phase, crypto in _TOLD.items():
            if (book := self._books.get(phase)) and book.told:
                waited = max(book.seconds, 0.0)
                moved = min(max(book.told.values()), waited)
                book.seconds -= moved
                self._book(crypto).seconds += moved
        spent = Spent(
            self._since - self._began,
            tuple(
                Phase(name, book.seconds, book.up, book.down, book.peak or None)
                for name in PHASES
                if (book := self._books.get(name))
            ),
        )
        self._books, self._began = {}, self._since
        return spent

    @property
    def _phase(self) -> str:
        return self._doing[-1] if self._doing else self._asked

    def _book(self, phase: str) -> _Book:
        return self._books.setdefault(phase, _Book())

    def _turn(self) -> None:
        """Book what has passed to the present phase."""
        now, (held, most) = self._clock(), self._memory()
        book = self._book(self._phase)
        book.seconds += now - self._since
        book.peak = max(book.peak, self._held, held, most if most > self._most else 0)
        self._since, self._held, self._most = now, held, max(self._most, most)
