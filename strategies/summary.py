"""Summary: what a run's encryption is set to, in the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from logging import INFO, WARNING, getLogger

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from flhe.coding.select import describe
from flhe.node.policy import default_root
from flhe.training.select_terms import clear_warning
from flhe.training.terms import Terms

log = getLogger("flwr").log


def log_encryption(terms: Terms, members: int, needed: int) -> None:
    """Log terms, for so many members, in the form of FedAvg's own summary."""
    log(INFO, "\t├──> Encryption:")
    log(INFO, "\t│\t├──Scheme: %s, %d members", terms.scheme.name, members)
    for line in _lines(terms, members):
        log(INFO, "\t│\t├──%s", line)
    log(INFO, "\t│\t└──Replies needed: %d", needed)


def log_result(terms: Terms, means: Mapping[int, MetricRecord], result: Result) -> None:
    """Log what a finished run returns, and how a sealed result is opened.

    Parameters
    ----------
    terms : Terms
        The run's.
    means : mapping of int to MetricRecord
        Training metrics of each round.
    result : Result
        What the strategy returns.
    """
    if terms.scheme.reader == "clients":
        log(
            INFO,
            "The result is sealed. Keep it: flhe.strategies.save_sealed(result, 'model.flhe'). "
            "Open it: flhe open model.flhe --key DIR, DIR being a member's state directory (of a "
            "simulation here: %s)",
            default_root(),
        )
    warn_of_clear(terms)
    log(INFO, "Train metrics, averaged under encryption: %s", dict(means))
    log(INFO, "Evaluation metrics: %s", dict(result.evaluate_metrics_clientapp))


def warn_of_clear(terms: Terms) -> None:
    """Log a warning where a part of each update travels in clear."""
    if warning := clear_warning(terms):
        log(WARNING, "%s", warning)


def _lines(terms: Terms, members: int) -> Iterator[str]:
    yield terms.scheme.summary()
    yield f"Codec: {terms.resolved(members).codec.summary()}"
    if terms.codec.sparse and not terms.codec.hides:
        yield "The server sees which coordinates are sent: they are NOT permuted"
    if terms.select.partial:
        yield f"Encrypted part: {describe(terms.select)}"
    if (noise := terms.noise) is not None:
        yield f"Laplace noise: scale {noise.scale:g} on {noise.scope}"
    yield f"Server optimizer: {terms.optimizer.name}"
