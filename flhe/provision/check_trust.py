"""Checks of the pinned roster, and of this node's policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flhe.errors import ConfigError, FlheError
from flhe.keys.agreement.dealt import Dealt
from flhe.keys.identity import Identity
from flhe.keys.roster import fingerprint
from flhe.keys.roster.roster import Roster
from flhe.node.policy import Policy
from flhe.provision.check_home import check_witness
from flhe.provision.checks import Check, Checks
from flhe.provision.permits import check_federations
from flhe.schemes import PLAIN


def check_roster(roster: Roster | None) -> Check:
    """Show the roster that a node pins, in the words that its administrator has compared."""
    if roster is None:
        says = 'flhe-trust="first-use": the first to come are members, without authentication'
        return Check("roster", "warn", says, "pin a roster, unless this is a trial")
    return Check("roster", "ok", ", ".join(fingerprint.lines(roster.hash)))


def check_member(roster: Roster, identity: Identity) -> Check:
    """Check that the site is listed."""
    try:
        name = roster.name(identity.public)
    except FlheError as error:
        mend = "send the site's card to the coordinator, or join the federation's last file"
        return Check("member", "fail", str(error), mend)
    return Check("member", "ok", f"{name}, one of {len(roster.members)} sites")


def check_policy(policy: Policy, schemes: Sequence[str]) -> Checks:
    """Yield this node's policy in words; roster and node config allow `schemes`."""
    if schemes:
        yield Check("schemes", "ok", ", ".join(schemes))
    else:
        mend = "flhe-schemes must name one that the roster allows"
        yield Check("schemes", "fail", "none is allowed by both roster and node config", mend)
    yield from _shown(policy, schemes)
    roster, least = policy.roster, policy.min_survivors
    members, senders = (3, 2) if roster is None else (roster.min_members, roster.min_opening)
    members = max(int(policy.limits["min-members"]), least, members)
    senders = max(least, senders)
    says = f"keys with {members} members or more, sums of {senders} updates or more"
    size = None if roster is None else len(roster.members)
    if size is not None and max(members, senders) > size:
        mend = "lower flhe-min-members or flhe-min-survivors: it cannot be met"
        yield Check("survivors", "fail", f"{says}, and the roster has {size} sites", mend)
    elif senders < 3:
        mend = "flhe-min-survivors=3, if each of two sites must not learn the other's update"
        yield Check("survivors", "warn", says + ": a sum of two shows each the other's", mend)
    else:
        yield Check("survivors", "ok", says)
    yield check_witness(policy)
    if policy.dealt_key is not None:
        yield _dealt(policy.dealt_key, policy.roster)
    if policy.leave:
        mend = "take flhe-leave out of the node config to take part again"
        yield Check("leave", "warn", "this node gives up its keys and leaves", mend)
    if policy.home.is_dir() and policy.root is None:
        yield from check_federations(policy)


def _dealt(path: Path, roster: Roster | None) -> Check:
    """Check the file with dealt keys, which a node reads only during a round."""
    name = "dealt key"
    try:
        dealt = Dealt.read(path)
    except ConfigError as error:
        says = f"{path} cannot be used: {error}"
        mend = "put this site's dealt file there, chmod 600, owned by the node's user"
        return Check(name, "fail", says, mend)
    if roster is not None and dealt.roster_hash != roster.hash:
        mend = "have keys dealt again for the pinned roster (flhe keygen --scheme)"
        return Check(name, "fail", f"{path} was dealt for another roster", mend)
    return Check(name, "ok", f"{path}, for {len(dealt.members)} sites")


def _shown(policy: Policy, schemes: Sequence[str]) -> Checks:
    """Yield what may leave this node unencrypted."""
    limits = policy.limits
    granted = {}
    if PLAIN in schemes:
        granted["unencrypted runs"] = f'take "{PLAIN}" out of flhe-schemes'
    if limits["server-reads"]:
        granted["the server to read sums, and so the model"] = "flhe-server-reads=false"
    if limits["min-select"] < 1:
        scale = limits["min-noise"]
        noise = f", with noise of scale {scale:g} or more" if scale else ""
        clear = f"up to {100 * (1 - limits['min-select']):.3g}% of each update in clear{noise}"
        granted[clear] = "flhe-min-select=1"
    if limits["unpermuted"]:
        granted["the server to see which values were chosen"] = "flhe-unpermuted=false"
    for says, mend in granted.items():
        yield Check("allows", "warn", says, f"{mend}, unless intended")
    if not granted:
        yield Check("allows", "ok", "nothing of an update in clear")
    metrics = ", ".join(policy.metrics)
    yield Check("metrics", "ok", f"{metrics} may leave, in sums" if metrics else "none may leave")
