"""Whether a loopback deployment's traffic and logs hold a secret, and whether a search would tell.

What is looked for: every secret that was ever in a state directory, SuperNodes' private keys, all
models but the initial one, all updates, and example counts. What must be found, or the search is worth
nothing: things that are on the wire for certain, one in each form that a secret might have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flhe.mods import records
from flhe.provision.node_key import pem, public_of
from flhe_lab.bench.synthetic import initial
from flhe_lab.rehearsal import app as loopback_app
from flhe_lab.rehearsal import counts as leak_counts
from flhe_lab.rehearsal import node_secrets, wire
from flhe_lab.rehearsal import updates as loopback_updates
from flhe_lab.rehearsal.app import SITES
from flhe_lab.rehearsal.loopback import Loopback
from flhe_lab.rehearsal.search import Found, Search, share_seen
from flhe_lab.rehearsal.writings import floats

COUNT = "example count"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was captured, and what a search found in it."""

    connections: int  # That the relay wrote down
    requests: int  # In all of them
    bytes_up: int  # In all of them
    bytes_down: int  # In all of them
    arrays: int  # That travelled
    searched: dict[str, int]  # Secrets that were looked for, by kind
    found: tuple[Found, ...]  # Those that were there
    controls: dict[str, bool]  # What a search must find, and whether it did
    missing: tuple[str, ...] = ()  # Secrets that there must have been, and that were not collected


def search(loopback: Loopback) -> Traffic:
    """Search everything that passed the relay, and all logs, for everything that was secret."""
    secrets, missing = loopback.secrets, loopback_updates.note(loopback)
    connections = wire.read(loopback.machines.captured)
    up, down = wire.objects(connections)
    arrays = dict(wire.arrays({**up, **down}))
    places = list(_places(loopback, connections, arrays))
    return Traffic(
        connections=len(connections),
        requests=sum(len(each.requests) for each in connections),
        bytes_up=sum(len(each.up) for each in connections),
        bytes_down=sum(len(each.down) for each in connections),
        arrays=len(arrays),
        searched={**{kind: len(each) for kind, each in secrets.kinds.items()}, COUNT: len(SITES)},
        found=(*Search(secrets).find(places), *_counts(places)),
        controls=dict(_controls(loopback, connections, up, down, arrays)),
        missing=(*node_secrets.missing(secrets), *missing),
    )


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
    for path in sorted(loopback.logs.folder.glob("*.log")):
        yield f"log {path.name}", path.read_bytes()


def _counts(places: Iterable[tuple[str, bytes]]) -> Iterator[Found]:
    """Where example counts stand."""
    numbers = [loopback_app.examples(site) for site in range(len(SITES))]
    for place, data in places:
        if hits := sum(leak_counts.anywhere(data, number) for number in numbers):
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
    raw = all(share_seen(public, ups) == 1.0 for public in publics)
    yield "identities' public keys, raw", raw
    # As Flower sends them, before base64.
    points = (public_of(site / "node.key") for site in loopback.trust.sites.values())
    encoded = all(share_seen(pem(point), ups) == 1.0 for point in points)
    yield "SuperNodes' public keys, in base64", encoded
    some = next(iter(sorted(down)), "")
    yield "an object's id, in hex", bool(some) and share_seen(bytes.fromhex(some), ups) == 1.0
    sealed = records.SEALED.encode()
    yield "heads of ciphertexts", sum(sealed in content for content in up.values()) > 0
    number = leak_counts.forms(loopback_app.MAX_EXAMPLES)["record"]
    yield "a number of the run config", any(number in stream for stream in ups)
