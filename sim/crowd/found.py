"""A federation of virtual clients on Ray: what is asked for, and what it took."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from flhe.errors import ConfigError
from flhe.keys.roster.roster import MAX_MEMBERS


@dataclass(frozen=True, slots=True)
class Asked:
    """A federation."""

    clients: int  # N, 3 to 1024
    values: int  # M, values in the model
    rounds: int  # Rounds, at least 1
    drops: int = 0  # Clients that drop out of each round

    def __post_init__(self) -> None:
        if not 3 <= self.clients <= MAX_MEMBERS:
            raise ConfigError(f"--clients {self.clients}: a group has 3 to {MAX_MEMBERS} members")
        for name, least in (("values", 1), ("rounds", 1), ("drops", 0)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"--{name} {value}: must be {least} at least")


@dataclass(slots=True)
class Found:
    """What one federation took; seconds of clients are medians over all messages of a stage."""

    asked: Asked  # The federation
    wall_s: float = 0.0  # From the start of Flower's processes to the last event
    rounds_s: list[float] = field(default_factory=list)  # Seconds of each round
    survivors: list[int] = field(default_factory=list)
    client_cpu_s: dict[str, float] = field(default_factory=dict)
    """By stage: of one client's processor."""
    phases: list[dict[str, Any]] = field(default_factory=list)
    """What the server noted; see `phases.Phase`."""
    server_bytes: int = 0  # Resident, at most: the server's process
    actor_bytes: int = 0  # One actor, at most
    tree_bytes: int = 0  # All processes together at most, shared pages counted once
    error: float = 0.0  # Largest error of the final model

    @classmethod
    def of(cls, data: dict[str, Any]) -> Found:
        """What was written down of one."""
        return cls(**{**data, "asked": Asked(**data["asked"])})

    def read_clocks(self, directory: Path) -> None:
        """Take in what the actors noted of each message (`app.clock`); refusals are left out."""
        lines = [
            json.loads(line)
            for path in sorted(directory.glob("*.jsonl"))
            for line in path.read_text(encoding="utf-8").splitlines()
        ]
        stages: dict[str, list[dict[str, Any]]] = {}
        for line in lines:
            if not line["failed"]:
                stages.setdefault(line["stage"], []).append(line)
        for stage, of_it in stages.items():
            self.client_cpu_s[stage] = median(line["cpu_s"] for line in of_it)
        self.actor_bytes = max((line["peak"] for line in lines), default=0)
