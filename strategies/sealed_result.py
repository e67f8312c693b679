"""save_sealed: keeping what a strategy returns, which is not a model but a box; and what a run logs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from logging import INFO, WARNING, getLogger
from pathlib import Path

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from flhe.coding.select import describe
from flhe.errors import ConfigError, ProtocolError
from flhe.mods import records
from flhe.node.policy import default_root
from flhe.training.terms import Terms

log = getLogger("flwr").log


def save_sealed(result: Result, path: str | Path) -> None:
    """Write the sealed checkpoint of a finished run, and log where it is and how it is opened.

    Raises ProtocolError: the result holds no sealed checkpoint; ConfigError: the file cannot be
    written.

    Parameters
    ----------
    result : Result
        What `HEStrategy.start` returned.
    path : str or Path
        File to write; an older one is replaced.
    """
    try:
        pieces = records.to_pieces(result.arrays)
    except ProtocolError:
        raise ProtocolError(
            "this result holds no sealed checkpoint: the model was not written"
        ) from None
    write_private(path, pieces)
    place = str(Path(path).resolve())  # a server app works where the SuperLink was started
    log(INFO, "Sealed model: %s", place)
    log(
        INFO,
        "Open it: flhe open %s --key %s --output model.npz "
        "(a simulation's keys; in a deployment, name the state directory of a member)",
        shlex.quote(place),
        shlex.quote(str(default_root())),
    )


def write_private(path: str | Path, pieces: Iterable[bytes]) -> None:
    """Write a file for its owner only (0600). ConfigError when that cannot be done."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o600)  # also where the file was there before
            file.writelines(pieces)
    except OSError as error:
        raise ConfigError(
            f"the final model cannot be written to {str(path)!r} ({error.strerror}): "
            "name a file in a directory that exists and is yours"
        ) from None


def log_encryption(terms: Terms, members: int, needed: int) -> None:
    """Log terms, for so many members, in the form of FedAvg's own summary."""
    log(INFO, "\t├──> Encryption:")
    log(INFO, "\t│\t├──Scheme: %s, %d members", terms.scheme.name, members)
    for line in _lines(terms, members):
        log(INFO, "\t│\t├──%s", line)
    log(INFO, "\t│\t└──Replies needed: %d", needed)


def log_result(terms: Terms, means: Mapping[int, MetricRecord], result: Result) -> None:
    """Log what a finished run returns, with training metrics by round, and how it is opened."""
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
    if warning := terms.clear_warning():
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
    if terms.codec.mechanism is not None and (told := (*terms.metrics, *terms.evaluated)):
        yield f"Metrics are averaged WITHOUT noise, epsilon leaves them out: {', '.join(told)}"
