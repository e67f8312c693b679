"""The audit log: one line a stage, for whoever administers this node.

`audit.log` in the state directory is JSON Lines; beyond 16 MiB it becomes `audit.log.1`.

    {"time":"2026-01-02T03:04:05Z","run":7,"stage":"round","asked_by":"server","answer":"update",
     "epoch":"ab12cd34","contract":"89ab012345cdef67","round":3,"attempt":0,"result":"0123456789abcdef",
     "bytes_out":12345,"seconds":1.2}
    {"time":...,"stage":"round",...,"answer":"refused",...,"code":1014,"reason":"flhe/protocol"}

Each field is public by construction: a number in its range, a word out of a closed set, the beginning
of a hash, or the name and parameters of a query, which the server chose. `result` is that of the
node's model, which is the same at all sites unless the server told them different ones: administrators
may compare it, as they may `contract`. Metrics, example counts, keys and the text of errors have no
field; what went wrong is in `errors.log`.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from flhe.errors import ConfigError, ProtocolError, StoreError
from flhe.node.store import Store
from flhe.schemes import PLAIN
from flhe.training.query import MAX_SHOWN
from flhe.wire.codes import find
from flhe.wire.printable import printable

NAME, OLDER = "audit.log", "audit.log.1"
LIMIT = 16 << 20
"""Bytes of audit.log; when it is full it becomes the older one."""
MAX_ERRORS = 1 << 20
"""Bytes of errors.log, likewise."""
MAX_LINE = 1024
"""Longest line, bytes; they take some 200, and one of a query up to twice its text more."""

UNKNOWN = "unknown"
"""What is recorded for a word that is not in its set."""
REFUSED = "refused"
"""The answer that is a code."""
PERMIT, PERMITTED = "permit", "permitted"
"""What the site's administrator does, and how it ends: one more federation may begin."""
ADMINISTRATOR = "administrator"
_TRAINING = ("round", "supports", "update", "evaluate")
_STEPS = {
    "mean-squares": "mean squares",
    "supports": "support",
    "update": "update",
    "evaluation": "metrics",
}
"""What a stage of training answers, by the step in its reply."""
_KEYS = ("key-pair", "take-pair", "joint", "joint-sum", "key-commit", "key-reveal", "key-shared")
_ANSWER_OF = {
    **dict.fromkeys(("advertise", "share", "confirm", *_KEYS), "agreement"),
    **dict.fromkeys(("status", "sync", "verify"), "status"),
    **dict.fromkeys(("initial", "checkpoint"), "model"),
    "consist": "survivors",
    "unmask": "release",
    "void": "promise",
    "query": "answer",
    "masking-key": "masked",
    "total": "total",
    PLAIN: PLAIN,
}
"""What any other stage answers."""
STAGES = frozenset({*_ANSWER_OF, *_TRAINING, PERMIT})
"""What is recorded by name."""
ANSWERS = frozenset({*_ANSWER_OF.values(), *_STEPS.values()}) | {
    *("resent", "complaint", REFUSED, PERMITTED)
}
"""What a node may answer: "agreement" is its part of one, "status" how far it has come, "survivors" its
signature on whose updates are added up, "complaint" whose shares do not open, "release" its part of
what opens their sum, "promise" that a sum is never opened, "model" one sealed for the group."""

_WORDS = {"stage": STAGES, "answer": ANSWERS, "asked_by": {"server", ADMINISTRATOR}}
_ENDS = {"run": 1 << 64, "bytes_out": 1 << 63, "time": 253402300800}  # the year 10000
_HASHES = {"epoch": (16, 4), "contract": (32, 8), "result": (32, 8)}
"""Bytes of what is hashed, and how many of them are kept."""
_MAX_SECONDS = 1e9
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def answer_of(stage: str, reply: Mapping[str, object] | None) -> str:
    """The word of `ANSWERS` for what a stage answered, by the record of its reply."""
    said = reply or {}
    if stage in _TRAINING:
        step = _STEPS.get(str(said.get("step")), UNKNOWN)
        return "resent" if said.get("resent") is True else step
    if stage == "consist" and "bad" in said:
        return "complaint"
    return _ANSWER_OF.get(stage, UNKNOWN)


