"""Checks of the pinned roster, and of this node's policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flhe.errors import ConfigError, FlheError
from flhe.keys.agreement.dealt import Dealt
from flhe.keys.identity import Identity
from flhe.keys.roster import fingerprint
from flhe.keys.roster.pinned import check_pinned
from flhe.keys.roster.roster import MAX_BYTES, Roster
from flhe.node.policy import Policy, misspelt, setting, settings
from flhe.provision import public_files
from flhe.provision.check_home import check_witness
from flhe.provision.checks import Check, Checks, tried
from flhe.provision.permits import check_federations
from flhe.schemes import PLAIN


def check_settings(config: Mapping[str, object]) -> Check:
    """Check for settings that no version knows: a misspelled limit would not be enforced."""
    if slips := misspelt(config):
        says, _, mend = slips.partition("; ")
        return Check("settings", "fail", says, mend)
    return Check("settings", "ok", f"{sum(k in settings() for k in config)} of flhe's own")


def pinned(config: Mapping[str, object]) -> tuple[Roster | None, list[Check]]:
    """Return the roster that a node pins, and the checks of file and hash."""
    try:
        path, hash_ = (setting(config, f"flhe-{k}", "") for k in ("roster", "roster-hash"))
        first_use = setting(config, "flhe-trust", "") == "first-use"
    except FlheError as error:
        return None, [Check("roster", "fail", str(error), "put the value in quotes")]
    if not path:
        says = "none is pinned, so this node refuses to start"
        none = Check(
            "roster", "fail", says, "set flhe-roster and flhe-roster-hash in the node config"
        )
        if first_use:
            says = 'flhe-trust="first-use": the first to come are members, without authentication'
            none = Check("roster", "warn", says, "pin a roster, unless this is a trial")
        return None, [none]
    try:
        roster = Roster.from_bytes(public_files.read(Path(path), MAX_BYTES, "the roster"))
    except FlheError as error:
        mend = "get the file that the sites have agreed on again"
        return None, [Check("roster", "fail", str(error), mend)]
    return roster, [_hash(roster, hash_)]


def check_member(roster: Roster, identity: Identity) -> Check:
    """Check that the site is listed."""
    mend = "send the site's card to the coordinator, or join the federation's last file"
    size = len(roster.members)
    return tried("member", mend, lambda: f"{roster.name(identity.public)}, one of {size} sites")


def check_policy(policy: Policy) -> Checks:
    """Yield this node's policy in words, from roster and node config."""
    allowed = [s for s in policy.schemes if policy.roster is None or policy.roster.allows(s)]
    if allowed:
        yield Check("schemes", "ok", ", ".join(allowed))
    else:
        mend = "flhe-schemes must name one that the roster allows"
        yield Check("schemes", "fail", "none is allowed by both roster and node config", mend)
    yield from _shown(policy, allowed)
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


def _hash(roster: Roster, pinned_hash: str) -> Check:
    def words() -> str:
        check_pinned(roster, pinned_hash)
        return ", ".join(fingerprint.lines(roster.hash))

    mend = (
        "compare the words with the other sites, and pin what all have agreed on (flhe site join)"
    )
    return tried("roster hash", mend, words)


def _shown(policy: Policy, schemes: list[str]) -> Checks:
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
