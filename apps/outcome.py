"""Outcome of a run: read from the report that the server writes, and from the log."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flhe_app.settings import Settings

TRAINING, SELECTION = "training", "selection"
"""Kinds of rounds."""


def labelled(event: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Return an event of the report, a round's with its `kind`.

    The selection round has neither accuracy nor loss: in it the nodes evaluate the initial model.
    """
    if event.get("event") != "round":
        return event
    if settings.selects.mapped and event["round"] == 1:
        return event | {"accuracy": None, "loss": None, "kind": SELECTION}
    return event | {"kind": TRAINING}


@dataclass(slots=True)
class Outcome:
    """Rounds of a run, and its latest event of each other kind.

    "warning" warns the user if a part travels in clear. "done" has the place of the model, and in
    `ending` the costs after the last round's report; see `flhe.strategies.overhead.Spent`.
    """

    rounds: list[dict[str, Any]] = field(default_factory=list)
    others: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def earlier(cls, events: Iterable[dict[str, Any]]) -> Outcome:
        """Return an interrupted run's outcome from its report: its rounds, without failure or end."""
        outcome = cls()
        for event in events:
            if event.get("event") in ("start", "round"):
                outcome.read(event)
        return outcome

    def read(self, event: dict[str, Any]) -> bool:
        """Take in one event of the report; False for a round reported before.

        A resumed run may evaluate its last round again: the first report has all of the round's
        costs.
        """
        if event["event"] != "round":
            self.others[event["event"]] = event
            for report in self.rounds:  # an evaluation may be opened after its round's report
                if report.get("kind") == TRAINING and report["accuracy"] is None:
                    report.update(event.get("scores", {}).get(str(report["round"]), {}))
            return True
        if any(known["round"] == event["round"] for known in self.rounds):
            return False
        self.rounds.append({name: value for name, value in event.items() if name != "event"})
        self.rounds.sort(key=lambda report: int(report["round"]))
        return True

    def told(self, kind: str, name: str) -> Any:
        """Return a field of the latest event of a kind but "round"; None without it."""
        return self.others.get(kind, {}).get(name)

    def to_json(self, settings: Settings) -> dict[str, Any]:
        """Return the content of `--json`."""
        return {
            "scheme": settings.scheme,
            "task": settings.task,
            "nodes": settings.nodes,
            "rounds": self.rounds,
            "final_accuracy": self.rounds[-1]["accuracy"] if self.rounds else None,
            "sealed_model": self.told("done", "sealed_model"),
            "warning": self.told("warning", "text"),
            "ending": self.told("done", "ending"),
        }


class Tail:
    """Complete lines of a growing file; if `new`, only future ones."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        self._path = path
        self._offset = path.stat().st_size if new and path.exists() else 0

    def lines(self) -> list[str]:
        """Return the lines since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", "replace").splitlines()


_EXCEPTION = re.compile(r"\s*(?:[\w.]+\.)?(\w*(?:Error|Exception|Exit|Interrupt|Replies)(?:: .*)?)")


def last_exception(log: Path, start: int = 0) -> str:
    """Return the last line of `log` after offset `start` that names an exception; "" if none."""
    text = log.read_bytes()[start:].decode("utf-8", "replace")
    found = [*filter(None, map(_EXCEPTION.fullmatch, text.splitlines()))]
    return found[-1][1].rstrip() if found else ""
