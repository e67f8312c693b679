"""Audit log: one line for each stage that this node answers, for its administrator.

`audit.log` in the state directory is JSON Lines; beyond 16 MiB it becomes `audit.log.1`.

    {"time":"2026-01-02T03:04:05Z","run":7,"stage":"round","asked_by":"server","answer":"update",
     "epoch":"ab12cd34","contract":"89ab012345cdef67","round":3,"attempt":0,"result":"0123456789abcdef",
     "bytes_out":12345,"seconds":1.2}
    {"time":...,"stage":"round",...,"answer":"refused",...,"code":1014,"reason":"flhe/protocol"}

Each field is public by construction: a number in its range, a word from a closed set, the beginning
of a hash, or the server's query. `result` identifies the node's model. It is equal at all sites
unless the server sent them different models, so administrators may compare it, as they may
`contract`. Metrics, example counts, keys and error texts have no field; `errors.log` has the
details of failures.
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
"""Maximum size of audit.log in bytes; a full log is rotated to audit.log.1."""
MAX_ERRORS = 1 << 20
"""Maximum size of errors.log in bytes; a full log is rotated likewise."""
MAX_LINE = 1024
"""Maximum length of a line in bytes; most take 200, a query up to twice its text more."""

UNKNOWN = "unknown"
"""Replacement for a word that is not in its set."""
REFUSED = "refused"
"""The answer recorded for a code."""
PERMIT, PERMITTED = "permit", "permitted"
"""Stage and answer of a permit, by which the administrator allows one more federation."""
ADMINISTRATOR = "administrator"
_TRAINING = ("round", "supports", "update", "evaluate")
_STEPS = {
    "mean-squares": "mean squares",
    "supports": "support",
    "update": "update",
    "evaluation": "metrics",
}
"""Answers of the training stages, by the step in the reply."""
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
    "gate": "passed",
    PLAIN: PLAIN,
}
"""Answers of all other stages."""
STAGES = frozenset({*_ANSWER_OF, *_TRAINING, PERMIT})
"""Stages that are recorded by name."""
ANSWERS = frozenset({*_ANSWER_OF.values(), *_STEPS.values()}) | {
    *("resent", "complaint", REFUSED, PERMITTED)
}
"""Answers of a node. "agreement" is its part of a key agreement, "status" its progress, "model" a
model sealed for the group. "survivors" is its signature on the survivors, "complaint" the senders
whose shares do not decrypt, "release" its part for opening the sum, "promise" that a sum is never
opened. "passed" is a gate's: a whole reply has left."""

_WORDS = {"stage": STAGES, "answer": ANSWERS, "asked_by": {"server", ADMINISTRATOR}}
_ENDS = {"run": 1 << 64, "bytes_out": 1 << 63, "time": 253402300800}  # the year 10000
_HASHES = {"epoch": (16, 4), "contract": (32, 8), "result": (32, 8)}
"""Bytes of each hash, and bytes of it that are recorded."""
_MAX_SECONDS = 1e9
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def answer_of(stage: str, reply: Mapping[str, object] | None) -> str:
    """Return the word of `ANSWERS` for the reply of a stage."""
    said = reply or {}
    if stage in _TRAINING:
        step = _STEPS.get(str(said.get("step")), UNKNOWN)
        return "resent" if said.get("resent") is True else step
    if stage == "consist" and "bad" in said:
        return "complaint"
    return _ANSWER_OF.get(stage, UNKNOWN)


