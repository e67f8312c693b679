"""Federations of flhe: HEMod on the sites under its default policy, and a server that lies.

The server's own code is HEStrategy with its hands free: it asks whom it likes, forgets sums that it has
read, and changes messages on their way. Whatever stops it then is a site.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from flhe.errors import FlheError
from flhe.keys.agreement.answers import combine
from flhe.keys.roster.roster import Member, Roster
from flhe.keys.roster.signed_roster import SignedRoster
from flhe.mods import HEMod, records
from flhe.node.store import Store
from flhe.schemes.base import Scheme
from flhe.schemes.sealed import Sealed
from flhe.strategies.aliases import SchemeFedAvg
from flhe.strategies.sampling import Sampling
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.training.reading import ServerReader, served
from flhe.training.schedule import Settings
from flhe_lab.server_audit.grid import FIRST, Heard, LyingGrid
from flhe_lab.server_audit.script import Ask, Script, Seen, View
from flhe_lab.server_audit.task import VICTIM, Floats, Setting, client_app, flat

COLLUSION = 1
"""Sites that may collude with the server, as the roster says."""
SECONDS = 60.0
MAX_EXAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Encrypted:
    """A scheme under default terms and policy; `reads` lets the server read sums on every site."""

    name: str
    scheme: Scheme
    reads: bool = False
    signs: bool = True

    def run(self, setting: Setting, script: Script) -> View:
        """See `System`."""
        view = View()
        with tempfile.TemporaryDirectory() as scratch:
            config = _pinned(Path(scratch), setting.sites, self.reads)
            grid = LyingGrid(
                client_app(setting, HEMod()),
                setting.sites,
                node_config=lambda site: {"flhe-home": str(Path(scratch) / f"{site}"), **config},
            )
            with grid:
                liar = _Liar(self.scheme, setting, script, grid, view)
                probe = _Probe(grid, setting)
                if script.before is not None:
                    script.before(probe)
                arrays = records.from_numpy(setting.arrays(setting.first()))
                told = {"lr": setting.rate}
                try:
                    liar.start(grid, arrays, len(script.rounds), train_config=told)
                except FlheError as error:
                    view.stopped = str(error)
                if grid.aside is not None and not view.stopped:
                    raise FlheError("the victim was never asked to evaluate: nothing was tried")
                view.rounds[:] = [
                    dataclasses.replace(seen, masked=_masked(grid.heard, number, setting))
                    for number, seen in enumerate(liar.seen, 1)
                ]
                grid.note(view)
        return view


def _pinned(scratch: Path, sites: int, reads: bool) -> dict[str, Any]:
    """Make the sites' identities and a roster that all sign; returns the node config."""
    identities = [Store(scratch / f"{site}").identity() for site in range(sites)]
    members = tuple(Member(f"site-{i}", one.public) for i, one in enumerate(identities))
    roster = Roster(members, COLLUSION, 2, ("*",))
    signed = SignedRoster(roster)
    for identity in identities:
        signed = signed.signed(identity)
    (scratch / "roster").write_bytes(signed.to_bytes())
    pin = {"flhe-roster": str(scratch / "roster"), "flhe-roster-hash": roster.hash.hex()}
    return {**pin, **({"flhe-server-reads": True} if reads else {})}


class _Careless(Sampling):
    """A sum is enough for this server whoever is in it."""

    def needed(self, fed: Any) -> int:
        """One update."""
        del fed
        return 1

    def check(self, fed: Any) -> None:
        """Refuse nothing."""


