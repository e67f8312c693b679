"""`flhe doctor`: check all that a node needs to take part.

It creates and changes nothing; run it as the node's user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from flhe.errors import FlheError
from flhe.node.policy import Policy, allowed, setting
from flhe.provision.budgets import check_budget
from flhe.provision.check_home import check_home, identity_in
from flhe.provision.check_machine import check_clock, check_versions
from flhe.provision.check_tls import check_tls
from flhe.provision.check_trust import check_member, check_policy, check_roster
from flhe.provision.checks import Check

_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red"}


def examine(
    config: Mapping[str, object], superlink: str = "", roots: Path | None = None
) -> list[Check]:
    """Check the node of a node config.

    `superlink` is HOST:PORT of the SuperLink's Fleet API; without it TLS is not checked. `roots`
    are the certificates that verify its own, by default the system's.
    """
    found: list[Check] = []
    home = _path(config, "flhe-home")
    identity = None
    if home is None:
        mend = (
            'set flhe-home="DIR" in the node config: elsewhere each run would begin as another site'
        )
        found.append(Check("home", "fail", "flhe-home is not set", mend))
    else:
        found += check_home(home)
        identity, check = identity_in(home)
        found.append(check)
    found.append(check_clock(_path(config, "flhe-roster")))
    schemes: Sequence[str] = allowed()
    try:
        policy = Policy.of_node(config, run_id=0, node_id=0, simulated=False)
    except FlheError as error:
        mend = "correct that; the node refuses every message until then"
        found.append(Check("policy", "fail", str(error), mend))
    else:
        roster = policy.roster
        schemes = [s for s in policy.schemes if roster is None or roster.allows(s)]
        found.append(check_roster(roster))
        if roster is not None and identity is not None:
            found.append(check_member(roster, identity))
        found += check_policy(policy, schemes)
        found += check_budget(policy)
        if identity is not None:
            found.append(check_gate(identity.public, policy.metrics))
    found += check_versions(schemes)
    if superlink:
        found.append(check_tls(superlink, roots))
    return found


def check_gate(site: bytes, metrics: Sequence[str]) -> Check:
    """Send updates in clear through the gate's code to a sink, and see what arrives there."""
    try:
        from flhe.gate.policy import GatePolicy
        from flhe.gate.probe import leaks
    except ImportError:
        says = "flhe gate cannot run: it needs flwr 1.40 or later, which speaks HTTP"
        return Check("gate", "warn", says, "upgrade flwr, at the site and at the coordinator")
    if found := leaks(GatePolicy(site, tuple(metrics))):
        mend = "do not start this node: reinstall flhe, and report it if the check fails again"
        return Check("gate", "fail", f"it did not stop {' and '.join(found)}", mend)
    return Check("gate", "ok", "sent an update in clear through it to a sink: stopped, code 1033")


def lines(checks: Sequence[Check]) -> list[Text]:
    """Return a line for each check, one below it that says how to mend it, and the counts."""
    out = []
    for check in checks:
        out.append(Text.assemble((f"{check.level:6}", _STYLES[check.level]), check.name, ": "))
        out[-1].append(check.says)
        if check.mend:
            out.append(Text(f"      mend: {check.mend}"))
    counts = {level: sum(check.level == level for check in checks) for level in _STYLES}
    return [*out, Text(", ".join(f"{count} {level}" for level, count in counts.items() if count))]


def _path(config: Mapping[str, object], key: str) -> Path | None:
    try:
        written = setting(config, key, "")
    except FlheError:
        return None
    return Path(written) if written else None
