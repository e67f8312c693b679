"""save_sealed: keep a strategy's sealed result, and log a run's terms and results."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result

from flhe.coding.select import describe
from flhe.errors import ConfigError, ProtocolError, StoreError
from flhe.mods import records
from flhe.node.policy import default_root
from flhe.strategies.trouble import log
from flhe.training.terms import Terms
from flhe.wire import files


def save_sealed(result: Result, path: str | Path) -> None:
    """Write the sealed checkpoint of a finished run, and log its path and how to open it.

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
    place = str(Path(path).resolve())  # a server app works in the SuperLink's start directory
    log(INFO, "Sealed model: %s", place)
    log(
        INFO,
        "Open it: flhe open %s --key %s --output model.npz "
        "(a simulation's keys; in a deployment, name the state directory of a member)",
        shlex.quote(place),
        shlex.quote(str(default_root())),
    )


def write_private(path: str | Path, pieces: Iterable[bytes]) -> None:
    """Write a file for its owner only (0600); ConfigError if that fails, and an older one stays."""
    try:
        files.replace(Path(path), pieces, "its directory")
    except StoreError as error:
        raise ConfigError(
            f"the final model cannot be written to {str(path)!r} ({error}): "
            "name a file in a directory that exists and is yours"
        ) from None


def log_encryption(terms: Terms, members: int, needed: int) -> None:
    """Log terms, for so many members, in the form of FedAvg's own summary."""
    log(INFO, "\t├──> Encryption:")
    lines = [
        f"Scheme: {terms.scheme.name}, {members} members",
        terms.scheme.summary(),
        f"Codec: {terms.resolved(members).codec.summary()}",
    ]
    if terms.codec.sparse and not terms.codec.hides:
        lines.append("The server sees which coordinates are sent: they are NOT permuted")
    if terms.select.partial:
        lines.append(f"Encrypted part: {describe(terms.select)}")
    if (noise := terms.noise) is not None:
        lines.append(f"Laplace noise: scale {noise.scale:g} on {noise.scope}")
    lines.append(f"Server optimizer: {terms.optimizer.name}")
    if terms.codec.mechanism is not None and (told := (*terms.metrics, *terms.evaluated)):
        without = f"Metrics are averaged WITHOUT noise, epsilon leaves them out: {', '.join(told)}"
        lines.append(without)
    for line in lines:
        log(INFO, "\t│\t├──%s", line)
    log(INFO, "\t│\t└──Replies needed: %d", needed)


def log_result(terms: Terms, means: Mapping[int, MetricRecord], result: Result) -> None:
    """Log the result of a run, training metrics by round, and how to open it."""
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
    """Log a warning if a part of each update travels in clear."""
    if warning := terms.clear_warning():
        log(WARNING, "%s", warning)