class _Liar(SchemeFedAvg):
    """A strategy that does what its script says."""

    def __init__(
        self, scheme: Scheme, setting: Setting, script: Script, grid: LyingGrid, view: View
    ) -> None:
        super().__init__(
            scheme,
            max_examples=MAX_EXAMPLES,
            min_available_nodes=setting.sites,
            min_train_nodes=1,
            min_evaluate_nodes=1,
            retries=0,
            round_timeout=SECONDS,
            stage_timeout=SECONDS,
            connect_timeout=SECONDS,
        )
        self._setting, self._script, self._net, self._view = setting, script, grid, view
        self._everybody = [FIRST + site for site in range(setting.sites)]
        self._asked = self._everybody
        self.seen = [Seen() for _ in script.rounds]
        grid.rewrite = self._rewrite
        grid.aside = self._aside if script.aside is not None else None

    @property
    def sampling(self) -> Sampling:
        """What this server needs: nothing."""
        found = super().sampling
        return _Careless(*(getattr(found, f.name) for f in dataclasses.fields(found)))

    def _ask(self, number: int) -> Ask:
        return self._script.rounds[number - 1]

    def _sample(self, fraction: float, minimum: int) -> list[int]:
        del fraction, minimum
        return self._asked

    # --- what goes down ---

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask whom the script says."""
        self._net.round = server_round
        sites = self._ask(server_round).sites
        # Where members open a sum together they are shown a set: see _rewrite.
        if sites is not None and not self._alone(server_round):
            self._asked = [FIRST + site for site in sites]
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask everybody."""
        self._asked = self._everybody
        return super().configure_evaluate(server_round, arrays, config, grid)

    def _alone(self, number: int) -> bool:
        """Whether a round is of the victim alone, under keys that members release together."""
        return self.terms.scheme.opened_together and self._ask(number).sites == (VICTIM,)

    def _rewrite(self, site: int, message: Message) -> None:
        record = records.find_config(message.content, records.STAGE)
        if record is None:
            return
        changed: dict[str, Any] = {}
        stage, number = record["stage"], self._net.round
        if stage == "advertise" and site in self._script.signed:
            contract = Contract.from_bytes(records.field(record, "contract", bytes))
            rate = self._script.signed[site]
            other = dataclasses.replace(contract, train=Settings({"lr": rate}))
            changed[records.STAGE] = ConfigRecord({**record, "contract": other.to_bytes()})
        if stage == "round" and self._ask(number).rates:
            rate = self._ask(number).rates.get(site, self._setting.rate)
            changed[self.configrecord_key] = ConfigRecord({"lr": rate, "server-round": number})
        if stage == "consist" and self._alone(number):
            changed[records.STAGE] = self._lone(record)
        message.content = RecordDict({**message.content, **changed})

    def _lone(self, record: ConfigRecord) -> ConfigRecord:
        """A proposal of the victim alone."""
        rank = self._running().parameters.epoch.rank(FIRST + VICTIM)
        ranks = records.field(record, "survivors", list)
        shares = records.bytes_list(record, "shares")
        kept = [shares[ranks.index(rank)]] if shares else []
        return ConfigRecord({**record, "survivors": [rank], "shares": kept})

    def _aside(self, message: Message) -> None:
        assert self._script.aside is not None
        self._script.aside(_Probe(self._net, self._setting, message.content))

    # --- what comes up ---

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up, read what can be read, and forget it where the next round begins anew."""
        fed, ask = self._running(), self._ask(server_round)
        before, keep = fed.ledger.model, fed.keep

        def read(total: Sealed, release: Sequence[bytes] = ()) -> ArrayRecord:
            if before is not None:
                closed = fed.adder.close(total)
                released = combine(fed.parameters.circle, total.slot, total.senders, release)
                reader = ServerReader(fed.parameters.sums.terms, fed.adder)
                after, totals = reader.open(before, closed, released)
                mean = flat(after.masters) - flat(before.masters)
                self.seen[server_round - 1] = Seen(mean, float(totals.weight))
            return keep(total, release)

        vars(fed)["keep"] = read
        try:
            kept = (r for r in replies if fed.grid.node_of(r) != self._dropped(ask))
            found = super().aggregate_train(server_round, kept)
        finally:
            del vars(fed)["keep"]
        following = self._script.rounds[server_round:]
        if following and following[0].again:
            fed.ledger.void()
            if before is not None:
                start = _nudged(before)
                fed.ledger.start_model(start)
                fed.initial = records.from_numpy(start.arrays())
        return found

    @staticmethod
    def _dropped(ask: Ask) -> int | None:
        return None if ask.dropped is None else FIRST + ask.dropped


def _nudged(model: Model) -> Model:
    """A model that differs in one bit: of the same one, members sign no second set."""
    arrays = {name: array.copy() for name, array in model.arrays().items()}
    first = next(iter(arrays.values())).reshape(-1)
    first[:1] = np.nextafter(first[:1], first.dtype.type(1))
    return served(arrays, model.round)


@dataclass(slots=True)
class _Probe:
    """Questions in flhe's messages; `template` is the one with which the victim is to evaluate."""

    grid: LyingGrid
    setting: Setting
    template: RecordDict | None = None

    def loss(self, model: Floats) -> float | None:
        """See `Probe`: the server's own message, with another model and without the history."""
        if self.template is None:
            return None
        told = ConfigRecord(dict(self.template.config_records[records.STAGE]))
        told.pop("history", None)
        arrays = records.from_numpy(self.setting.arrays(model))
        asked = RecordDict({**self.template, records.STAGE: told, "arrays": arrays})
        answer = self.grid.ask(VICTIM, asked, "evaluate")
        if answer.has_error():
            return None
        losses = [r["loss"] for r in answer.content.metric_records.values() if "loss" in r]
        return float(losses[0]) if losses else None  # type: ignore[arg-type]

    def plain(self, model: Floats) -> Floats | None:
        """See `Probe`: a message of plain Flower."""
        arrays = records.from_numpy(self.setting.arrays(model))
        asked = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": self.setting.rate})})
        answer = self.grid.ask(VICTIM, asked, "train")
        if answer.has_error():
            return None
        [found] = answer.content.array_records.values()
        return flat(records.to_numpy(found)) - model


def _masked(heard: Iterable[Heard], number: int, setting: Setting) -> Floats | None:
    """The victim's ciphertext of a round, read as numbers, shape (values,)."""
    for each in heard:
        there = each.content is not None and records.UPDATE in each.content
        if not there or (each.round, each.site) != (number, VICTIM):
            continue
        assert each.content is not None
        answer = records.find_reply(each.content)
        assert answer is not None
        header = records.field(answer, "header", bytes)
        part = records.to_sealed(header, each.content.array_records[records.UPDATE], floats=0)
        width = 8 * part.data.size // part.length
        bits = np.unpackbits(part.data, bitorder="little")[: part.length * width]
        lanes = bits.reshape(part.length, width) @ (2.0 ** np.arange(width))
        return np.asarray(lanes[: setting.values] - 2.0 ** (width - 1), np.float64)
    return None
