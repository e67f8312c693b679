"""A group of nodes that agree on masking keys, and the server that asks them; for tests."""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from flwr.app import Message

from flhe.keys.agreement.circle import CONSIST, SharingParameters
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.masking import Agreed, Dealt
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.voids import Promise, Void
from flhe.node.journal import Journal
from flhe.node.witness import Witness
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Slot
from tests.mods.harness import Group, Site, answer, update

ELEMENTS = Sash().elements(3)


class Masked(Group):
    """Sites in order of rank, with the shares that came with their updates."""

    def __init__(
        self,
        path: Path,
        size: int = 3,
        unmask: Literal["server", "clients"] = "server",
        **how: Any,
    ) -> None:
        super().__init__(path, size, scheme=Sash(unmask), **how)
        self.base = {"base": 0} if unmask == "server" else {}
        self.boxes: dict[tuple[int, int, int], list[bytes]] = {}
        """(round, attempt, rank) -> shares by the rank of their receiver."""

    def copied(self, to: Path) -> Masked:
        """The same sites in directories and with witnesses of their own."""
        other = copy.copy(self)
        other.boxes = dict(self.boxes)
        other.sites = [Site(to / s.home.name, s.context.node_id - 100) for s in self.sites]
        for before, after in zip(self.sites, other.sites, strict=True):
            cloned(before.home, after.home)
        return other

    @property
    def circle(self) -> SharingParameters:
        return SharingParameters.of(self.sites[0].epoch, ELEMENTS)

    def epoch(self, rank: int) -> Epoch:
        return self.sites[rank].epoch

    def dealt(self, rank: int) -> Dealt:
        return Dealt.from_bytes(self.sites[rank].files["shares"])

    def agreed(self, rank: int) -> Agreed:
        return Agreed.from_bytes(self.sites[rank].files["survivors"])

    # --- what the server asks ---

    def upload(self, rank: int, *, round_: int = 1, attempt: int = 0, **fields: Any) -> Message:
        fields = {**self.base, **fields}
        reply = self.ask(self.sites[rank], round_=round_, attempt=attempt, **fields)
        if not reply.has_error():
            self.boxes[round_, attempt, rank] = answer(reply)["shares"]  # type: ignore[assignment]
        return reply

    def uploaded(self, **which: int) -> Masked:
        for rank in range(len(self.sites)):
            update(self.upload(rank, **which))
        return self

    def inbox(self, rank: int, survivors: Sequence[int], *which: int) -> list[bytes]:
        """Whatever shares of these there are for one of them."""
        nothing = [b""] * len(self.sites)
        return [self.boxes.get((*(which or (1, 0)), u), nothing)[rank] for u in survivors]

    def consist(self, rank: int, survivors: Sequence[int], /, **fields: Any) -> Message:
        """Propose a set, with whatever shares there are."""
        inbox = self.inbox(rank, survivors, fields.get("round_", 1), fields.get("attempt", 0))
        said = {"survivors": list(survivors), "shares": inbox}
        return self._stage(rank, "consist", {**said, **fields})

    def unmask(self, rank: int, signatures: dict[int, bytes], /, **fields: Any) -> Message:
        """Show signatures, and ask for the sum of shares."""
        said = {"signers": list(signatures), "signatures": list(signatures.values())}
        return self._stage(rank, "unmask", {**said, **fields})

    def void(self, rank: int, slot: Slot, number: int, /, **fields: Any) -> Message:
        """Ask for a promise to sign and answer for no set of a slot."""
        said = {"slot": slot.to_bytes(), "number": number, "round_": slot.round}
        return self._stage(rank, "void", {**said, "attempt": slot.attempt, **fields})

    def voided(self, ranks: Iterable[int], slot: Slot, circle: SharingParameters) -> Void:
        """A slot, with the promises of these."""
        made = {rank: promise_in(self.void(rank, slot, circle.number)) for rank in ranks}
        return Void.of(circle, slot).with_promises(made)

    def _stage(self, rank: int, stage: str, fields: dict[str, Any]) -> Message:
        said = {"round": fields.pop("round_", 1), "attempt": 0, "confirms": self.confirms}
        return self.sites[rank].ask(stage, **{**said, **fields})

    # --- and what comes of it ---

    def signatures(
        self, ranks: Iterable[int], survivors: Sequence[int], **which: int
    ) -> dict[int, bytes]:
        return {rank: signature_in(self.consist(rank, survivors, **which)) for rank in ranks}

    def answers(
        self, ranks: Iterable[int], signatures: dict[int, bytes], **which: int
    ) -> list[bytes]:
        return [answer_in(self.unmask(rank, signatures, **which)) for rank in ranks]

    def forged(self, rank: int, survivors: Sequence[int], slot: Slot) -> bytes:
        """A signature made with a site's key, whatever the site says."""
        header, statement = (
            self.circle.header(slot, CONSIST, rank),
            self.circle.statement(survivors),
        )
        return Envelope.seal(self.sites[rank].store.identity(), header, statement).signature


def cloned(home: Path, to: Path) -> None:
    """Copy a state directory, for a test that begins there; each copy has witnesses of its own."""
    shutil.copytree(home, to)
    witness = Witness(Path(os.environ["FLHE_WITNESS"]))
    for path in to.glob("runs/*/journal"):
        after = dataclasses.replace(Journal.from_bytes(path.read_bytes()), witness=os.urandom(16))
        path.write_bytes(after.to_bytes())
        keep = partial(lambda entry, _: entry, after.entry)
        witness.follow(after.witness, keep, new=True)


def signature_in(reply: Message) -> bytes:
    assert answer(reply)["step"] == "consist"
    return answer(reply)["signature"]  # type: ignore[return-value]


def promise_in(reply: Message) -> Promise:
    assert answer(reply)["step"] == "void"
    return Promise.from_bytes(answer(reply)["promise"])  # type: ignore[arg-type]


def answer_in(reply: Message) -> bytes:
    assert answer(reply)["step"] == "unmask"
    return answer(reply)["answer"]  # type: ignore[return-value]
