"""Workflow: members agree on keys and requests, and train no model of ours."""

from __future__ import annotations

from typing import ClassVar, Self, Unpack

from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from flhe.errors import ConfigError
from flhe.strategies.epochs import Epochs, begin
from flhe.strategies.grid import StreamGrid
from flhe.strategies.key_agreement import MIN_MEMBERS
from flhe.strategies.membership import Membership
from flhe.strategies.options import RunSettings, SumOptions, check_scheme
from flhe.strategies.sampling import Sampling
from flhe.strategies.survey import Survey
from flhe.training.contract import Contract
from flhe.training.terms import Terms


class Workflow:
    """Common base of `SecureSum` and `MaskingKeyAgreement`; use it in a `with`."""

    asks: ClassVar[bool]
    """Whether its rounds are queries."""

    def __init__(
        self,
        grid: Grid,
        terms: Terms,
        rounds: int,
        min_nodes: int,
        *,
        resume: bool,
        **options: Unpack[SumOptions],
    ) -> None:
        self.settings, self.terms = RunSettings(**options), terms
        check_scheme(terms.scheme, 1.0)
        self._stream, self._resume, self._rounds = StreamGrid(grid), resume, rounds
        self._min_nodes = max(min_nodes, MIN_MEMBERS)
        self._survey: Survey | None = None

    @property
    def sampling(self) -> Sampling:
        """Return the requirements of a sum."""
        return Sampling(self.terms, self.settings.min_replies, 1.0, self._min_nodes)

    def __enter__(self) -> Self:
        """Have members agree on keys.

        Raises QuorumError: too few nodes connected or agreed; ConfigError: nothing to resume, or
        `state_dir` holds a federation without `resume`.
        """
        run, settings = self._stream.run, self.settings
        app = " ".join(filter(None, (run.fab_id, run.fab_version, run.fab_hash)))
        least = settings.min_replies or 0
        contract = Contract(self.terms, self._rounds, least=least, app=app, asks=self.asks)
        membership = Membership(settings.patience, settings.rekey_every)
        made = contract, membership, ArrayRecord(), settings.state_dir
        self._survey = fed = begin(self._stream, *made, resume=self._resume, of=Survey)
        self._epochs = Epochs(fed, self)
        self._epochs.connect(self._min_nodes)
        self._epochs.prepare(fed.ledger.round + 1)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave the keys to the members; nothing else is open."""

    def _running(self) -> Survey:
        if self._survey is None:
            name = type(self).__name__
            raise ConfigError(f"{name}: use it in a with, which has members agree on keys")
        return self._survey