def result_of(reply: Mapping[str, object] | None) -> bytes | None:
    """The history in the record of a reply, where there is one."""
    history = None if reply is None else reply.get("history")
    return history if isinstance(history, bytes) and len(history) == 32 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What was asked at one stage, and what left.

    The server chooses stage, round and attempt. Whatever it makes of them is recorded as unknown (a
    number: as None) and never refused: it would otherwise decide what is not recorded.

    `time` is when it was answered, Unix time; `run` is Flower's run id, 64 bits; `seconds` include the
    app's own time; `bytes_out` are those of the answer, 0 if nothing left but a code. Of the epoch's id
    4 bytes are kept, and 8 of `contract`, the hash of what all members have signed that the run does,
    and of `result`, the hash of all results so far. Round and attempt are below 2**32. `query` is
    what was asked (`Query.line`).

    Raises ConfigError: a number out of its range, or a code without a refusal or the other way round.
    """

    time: int = field(default_factory=lambda: int(datetime.now(UTC).timestamp()))
    run: int
    stage: str
    asked_by: str = "server"
    answer: str
    epoch: bytes | None = None
    contract: bytes | None = None
    round: int | None = None
    attempt: int | None = None
    result: bytes | None = None
    query: str | None = None
    bytes_out: int = 0
    seconds: float
    code: int | None = None

    def __post_init__(self) -> None:
        said = {name: getattr(self, name) for name in _WORDS}
        unknown = [n for n, w in said.items() if type(w) is not str or w not in _WORDS[n]]
        if self.query is not None and not _shown(self.query):
            unknown.append("query")
        for name in unknown:
            object.__setattr__(self, name, UNKNOWN)
        if self.stage == PERMIT and self.asked_by != ADMINISTRATOR:  # a server may name any stage
            object.__setattr__(self, "stage", UNKNOWN)
        for name in ("round", "attempt"):
            if not _unsigned(getattr(self, name), 1 << 32):
                object.__setattr__(self, name, None)
        for name, end in _ENDS.items():
            if not _unsigned(getattr(self, name), end):
                raise ConfigError(f"Entry: {name} must be an integer, 0 to {end - 1}")
        if type(self.seconds) not in (int, float) or not 0 <= self.seconds <= _MAX_SECONDS:
            raise ConfigError(f"Entry: seconds must be a number, 0 to {_MAX_SECONDS:g}")
        object.__setattr__(self, "seconds", round(float(self.seconds), 3))
        for name, (whole, kept) in _HASHES.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not bytes or len(value) not in (whole, kept)):
                raise ConfigError(
                    f"Entry: {name} must be {whole} bytes, or the {kept} kept of them"
                )
            object.__setattr__(self, name, None if value is None else value[:kept])
        if (self.answer == REFUSED) != (self.code is not None):
            raise ConfigError("Entry: a refusal has a code, and nothing else has one")
        if self.code is not None and (type(self.code) is not int or find(self.code) is None):
            raise ConfigError("Entry: code must be one of flhe.wire.codes")

    @property
    def reason(self) -> str | None:
        """The reason that travelled with the code of a refusal."""
        refusal = None if self.code is None else find(self.code)
        return None if refusal is None else refusal.slug

    @property
    def when(self) -> str:
        """The time as it is written: ISO 8601, UTC."""
        return datetime.fromtimestamp(self.time, UTC).strftime(_TIME)

    def to_line(self) -> bytes:
        """Encode as one line of JSON, in ASCII, in the order of the fields; None is left out."""
        body = {**asdict(self), "time": self.when, "reason": self.reason}
        kept = {name: value for name, value in body.items() if value is not None}
        return json.dumps(kept, separators=(",", ":"), default=bytes.hex).encode()

    @classmethod
    def from_line(cls, line: bytes) -> Entry:
        """Decode what `to_line` wrote. Raises ProtocolError for anything else; none of it is told."""
        try:
            if len(line) > MAX_LINE:
                raise ValueError
            body = json.loads(line)
            body.pop("reason", None)
            when = datetime.strptime(body["time"], _TIME).replace(tzinfo=UTC)
            body["time"] = int(when.timestamp())
            for name in _HASHES & body.keys():
                body[name] = bytes.fromhex(body[name])
            entry = cls(**body)
            if entry.to_line() != line:
                raise ValueError
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise ProtocolError(
                "audit log: a line that this version of flhe does not write"
            ) from None
        return entry


def write(store: Store, entry: Entry) -> None:
    """Append `entry` to the audit log of a node; StoreError where it cannot be written."""
    store.append(NAME, entry.to_line() + b"\n", LIMIT)


def log_failure(store: Store, stage: str, error: BaseException) -> Path:
    """Append a failure to the node's own errors.log, the only place that gets the details; its path."""
    told = "".join(traceback.format_exception(error)).splitlines()
    # An exception may quote what a server said: none of its lines begins as an entry does.
    said = "".join(f"  {printable(line, MAX_ERRORS)}\n" for line in told)
    text = f"{datetime.now(UTC):{_TIME}} {stage[:16]!r}\n{said}\n"
    lines = text.encode(errors="backslashreplace")[:MAX_ERRORS]  # of whatever length an app's is
    store.append("errors.log", lines, MAX_ERRORS)
    return store.root / "errors.log"


def last(store: Store, count: int) -> list[Entry | None]:
    """The last `count` entries, oldest first; None for a line that is none, or of another version.

    Raises StoreError: there is no audit log, or others may read it.
    """
    if not (store.exists(NAME) or store.exists(OLDER)):
        raise StoreError("no audit log here: name the state directory of a node that was asked")
    while True:
        names = (OLDER, NAME, OLDER)
        older, newer, after = (store.read(n) if store.exists(n) else b"" for n in names)
        if older == after:  # else it was rotated meanwhile
            break
    lines = [line for line in older.split(b"\n") + newer.split(b"\n") if line]
    return [_parse(line) for line in lines[max(0, len(lines) - count) :]]


def _parse(line: bytes) -> Entry | None:
    try:
        return Entry.from_line(line)
    except ProtocolError:
        return None


def _shown(query: object) -> bool:
    return type(query) is str and query == printable(query, MAX_SHOWN)


def _unsigned(value: object, end: int) -> bool:
    return type(value) is int and 0 <= value < end
