"""A relay that does not do as its server says: messages come again, altered and to one node only.

The server and its nodes are those of `World`. What holds of honest servers alone is not watched here:
nodes may be told different sums, and an update may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from flhe.errors import FlheError
from flhe.mods import records
from flhe.node.store import Store
from flhe.schemes.base import Adder
from flhe.schemes.sealed import Sealed, Slot
from flhe.strategies import EsaflFedAvg, FlasheFedAvg, SashFedAvg
from flhe.strategies.federation import Federation
from tests.strategies.chaos import Fault, World
from tests.strategies.puppets import restaged, stage_of
from tests.strategies.watching import Outcome, data_of

SIZE = 4

KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "dense": (FlasheFedAvg, {}),
    "sparse": (FlasheFedAvg, {"top_k": 0.5, "small": 0, "warmup": 0, "masking": "adaptive"}),
    "sash": (partial(SashFedAvg, unmask="clients"), {}),
    "esafl": (partial(EsaflFedAvg, keys="joint"), {}),
    "esafl-round": (partial(EsaflFedAvg, keys="round"), {}),
}

Change = Callable[[ConfigRecord], dict[str, Any]]
CHANGES: dict[str, Change] = {
    "as it was": lambda said: {},
    "another attempt": lambda said: {"attempt": said["attempt"] + 1},
    "the next round": lambda said: {"round": said["round"] + 1, "attempt": 0},
    "another mode": lambda said: {"mode": "double" if said["mode"] == "single" else "single"},
    "fewer survivors": lambda said: {
        "survivors": said["survivors"][:-1],
        "shares": said["shares"][:-1],
    },
    "no sums": lambda said: {"sums": [], "releases": []},
    **{
        f"as {stage}": lambda said, stage=stage: {"stage": stage}  # type: ignore[misc]
        for stage in ("round", "update", "consist", "unmask", "evaluate", "sync", "checkpoint")
    },
}


@dataclass(frozen=True)
class Letter:
    """A message as it was sent: it can be delivered any number of times."""

    node: int
    kind: str
    content: RecordDict
    context: Context

    def message(self, change: Change) -> Message | None:
        """Another such message, changed; None where it says nothing that could be."""
        content = copied(self.content)
        try:
            content = restaged(content, **change(content[records.STAGE]))
        except KeyError:
            return None
        kind = "evaluate" if stage_of(content) == "evaluate" else "train"
        return Message(content, self.context.node_id, kind)


def copied(content: RecordDict) -> RecordDict:
    """Fresh records: a node takes apart what it gets."""
    return RecordDict({name: type(each)(dict(each.items())) for name, each in content.items()})


class Relay(World):
    """What a relay has carried and heard, by which it can lie."""

    honest = False

    def __init__(self, path: Path, kind: str) -> None:
        make, how = KINDS[kind]
        super().__init__(path, SIZE, how, make=make)
        self.letters: list[Letter] = []
        self.adders: dict[Slot, Adder] = {}
        self.parts: dict[Slot, dict[int, Sealed]] = {}
        self.signed: dict[tuple[Any, ...], list[int]] = {}
        self.tampers: list[tuple[int, str, Change]] = []
        """Node and stage whose next message is changed, and how."""
        self.wrap(Federation, "contribution", after=self._hears)

    # --- what it does ---

    def advance(self, rounds: int) -> Outcome:
        """Let the server run, which may find that it cannot go on."""
        try:
            return super().advance(rounds)
        except FlheError:
            self.outcomes.append(("stopped", ""))
            return "stopped"

    def answer(self, node: int, message: Message, context: Context, fault: Fault | None) -> Any:
        stage = stage_of(message.content)
        self.letters.append(
            Letter(node, message.metadata.message_type, copied(message.content), context)
        )
        for tamper in [t for t in self.tampers if t[:2] == (node, stage)][:1]:
            self.tampers.remove(tamper)
            message = self.letters[-1].message(tamper[2]) or message
        return self._handle(node, message, context, fault)

    def repeat(self, back: int, change: Change = CHANGES["as it was"]) -> None:
        """Have a message arrive again, counted from the last; the server hears no answer."""
        if self.letters:
            letter = self.letters[-1 - back % len(self.letters)]
            if (message := letter.message(change)) is not None:
                TaskIdentity.run_id, before = letter.context.run_id, TaskIdentity.run_id
                self._handle(letter.node, message, letter.context, None)
                TaskIdentity.run_id = before

    def split(self, back: int, among: Iterable[int]) -> None:
        """Have a message with a sum arrive again, with the sum of others of those updates."""
        letters = [each for each in self.letters if "sums" in each.content[records.STAGE]]
        if letters:
            letter = letters[-1 - back % len(letters)]
            said = letter.content[records.STAGE]
            headers = records.bytes_list(said, "sums")  # type: ignore[arg-type]
            at = f"{records.SUM}.{len(headers) - 1}"
            slot = records.to_sealed(headers[-1], copied(letter.content)[at]).slot  # type: ignore[arg-type]
            total: Sealed | None = None
            parts = self.parts.get(slot, {})
            for rank in sorted(parts.keys() & set(among)):
                part = replace(parts[rank], data=parts[rank].data.copy())
                total = self.adders[slot].add(total, part)
            if total is not None:
                total = self.adders[slot].close(total)
                content = RecordDict({**letter.content, at: records.from_sealed(total)})
                self.letters.append(replace(letter, content=content))
                self.repeat(0, lambda _: {"sums": [*headers[:-1], total.header()]})

    def _handle(self, node: int, message: Message, context: Context, fault: Fault | None) -> Any:
        asked = copied(message.content)[records.STAGE]
        reply = super().answer(node, message, context, fault)
        told = {} if reply is None or reply.has_error() else reply.content
        if "signature" in told.get(records.REPLY, ()):
            self._signs(node, asked)
        return reply

    # --- what must hold of nodes, whatever it does ---

    def _hears(self, heard: Any, fed: Federation, *_: Any) -> None:
        """An update is what its node made, once and for all."""
        part: Sealed = heard[0]
        (rank,), slot = part.senders, part.slot
        made = self.made.get((slot, rank))
        if made is None or made.data != data_of(part):
            self.breach(f"rank {rank} sent what nobody encrypted")
        before = self.parts.setdefault(slot, {}).setdefault(
            rank, replace(part, data=part.data.copy())
        )
        if data_of(before) != data_of(part):
            self.breach(f"rank {rank} sent two ciphertexts of round {slot.round}")
        self.adders[slot] = fed.adder

    def _signs(self, node: int, asked: Any) -> None:
        """A member signs one set of survivors a round."""
        epochs = Store(self.sites[node].home).names("epochs/*")
        key = node, tuple(epochs), asked["round"]
        among = list(asked["survivors"])
        if self.signed.setdefault(key, among) != among:
            self.breach(f"node {node} signed two sets of round {asked['round']}")
