"""Nodes and the messages between them and a relay; `tests.strategies.relay` says what is asked."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Array, ConfigRecord, Message

from flhe.keys.agreement.epoch import Epoch
from flhe.mods import records
from flhe.node import store as store_module
from flhe.node.store import Store
from flhe.schemes.sealed import Sealed, Slot
from tests.mods.harness import CONFIG, SECRET, App, Site, initial
from tests.strategies.watching import Fault, Watch, data_of

SIZE = 4
VICTIM = 0
"""The one node whose directory is put back: one may be rolled back with its whole machine, unnoticed,
and a sum takes more of them."""

LEAST = 16
"""Bytes of a secret that are looked for; shorter ones turn up by chance."""


@dataclass(frozen=True)
class Letter:
    """A message as it was sent: it can be delivered any number of times."""

    site: int
    stage: str
    kind: str
    content: Mapping[str, Any]
    fields: Mapping[str, Any]
    sums: tuple[Sealed, ...]
    epoch: int
    """Which agreement of the relay's it belongs to."""
    among: tuple[int, ...] = ()
    """Ranks of the set that it is about."""

    def records(self) -> dict[str, Any]:
        """Fresh ones: a node takes apart what it gets."""
        made = {**self.content, "config": ConfigRecord(dict(CONFIG)), "arrays": initial()}
        for i, total in enumerate(self.sums):
            made[f"{records.SUM}.{i}"] = records.from_sealed(total)
        return made


class Network(Watch):
    """Nodes, the messages between them and a relay, and what becomes of both."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, logging.NullHandler(), (store_module,))
        self.sites = [self.process(i) for i in range(SIZE)]
        self.sent: list[Letter] = []
        self.heard: dict[tuple[Slot, int], bytes] = {}
        self.signed: dict[tuple[int, int], dict[tuple[int, ...], set[int]]] = {}

    # --- nodes ---

    def process(self, index: int) -> Site:
        """A process of a node, which knows its directory and nothing else."""
        network = self

        class Moody(App):
            """It fails when it is told to, with words that must not travel."""

            def content(self, message: Message) -> Any:
                if network.app_fails:
                    raise ValueError(SECRET)
                return super().content(message)

        home = self.path / f"node-{index}"
        return Site(home, index, app=Moody(step=0.125 * (index + 1), examples=10 + 20 * index))

    def restart(self, index: int) -> None:
        """End a node's process, and begin another."""
        self.sites[index] = self.process(index)

    def put_back(self, node: int) -> None:
        """A machine that is rolled back starts anew."""
        if self.snapshot is not None:
            super().put_back(node)
            self.restart(node)

    def handle(self, letter: Letter, fault: Fault | None = None) -> Message | None:
        """What a node answers; None if it dies over it."""
        site, began = self.sites[letter.site], self.clock.now
        ask = partial(site.ask, letter.stage, letter.kind, letter.records(), **letter.fields)
        reply = self.act(letter.site, fault, ask)
        if reply is None:
            self.restart(letter.site)
            return None
        if self.clock.now != began:
            self.breach(f"node {letter.site} waited at {letter.stage}")
        self.reads(letter.site, reply)
        return reply

    # --- messages ---

    def pass_time(self, seconds: float) -> None:
        """Let the clock run, and what is due arrive."""
        until = self.clock.now + seconds
        while self.queue and self.queue[0][0] <= until:
            self.clock.now = max(self.clock.now, self.queue[0][0])
            self.arrive()
        self.clock.now = until

    def send(self, letter: Letter, fault: Fault | None = None) -> None:
        """Send it, and see what becomes of it."""
        self.sent.append(letter)
        self.repeat(letter, fault)

    def repeat(self, letter: Letter, fault: Fault | None = None) -> None:
        """Have a letter arrive at its node; what is refused is not answered."""

        def hear(reply: Message) -> None:
            if not reply.has_error():
                self.hear(letter, reply)

        self.deliver(fault, lambda: self.handle(letter, fault), hear)

    def hear(self, letter: Letter, reply: Message) -> None:
        """An answer arrives at the relay."""
        raise NotImplementedError

    # --- what must hold ---

    def hears(self, sealed: Sealed) -> None:
        """An update has arrived: it must be what its node made, once and for all."""
        (rank,) = sealed.senders
        data = data_of(sealed)
        if self.heard.setdefault((sealed.slot, rank), data) != data:
            self.breach(f"rank {rank} sent two ciphertexts of round {sealed.slot.round}")
        if (made := self.made.get((sealed.slot, rank))) is None or made.data != data:
            self.breach(f"rank {rank} sent what nobody encrypted")

    def signs(self, where: tuple[int, int], among: tuple[int, ...], rank: int, quorum: int) -> None:
        """A member signed a set of survivors: one set a round, and no two sets are agreed on."""
        sets = self.signed.setdefault(where, {})
        sets.setdefault(among, set()).add(rank)
        if sum(rank in who for who in sets.values()) > 1:
            self.breach(f"rank {rank} signed two sets of round {where[1]}")
        if sum(len(who) >= quorum for who in sets.values()) > 1:
            self.breach(f"two sets of round {where[1]} were agreed on")

    def reads(self, index: int, reply: Message) -> None:
        """Nothing secret is in an answer."""
        if not reply.has_error():
            said = b"\0".join(_bytes_of(reply))
            for what, secret in self._secrets(self.sites[index]):
                if len(secret) >= LEAST and secret in said:
                    self.breach(f"node {index} told {what}")

    def _secrets(self, site: Site) -> Iterator[tuple[str, bytes]]:
        yield "what its app's error said", SECRET.encode()
        yield "its identity", (site.home / "identity.key").read_bytes()
        for made in list(self.made.values())[-1:]:
            # Of the values that it hides, in the widths that they have on their way.
            for width in ("int16", "int32", "int64"):
                yield "what was encrypted", made.lanes.astype(width).tobytes()
        store = Store(site.home)
        for epoch_id in store.epochs():
            epoch = Epoch.from_bytes(store.peek_epoch(epoch_id))
            yield "the group key", epoch.group_key
            yield "a key of the scheme", epoch.scheme_secret[64:96]
        if (site.run / "model").exists() and (model := site.model).round:
            for array in (*model.masters.values(), *model.arrays().values()):
                yield "its model", array.tobytes()


def _bytes_of(message: Message) -> Iterator[bytes]:
    for value in (value for record in message.content.values() for value in record.values()):
        for item in value if isinstance(value, list) else [value]:
            data = item.data if isinstance(item, Array) else item
            yield data if isinstance(data, bytes) else repr(data).encode()
