"""Federations on a node: the permit for one more, and how many have begun."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flhe.errors import ConfigError, FlheError
from flhe.node import federations
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.provision.checks import Check, Checks
from flhe.provision.sites import has_identity


def grant(home: Path) -> str:
    """Permit one more federation; return what to print.

    Raises ConfigError: there is no such directory, or no node has its identity there; StoreError:
    the directory or its audit log cannot be written by this user.
    """
    from flhe.node import audit

    if not home.is_dir():  # a Store would make it
        raise ConfigError(f"--home {home}: no such directory; name the node's flhe-home")
    if not has_identity(home):  # a permit beside a node's directory would permit nothing there
        inside = sorted(f"{p}" for p in home.iterdir() if has_identity(p))
        mend = f"is it {', '.join(inside)}?" if inside else "name the node's flhe-home"
        raise ConfigError(f"--home {home}: no identity in it; {mend}")
    store = Store(home)
    entry = audit.Entry(
        run=0,
        stage=audit.PERMIT,
        asked_by=audit.ADMINISTRATOR,
        answer=audit.PERMITTED,
        seconds=0.0,
    )
    audit.write(store, entry)  # first: no permit without its line
    most = federations.permit(store)
    return (
        f"{_have_begun(most - 1)} on this node. By this permit {most} may, or more where "
        "flhe-max-federations allows more.\n"
        "Two federations that start from one model may show, by their difference, a single site's "
        "update."
    )


def check_federations(home: Path, config: Mapping[str, object]) -> Checks:
    """How many federations have begun on this node, and how many may."""
    try:
        most = Policy.of_node(config, run_id=0, node_id=0, simulated=False).max_federations
        store = Store(home)
        begun, permitted = federations.begun(store), federations.permitted(store)
    except FlheError:  # the checks of directory and policy say which
        return
    says = _have_begun(begun)
    if not most:
        yield Check("federations", "ok", f"{says}, any number may")
        return
    allowed = max(most, permitted)
    says += f", {allowed} may"
    if begun >= allowed:
        says += f": a further `flwr run` needs `flhe permit --home {home}`; a resumed one does not"
    yield Check("federations", "ok", says)


def _have_begun(count: int) -> str:
    return "1 federation has begun" if count == 1 else f"{count} federations have begun"
