"""Costs of a round: each second and each byte belongs to one phase.

The server measures at its own end of the connection, and the phase follows from its requests. From
its waiting time it subtracts the slowest node's seconds of cryptography, which nodes report in any
case. They report no more: a node's seconds of training would reveal its number of examples.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import Message

from flhe.mods import records


def resident(key: str = "VmRSS", pid: int | str = "self") -> int:
    """Return the bytes of memory of a process; with `VmHWM` its maximum so far.

    If the system does not report the maximum, it is the current value.

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
    raise ProcessLookupError(pid)  # it has ended, but its parent has not waited for it yet


ACTOR = "ray::ClientAppActor"
"""Ray's name of a process in which Flower's simulation runs nodes."""


def nodes_memory() -> int | None:
    """Return the maximum bytes ever of one of those processes below this one, or None.

    One such process runs one node after the other.
    """
    if "ray" not in sys.modules:
        return None
    most = 0
    with suppress(ImportError, OSError):  # the system does not report it
        import psutil

        with suppress(psutil.Error):
            for process in psutil.Process().children(recursive=True):
                with suppress(psutil.Error, OSError):  # it has ended meanwhile
                    if " ".join(process.cmdline()).startswith(ACTOR):
                        most = max(most, resident("VmHWM", process.pid))
    return most or None


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
"""All phases in the order of a round, with descriptions."""

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
"""Phase of each stage (`flhe.mods.he_mod`)."""

_TOLD = {TRAIN: ENCRYPT, EXCHANGE: ENCRYPT, EVALUATE: OPEN}
"""Phase of nodes' reported seconds of cryptography, within the server's wait in another phase."""

_SENDS = (TRAIN, EXCHANGE)
"""Phases whose replies are uploads."""

Clock = Callable[[], float]
Memory = Callable[[], tuple[int, int]]
"""() -> bytes of this process now, and its maximum so far."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Costs of one phase, all of its turns together.

    Parameters
    ----------
    name : str
        One of PHASES.
    seconds : float
        Wall-clock seconds, in no other phase.
    bytes_up, bytes_down : int
        Payload from all nodes to the server, and to them.
    server_bytes : int or None
        Maximum memory of the server's process: at the phase's begin and end, or in
        between if that was its maximum ever. None if the system does not report it, or if seconds
        are a part of another phase's wait: `encrypt`, `upload`, and `open` by nodes.
    """

    name: str
    seconds: float
    bytes_up: int
    bytes_down: int
    server_bytes: int | None


@dataclass(frozen=True, slots=True)
class Spent:
    """Costs since the previous account.

    Parameters
    ----------
    wall_s : float
        Wall-clock seconds: the sum of the phases' seconds.
    phases : tuple of Phase
        Phases that occurred, in the order of PHASES.
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
        """Maximum memory of the server's process."""
        return max((p.server_bytes for p in self.phases if p.server_bytes), default=None)


def phase_of(message: Message) -> str:
    """Return the phase of sending `message`; without our record it depends on the type."""
    record = records.find_config(message.content, records.STAGE)
    if record is not None:
        return STAGES.get(str(record.get("stage")), OTHER)
    kind = message.metadata.message_type.partition(".")[0]
    return kind if kind in (TRAIN, EVALUATE) else OTHER


def sound(seconds: object) -> float:
    """Return a node's reported seconds; 0.0 if implausible."""
    return seconds if isinstance(seconds, float) and 0 <= seconds < float("inf") else 0.0


def server_memory() -> tuple[int, int]:
    """Return the bytes of this process now, and its maximum so far; 0 if not reported."""
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
    """Account of one server, which is one thread.

    It is always in exactly one phase: that of the last request, until its replies are in, unless
    the server names its own work (`doing`).

    Parameters
    ----------
    clock : callable
        () -> monotonic seconds.
    memory : callable
        () -> bytes of this process now, and its maximum so far.
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
        """Begin a request's phase, until it is closed, or the next one begins; return its number."""
        self._turn()
        self._asked = phase
        self._request += 1
        return self._request

    def close(self, request: int) -> None:
        """End a request's phase, unless another one began since."""
        if request == self._request:
            self._turn()
            self._asked = OTHER

    @contextmanager
    def doing(self, phase: str) -> Iterator[None]:
        """Set the phase of the server's own work in this context; inner ones count separately."""
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
        """Count payload bytes from a node, and its seconds in the current phase."""
        book = self._book(UPLOAD if self._asked in _SENDS else self._asked)
        book.up += count
        book.seconds += seconds
        self._book(self._phase).seconds -= seconds

    def told(self, node: int, seconds: float) -> None:
        """Record the seconds of cryptography in a node's reply."""
        if self._asked in _TOLD:
            told = self._book(self._asked).told
            told[node] = told.get(node, 0.0) + seconds

    def take(self) -> Spent:
        """Return the account since the last call, and start again from zero."""
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
        """Book the time that has passed to the current phase."""
        now, (held, most) = self._clock(), self._memory()
        book = self._book(self._phase)
        book.seconds += now - self._since
        book.peak = max(book.peak, self._held, held, most if most > self._most else 0)
        self._since, self._held, self._most = now, held, max(self._most, most)
