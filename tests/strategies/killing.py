"""A federation in which one process is killed at a given step, and comes back with its disk alone.

Steps of a node: each write below its state directory, and each reply. Steps of the server: each write
below its own, each message that it pushes, each reply that it pulls. Changes are whole numbers of a
grid that quantization keeps and that a mean over up to six senders stays on, so whoever adds up the
same updates has the same model to the last bit.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from flhe.coding.base import Plain
from flhe.coding.support import Support
from flhe.errors import ConfigError
from flhe.keys.identity import Identity
from flhe.mods import HEMod, records
from flhe.schemes.base import Opener, Sealer
from flhe.schemes.esafl.scheme import EsheOpener, EsheSealer
from flhe.schemes.flashe.scheme import FlasheOpener, FlasheSealer
from flhe.schemes.sealed import Sealed, Slot
from flhe.strategies import HEStrategy
from flhe.strategies.ledger import Ledger
from flhe.strategies.report import RoundReport
from flhe.training.model import Model
from flhe.training.terms import Terms
from flhe.wire import files
from tests.strategies.puppets import Arrays, Node, Puppets, stage_of

SERVER = -1
UNIT = 2.0**-10
"""Width of one step of quantization, so that it is exact."""

TERMS = Terms(bits=16, clip=(2**15 - 1) * UNIT, weighted=False)
MEANS = 60
"""Changes are multiples of this many units: a mean of 2, 3, 4, 5 or 6 of them is whole."""

MAKES, REMOVES = ("make_private", "create"), ("erase", "drop")
WRITES = (*MAKES, "replace", "move", "append", "append_line", *REMOVES)
AMID = {"amid": ("create", "erase"), "torn": ("replace", "append", "append_line")}
"""Writes that a crash can leave half done. Half of what replaces a file lies beside it."""


class Killed(BaseException):
    """A process ends here; nothing that it could still have done happens."""


class Step(NamedTuple):
    """Where somebody is killed: before, amid or after its `index`-th step, or with it torn."""

    who: int
    index: int
    how: str


# --- what is trained, and what must come of it ---


def start_arrays() -> Arrays:
    """The model that training starts from."""
    w = (np.arange(20, dtype=np.int64) * 37 % 101 - 50).reshape(4, 5)
    return {"w": np.asarray(w * UNIT, np.float32), "steps": np.array([3, -8], np.int64)}


def first_model(_: object = None) -> ArrayRecord:
    """The start arrays, for whoever begins."""
    return records.from_numpy(start_arrays())


def changes(units: NDArray[np.int64], partition: int) -> NDArray[np.int64]:
    """What a node changes, in units: it depends on the model, on the place and on the node."""
    place = np.arange(units.size).reshape(units.shape)
    return ((5 * units + 7 * partition + 3 * place) % 17 - 8) * MEANS


def trained(arrays: Mapping[str, NDArray[Any]], partition: int) -> Arrays:
    """A node's training."""
    w, steps = arrays["w"], arrays["steps"]
    units = np.rint(w / np.float32(UNIT)).astype(np.int64)
    return {
        "w": np.asarray((units + changes(units, partition)) * UNIT, np.float32),
        "steps": np.asarray(steps + changes(steps, partition), np.int64),
    }


