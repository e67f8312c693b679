"""Federations on a node: the permit for one more, and the number that have begun."""

from __future__ import annotations

from pathlib import Path

from flhe.answer import Answer
from flhe.errors import ConfigError, FlheError
from flhe.node import federations
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.provision.checks import Check, Checks
from flhe.provision.sites import has_identity


def grant(home: Path) -> Answer:
    """Permit one more federation.

    Raises ConfigError: no such directory, or not a node's; StoreError: this user cannot write
    there.
    """
    from flhe.node import audit

    if not home.is_dir():  # a Store would create it
        raise ConfigError(f"--home {home}: no such directory; name the node's flhe-home")
    if not has_identity(home):  # a permit elsewhere would have no effect
        inside = sorted(f"{p}" for p in home.iterdir() if has_identity(p))
        mend = f"is it {', '.join(inside)}?" if inside else "name the node's flhe-home"
        raise ConfigError(f"--home {home}: no identity in it; {mend}")
    store = Store(home)
    entry = audit.Entry(
        run=0, stage=audit.PERMIT, asked_by=audit.ADMINISTRATOR, answer=audit.PERMITTED, seconds=0.0
    )
    audit.write(store, entry)  # first: no permit without its line
    most = federations.permit(store)
    return Answer(
        {"begun": most - 1, "permitted": most},
        f"{_have_begun(most - 1)} on this node. This permit allows {most}; "
        "flhe-max-federations may allow more.\nTwo federations that start from one model may reveal "
        "a single site's update by their difference.",
    )


def check_federations(policy: Policy) -> Checks:
    """Check how many federations have begun on this node, and how many may."""
    try:
        store = Store(policy.home)
        begun, permitted = federations.begun(store), federations.permitted(store)
    except FlheError:  # the check of the directory reports it
        return
    allowed = max(policy.max_federations, permitted)
    says = f"{_have_begun(begun)}, {allowed if policy.max_federations else 'any number'} may"
    if policy.max_federations and begun >= allowed:
        command = f"flhe permit --home {policy.home}"
        says += f": a further `flwr run` needs `{command}`; a resumed one does not"
    yield Check("federations", "ok", says)


def _have_begun(count: int) -> str:
    return "1 federation has begun" if count == 1 else f"{count} federations have begun"
