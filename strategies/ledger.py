"""Ledger: the server's state that must survive between rounds. Nothing in it can decrypt.

With a directory it is on disk before any dependent message is sent, so a server killed at any point
resumes at the same state (`HEStrategy.start(resume=True)`):

    ledger        epoch, rounds, histories; canonical CBOR
    result-<n>    outcome of a query
    sum-<round>   the sealed sum of a round that some member may still need
    release-<round>  the released key of it, sealed for the members, under masking-key agreement
    model         the model, if the server reads the sums
    checkpoint    the last sealed checkpoint of this epoch

Without one it is in memory only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from flwr.app import ArrayRecord

from flhe.coding.flatten import Layout
from flhe.errors import ConfigError, ProtocolError, StoreError
from flhe.keys import seal
from flhe.keys.agreement.voids import Void
from flhe.mods import records
from flhe.schemes.sealed import Sealed, to_bytes
from flhe.strategies.key_agreement import Agreed
from flhe.training.model import Model
from flhe.wire import files
from flhe.wire.fields import U32, U64, As, Hash, within
from flhe.wire.record import Form, Record

VERSION = 15
MAX_BYTES = 256 << 20

Phase = Literal["training", "summed", "done"]


def _rounds(stored: list[int]) -> dict[int, Any]:
    """Return rounds without their content, which `Ledger.load` reads from separate files."""
    if any(type(round_) is not int or not 0 <= round_ < 1 << 32 for round_ in stored):
        raise ValueError
    return dict.fromkeys(stored)


_BY_ROUND = As(sorted, _rounds, "rounds that ascend, each once")
_Round = Annotated[int, within(-1, (1 << 32) - 1)]
"""-1 for none."""


@dataclass(frozen=True, slots=True)
class PendingSet(Record):
    """A survivor set that members may have signed, with their signatures and answers.

    Parameters
    ----------
    void : Void
        Its slot and circle, with the promises so far.
    signatures, answers : mapping of int to bytes
        Results of CONSIST and UNMASK, by rank.
    """

    FORM = Form("pending set", MAX_BYTES, row=True)

    void: Void
    signatures: dict[U32, bytes] = field(default_factory=dict)
    answers: dict[U32, bytes] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class Ledger(Record):
    """The server's state of one federation; its own file holds the constructor's fields."""

    FORM = Form(
        "ledger",
        MAX_BYTES,
        version=VERSION,
        damaged=ProtocolError("the ledger is damaged, or of another version of flhe"),
    )

    federation: U64
    """Run id of the federation's first run."""
    terms: bytes
    """Encoded terms."""
    number: U64 = 0
    """Number of the next key agreement."""
    agreed: Agreed | None = None
    since: U32 = 0
    """First round of the epoch."""
    layout: Annotated[Layout, As(Layout.to_fields, Layout.from_fields, "a layout")] | None = None
    chain: dict[U32, Hash] = field(default_factory=dict)
    """Round -> history of the model then; the last one is the federation's present model."""
    round: U32 = 0
    """Current round."""
    attempt: U32 = 0
    phase: Phase = "done"
    survivors: U32 = 0
    """Members whose update is in the current round's sum."""
    sums: Annotated[dict[int, tuple[bytes, ArrayRecord]], _BY_ROUND] = field(default_factory=dict)
    box_round: _Round = -1
    """Round of the kept checkpoint's model."""
    box_bytes: U64 = 0
    vouchers: tuple[bytes, ...] = ()
    """Vouchers of the members that hold its model; see `flhe.training.vouching`."""
    mean_squares: dict[U32, bytes] = field(default_factory=dict)
    """Round -> the sealed sum of mean squares for its fitted thresholds, if any."""
    spoiled: U32 = 0
    """Round that cannot be run again: its mean squares were lost with their epoch, or members gave
    up its survivor set."""
    releases: Annotated[dict[int, bytes], _BY_ROUND] = field(default_factory=dict)
    """Round -> the released key of its sum, sealed for the members."""
    evaluated: _Round = -1
    """Round of the last model that was evaluated."""
    evaluation: bytes = b""
    """The sealed sum of evaluations, until its result is reported."""
    opens_evaluation: bytes = b""
    """The released key of that sum, sealed for the members."""
    asked: dict[U32, Hash] = field(default_factory=dict)
    """Number -> hash of the query asked under it."""
    asking: bytes = b""
    """The query with a pending or unopened sum, and the form of its answers."""
    results: Annotated[dict[int, bytes], _BY_ROUND] = field(default_factory=dict)
    """Number -> outcome of that query."""
    pending: PendingSet | None = None
    """The survivor set that is neither opened nor void."""
    voids: tuple[Void, ...] = ()
    """Sets of updates to the present model that can never be opened."""
    directory: Path | None = field(default=None, init=False)
    """Directory on disk; None keeps the ledger in memory."""
    pending_sum: Sealed | None = field(default=None, init=False)
    """The sum of the pending set's updates."""
    box: ArrayRecord | None = field(default=None, init=False)
    """The kept checkpoint of this epoch."""
    model: Model | None = field(default=None, init=False)
    """The model, if the server reads the sums."""

    @property
    def base(self) -> int:
        """Round of the next round's starting model; -1 before there is a model."""
        return max(self.chain, default=-1)

    @property
    def history(self) -> bytes:
        """History of that model."""
        return self.chain[self.base]

    # --- changes ---

    def begin(self, round_: int, attempt: int) -> None:
        """Record that a round begins."""
        self.round, self.attempt, self.phase = round_, attempt, "training"
        self.survivors = 0
        self.save()

    def keep_mean_squares(self, total: Sealed) -> None:
        """Keep the mean squares of the current round, before any node receives them."""
        self.mean_squares[total.slot.round] = to_bytes(total)
        self.save()

    def hold(self, pending: PendingSet, total: Sealed | None = None) -> None:
        """Keep a set, and its sum before members are asked to sign it."""
        if total is not None:
            self.pending_sum = total
            self._write("pending", _chunks(total))
        self.pending = pending
        self.save()

    def give_up(self) -> None:
        """Mark the pending set and its round as void."""
        assert self.pending is not None
        self.voids += (self.pending.void,)
        self.spoiled = self.pending.void.slot.round
        self.end_set()

    def end_set(self) -> None:
        """Remove the pending set, which is opened or void."""
        self.pending = self.pending_sum = None
        self.save()
        self._unlink("pending")

    def start_model(self, model: Model) -> None:
        """Keep the server's starting model, if it reads the sums."""
        self.layout, self.chain = model.layout, {0: model.history}
        self._write_model(model)

    def keep_model(self, model: Model) -> None:
        """Keep the model of a round whose sum the server has read."""
        self._write_model(model)
        self.chain[model.round] = model.history
        self.summed()

    def summed(self) -> None:
        """Record that the round has its sum, and drop its abandoned sets."""
        self.phase, self.voids = "summed", ()
        self.end_set()

    def _write_model(self, model: Model) -> None:
        self._write("model", model.chunks())
        self.model = model

    def keep(self, total: Sealed, history: bytes, release: bytes = b"") -> ArrayRecord:
        """Keep a round's sum, and its released key, before any node receives it."""
        arrays, round_ = records.from_sealed(total), total.slot.round
        self._write(f"sum-{round_}", _chunks(total))
        if release:
            self._write(f"release-{round_}", [release])
            self.releases[round_] = release
        self.sums[round_] = (total.header(), arrays)
        self.chain[round_] = history
        self.summed()
        return arrays

    def keep_evaluation(self, round_: int, total: bytes = b"", release: bytes = b"") -> None:
        """Record that a model was evaluated, and keep the sum that members have yet to open."""
        self.evaluated, self.evaluation, self.opens_evaluation = round_, total, release
        self.save()

    def keep_result(self, number: int, result: bytes) -> None:
        """Keep the outcome of a query for good: nodes answer it once."""
        self._write(f"result-{number}", [result])
        self.results[number] = result
        self.evaluation = self.opens_evaluation = self.asking = b""
        self.summed()

    def done(self) -> None:
        """Record that the round is over."""
        self.phase = "done"
        self.save()

    def keep_box(self, box: ArrayRecord, round_: int, vouchers: tuple[bytes, ...]) -> None:
        """Keep a sealed checkpoint of this epoch; drop sums that it makes unnecessary."""
        pieces = records.to_pieces(box)
        self._write("checkpoint", pieces)
        self.box, self.box_round, self.vouchers = box, round_, vouchers
        self.box_bytes = sum(map(len, pieces))
        self.drop_sums(round_)

    def drop_first_model(self) -> None:
        """Forget the first model, and its checkpoint."""
        self.layout, self.chain, self.box, self.box_round = None, {}, None, -1
        self.save()
        self._unlink("checkpoint")

    def drop_sums(self, upto: int) -> None:
        """Drop the sums up to round `upto`: all members have them, or use a checkpoint."""
        self._forget([round_ for round_ in self.sums if round_ <= upto])

    def _forget(self, rounds: list[int]) -> None:
        for kept in (self.sums, self.mean_squares, self.releases):
            for round_ in rounds:
                kept.pop(round_, None)
        self.save()
        self._unlink(*_files_of(rounds))

    def change_epoch(self, agreed: Agreed, round_: int) -> None:
        """Begin a new epoch at `round_`, and drop everything sealed for the previous one."""
        gone = _files_of(self.sums)
        if self.phase == "training" and self.round in self.mean_squares:
            self.spoiled = self.round
        self.agreed, self.number, self.since = agreed, agreed.number + 1, round_
        self.sums, self.box, self.box_round = {}, None, -1
        self.mean_squares, self.releases = {}, {}
        self.evaluation = self.opens_evaluation = b""
        self.save()
        self._unlink("checkpoint", *gone)

    def void(self) -> int:
        """Take back the last sum, which no node could open; return its round."""
        lost = self.base
        del self.chain[lost]
        self._forget([lost])
        return lost

    # --- disk ---

    def save(self) -> None:
        """Write the ledger atomically."""
        if self.directory is not None:  # encoding it takes a while
            self._write("ledger", [self.to_bytes()])

    def _write(self, name: str, chunks: Iterable[files.Buffer]) -> None:
        if self.directory is not None:
            files.replace(self.directory / name, chunks)

    def _unlink(self, *names: str) -> None:
        if self.directory is not None:
            for name in names:
                files.drop(self.directory / name)

    @classmethod
    def create(cls, directory: Path | None, federation: int, terms: bytes) -> Ledger:
        """Return a new ledger.

        Raises ConfigError: the directory holds another federation; StoreError: it cannot be used.
        """
        if directory is not None:
            with files.os_errors("make"):
                directory.parent.mkdir(parents=True, exist_ok=True)
            files.make_private(directory)
            if (directory / "ledger").exists():
                raise ConfigError(
                    "state_dir holds a federation already: go on with it (resume=True), or name "
                    "another directory"
                )
        made = cls(federation, terms)
        made.directory = directory
        return made

    @classmethod
    def load(cls, directory: Path, terms: bytes) -> Ledger:
        """Return the ledger in a directory, without node ids: members are known by their keys.

        Raises ConfigError: there is none, or one of other terms; ProtocolError, StoreError: it is
        damaged, or cannot be read.
        """
        if not (directory / "ledger").exists():
            raise ConfigError("state_dir holds no federation to resume: start it without resume")
        ledger = cls.from_bytes(files.read(directory / "ledger"))
        if ledger.terms != terms:
            raise ConfigError(
                "state_dir holds a federation under other terms (scheme, bits, clip, ...): resume it "
                "with the strategy that began it"
            )
        ledger.directory = directory
        for round_ in ledger.sums:
            total = _read_sum(directory / f"sum-{round_}")
            ledger.sums[round_] = total.header(), records.from_sealed(total)
        if ledger.pending is not None:
            ledger.pending_sum = _read_sum(directory / "pending")
        ledger.releases = {r: files.read(directory / f"release-{r}") for r in ledger.releases}
        ledger.results = {n: files.read(directory / f"result-{n}") for n in ledger.results}
        if (directory / "model").exists():
            ledger.model = _read_model(directory / "model", ledger)
        written, ledger.box_round = ledger.box_round, -1
        if written >= 0 and (directory / "checkpoint").exists():
            data = files.read(directory / "checkpoint")
            if seal.peek(data).round == written:  # else a crash came between it and the ledger
                if len(data) != ledger.box_bytes:
                    raise StoreError("the kept checkpoint was cut short: remove it")
                ledger.box, ledger.box_round = records.from_pieces([data]), written
        return ledger

    def place(self, nodes: Mapping[int, bytes]) -> None:
        """Assign members' keys to the current nodes; the others remain known by their keys."""
        assert self.agreed is not None
        found = {key: node for node, key in nodes.items()}
        keys = sorted(self.agreed.members.values())
        members = {found.get(key, -1 - i): key for i, key in enumerate(keys)}
        self.agreed = replace(self.agreed, members=members)


def _files_of(rounds: Iterable[int]) -> list[str]:
    return [f"{kind}-{round_}" for round_ in rounds for kind in ("sum", "release")]


def _read_model(path: Path, ledger: Ledger) -> Model:
    """Return the kept model, written before the ledger: it may be one round ahead of it."""
    model = Model.from_bytes(files.read(path))
    if ledger.chain.get(model.round) != model.history:
        if model.round != ledger.round or ledger.phase != "training":
            raise StoreError("the kept model is not the ledger's: it cannot be resumed from")
        ledger.chain[model.round] = model.history
        if ledger.pending_sum is not None:
            ledger.survivors = len(ledger.pending_sum.senders)
        ledger.summed()
    return model


def _chunks(total: Sealed) -> list[files.Buffer]:
    header = total.header()
    return [len(header).to_bytes(4, "big") + header, *total.body()]


def _read_sum(path: Path) -> Sealed:
    data = files.read(path)
    start = 4 + int.from_bytes(data[:4], "big")
    if len(data) < start:
        raise StoreError("a kept sum was cut short: its round cannot be resumed")
    return Sealed.from_parts(data[4:start], np.frombuffer(data, np.uint8, offset=start))
