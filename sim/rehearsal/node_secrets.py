"""The secrets in a node's state directory: everything there that nobody but its site may know.

Vectors are added in all forms (`writings`). Members of epochs are noted, so that it can be told
afterwards whether keys were never seen (`missing`).

Read through the classes that the node itself uses, while it works: most of it is erased on the way, so
whoever wants it all looks often. What is half written, or gone meanwhile, is left for the next look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from flhe.errors import FlheError
from flhe.keys.agreement.epoch import Advertised, Confirmed, Epoch, Shared
from flhe.node.node import EPOCHS, Node, StoredAgreement
from flhe.node.policy import Policy
from flhe.node.store import Store
from flhe.wire import canonical
from flhe_lab.rehearsal.search import Secrets
from flhe_lab.rehearsal.writings import of_update, of_vector

IDENTITY, GROUP, PAIR, SCHEME = "identity seed", "group key", "pair key", "scheme's key"
EPHEMERAL, CONTRIBUTION = "ephemeral key", "share of the group key"
SEED_SHARE, SEED_SUM = "share of a seed", "sum of shares"
MODEL, UPDATE = "model", "update"
_FIELDS = {"secret": EPHEMERAL, "contribution": CONTRIBUTION, "group_key": GROUP}
_THERE = suppress(FlheError, OSError)
_LONG = 64
"""Bytes above which a part of a scheme's key is secret; shorter ones are names of it."""


def look(home: Path, secrets: Secrets) -> None:
    """Add what is in the state directory `home` now; nothing before there is one."""
    if not home.is_dir():
        return
    with _THERE:
        store = Store(home)
        if not store.exists("identity.key"):
            return
        identity = store.identity()
        secrets.add(IDENTITY, identity.seed)
        for name in store.names(EPOCHS):
            with _THERE:
                _epoch(Epoch.from_bytes(store.read(name)), secrets)
        for run in sorted((home / "runs").glob("[0-9]*")):
            policy = Policy(home, trust="first-use")  # it says no more here than whose home it is
            _run(Node(policy, store, identity, int(run.name)), secrets)


def missing(secrets: Secrets) -> Iterator[str]:
    """Kinds of keys of which members must have had more than any look has found, in words."""
    members, agreements = len(secrets.members), len({each[1:] for each in secrets.members})
    for kind, owed in {EPHEMERAL: members, CONTRIBUTION: members, GROUP: agreements}.items():
        if (found := len(secrets.kinds.get(kind, ()))) < owed:
            yield f"{kind}: {found} of {owed}"


def _run(node: Node, secrets: Secrets) -> None:
    with _THERE:  # as it lies there: whoever only looks has no witness of its last use
        kept = StoredAgreement.from_bytes(node.store.read(f"runs/{node.run_id}/agreement"))
        for kind in (Advertised, Shared, Confirmed):
            with _THERE:
                _keys(kind.from_bytes(kept.state), secrets)
    with _THERE:
        if (dealt := node.load_dealt()) is not None:
            secrets.add(SEED_SHARE, dealt.own)
    with _THERE:
        if (draft := node.load_draft()) is not None:
            secrets.add(UPDATE, *of_update(draft.values))
    with _THERE:
        if (agreed := node.load_survivors()) is not None:
            secrets.add(SEED_SUM, agreed.share)
    with _THERE:
        if (model := node.load_model()) is not None and model.steps:
            for master in model.masters.values():
                secrets.add(MODEL, *of_vector(master))


def _epoch(epoch: Epoch, secrets: Secrets) -> None:
    _keys(epoch, secrets)
    secrets.members |= {(public, epoch.run_id, epoch.number) for public in epoch.members}


def _keys(state: Advertised | Shared | Confirmed | Epoch, secrets: Secrets) -> None:
    for name, kind in _FIELDS.items():
        secrets.add(kind, getattr(state, name, b""))
    if secret := getattr(state, "scheme_secret", b""):
        secrets.add(SCHEME, *_long_strings(canonical.loads(secret, 1 << 24, SCHEME)))
    pairs: Iterable[bytes] = getattr(state, "pair_keys", ())
    secrets.add(PAIR, *pairs)


def _long_strings(value: object) -> list[bytes]:
    """The byte strings in a scheme's key that are its secret."""
    if isinstance(value, bytes):
        return [value] if len(value) >= _LONG else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [found for each in value for found in _long_strings(each)]
    return []
