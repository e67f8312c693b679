"""Refusals: a node's fixed error codes, and their meanings.

Flower sends the text of a client's exception to the server. So the mod never raises: the server
gets a code from this table, and the node's own `errors.log` holds the details.
"""

from __future__ import annotations

from dataclasses import dataclass

from flhe import errors as e
from flhe.wire.printable import printable


@dataclass(frozen=True, slots=True)
class Refusal:
    """One kind of refusal by a node.

    `code` is that of Flower's reply; Flower itself uses small ones. `slug` is the reason that
    travels. `meaning` is the text in the server's log, with the remedy.
    """

    code: int
    slug: str
    meaning: str


APP = Refusal(
    1001,
    "flhe/app-failed",
    "the app's own code failed there; see errors.log in its state directory",
)
INTERNAL = Refusal(
    1002, "flhe/internal", "flhe failed there unexpectedly; see errors.log in its state directory"
)
GATE = Refusal(
    1033,
    "flhe/gate",
    "its site's gate stopped the reply, which held more than flhe has sealed: put HEMod() first in "
    "ClientApp(mods=[...]); see audit.log and errors.log in the gate's directory",
)
_TABLE: dict[type[e.FlheError], Refusal] = {
    e.LeftError: Refusal(1021, "flhe/left", "it has left the federation"),
    e.FederationsError: Refusal(
        1026,
        "flhe/federations",
        "its policy allows no further federation: resume the one before, or ask the site to permit "
        "one more (flhe permit)",
    ),
    e.BudgetError: Refusal(
        1032,
        "flhe/budget",
        "its privacy budget does not allow this run or round: train fewer rounds, with a larger noise "
        "multiplier or a smaller sampling rate; see its errors.log and flhe budget",
    ),
    e.PolicyError: Refusal(1010, "flhe/policy", "its policy refuses this run or scheme"),
    e.QuorumError: Refusal(1011, "flhe/quorum", "too few members or survivors for its roster"),
    e.ClaimedError: Refusal(
        1022, "flhe/claimed", "it has already answered this attempt: the server must start another"
    ),
    e.ReuseError: Refusal(1012, "flhe/reuse", "asked to use a mask or open a round a second time"),
    e.AlteredError: Refusal(
        1023,
        "flhe/altered",
        "the sum that it got does not match what its senders encrypted; see its errors.log "
        "for the check that failed",
    ),
    e.EquivocationError: Refusal(
        1024,
        "flhe/two-stories",
        "the checkpoint that it was sent holds other sums than it has opened: compare flhe log of the "
        "sites; to take the others' result, the site moves runs/<id>/model away; see its errors.log",
    ),
    e.AuthenticationError: Refusal(
        1013, "flhe/authentication", "a signature or key confirmation did not verify"
    ),
    e.DriftError: Refusal(
        1019, "flhe/drift", "its model is not the one that this round starts from"
    ),
    e.SumRangeError: Refusal(
        1031,
        "flhe/sum-range",
        "the sum holds an integer beyond 63 bits: ask for smaller numbers, or for several sums",
    ),
    e.VersionError: Refusal(
        1025,
        "flhe/version",
        "it runs another version of flhe than the server: upgrade the older side",
    ),
    e.ProtocolError: Refusal(
        1014,
        "flhe/protocol",
        "a message that does not belong there, or of another version; see its errors.log",
    ),
    e.NoKeyError: Refusal(
        1020, "flhe/no-key", "it has no usable key: a new epoch must be agreed on"
    ),
    e.StoreError: Refusal(
        1015, "flhe/store", "its state directory cannot be used; see its errors.log"
    ),
    e.ReplyError: Refusal(
        1018,
        "flhe/reply",
        "its app must reply with one ArrayRecord that holds all of the model's arrays, and one "
        "MetricRecord that holds a whole number of examples under the strategy's weighted_by_key; to a "
        "query, with an ArrayRecord of integers, or of floats with a declared bound",
    ),
    e.NotFiniteError: Refusal(
        1027,
        "flhe/not-finite",
        "its update holds NaN or infinity: lower the learning rate or clip gradients",
    ),
    e.ExamplesError: Refusal(
        1029, "flhe/examples", "its example count cannot be weighed: its app reported no examples"
    ),
    e.RangeError: Refusal(
        1016, "flhe/range", "a number of its is out of range; see its errors.log"
    ),
    e.PackageError: Refusal(
        1030,
        "flhe/package",
        "a package that the scheme needs is not installed there: its errors.log and flhe doctor "
        "name it, and the command that installs it",
    ),
    e.ConfigError: Refusal(1017, "flhe/config", "its configuration cannot work"),
}


def refusal_for(error: BaseException) -> Refusal:
    """Return the code with which a node answers after `error`."""
    return next((refusal for kind, refusal in _TABLE.items() if isinstance(error, kind)), INTERNAL)


def find(code: int) -> Refusal | None:
    """Return the refusal of that code, or None if no node of this version sends it."""
    return next((r for r in (APP, INTERNAL, GATE, *_TABLE.values()) if r.code == code), None)


def explain(code: int, reason: str | None) -> str:
    """Explain an error reply in words, for the server's log."""
    if refusal := find(code):
        return f"{refusal.slug}: {refusal.meaning}"
    said = f", {printable(reason)}" if code == 0 and reason else ""
    return _FLOWERS.get(code, f"error code {code}{said}")


def reason_of(code: int) -> str | None:
    """Return the one text that may travel with a code of ours or Flower's; None for other codes."""
    if refusal := find(code):
        return refusal.slug
    return f"flower/{code}" if code in _FLOWERS else None


_FLOWERS = {
    1: "its app could not be loaded: see the SuperNode's log",
    2: "its app raised an exception outside of flhe, as a mod before HEMod does: put HEMod() first in "
    "ClientApp(mods=[...]), and see the SuperNode's log",
    3: "the message expired",
    4: "the reply expired",
    5: "the node is unavailable",
    6: "a mod before HEMod refused the message, which is no plain update: put HEMod() first in "
    "ClientApp(mods=[...]), or that mod into @app.train(mods=[...])",
    7: "its Flower app bundle is invalid: see the SuperNode's log",
    8: "its app's process ended: see the SuperNode's log",
}
"""Meanings of Flower's own codes; their reasons, which may hold exception text, are left out."""
