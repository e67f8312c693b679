"""Beginning: the federation that a run begins, or goes on with."""

from __future__ import annotations

from logging import WARNING, getLogger
from pathlib import Path
from typing import TypeVar

from flwr.app import ArrayRecord

from flhe.errors import ConfigError
from flhe.mods import records
from flhe.strategies.federation import Federation
from flhe.strategies.grid import StreamGrid
from flhe.strategies.ledger import Ledger
from flhe.strategies.membership import Membership
from flhe.training.contract import Contract
from flhe.training.model import Model

log = getLogger("flwr").log

F = TypeVar("F", bound=Federation)


def begin(
    grid: StreamGrid,
    contract: Contract,
    membership: Membership,
    initial: ArrayRecord | None,
    state_dir: str | Path | None,
    *,
    resume: bool,
    of: type[F],
) -> F:
    """The federation, `of` a class, in `state_dir` where it is to `resume`, otherwise a new one.

    Raises ConfigError: there is nothing to resume, it ran under other terms, or a server that reads the
    sums was given no model.
    """
    terms = contract.terms
    server_reads = terms.scheme.reader == "server"
    model = None if initial is None else Model.initial(records.to_numpy(initial))
    directory = None if state_dir is None else Path(state_dir)
    if resume:
        if directory is None:
            raise ConfigError("resume needs state_dir: the directory of the run before")
        ledger = Ledger.load(directory, terms.to_bytes())
        if ledger.agreed is not None and ledger.agreed.contract != contract.hash():
            membership.asked = True  # members sign the other one
        if model is not None and ledger.chain.get(0) != model.history:
            log(WARNING, "initial_arrays are ignored: the federation began with another model")
            initial = None
    else:
        if model is None and server_reads:
            raise ConfigError(
                "the server reads the sums, so it has the model: give start() initial_arrays, or have "
                'the clients read them (unmask="clients")'
            )
        ledger = Ledger.create(directory, grid.run.run_id, terms.to_bytes())
        if model is not None and server_reads:
            ledger.start_model(model)
        elif model is not None:
            # Of a model that clients read, only layout and history are known from here on.
            ledger.layout, ledger.chain = model.layout, {0: model.history}
    return of(grid, ledger, contract, membership, initial)
