"""What becomes of messages on the way, in a few words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flwr.app import Error, Message

from tests.strategies.puppets import Fate, Puppets


def lie(
    grid: Puppets,
    node: int,
    stage: str,
    change: Callable[[Message], Any],
    round_: int | None = None,
) -> None:
    """Have `change` done to what a node answers in a stage, in one round or in all."""
    before = grid.forge

    def forge(sender: int, at: str, reply: Message) -> Message:
        reply = before(sender, at, reply)
        if (sender, at) == (node, stage) and round_ in (None, grid.asked) and not reply.has_error():
            change(reply)
        return reply

    grid.forge = forge


def lose(reply: Message) -> None:
    """What a node answered does not arrive: for `lie`."""
    reply._content, reply._error = None, Error(code=4)


def fail_once(
    grid: Puppets,
    stage: str,
    round_: int,
    times: int = 1,
    node: int | None = None,
    fate: Fate = "dead",
) -> list[int]:
    """The first `times` that a round's stage is asked of a node, or of any, it fails; returns which."""
    failed: list[int] = []

    def fates(asked: int, at: str, number: int) -> Fate:
        there = (at, number) == (stage, round_) and node in (None, asked)
        if there and len(failed) < times:
            failed.append(asked)
            return fate
        return None

    grid.fate = fates
    return failed


def drift(grid: Puppets, index: int) -> None:
    """A node's weights are no more what its history says: a bad disk, or other arithmetic."""
    model = grid.model(index)
    other = replace(model, masters={**model.masters, "w": model.masters["w"] + 3})
    (grid.run_dir(index) / "model").write_bytes(b"".join(other.chunks()))
