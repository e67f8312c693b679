"""Errors that flhe raises on purpose: one tree, whose root is FlheError.

No message holds a secret (a key, an update, an example count, the path of an input), because Flower
sends the text of a client's exception to the server.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger("flhe")
"""The log of all modules."""


class FlheError(Exception):
    """Root of all errors that flhe raises on purpose."""


class ConfigError(FlheError, ValueError):
    """An invalid parameter or combination of parameters."""


class MisfitError(ConfigError):
    """A codec and a scheme that do not fit each other."""


class PackageError(ConfigError):
    """A required package that is not installed, or does not load."""


class RangeError(FlheError, ValueError):
    """A value outside the configured range."""


class ReplyError(RangeError):
    """An app's reply in another form than FedAvg expects."""


class NotFiniteError(RangeError):
    """An update that holds NaN or infinity."""


class ExamplesError(RangeError):
    """An example count below 1, which has no weight."""


class FaultError(FlheError):
    """A result under a secret key that failed its verification and was withheld."""


class StoreError(FlheError):
    """A state directory that is unsafe or unusable."""


class NoKeyError(StoreError):
    """No usable key of the epoch: it was never agreed on, was erased, or its directory is a copy."""


class ProtocolError(FlheError):
    """A message that violates the protocol at this point."""


class AuthenticationError(ProtocolError):
    """A signature, an authentication tag or a key confirmation that does not verify."""


class AlteredError(AuthenticationError):
    """A sum that differs from its senders' contributions: one was left out, added or changed."""


class EquivocationError(AuthenticationError):
    """A checkpoint with a broken chain of sums, or one that differs from the reader's own model."""


class SharesError(AuthenticationError):
    """Members' shares that do not open, or do not fit the others'; `ranks` names the members."""

    def __init__(self, text: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.ranks = ranks


class SumRangeError(ProtocolError, RangeError):
    """A sum too large for its integers, though each term may be in range."""


class VersionError(ProtocolError):
    """A message of another protocol version."""


class ReuseError(ProtocolError):
    """A mask, an opening or a claim that was used before."""


class ClaimedError(ReuseError):
    """An attempt that was claimed before. The model is intact: start another attempt."""


class DriftError(ProtocolError):
    """A model that differs from the other members'."""


class QuorumError(ProtocolError):
    """Too few members or survivors."""


class PolicyError(ProtocolError):
    """A request that this node's own policy refuses."""


class FederationsError(PolicyError):
    """A federation beyond the number that this node's policy allows."""


class BudgetError(PolicyError):
    """A request beyond this site's privacy budget, or an untrusted budget record."""


class LeftError(PolicyError):
    """This node has left the federation."""


@contextmanager
def config_errors(what: str) -> Iterator[None]:
    """Turn flhe's errors into ConfigErrors that begin with `what` must be fixed."""
    try:
        yield
    except FlheError as error:
        raise ConfigError(f"{what}: {error}") from None