def in_plain(rounds: Iterable[tuple[int, ...]]) -> Arrays:
    """The model after rounds with these partitions' updates, without any encryption."""
    model = start_arrays()
    for senders in rounds:
        np.testing.assert_array_equal(np.rint(model["w"] / UNIT) * UNIT, model["w"])
        after = [trained(model, partition) for partition in senders]
        mean = sum(np.rint((a["w"] - model["w"]) / UNIT).astype(np.int64) for a in after)
        steps = sum(a["steps"] - model["steps"] for a in after)
        assert not np.any(mean % len(after))
        assert not np.any(steps % len(after))
        model = {
            "w": np.asarray(model["w"] + mean // len(after) * UNIT, np.float32),
            "steps": np.asarray(model["steps"] + steps // len(after), np.int64),
        }
    return model


# --- a federation that outlives its processes ---


@dataclass
class Scene:
    """Disks of all sites, and who is killed at which step.

    Parameters
    ----------
    path : Path
        Where the disks are.
    nodes : int
        Nodes that are there from the start; one more comes once a first evaluation was asked for.
    rounds : int
        Rounds of training.
    kill : Step, optional
        Who is killed, and where.
    secret : bool
        Whether a member makes the first model, so that the server does not see it.
    how : dict
        What the strategy is told besides.
    terms : dict
        Terms other than those of a dense round of one stage.
    """

    path: Path
    nodes: int
    rounds: int
    kill: Step | None = None
    secret: bool = False
    how: dict[str, Any] = field(default_factory=dict)
    terms: dict[str, Any] = field(default_factory=dict)
    steps: dict[int, list[str]] = field(default_factory=dict)
    reports: list[RoundReport] = field(default_factory=list)
    restarts: int = 0
    joined: bool = False
    running: int = SERVER
    dead: set[int] = field(default_factory=set)
    masks: set[tuple[Any, ...]] = field(default_factory=set)
    opened: dict[tuple[int, int, bool], bytes] = field(default_factory=dict)
    ranges: set[Slot] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    sums: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    strategy: HEStrategy | None = None
    result: Result | None = None

    def __post_init__(self) -> None:
        seeds = [hashlib.sha256(bytes([i])).digest() for i in range(self.nodes + 1)]
        # Ranks go by public keys: with these seeds a node's rank is its partition.
        self.seeds = sorted(seeds, key=lambda seed: Identity(seed).public)
        self.keys = [Identity(seed).public for seed in self.seeds]
        self.homes = [self.path / f"node-{i}" for i in range(self.nodes + 1)]
        self.state = self.path / "server"

    def owner(self, path: Path) -> int | None:
        """Whose disk a path is on."""
        places = {self.state: SERVER, **{home: i for i, home in enumerate(self.homes)}}
        return next((who for place, who in places.items() if path.is_relative_to(place)), None)

    def step(
        self,
        who: int,
        name: str,
        action: Callable[[], Any] = lambda: None,
        torn: Callable[[], Any] = lambda: None,
    ) -> Any:
        """Somebody takes a step, unless it is killed here or was before."""
        if who in self.dead:
            raise Killed
        index = len(self.steps.setdefault(who, []))
        self.steps[who].append(name)
        how = self.kill.how if self.kill and self.kill[:2] == (who, index) else ""
        if how in ("before", *AMID):
            if how in AMID:
                torn()
            self.dead.add(who)
            raise Killed
        done = action()
        if how == "after":
            self.dead.add(who)
            raise Killed
        return done

    def points(self, who: int, *hows: str) -> list[Step]:
        """Every step that somebody took, to be killed there."""
        return [
            Step(who, index, how)
            for index, name in enumerate(self.steps[who])
            for how in hows
            if how not in AMID or name.split()[0] in AMID[how]
        ]

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Have all writes, masks, openings and sums pass by here."""
        for name in WRITES:
            patch.setattr(files, name, self._write(name, getattr(files, name)))
        keep = Ledger.keep
        for sealer, opener in ((FlasheSealer, FlasheOpener), (EsheSealer, EsheOpener)):
            patch.setattr(sealer, "encrypt", self._encrypting(sealer.encrypt))
            patch.setattr(opener, "decrypt", self._decrypting(opener.decrypt))

        def kept(ledger: Ledger, total: Sealed, history: bytes, release: bytes = b"") -> Any:
            assert ledger.agreed is not None
            ranked = sorted(ledger.agreed.members.values())
            self.sums[history] = tuple(self.keys.index(ranked[rank]) for rank in total.senders)
            return keep(ledger, total, history, release)

        patch.setattr(Ledger, "keep", kept)

    def _encrypting(self, encrypt: Callable[..., Sealed]) -> Callable[..., Sealed]:
        def encrypted(
            sealer: Sealer,
            plain: Plain,
            slot: Slot,
            *,
            mode: str = "",
            support: Support | None = None,
        ) -> Sealed:
            use: tuple[Any, ...] = (slot.epoch, slot.round, slot.attempt, sealer.rank)
            if plain.values.size == 0:  # mean squares, which have masks of their own
                self.ranges.add(slot)
                use += ("ranges",)
            if use in self.masks:  # even for the same vector: rounding is exact here alone
                self.broken.append(f"a mask was used twice: {use}")
            self.masks.add(use)
            return encrypt(sealer, plain, slot, mode=mode, support=support)

        return encrypted

    def _decrypting(self, decrypt: Callable[..., Any]) -> Callable[..., Any]:
        def decrypted(opener: Opener, total: Sealed) -> Any:
            place = (self.running, total.slot.round, total.slot in self.ranges)
            if self.opened.setdefault(place, total.digest()) != total.digest():
                self.broken.append(f"a round was opened with two sums: {place}")
            return decrypt(opener, total)

        return decrypted

    def _write(self, name: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def written(path: Path, *args: Any) -> Any:
            who = self.owner(path)
            idle = path.exists() if name in MAKES else name in REMOVES and not path.exists()
            if who is None or idle:  # it only looks
                return write(path, *args)
            if path.name == "identity.key":
                args = ([self.seeds[who]],)
            return self.step(
                who,
                f"{name} {path.name}",
                lambda: write(path, *args),
                lambda: _tear(name, path, args),
            )

        return written

    def play(self) -> Scene:
        """The whole run; a server that is killed is started again, as a new run of Flower."""
        resume = False
        while True:
            strategy = self.strategy = HEStrategy(
                replace(TERMS, **self.terms),
                state_dir=self.state,
                min_available_nodes=self.nodes,
                on_round=self.reports.append,
                **{"checkpoint_every": 2, **self.how},
            )
            grid = Sites(self)
            try:
                start = None if self.secret else first_model()
                self.result = strategy.start(grid, start, self.rounds, resume=resume)
                return self
            except Killed:
                resume = True
            except ConfigError as error:
                if not resume or "start it without resume" not in str(error):
                    raise
                resume = False
            finally:
                grid.close()
                self.restarts += 1
                self.dead.discard(SERVER)

    # --- what came of it ---

    @property
    def ledger(self) -> Ledger:
        """The server's memory at the end."""
        assert self.strategy is not None
        assert self.strategy._fed is not None
        return self.strategy._fed.ledger

    @property
    def members(self) -> list[int]:
        """Partitions in the last epoch."""
        assert self.ledger.agreed is not None
        return sorted(self.keys.index(key) for key in self.ledger.agreed.members.values())

    @property
    def senders(self) -> dict[int, tuple[int, ...]]:
        """Partitions whose updates are in the model, by round."""
        chain = self.ledger.chain
        return {round_: self.sums[chain[round_]] for round_ in sorted(chain) if round_}

    def model(self, partition: int) -> Model:
        """The model on a node's disk."""
        path = self.homes[partition] / "runs" / str(self.ledger.federation) / "model"
        return Model.from_bytes(path.read_bytes())


class Sites(Puppets):
    """The sites as one run of Flower sees them: under node ids and a run id of its own."""

    def __init__(self, scene: Scene) -> None:
        app = Node(HEMod(initial=first_model if scene.secret else None))
        app.examples, app.trained = (lambda _: 1), trained
        super().__init__(scene.path, scene.nodes + 1, app, run_id=7 + scene.restarts)
        self.close()
        self._pool = AtOnce()  # type: ignore[assignment]
        self.scene = scene
        self.first = 100 * (1 + scene.restarts)
        self.contexts = {
            self.first + i: Context(
                run_id=self._run.run_id,
                node_id=self.first + i,
                node_config=context.node_config,
                state=RecordDict(),
                run_config={},
            )
            for i, context in enumerate(self.contexts.values())
        }

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)[: None if self.scene.joined else -1]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            self.scene.joined |= stage_of(message.content) == "evaluate"
            ids += self.scene.step(SERVER, "push", lambda m=message: self._push(m))
        return ids

    def _push(self, message: Message) -> list[str]:
        return super().push_messages([message])

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = super().pull_messages(message_ids)
        if replies:
            self.scene.step(SERVER, "pull")
        return replies

    def _work(self, node: int, *args: Any) -> None:
        """A process for one message."""
        partition = self.scene.running = node - self.first
        if partition in self.scene.dead:
            self.scene.dead.discard(partition)
            self.contexts[node].state = RecordDict()
        super()._work(node, *args)

    def _put(self, message_id: str, reply: Message) -> None:
        partition = reply.metadata.src_node_id - self.first
        self.scene.step(partition, "reply", lambda: super(Sites, self)._put(message_id, reply))


class AtOnce:
    """Does what it is given at once, so that nobody waits: the order of steps is then always one."""

    def submit(self, work: Callable[..., None], *args: Any) -> None:
        with suppress(Killed):
            work(*args)

    def shutdown(self, *, wait: bool) -> None:
        """There is nothing to wait for."""


def _tear(name: str, path: Path, args: tuple[Any, ...]) -> None:
    """What a write leaves behind when it is cut short."""
    beside = path.parent / f".{secrets.token_hex(8)}"
    if name == "erase":
        path.rename(beside)
        return
    if name == "create":
        data, flags = b"", os.O_EXCL
    elif name == "replace":
        whole = b"".join(bytes(chunk) for chunk in args[0])
        path, data, flags = beside, whole[: len(whole) // 2], os.O_EXCL
    else:
        data, flags = args[0][: len(args[0]) // 2], os.O_APPEND
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600), "wb") as file:
        file.write(data)
