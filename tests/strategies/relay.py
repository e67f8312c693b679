"""A relay between nodes that asks for rounds, in turn and out of turn; no strategy takes part."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Array, Message

from flhe.coding.support import Support
from flhe.errors import ProtocolError
from flhe.keys.agreement.answers import pack
from flhe.keys.agreement.circle import SharingParameters
from flhe.keys.agreement.epoch import Epoch
from flhe.keys.agreement.messages import Envelope
from flhe.keys.agreement.voids import Promise, Void
from flhe.mods import records
from flhe.node import store as store_module
from flhe.node.store import Store
from flhe.schemes.esafl.scheme import Esafl
from flhe.schemes.sash.scheme import Sash
from flhe.schemes.sealed import Sealed, Slot
from flhe.training.contract import Contract
from flhe.training.terms import Terms
from tests.mods.harness import SECRET, SPARSE, TERMS, App, Site, answer, initial
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
        made = {**self.content, "arrays": initial()}
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
        self.sites[index] = self.process(index)

    def put_back(self, node: int) -> None:
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
        for name in store.names("epochs/*"):
            epoch = Epoch.from_bytes(store.read(name))
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


STAGE = 10.0
"""Seconds that the relay waits for the answers to a stage."""

FLOATS = 13
"""Of the harness's model."""

KINDS: dict[str, Terms] = {
    "dense": TERMS,
    "sparse": SPARSE,
    "sash": dataclasses.replace(TERMS, scheme=Sash(unmask="clients")),
    "esafl": dataclasses.replace(TERMS, scheme=Esafl(keys="joint")),
    "esafl-round": dataclasses.replace(TERMS, scheme=Esafl(keys="round")),
}


@dataclass
class Try:
    """One attempt at a round, as far as the relay has heard; all by rank."""

    supports: dict[int, Support] = field(default_factory=dict)
    updates: dict[int, Sealed] = field(default_factory=dict)
    shares: dict[int, list[bytes]] = field(default_factory=dict)
    signatures: dict[tuple[int, ...], dict[int, bytes]] = field(default_factory=dict)
    answers: dict[tuple[int, ...], dict[int, bytes]] = field(default_factory=dict)

    def together(self) -> list[int]:
        """Ranks of most of those whose updates can be added: they are of one slot and mode."""
        like: dict[Any, list[int]] = {}
        for rank, part in sorted(self.updates.items()):
            like.setdefault((part.slot, part.mode), []).append(rank)
        return max(like.values(), key=len, default=[])


@dataclass(frozen=True)
class Result:
    total: Sealed
    release: bytes


def said_of(results: Sequence[Result]) -> dict[str, Any]:
    """What a message says of the sums that it brings."""
    return {
        "sums": [result.total.header() for result in results],
        "releases": [result.release for result in results],
    }


