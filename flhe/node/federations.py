"""Count the federations that have begun in a state directory, and permit one more.

runs/<id>/begun   this federation has had keys here
permit            how many may have begun, whatever the node config says

Two federations that start from one model give two sums of each round. Their difference may be a
single site's update, so a node counts federations, and only its administrator permits more.
"""

from __future__ import annotations

from contextlib import suppress

from flhe.errors import FederationsError, StoreError
from flhe.node.journal import JOURNAL, Book
from flhe.node.store import Store

_BEGUN, _PERMIT, _LOCK = "begun", "permit", "lock-begin"
MOST_UNBEGUN = 8
"""Maximum number of federations under key agreement whose files are kept."""


def prune(store: Store, run_id: int) -> None:
    """Drop the oldest federations that never began, except `run_id`: servers may name any number."""
    with store.lock(name=_LOCK):  # another one may begin at the same time
        agreements = sorted(store.names("runs/*/agreement"), key=store.changed)
        runs = [name.removesuffix("/agreement") for name in agreements]
        others = [r for r in runs if r != f"runs/{run_id}" and not store.exists(f"{r}/{_BEGUN}")]
        for run in others[: max(len(others) - MOST_UNBEGUN, 0)]:
            with suppress(StoreError):  # a damaged one is dropped as well
                Book(store, f"{run}/{JOURNAL}").close()
            store.drop(run)


def begun(store: Store) -> int:
    """Return how many federations have begun here."""
    return len(store.names(f"runs/*/{_BEGUN}"))


def permitted(store: Store) -> int:
    """Return how many the last permit allows, 0 without one; StoreError if damaged."""
    if not store.exists(_PERMIT):
        return 0
    data = store.read(_PERMIT)
    if len(data) != 8:
        raise StoreError(
            "the permit for another federation is damaged: make it again with `flhe permit`"
        )
    return int.from_bytes(data, "big")


def permit(store: Store) -> int:
    """Permit one federation more than have begun; return the new limit."""
    with store.lock(name=_LOCK):
        most = begun(store) + 1
        store.write(_PERMIT, most.to_bytes(8, "big"))
    return most


def check(store: Store, run_id: int, most: int, *, begin: bool = False) -> None:
    """Refuse to exceed `most` federations, or the permit's number; FederationsError.

    With `begin` the federation is noted on disk, and never refused again. 0 allows any number.
    """
    name = f"runs/{run_id}/{_BEGUN}"
    if store.exists(name):
        return
    with store.lock(name=_LOCK):  # another process may begin at the same time
        count = begun(store)
        allowed = max(most, permitted(store))
        if most and count >= allowed:
            verb = "federation has" if count == 1 else "federations have"
            raise FederationsError(
                f"{count} {verb} begun on this node, its policy allows {allowed}: a new one from the "
                "same model may show single updates by its difference to another; resume the one "
                "before, or permit one more with `flhe permit --home DIR`"
            )
        if begin:  # before its keys exist; a federation whose agreement fails does not count
            store.write(name, b"")
