"""The secrets in a node's state directory: everything there that nobody but its site may know.

Read through the classes that the node itself uses, while it works: most of it is erased on the way, so
whoever wants it all looks often. What is half written, or gone meanwhile, is left for the next look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flhe.errors import FlheError
from flhe.keys import canonical
from flhe.keys.epoch import Advertised, Confirmed, Epoch, Shared
from flhe.keys.store import Store
from flhe.mods.node import Node
from flhe.policy import Policy
from flhe.sim.leak_search import Secrets

IDENTITY, GROUP, PAIR, SCHEME = "identity seed", "group key", "pair key", "scheme's key"
EPHEMERAL, CONTRIBUTION = "ephemeral key", "share of the group key"
SEED_SHARE, SEED_SUM, MASKED_SEED = "share of a seed", "sum of shares", "state of a masked seed"
MODEL, UPDATE = "model", "update"
_FIELDS = {"secret": EPHEMERAL, "contribution": CONTRIBUTION, "group_key": GROUP}
_LONG = 64
"""Bytes above which a part of a scheme's key is secret; shorter ones are names of it."""


def look(home: Path, secrets: Secrets, server_reads: Collection[int] = ()) -> None:
    """Add what is in the state directory `home` now; nothing before there is one.

    Runs in `server_reads` show the server their sums, so neither those nor models are secret there.
    """
    if not home.is_dir():
        return
    with _there():
        store = Store(home)
        if not store.exists("identity.key"):
            return
        identity = store.identity()
        secrets.add(IDENTITY, identity.seed)
        for epoch_id in store.epochs():
            with _there():
                _keys(Epoch.from_bytes(store.peek_epoch(epoch_id)), secrets)
        for run in sorted((home / "runs").glob("[0-9]*")):
            policy = Policy(home, trust="first-use")  # it says no more here than whose home it is
            node = Node(policy, store, identity, int(run.name))
            _run(node, secrets)
            if node.run_id not in server_reads:
                _sums(node, secrets)


def _run(node: Node, secrets: Secrets) -> None:
    with _there():
        _keys(node.load_agreement(Advertised), secrets)
    with _there():
        _keys(node.load_agreement(Shared), secrets)
    with _there():
        _keys(node.load_agreement(Confirmed), secrets)
    with _there():
        if (dealt := node.load_dealt()) is not None:
            secrets.add(SEED_SHARE, dealt.own)
    with _there():
        if (kept := node.load_pairwise()) is not None:
            secrets.add(MASKED_SEED, kept.state)
    with _there():
        if (draft := node.load_draft()) is not None:
            secrets.add(UPDATE, floats(draft.values))


def _sums(node: Node, secrets: Secrets) -> None:
    with _there():
        if (agreed := node.load_survivors()) is not None:
            secrets.add(SEED_SUM, agreed.share)
    with _there():
        if (model := node.load_model()) is not None and model.steps:
            secrets.add(MODEL, *map(floats, model.masters.values()))


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


def floats(array: NDArray[np.generic]) -> bytes:
    """An array's bytes as they would travel."""
    return np.ascontiguousarray(array).tobytes()


def _there() -> suppress:
    return suppress(FlheError, OSError)