class Relay(Network):
    """What a relay knows of the nodes, and where it stands."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(path)
        self.terms = KINDS[kind]
        self.number = 0
        self.round, self.attempt, self.stage, self.turn = 1, 0, "round", 0
        self.mode = "double"
        self.proposed: dict[Slot, Void] = {}
        """Of each slot of which somebody may have signed a set that was not opened: who gave it up."""
        self.publics: dict[int, bytes] = {}
        """Identity key of each site."""
        self.forget()

    def forget(self) -> None:
        """A new epoch: nothing of the one before can be added or opened in it."""
        self.members: list[int] = []
        self.confirms: list[bytes] = []
        self.least, self.rostered, self.colluders = 2, 0, 0
        self.box: list[bytes] = []
        self.vouchers: list[bytes] = []
        self.tries: dict[tuple[int, int], Try] = {}
        self.results: list[Result] = []

    def letter(self, site: int, stage: str, kind: str = "train", **fields: Any) -> Letter:
        """A message of a round, with everything that a node may lack."""
        said = {
            "round": self.round,
            "attempt": self.attempt,
            "confirms": self.confirms,
            "vouchers": self.vouchers,
            "voids": [void.to_bytes() for void in self.proposed.values() if void.complete],
            **said_of(self.results),
            **fields,
        }
        content = {records.BOX: records.from_pieces(self.box)} if self.box else {}
        totals = tuple(result.total for result in self.results)
        return Letter(site, stage, kind, content, said, totals, self.number)

    def hear(self, letter: Letter, reply: Message) -> None:
        """An answer arrives; what belongs to an epoch that is over is of no use."""
        if letter.epoch != self.number or letter.site not in self.members:
            return
        rank, said = self.members.index(letter.site), answer(reply)
        where = letter.fields["round"], letter.fields["attempt"]
        noted = self.tries.setdefault(where, Try())
        if said.get("step") == "supports":
            noted.supports[rank] = Support.from_bytes(said["support"], FLOATS)
        elif said.get("step") == "update":
            if self.terms.codec.sparse and rank not in noted.supports:
                return  # its support was lost on the way: nothing tells what the update is of
            supports = [noted.supports[rank]] if self.terms.codec.sparse else None
            part = reply.content[records.UPDATE]
            sealed = records.to_sealed(said["header"], part, supports=supports)
            self.hears(sealed)
            noted.updates[rank] = sealed
            if self.terms.scheme.per_sum_keys:
                noted.shares[rank] = records.bytes_list(said, "shares")
        elif said.get("step") == "consist" and "signature" in said:
            among = tuple(letter.fields["survivors"])
            noted.signatures.setdefault(among, {})[rank] = said["signature"]
            self.signs((self.number, where[0]), among, rank, self.quorum)
        elif said.get("step") == "unmask":
            noted.answers.setdefault(letter.among, {})[rank] = said["answer"]

    # --- agreement on an epoch ---

    def agree(self, members: Sequence[int], stop: int = 0) -> bool:
        """All relays among those members; whether it came to an end. `stop` ends it after so many."""
        self.number += 1
        # Its sum may have been opened, or survivors signed: what is spent is not asked for again.
        self.round += self.stage == "evaluate" or self.terms.scheme.per_sum_keys
        self.forget()
        relays = self._relays(members)
        for step, done in enumerate(relays, 1):
            if not done or step == stop:
                return False
        self.pass_time(0)
        self.stage, self.attempt = "round", 0
        self._ask_for_box()
        return True

    def _relays(self, members: Sequence[int]) -> Any:
        """One after the other; False from one that somebody refuses."""
        said: dict[str, Any] = {"number": self.number}

        def relay(stage: str, **fields: Any) -> list[Any] | None:
            fields = {**said, **fields}
            letters = [Letter(i, stage, "train", {}, fields, (), self.number) for i in self.members]
            replies = [self.handle(letter) for letter in letters]
            if any(reply is None or reply.has_error() for reply in replies):
                return None
            return [answer(reply) for reply in replies if reply is not None]

        self.members = list(members)
        hellos = relay("advertise", contract=Contract(self.terms, rounds=1 << 24).to_bytes())
        yield hellos
        keys = [Envelope.from_bytes(hello["envelope"], 1024).header.sender for hello in hellos]
        self.publics |= zip(self.members, keys, strict=True)
        order = sorted(range(len(keys)), key=keys.__getitem__)
        self.members = [self.members[i] for i in order]
        shares = relay("share", messages=[hellos[i]["envelope"] for i in order])
        yield shares
        confirms = relay("confirm", messages=[m for said in shares for m in said["envelopes"]])
        yield confirms
        told = [c["envelope"] for c in confirms]
        self.least = (
            len(members)
            if self.terms.scheme.needs_all_members
            else max(c["bounds"][2] for c in confirms)
        )
        self.rostered = max(c["bounds"][0] for c in confirms)
        self.colluders = max(c["bounds"][1] for c in confirms)
        if self.terms.scheme.needs_all_members:
            drawn = relay("joint", confirms=told)
            yield drawn
            sums = relay("joint-sum", confirms=told, messages=[d["envelope"] for d in drawn])
            yield sums
        self.confirms = told

    def _ask_for_box(self) -> None:
        """Have the member that is furthest seal its model for those that are not there."""
        stand: dict[int, tuple[int, bytes]] = {}
        for site in self.members:
            said = self.handle(self.letter(site, "status"))
            if said is not None and not said.has_error():
                stand[site] = answer(said)["round"], answer(said).get("history", b"")
        places = list(stand.values())
        furthest = max(places, key=lambda place: (place[0], places.count(place)), default=None)
        if furthest is not None and furthest[0] >= 0:
            site = next(site for site in stand if stand[site] == furthest)
            reply = self.handle(self.letter(site, "checkpoint"))
            if reply is not None and not reply.has_error():
                self._have_vouched(site, reply, furthest[0])
            self.round = max(self.round, furthest[0] + 1)

    def _have_vouched(self, sealer: int, reply: Message, round_: int) -> None:
        """Keep a checkpoint of `round_` if enough of the others say that they hold its model."""
        box, vouchers = reply.content[records.BOX], [answer(reply)["voucher"]]
        for site in self.members:
            letter = self.letter(site, "verify")
            letter = dataclasses.replace(letter, content={records.CANDIDATE: box})
            said = None if site == sealer else self.handle(letter)
            if said is not None and not said.has_error() and "voucher" in answer(said):
                vouchers.append(answer(said)["voucher"])
        if len(vouchers) > self.colluders or not round_:
            self.box, self.vouchers = records.to_pieces(box), vouchers

    @property
    def quorum(self) -> int:
        """t: signatures that a set of survivors takes."""
        return (self.rostered + self.colluders) // 2 + 1

    # --- rounds ---

    @property
    def here(self) -> Try:
        return self.tries.setdefault((self.round, self.attempt), Try())

    def ask(self, rank: int, stage: str, fault: Fault | None = None, **fields: Any) -> None:
        """Send one member a stage of the attempt under way."""
        site, here = self.members[rank], self.here
        kind = "evaluate" if stage == "evaluate" else "train"
        if stage == "update" and not self.terms.codec.sparse:
            stage = "round"
        if stage == "update":
            fields = {"mode": self.mode, **fields}
        if stage == "consist":
            among = fields.setdefault("survivors", here.together())
            nothing = [b""] * len(self.members)
            fields["shares"] = [here.shares.get(u, nothing)[rank] for u in among]
            for slot in {here.updates[u].slot for u in among}:
                keys = tuple(self.publics[site] for site in self.members)
                circle = SharingParameters(self.number, keys, self.rostered, self.colluders)
                self.proposed.setdefault(slot, Void(slot, circle))
        if stage == "unmask":
            among = tuple(fields.pop("among", here.together()))
            signed = dict(list(here.signatures.get(among, {}).items())[: self.quorum])
            fields |= {"signers": list(signed), "signatures": list(signed.values())}
            letter = self.letter(site, stage, kind, **fields)
            self.send(dataclasses.replace(letter, among=among), fault)
            return
        self.send(self.letter(site, stage, kind, **fields), fault)

    def go(self, faults: Sequence[Fault | None] = ()) -> None:
        """One stage: ask everybody, wait, and go on to what comes next."""
        if not self.confirms:
            return
        stage = self.stage
        for rank, fault in zip(range(len(self.members)), (*faults, *[None] * SIZE), strict=False):
            if stage not in ("consist", "unmask") or rank in self.here.together():
                self.ask(rank, stage, fault)
        self.pass_time(STAGE)
        self._next()

    def _next(self) -> None:
        here, enough = self.here, self.least
        survivors = tuple(here.together())
        self.turn += 1
        if self.stage == "round" and self.terms.codec.sparse and len(here.supports) >= enough:
            self._at("update")
        elif self.stage in ("round", "update") and len(survivors) >= enough:
            if self.terms.scheme.per_sum_keys and len(survivors) >= self.quorum:
                self._at("consist")
            elif not self.terms.scheme.per_sum_keys:
                self._close(b"")
            else:
                self._again()
        elif self.stage == "consist" and len(here.signatures.get(survivors, {})) >= self.quorum:
            self._at("unmask")
        elif self.stage == "unmask" and len(here.answers.get(survivors, {})) >= self.quorum:
            answers = here.answers[survivors]
            self._close(pack([answers[rank] for rank in sorted(answers)]))
        elif self.stage == "evaluate":
            self.round, self.attempt = self.round + 1, 0
            self._at("round")
        elif self.stage != "unmask" or self.turn > 2:
            self._again()

    def _again(self) -> None:
        """Another attempt; the next round after three of them, or where survivors were asked for."""
        void = self.stage in ("consist", "unmask") or self.attempt == 2
        self.round, self.attempt = (self.round + 1, 0) if void else (self.round, self.attempt + 1)
        self._at("round")

    def _at(self, stage: str) -> None:
        self.stage, self.turn = stage, 0

    def _close(self, release: bytes) -> None:
        self.results.append(self.result((self.round, self.attempt), self.here.together(), release))
        self._at("evaluate")

    def result(self, where: tuple[int, int], ranks: Sequence[int], release: bytes = b"") -> Result:
        """The sum of these updates of an attempt; ProtocolError where they are not of one slot."""
        adder, total = self.terms.for_cohort(len(self.members)), None
        noted = self.tries[where]
        for rank in ranks:
            total = adder.add(total, noted.updates[rank])
        return Result(adder.close(total), release)

    def split(
        self, rank: int, where: tuple[int, int], ranks: Sequence[int], fault: Fault | None
    ) -> None:
        """Tell one member of another sum than the others, with whatever was released for it."""
        noted = self.tries[where]
        released = noted.answers.get(tuple(sorted(ranks)), {})
        release = pack([released[r] for r in sorted(released)]) if released else b""
        try:
            other = self.result(where, ranks, release)
        except ProtocolError:
            return  # updates of two slots: nothing that the relay can add
        told = [result for result in self.results if result.total.slot.round < where[0]]
        told.append(other)
        letter = self.letter(self.members[rank], "evaluate", "evaluate", **said_of(told))
        totals = tuple(result.total for result in told)
        self.send(dataclasses.replace(letter, sums=totals), fault)
        self.pass_time(0)

    # --- left in peace ---

    def finish(self) -> None:
        """Bring a set that was proposed to its end, and its sum to everybody."""
        for _ in range(6):
            if self.stage in ("consist", "unmask", "evaluate"):
                self.go()

    def give_up(self) -> bool:
        """Have members give up what was signed and not opened; whether a round may begin then.

        Where too few promise, because the others may have answered, it may not, ever.
        """
        for slot, void in self.proposed.items():
            where = {"round": slot.round, "attempt": slot.attempt, "number": void.circle.number}
            made = {}
            for site in range(SIZE):
                letter = self.letter(site, "void", slot=slot.to_bytes(), **where)
                reply = self.handle(letter)
                if reply is not None and not reply.has_error():
                    rank = void.circle.members.index(self.publics[site])
                    made[rank] = Promise.from_bytes(answer(reply)["promise"])
                    void.check_promise(rank, made[rank])
            self.proposed[slot] = void.with_promises(made)
        starts = {s.model.history for s in self.sites if (s.run / "model").exists()}
        return all(v.complete or v.slot.history not in starts for v in self.proposed.values())

    def calm_round(self) -> None:
        """A round of all members in which nothing fails, to its end."""
        for _ in range(30):
            self.go()
            if self.stage == "evaluate":
                self.go()
                return
