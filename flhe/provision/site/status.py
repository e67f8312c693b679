"""`flhe site status`: who this site is, its federation, its last answers, its budget, its refusals."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from flhe.answer import Answer
from flhe.errors import FlheError, StoreError
from flhe.node import audit, federations
from flhe.node.store import Store
from flhe.provision import budgets
from flhe.provision.flower_config import parse
from flhe.provision.site.joining import Known
from flhe.provision.site.layout import Layout

LAST = 1000
"""Lines of the log that are read."""


def status(layout: Layout) -> Answer:
    """Return the state of a site in one federation; nothing is changed."""
    _, card = layout.card()
    known = Known.of(layout)
    state = (
        "joined" if known.joined else "agreed, not signed by all" if known.agreed else "not joined"
    )
    data: dict[str, Any] = {"site": card.name, "key": card.public, "federation": layout.name}
    data |= {"state": state}
    if (last := known.joined or known.agreed) is not None:
        data |= {"number": last.serial, "superlink": last.address}
        data |= {"roster_hash": last.roster.roster.hash, "sites": len(last.roster.roster.members)}
    with layout.as_user():
        data |= _of_store(layout)
    table = Table.grid(padding=(0, 2))
    for name, value in data.items():
        shown = value.hex() if isinstance(value, bytes) else f"{value}"
        table.add_row(name.replace("_", " "), shown)
    return Answer(data, table)


def _of_store(layout: Layout) -> dict[str, Any]:
    """Return what the state directory knows."""
    store = Store(layout.home)
    found: dict[str, Any] = {"federations_begun": federations.begun(store)}
    try:
        entries = [entry for entry in audit.last(store, LAST) if entry is not None]
    except StoreError:  # no server has asked yet
        entries = []
    refused = [entry for entry in entries if entry.reason]
    rounds = [entry for entry in entries if entry.round is not None]
    found |= {"requests": len(entries), "refusals": len(refused)}
    for name, some in (("last_request", entries), ("last_refusal", refused)):
        if some:
            found[name] = f"{some[-1].when} {some[-1].stage}: {some[-1].reason or some[-1].answer}"
    found["last_round"] = f"{rounds[-1].when}: round {rounds[-1].round}" if rounds else "none"
    try:
        spent = budgets.answer(budgets.budget_of(parse(f"{layout.settings}"))).data
    except FlheError as error:
        found["budget"] = f"unknown: {error}"
    else:
        assert isinstance(spent, dict)
        limit = spent["max_epsilon"] or "no limit"
        found["budget"] = f"epsilon {spent['epsilon']:.3g} of {limit}, delta {spent['delta']:g}"
    return found
