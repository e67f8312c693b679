"""Nodes whose messages are each answered by a process of its own, one at a time: `flhe bench --memory`.

A message's objects are files, as a SuperLink would keep them, and a node's process pulls and pushes
them by Flower's own functions. So what a process holds at most is what a deployed node's would hold.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import (
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.task_identity import TaskIdentity

from flhe.errors import FlheError
from flhe.mods.app import App
from flhe.strategies.overhead import resident
from flhe.testing import InProcessGrid
from flhe_lab.bench.synthetic import client_app
from flhe_lab.bench.turns import Progress, silent

READS = {"flhe-server-reads": True}
"""Node config: SASH's sums are read by the server, by default."""
WAIT_S = 7200.0
"""Longest wait for a message of a large model, seconds."""


@dataclass(slots=True)
class Peaks:
    """Most bytes that this process held, and seconds, phase by phase."""

    found: list[dict[str, Any]] = field(default_factory=list)
    _began: float = field(default_factory=time.perf_counter)

    def end(self, phase: str) -> None:
        """End a phase, and forget its peak."""
        seconds, peak = time.perf_counter() - self._began, resident("VmHWM")
        self.found.append({"phase": phase, "seconds": seconds, "peak_bytes": peak})
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak begins anew
        self._began = time.perf_counter()


class Apart(InProcessGrid):
    """Nodes in processes of their own; `place` is a directory for their state and for messages.

    `peaks` are phases of messages, as they ended: of nodes, and the server's own between them.
    """

    nodes_work_here = False

    def __init__(self, nodes: int, place: Path, progress: Progress = silent) -> None:
        super().__init__(client_app(), nodes, homes=place, node_config=lambda _: READS)
        self._place, self._progress = place, progress
        self._done = 0
        self.failed: Exception | None = None
        self.peaks: list[dict[str, Any]] = []

    def _work(self, node: int, packed: Any, message_id: str) -> None:
        try:
            self._answer(node, packed, message_id)
        except Exception as error:
            self.failed = self.failed or error
            raise

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that have arrived; raises what a node's process failed of."""
        if self.failed is not None:
            raise FlheError(f"a node's process failed: {self.failed}") from self.failed
        return super().pull_messages(message_ids)

    def _answer(self, node: int, packed: Any, message_id: str) -> None:
        folder = self._place / message_id
        folder.mkdir()
        self._progress(self._done, self._done + 1, f"message {self._done + 1}, of node {node}")
        self._done += 1
        names = list(packed._contents)
        for name in names:
            (folder / name).write_bytes(packed._contents[name])
            del packed._contents[name]
        order = {
            "head": packed._head,
            "names": names,
            "message": message_id,
            "run": self.run.run_id,
            "node": node,
            "config": self.contexts[node].node_config,
        }
        command = [sys.executable, "-m", __name__, str(folder)]
        done = subprocess.run(  # noqa: S603 -- our own module, with an argument of our own
            command,
            input=json.dumps(order),
            capture_output=True,
            text=True,
            check=False,
            timeout=WAIT_S,
        )
        if done.returncode:
            raise FlheError(f"a node's process failed: {done.stderr[-500:]}")
        told = json.loads(done.stdout.splitlines()[-1])
        self.peaks += [{"node": node, "stage": told["stage"], **each} for each in told["peaks"]]
        packed._head, packed._contents = told["head"], _Files(folder, told["names"])
        packed._message_id = f"{message_id}-reply"
        self._keep(message_id, packed)


class _Files(dict[str, Any]):
    """Objects that are read when they are needed; Flower's unpacking looks at each one twice."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        super().__init__((name, folder / name) for name in names)

    def __getitem__(self, name: str) -> bytes:
        path: Path = super().__getitem__(name)
        return path.read_bytes()


def _answer(folder: Path, order: dict[str, Any], peaks: Peaks) -> dict[str, Any]:
    """Pull a message, have the app answer it, and push the reply."""
    run, node = order["run"], order["node"]
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, node, 1

    def between(message: Message, context: Context, call_next: Callable[..., Message]) -> Message:
        peaks.end("open")
        reply = call_next(message, context)
        peaks.end("app")
        trained.append(True)
        return reply

    def give_back(self: App, dropped: int) -> None:
        old(self, dropped)
        if trained:  # the app's result is not held any more
            trained.clear()
            peaks.end("encode")

    def push(name: str, content: bytes) -> None:
        (folder / name).write_bytes(content)

    trained: list[bool] = []
    old, App.give_back = App.give_back, give_back  # type: ignore[method-assign]
    app = client_app(behind=[between])
    peaks.end("start")
    contents = pull_objects(order["names"], lambda name: (folder / name).read_bytes())
    message = inflate_object_from_contents(order["head"], contents)
    assert isinstance(message, Message)
    message.metadata.__dict__["_message_id"] = order["message"]
    for name in order["names"]:
        (folder / name).unlink()
    stage = str(message.content.config_records["flhe.stage"]["stage"])
    peaks.end("receive")
    reply = app(message, Context(run, node, order["config"], RecordDict(), {}))
    del message
    peaks.end("encrypt")
    reply.metadata.__dict__["_message_id"] = reply.object_id
    with no_object_id_recompute():
        objects = get_all_nested_objects(reply)
        head, names = reply.object_id, list(objects)
        del reply
        push_objects(objects, push)
    peaks.end("send")
    return {"head": head, "names": names, "stage": stage, "peaks": peaks.found}


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(_answer(Path(sys.argv[1]), json.load(sys.stdin), Peaks())))
