"""Everything flhe raises on purpose: one tree, whose root is FlheError.

No message carries a value that is secret: keys, updates, example counts and paths of inputs stay
out of exception text, because Flower sends the text of a client's exception to the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class FlheError(Exception):
    """Root of all errors that flhe raises on purpose."""


class ConfigError(FlheError, ValueError):
    """A parameter, or a combination of parameters, that cannot work."""


class MisfitError(ConfigError):
    """A codec and a scheme that do not go together."""


class PackageError(ConfigError):
    """A package that a scheme needs is not installed, or does not load."""


class RangeError(FlheError, ValueError):
    """A value outside the range that the configuration promised."""


class ReplyError(RangeError):
    """An app's reply that is not what FedAvg expects."""


class NotFiniteError(RangeError):
    """An update that holds NaN or infinity."""


class ExamplesError(RangeError):
    """An example count that cannot be weighed: none at all."""


class FaultError(FlheError):
    """An arithmetic result under a secret key that failed its verification, so it was withheld."""


class StoreError(FlheError):
    """A state directory that cannot be trusted or used."""


class NoKeyError(StoreError):
    """No usable key of the epoch: it was never agreed on, erased, or its directory is a copy."""


class ProtocolError(FlheError):
    """A message that the protocol does not allow at this point."""


class AuthenticationError(ProtocolError):
    """A signature, an authentication tag or a key confirmation that does not verify."""


class AlteredError(AuthenticationError):
    """A sum that is not that of what its senders encrypted: one was left out, added or changed."""


class EquivocationError(AuthenticationError):
    """A checkpoint whose chain of sums is not that of the reader's own model, or is broken."""


class SharesError(AuthenticationError):
    """Shares of some members that do not open, or do not fit the others'; `ranks` says whose."""

    def __init__(self, text: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(text)
        self.ranks = ranks


class SumRangeError(ProtocolError, RangeError):
    """A sum beyond what its integers have room for, though each of its terms may be within it."""


class VersionError(ProtocolError):
    """A message of another version of the protocol than this flhe speaks."""


class ReuseError(ProtocolError):
    """A mask, an opening or a claim that was used before."""


class ClaimedError(ReuseError):
    """An attempt that is claimed. Nothing is wrong with the model: another attempt may be made."""


class DriftError(ProtocolError):
    """A model that is not the one that the other members have."""


class QuorumError(ProtocolError):
    """Too few members or survivors."""


class PolicyError(ProtocolError):
    """Something that this node's own policy refuses."""


class FederationsError(PolicyError):
    """One federation more than this node's policy allows."""


class BudgetError(PolicyError):
    """More than this site's privacy budget allows, or a budget that cannot be trusted."""


class LeftError(PolicyError):
    """This node has left the federation."""


@contextmanager
def config_errors(what: str) -> Iterator[None]:
    """Turn flhe's errors into ConfigErrors that begin with `what` is to be mended."""
    try:
        yield
    except FlheError as error:
        raise ConfigError(f"{what}: {error}") from None
