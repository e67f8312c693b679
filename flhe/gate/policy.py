"""Policy of a gate: the records of flhe that may leave, their fields, and sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flhe.keys.roster.roster import MAX_MEMBERS
from flhe.mods import records
from flhe.node.policy import METRICS
from flhe.schemes.sealed import MAX_HEADER
from flhe.training.query import MAX_FORM
from flhe.wire import outgoing

MAX_BYTES = 4 << 30
"""Default most bytes of one reply."""
MAX_BOX = 2 << 20
"""Most bytes of one message of a key agreement."""
OPENED = "flhe.opened"

Check = Callable[[Any], bool]


def _data(most: int, least: int = 1) -> Check:
    return lambda value: type(value) is bytes and least <= len(value) <= most


def _listed(check: Check) -> Check:
    return lambda value: (
        type(value) is list and len(value) <= MAX_MEMBERS and all(map(check, value))
    )


def _whole(least: int, end: int) -> Check:
    return lambda value: type(value) is int and least <= value < end


_FLAG: Check = lambda value: type(value) is bool  # noqa: E731
_STEPS = (
    *("mean-squares", "supports", "update", "evaluation", "consist", "unmask", "void"),
    *("query", "total"),
)

FIELDS: dict[str, dict[str, Check]] = {
    records.REPLY: {
        "v": lambda value: type(value) is int and value == records.PROTOCOL,
        "answer": _data(MAX_BOX),
        "bad": _listed(_whole(0, MAX_MEMBERS)),
        "bounds": _listed(_whole(0, 1 << 16)),
        "crypto-s": lambda value: type(value) is float and 0 <= value < 1e6,
        "digest": _data(32, 32),
        "envelope": _data(MAX_BOX),
        "envelopes": _listed(_data(MAX_BOX)),
        "epoch": _data(32, 16),
        "form": _data(MAX_FORM),
        "header": _data(MAX_HEADER),
        "history": _data(32, 32),
        "layout": _data(MAX_BOX),
        "member": _data(32, 32),
        "promise": _data(MAX_BOX),
        "resent": _FLAG,
        "round": _whole(-1, 1 << 32),
        "shares": _listed(_data(1 << 16, 0)),  # a member has none for itself
        "signature": _data(1024),
        outgoing.FIELD: _data(64, 64),
        "step": lambda value: value in _STEPS,
        "support": _data(16 << 20),
        "voucher": _data(1024),
    },
    OPENED: {"round": _whole(0, 1 << 32), "missed": _FLAG},
}
"""Records of values that leave, and the check of each field; no other field leaves."""

STYPES = {records.UPDATE: records.SEALED, records.BOX: records.CHECKPOINT}
"""Records of arrays that leave, and the one stype of each: ciphertext, or a sealed checkpoint."""

_PREFIXES = "|".join(map(re.escape, (records.MEANS, records.EVALUATION)))
MEANS = re.compile(rf"({_PREFIXES})(0|[1-9][0-9]{{0,10}})")
"""Names of records with means of opened sums: a prefix, and a round's number."""


@dataclass(frozen=True, slots=True)
class GatePolicy:
    """The site's public key, the metrics whose means may leave, and the most bytes of a reply."""

    site: bytes
    metrics: tuple[str, ...] = METRICS
    max_bytes: int = MAX_BYTES
