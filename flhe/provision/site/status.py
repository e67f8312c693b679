"""`flhe site status`: who this site is, its federation, its rounds, its budget, its refusals."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from rich.table import Table

from flhe.answer import Answer, notes, table
from flhe.errors import FlheError, StoreError
from flhe.keys.roster import fingerprint
from flhe.node import audit, federations
from flhe.node.audit import Entry
from flhe.node.store import Store
from flhe.provision import budgets, rosters
from flhe.provision.flower_config import parse
from flhe.provision.site import page
from flhe.provision.site.joining import last_of
from flhe.provision.site.layout import Layout
from flhe.training import accountant

LINES = 1000
"""Lines of the log that are read."""
SHOWN = 20
"""Most rounds and most refusals that are shown."""
TRAINING = ("update", "resent", "answer")
"""Answers that have something of the site's data in them, sealed."""


def status(layout: Layout) -> Answer:
    """Return the state of a site in one federation; nothing is changed."""
    data = state_of(layout)
    grid = Table.grid(padding=(0, 2))
    for name, value in data.items():
        if not isinstance(value, list | dict):
            shown = value.hex() if isinstance(value, bytes) else f"{value}"
            grid.add_row(name.replace("_", " "), shown)
    tables: list[Any] = [grid]
    for title in ("rounds", "refused"):
        if rows := data[title]:
            headings = (name.replace("_", " ") for name in rows[0])
            cells = ((f"{value}" for value in row.values()) for row in rows[-5:])
            tables.append(table(headings, cells, title=f"last {title}", title_justify="left"))
    return Answer(data, *tables)


def serve(layout: Layout, port: int) -> None:
    """Serve the page until Ctrl-C; ConfigError for another user than the node's, root included."""
    layout.check_user(layout.user, "site status --page")
    state_of(layout)  # an error here, and not in the browser
    listening, url = page.server(lambda: state_of(layout), port)
    notes().print(
        f"{url}\nOpen it on this machine; Ctrl-C ends it.", highlight=False, soft_wrap=True
    )
    with listening, suppress(KeyboardInterrupt):
        listening.serve_forever()


def state_of(layout: Layout) -> dict[str, Any]:
    """Return what `--json` prints and the page shows; bytes are hashes and public keys."""
    _, card = layout.card()
    joined, following = last_of(layout), layout.next_home()
    state = "not joined" if joined is None else "joined"
    if following is not None:
        state += f"; a key in {following} takes this one's place at the next join"
    data: dict[str, Any] = {"site": card.name, "federation": layout.name, "state": state}
    if joined is not None:
        roster = joined.roster
        data |= {"superlink": joined.address, "file_number": joined.serial}
        data |= {"sites": len(roster.members), "roster": rosters.data(roster)}
        words = " ".join(fingerprint.lines(roster.hash))
        data |= {"roster_hash": roster.hash, "roster_words": words}
    with layout.as_user():
        return data | _of_store(layout)


def _of_store(layout: Layout) -> dict[str, Any]:
    """Return what the state directory knows."""
    store = Store(layout.home)
    try:
        entries = [entry for entry in audit.last(store, LINES) if entry is not None]
    except StoreError:  # no server has asked yet
        entries = []
    refused = [entry for entry in entries if entry.reason]
    rounds = [e for e in entries if e.round is not None and e.answer in TRAINING]
    last = rounds[-1] if rounds else None
    results = [entry.result for entry in entries if entry.result is not None]
    return {
        "key": store.identity().public,
        "federations_begun": federations.begun(store),
        "last_request": entries[-1].when if entries else "none",
        "last_round": "none" if last is None else f"{last.round}, {last.when}",
        "last_result": results[-1] if results else "none",
        "budget": _budget(layout),
        "requests": len(entries),
        "refusals": len(refused),
        "bytes_out": sum(entry.bytes_out for entry in entries),
        "rounds": [_round(entry) for entry in rounds[-SHOWN:]],
        "refused": [
            {"time": e.when, "stage": e.stage, "code": e.code, "reason": e.reason}
            for e in refused[-SHOWN:]
        ],
    }


def _round(entry: Entry) -> dict[str, Any]:
    result = "" if entry.result is None else entry.result.hex()
    said = {"round": entry.round, "time": entry.when, "result": result}
    sent = {"bytes_out": entry.bytes_out, "seconds": entry.seconds, "answer": entry.answer}
    return {**said, **sent, "run": f"{entry.run}"}


def _budget(layout: Layout) -> str:
    try:
        spent = budgets.answer(budgets.budget_of(parse(f"{layout.settings}"), look=True)).data
    except FlheError as error:
        return f"unknown: {error}"
    assert isinstance(spent, dict)
    limit = spent["max_epsilon"] or "no limit"
    return f"epsilon {accountant.shown(spent['epsilon'])} of {limit}, delta {spent['delta']:g}"
