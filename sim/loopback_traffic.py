"""Whether a loopback deployment's traffic and logs hold a secret, and whether a search would tell.

What is looked for: every secret that was ever in a state directory, keys that are derived from those,
SuperNodes' private keys, all models but the initial one, all updates, as floats and as the integers
that they are encrypted as, and example counts. No ciphertext may open without a key. What must be
found, or the search is worth nothing: things that are on the wire for certain, one in each form that a
secret might have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)

from flhe import records
from flhe.coding.flatten import layout_of
from flhe.errors import FlheError
from flhe.keys.states import Epoch
from flhe.keys.store import Store
from flhe.rounds.terms import Terms
from flhe.schemes.base import Scheme
from flhe.schemes.flashe import Flashe
from flhe.sealed import Sealed, Slot
from flhe.sim import leak_counts, loopback_app, node_secrets, wire
from flhe.sim.derived_secrets import DERIVED, Contexts, of_traffic
from flhe.sim.leak_forms import floats, of_update, of_vector
from flhe.sim.leak_lanes import open_without_keys, quantized, unencrypted
from flhe.sim.leak_search import Found, Search, Secrets, share_seen
from flhe.sim.loopback import Loopback
from flhe.sim.loopback_plan import SITES
from flhe.sim.loopback_sums import notes_of
from flhe.sim.node_secrets import GROUP, MODEL, PAIR, UPDATE
from flhe.sim.synthetic import initial

TRAINED = "trained model"
COUNT = "example count"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was captured, and what a search found in it.

    Parameters
    ----------
    connections, requests, bytes_up, bytes_down, arrays : int
        What the relay wrote down, and the arrays in it.
    searched : dict of str to int
        Secrets that were looked for, by kind.
    found : tuple of Found
        Those that were there.
    controls : dict of str to bool
        What a search must find, and whether it did.
    """

    connections: int
    requests: int
    bytes_up: int
    bytes_down: int
    arrays: int
    searched: dict[str, int]
    found: tuple[Found, ...]
    controls: dict[str, bool]


def search(loopback: Loopback) -> Traffic:
    """Search everything that passed the relay, and all logs, for everything that was secret."""
    _note_secrets(loopback)
    connections = wire.read(loopback.machines.captured)
    up, down = wire.objects(connections)
    arrays = dict(wire.arrays({**up, **down}))
    places = list(_places(loopback, connections, arrays))
    found = [*Search(loopback.secrets).find(places), *_counts(places)]
    return Traffic(
        connections=len(connections),
        requests=sum(len(each.requests) for each in connections),
        bytes_up=sum(len(each.up) for each in connections),
        bytes_down=sum(len(each.down) for each in connections),
        arrays=len(arrays),
        searched={**loopback.secrets.counts(), COUNT: len(SITES)},
        found=tuple(found),
        controls=dict(_controls(loopback, connections, up, down, arrays)),
    )


def _note_secrets(loopback: Loopback) -> None:
    """Add what only the apps knew: models, what they trained, updates."""
    secrets, plan = loopback.secrets, loopback.plan
    for run in loopback.runs:
        for number in range(1, plan.rounds + 1):
            for note in notes_of(loopback, run.id, number):
                secrets.add(TRAINED, floats(note["trained"]))
                secrets.add(UPDATE, floats(note["trained"] - note["received"]))
                if number > 1 and not plan.reads(run.scheme):
                    secrets.add(MODEL, floats(note["received"]))
    for scheme, site in itertools.product(plan.schemes, range(len(SITES))):
        for number in range(1, plan.rounds + 1):
            made = loopback_app.update(scheme, site, number, plan.values)
            secrets.add(UPDATE, floats(made))


def _places(
    loopback: Loopback, connections: Sequence[wire.Connection], arrays: dict[str, bytes]
) -> Iterator[tuple[str, bytes]]:
    """All bytes that are searched: streams, bodies that were cut by HTTP or by Flower, logs."""
    for each in connections:
        for way, stream, parts in (
            ("up", each.up, each.requests),
            ("down", each.down, each.responses),
        ):
            yield f"connection {each.name} {way}", stream
            if any("transfer-encoding" in part.headers for part in parts):
                yield f"bodies of {each.name} {way}", b"".join(part.body for part in parts)
    for name, data in arrays.items():
        yield f"array {name[:8]}", data
    for path in loopback.machines.logs:
        yield f"log {path.name}", path.read_bytes()


def _counts(places: Sequence[tuple[str, bytes]]) -> Iterator[Found]:
    for site in range(len(SITES)):
        forms = forms_of_number(loopback_app.examples(site))
        for place, data in places:
            hits = sum(data.count(form) for form in forms.values())
            if hits:
                yield Found(COUNT, place, hits)


def _controls(
    loopback: Loopback,
    connections: Sequence[wire.Connection],
    up: dict[str, bytes],
    down: dict[str, bytes],
    arrays: dict[str, bytes],
) -> Iterator[tuple[str, bool]]:
    """What is on the wire for certain, each in another form: a search that misses it finds nothing."""
    ups, downs = [each.up for each in connections], [each.down for each in connections]
    first = b"".join(map(floats, records.to_numpy(initial(loopback.plan.values)).values()))
    yield "initial model, in streams", share_seen(first, downs) > 0.9
    yield "initial model, whole, over chunks' borders", share_seen(first, arrays.values()) == 1.0
    publics = loopback.trust.roster.publics
    yield (
        "identities' public keys, raw",
        all(share_seen(public, ups) == 1.0 for public in publics),
    )
    keys = [key.public for key in loopback.trust.node_keys.values()]
    yield (
        "SuperNodes' public keys, in base64",
        all(share_seen(_as_sent(key), ups) == 1.0 for key in keys),
    )
    some = next(iter(sorted(down)), "")
    yield "an object's id, in hex", bool(some) and share_seen(bytes.fromhex(some), ups) == 1.0
    sealed = records.SEALED.encode()
    yield "heads of ciphertexts", sum(sealed in content for content in up.values()) > 0
    number = forms_of_number(loopback_app.MAX_EXAMPLES)["record"]
    yield "a number of the run config", any(number in stream for stream in ups)


def _as_sent(public: Path) -> bytes:
    """A SuperNode's public key as Flower sends it, before base64."""
    key = load_ssh_public_key(public.read_bytes())
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