def result_of(reply: Mapping[str, object] | None) -> bytes | None:
    """Return the history in a reply's record, or None."""
    history = None if reply is None else reply.get("history")
    return history if isinstance(history, bytes) and len(history) == 32 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Record of one answered stage.

    The server chooses stage, round and attempt. Invalid values are recorded as unknown (numbers as
    None), never refused: otherwise the server could keep an answer out of the log.

    `time` is the Unix time of the answer, `run` Flower's run id, 64 bits. `seconds` include the
    app's own time. `bytes_out` is the size of the answer, 0 if only a code left. The log keeps 4
    bytes of the epoch's id, 8 of `contract`, the signed contract's hash, and 8 of `result`, the
    hash of all results so far. Round and attempt are below 2**32. `query` is the query's text
    (`Query.line`).

    Raises ConfigError: a number is out of its range, or code and refusal do not come together.
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
        if self.stage == PERMIT and self.asked_by != ADMINISTRATOR:  # the server may name any stage
            object.__setattr__(self, "stage", UNKNOWN)
        for name in ("round", "attempt"):
            if not _unsigned(getattr(self, name), 1 << 32):
                object.__setattr__(self, name, None)
        for name, end in _ENDS.items():
            if not _unsigned(getattr(self, name), end):
                raise ConfigError(f"Entry: {name} must be an integer from 0 to {end - 1}")
        if type(self.seconds) not in (int, float) or not 0 <= self.seconds <= _MAX_SECONDS:
            raise ConfigError(f"Entry: seconds must be a number from 0 to {_MAX_SECONDS:g}")
        object.__setattr__(self, "seconds", round(float(self.seconds), 3))
        for name, (whole, kept) in _HASHES.items():
            value = getattr(self, name)
            if value is not None and (type(value) is not bytes or len(value) not in (whole, kept)):
                raise ConfigError(
                    f"Entry: {name} must have {whole} bytes, or the first {kept} of them"
                )
            object.__setattr__(self, name, None if value is None else value[:kept])
        if (self.answer == REFUSED) != (self.code is not None):
            raise ConfigError("Entry: a refusal must have a code, and other answers must not")
        if self.code is not None and (type(self.code) is not int or find(self.code) is None):
            raise ConfigError("Entry: code must be one of flhe.wire.codes")

    @property
    def reason(self) -> str | None:
        """Reason that was sent with the code of a refusal."""
        refusal = None if self.code is None else find(self.code)
        return None if refusal is None else refusal.slug

    @property
    def when(self) -> str:
        """The time in ISO 8601, UTC."""
        return datetime.fromtimestamp(self.time, UTC).strftime(_TIME)

    def to_line(self) -> bytes:
        """Encode as one line of JSON in ASCII, fields in order; None is left out."""
        body = {**asdict(self), "time": self.when, "reason": self.reason}
        kept = {name: value for name, value in body.items() if value is not None}
        return json.dumps(kept, separators=(",", ":"), default=bytes.hex).encode()

    @classmethod
    def from_line(cls, line: bytes) -> Entry:
        """Decode a line of `to_line`; ProtocolError for any other, without quoting it."""
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
            raise ProtocolError("audit log: this version of flhe did not write this line") from None
        return entry


def write(store: Store, entry: Entry) -> None:
    """Append `entry` to a node's audit log; StoreError if it cannot be written."""
    store.append(NAME, entry.to_line() + b"\n", LIMIT)


def log_failure(store: Store, stage: str, error: BaseException) -> Path:
    """Append a failure's details to the node's errors.log, and return its path."""
    told = "".join(traceback.format_exception(error)).splitlines()
    # An exception may quote the server: indent its lines, so that none looks like an entry.
    said = "".join(f"  {printable(line, MAX_ERRORS)}\n" for line in told)
    text = f"{datetime.now(UTC):{_TIME}} {stage[:16]!r}\n{said}\n"
    lines = text.encode(errors="backslashreplace")[:MAX_ERRORS]  # an app's exception can be long
    store.append("errors.log", lines, MAX_ERRORS)
    return store.root / "errors.log"


def last(store: Store, count: int) -> list[Entry | None]:
    """Return the last `count` entries, oldest first; None for a line that cannot be decoded.

    Raises StoreError: there is no audit log, or other users may read it.
    """
    if not (store.exists(NAME) or store.exists(OLDER)):
        raise StoreError(
            "no audit log here: name the state directory of a node that has answered a server"
        )
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
