"""Folder: the files of one federation in a node's state directory, runs/<id>/, by name."""

from __future__ import annotations

import time
import traceback
from dataclasses import dataclass, field

from flhe.keys.identity import Identity
from flhe.node.policy import Policy
from flhe.node.store import Store

MAX_LOG = 1 << 20
"""Bytes of errors.log; when it is full it starts anew."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A site's files within one run; whoever handles a message has locked its `store`."""

    policy: Policy
    store: Store
    identity: Identity = field(repr=False)
    run_id: int

    def _name(self, name: str) -> str:
        return f"runs/{self.run_id}/{name}"

    def _kept(self, name: str) -> bytes | None:
        """What is in a file; None without one."""
        name = self._name(name)
        return self.store.read(name) if self.store.exists(name) else None

    def _number(self, name: str) -> int:
        """The number in a file; 0 without one."""
        return int.from_bytes(self._kept(name) or b"", "big")


def log_failure(store: Store, stage: str, error: BaseException) -> None:
    """Append a failure to the node's own errors.log: the only place that gets the details."""
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    text = f"{when} {stage[:16]!r}\n{''.join(traceback.format_exception(error))}\n"
    store.append("errors.log", text.encode(errors="backslashreplace"), limit=MAX_LOG)
