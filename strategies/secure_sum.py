"""SecureSum: sums of nodes' answers, for an analyst who may see no single answer.

    with SecureSum(grid, scheme=Sash()) as secure:
        total = secure.sum("age-histogram", ConfigRecord({"bins": 10}))

Members agree on keys once; each query is then one sum, with all features of a round: dropouts,
retries, epochs, tags, one opening. A repeated query returns the same result from the server's own
records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from logging import INFO
from typing import ClassVar, Unpack

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from flhe.coding.update import update_codec
from flhe.errors import ConfigError, ProtocolError, QuorumError
from flhe.schemes import DEFAULT
from flhe.schemes.base import Scheme
from flhe.schemes.registry import SCHEMES
from flhe.strategies.attempts import Attempts
from flhe.strategies.exchange import Exchange
from flhe.strategies.key_agreement import MIN_MEMBERS
from flhe.strategies.options import SumOptions, check_names
from flhe.strategies.pending import Settling
from flhe.strategies.report import RoundReport
from flhe.strategies.survey import Outcome, Survey
from flhe.strategies.trouble import log
from flhe.strategies.workflow import Workflow
from flhe.training.query import QUERY, Query
from flhe.training.schedule import Value
from flhe.training.terms import Terms

MAX_QUERIES = 100
"""Default maximum number of queries in a federation; a site's `flhe-max-queries` applies too."""


@dataclass(frozen=True, slots=True)
class Total:
    """Result of one query.

    Parameters
    ----------
    query : Query
        Name and parameters.
    number : int
        Which query of its federation it is, from 1.
    arrays : ArrayRecord
        Sums over all contributors: int64, exact, or float64. If only members read, a sealed box:
        `flhe.strategies.save_sealed`, `flhe open`.
    contributors : int
        Nodes whose answers are in it.
    senders : bytes
        Hash of those nodes' keys: two totals with equal hashes are of the same sites.
    errors : mapping of str to float
        Largest error of each array's values, by rounding to its resolution; 0.0 is exact.
    report : RoundReport or None
        Its costs; None for a repeated query.
    """

    query: Query
    number: int
    arrays: ArrayRecord
    contributors: int
    senders: bytes
    errors: Mapping[str, float]
    report: RoundReport | None = None


class SecureSum(Workflow):
    """Sums of answers to queries, over one federation.

    Use it in a `with`: members agree on keys on entry.

    Raises ConfigError: a parameter that cannot work.

    Parameters
    ----------
    grid : Grid
        Grid of a ServerApp.
    scheme : Scheme, optional
        The scheme with its own parameters; FLASHE by default. It decides who reads totals.
    bits : int, optional
        Bits of one encrypted number, sign included. Answers always have 63 bits: they are
        encrypted in several numbers.
    min_nodes : int
        Nodes to wait for before members agree on keys.
    max_queries : int
        Maximum number of queries in this federation, part of the contract that members sign.
    resume : bool
        Go on with the federation in `state_dir`: answered queries return their results.
    **options
        Timeouts, retries and state (`RunSettings`).
    """

    asks: ClassVar[bool] = True

    def __init__(
        self,
        grid: Grid,
        scheme: Scheme | None = None,
        *,
        bits: int | None = None,
        min_nodes: int = MIN_MEMBERS,
        max_queries: int = MAX_QUERIES,
        resume: bool = False,
        **options: Unpack[SumOptions],
    ) -> None:
        check_names(SecureSum, options)
        scheme = scheme or SCHEMES.named(DEFAULT)()
        codec = update_codec(bits=scheme.default_bits if bits is None else bits)
        terms = Terms(scheme, codec, metrics=(), evaluated=())
        super().__init__(grid, terms, max_queries, min_nodes, resume=resume, **options)

    def sum(self, name: str, parameters: Mapping[str, Value] | None = None) -> Total:
        """Return the sum of all nodes' answers to a query.

        Parameters
        ----------
        name : str
            Name of a function in every node's `HEMod(queries=...)`: 1 to 64 of a-z 0-9 . _ -
        parameters : ConfigRecord or mapping, optional
            Parameters of that function, part of the question: nodes answer each one once.

        Raises QuorumError: too few nodes answered, or released the sum's key; ProtocolError: most
        nodes report that it was answered before, or refuse it; SumRangeError: the sum is beyond 63
        bits.
        """
        query, fed = Query.of(name, dict(parameters or {})), self._running()
        self._finish(fed)
        if (before := self._known(fed, query)) is not None:
            return before
        for _ in range(self.settings.retries + 1):
            number = self._number(fed, query)
            fed.voids.clear()  # each number is another sum
            log(INFO, "")
            log(INFO, "[QUERY %d] %s", number, query.line())
            Attempts(fed, self._epochs).run(number, partial(self._ask, fed, query))
            if fed.ledger.evaluation:
                fed.open_by_members(self.settings.stage_timeout)
            fed.ledger.done()
            if (made := self._known(fed, query)) is not None:
                return replace(made, report=fed.report(number))
            if fed.ledger.spoiled != number:
                raise ProtocolError(
                    f"query {name!r}: most nodes say that it is over, because they have answered it "
                    "before in this federation, or a later one: begin another federation"
                )
        raise QuorumError(f"query {name!r}: its sums were given up before they were opened")

    def _finish(self, fed: Survey) -> None:
        """Complete the last query, under its own number, if a failure interrupted it.

        Raises QuorumError: too few are connected to open its sum, or to give it up.
        """
        ledger = fed.ledger
        if ledger.pending is not None:
            self._epochs.prepare(ledger.round)
        fed.end_epoch(self.settings.stage_timeout)
        if ledger.phase == "summed":
            ledger.done()

    def _known(self, fed: Survey, query: Query) -> Total | None:
        """Return the total of an earlier query, or None."""
        asked = query.hash()
        for number, kept in fed.ledger.results.items():
            if fed.ledger.asked.get(number) == asked:
                outcome = Outcome.from_bytes(kept)
                count = outcome.contributors
                known = count, outcome.senders, outcome.asked.form.errors(count)
                return Total(query, number, outcome.arrays(), *known)
        return None

    def _number(self, fed: Survey, query: Query) -> int:
        """Return a query's number: that of its last attempt, unless it was given up."""
        ledger, asked = fed.ledger, query.hash()
        last = max(ledger.asked, default=0)
        if ledger.asked.get(last) == asked and ledger.spoiled != last:
            return last
        if last >= self._rounds:
            raise ConfigError(
                f"this federation has asked its {last} queries: raise max_queries, or begin another one"
            )
        ledger.asked[last + 1] = asked
        ledger.save()
        return last + 1

    def _ask(self, fed: Survey, query: Query) -> None:
        """Make one attempt at a query."""
        nodes = [node for node in fed.present() if fed.members[node] not in fed.barred]
        fed.query, fed.forms = query, {}
        messages = fed.questions(nodes)
        fed.attempt.asked = len(messages)
        replies = fed.grid.send_and_receive(messages, timeout=self.settings.round_timeout)
        total, _ = Exchange(fed, self.sampling.needed(fed)).add_whole(QUERY, replies)
        fed.note(total)
        Settling(fed, self.settings).keep(total)
