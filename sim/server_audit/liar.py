"""A strategy that does what its script says.

The server's own code is HEStrategy with its hands free: it asks whom it likes, forgets sums that it has
read, and changes messages on their way. Whatever stops it then is a site.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from flhe.errors import FlheError
from flhe.keys.agreement.answers import combine
from flhe.math.ring import Elements
from flhe.mods import records
from flhe.schemes.base import Scheme
from flhe.schemes.sealed import Sealed
from flhe.strategies.aliases import SchemeFedAvg
from flhe.strategies.federation import Federation
from flhe.strategies.round_state import Attempt
from flhe.strategies.sampling import Sampling
from flhe.training.contract import Contract
from flhe.training.model import Model
from flhe.training.schedule import Settings
from flhe.training.update import ServerReader, served
from flhe_lab.server_audit.grid import FIRST, Heard, LyingGrid
from flhe_lab.server_audit.script import Ask, Probe, Script, Seen
from flhe_lab.server_audit.task import VICTIM, Floats, Setting, flat, in_clear

SECONDS = 60.0
MAX_EXAMPLES = 1000


class _Careless(Sampling):
    """A sum is enough for this server whoever is in it."""

    def needed(self, _fed: Any) -> int:
        return 1

    def check(self, fed: Any) -> None:
        pass


class Liar(SchemeFedAvg):
    """A strategy that does what its script says."""

    def __init__(self, scheme: Scheme, setting: Setting, script: Script, grid: LyingGrid) -> None:
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
        self._setting, self._script, self._net = setting, script, grid
        self._everybody = [FIRST + site for site in range(setting.sites)]
        self._asked = self._everybody
        self.seen = [Seen() for _ in script.rounds]
        grid.rewrite = self._rewrite
        self.aside = script.aside

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
        rank = self._running().parameters.epoch.rank(FIRST + VICTIM)
        ranks = records.field(record, "survivors", list)
        shares = records.bytes_list(record, "shares")
        kept = [shares[ranks.index(rank)]] if shares else []
        return ConfigRecord({**record, "survivors": [rank], "shares": kept})

    # --- evaluations ---

    def _evaluate(self, fed: Federation, number: int, timeout: float, result: Result) -> None:
        """Ask aside what the script has, once, before the sites have evaluated anything."""
        aside, self.aside = self.aside, None
        if aside is not None:
            aside(self.probe(self._loss))
        super()._evaluate(fed, number, timeout, result)

    def probe(self, loss: Callable[[Floats], float | None] = lambda _: None) -> Probe:
        """Questions beside the rounds; without `loss` those alone that are plain Flower's."""

        def plain(model: Floats) -> Floats | None:
            asked = self._setting.training(model, self._setting.rate)
            return in_clear(self._net.ask(VICTIM, asked, "train"), model)

        return Probe(loss, plain)

    def _loss(self, model: Floats) -> float | None:
        """As the victim tells it, or what it adds to the sum of the others."""
        since, sites = len(self._net.heard), range(self._setting.sites)
        whole = self.evaluation(model, sites)
        if told := _losses(self._net.heard[since:]):
            return told[0]
        rest = whole and self.evaluation(model, [site for site in sites if site != VICTIM])
        if whole is None or rest is None:
            return None
        return (whole[0] * whole[1] - rest[0] * rest[1]) / (whole[1] - rest[1])

    def evaluation(self, model: Floats, sites: Iterable[int]) -> tuple[float, float] | None:
        """Have sites evaluate a model of the server's choice.

        Returns the mean of their losses and the number of their examples, where the server reads sums.
        """
        fed, found = self._running(), list[tuple[float, float]]()
        ledger, before = fed.ledger, (fed.initial, fed.attempt)
        chosen = served(self._setting.arrays(model), ledger.base)
        arrays, history = records.from_numpy(chosen.arrays()), ledger.history

        def read(total: Sealed, release: Sequence[bytes] = ()) -> None:
            if fed.server_reads:
                sums = fed.parameters.sums
                reader = ServerReader(sums.terms, sums.whole)
                totals = reader.evaluation(total, _released(fed, total, release))
                found.append((totals.metrics["loss"], float(totals.weight)))

        vars(fed)["keep_evaluation"] = read
        fed.attempt = Attempt(set(fed.members))
        if fed.server_reads:
            fed.initial, ledger.chain[ledger.base] = arrays, chosen.history
        try:
            asked = fed.messages("evaluate", "evaluate", [FIRST + site for site in sites])
            for message in asked:
                message.content = self._instead(message.content, arrays)
            replies = fed.grid.send_and_receive(asked, timeout=SECONDS)
            self.aggregate_evaluate(ledger.base, replies)
        except FlheError:  # nobody answered
            return None
        finally:
            del vars(fed)["keep_evaluation"]
            (fed.initial, fed.attempt), ledger.chain[ledger.base] = before, history
        return found[0] if found else None

    def _instead(self, content: RecordDict, arrays: ArrayRecord) -> RecordDict:
        """An evaluation's message with another model, and without the history of the right one."""
        told = ConfigRecord(dict(content.config_records[records.STAGE]))
        told.pop("history", None)
        return RecordDict({**content, records.STAGE: told, self.terms.arrays_key: arrays})

    # --- what comes up ---

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Add up, read what can be read, and forget it where the next round begins anew."""
        fed, ask = self._running(), self._ask(server_round)
        before, keep = fed.ledger.model, fed.keep

        def read(total: Sealed, release: Sequence[bytes] = ()) -> ArrayRecord:
            if before is not None:
                closed, released = fed.adder.close(total), _released(fed, total, release)
                reader = ServerReader(fed.parameters.sums.terms, fed.adder)
                after, totals = reader.open(before, closed, released)
                mean = flat(after.masters) - flat(before.masters)
                self.seen[server_round - 1] = Seen(mean, float(totals.weight))
            return keep(total, release)

        vars(fed)["keep"] = read
        try:
            dropped = None if ask.dropped is None else FIRST + ask.dropped
            kept = (r for r in replies if fed.grid.node_of(r) != dropped)
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


def _losses(heard: Iterable[Heard]) -> list[float]:
    """Losses that the victim told in clear, of its own data."""
    return [
        float(record["loss"])  # type: ignore[arg-type]
        for each in heard
        if each.site == VICTIM and each.content is not None
        for name, record in each.content.metric_records.items()
        if "loss" in record and not name.startswith(records.EVALUATION)
    ]


def _released(fed: Federation, total: Sealed, release: Sequence[bytes]) -> Elements:
    """The sum of the senders' keys, shape (elements,), of what they answered."""
    return combine(fed.parameters.circle, total.slot, total.senders, release)


def _nudged(model: Model) -> Model:
    """A model that differs in one bit: of the same one, members sign no second set."""
    arrays = {name: array.copy() for name, array in model.arrays().items()}
    first = next(iter(arrays.values())).reshape(-1)
    first[:1] = np.nextafter(first[:1], first.dtype.type(1))
    return served(arrays, model.round)
