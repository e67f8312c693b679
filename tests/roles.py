"""Everybody's part in one round, by what a scheme declares of its keys, and what each part holds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flhe.errors import ReuseError
from flhe.math.keystream import Stream
from flhe.math.prg import random_elements
from flhe.math.ring import add
from flhe.schemes.base import Adder, Opener, Scheme, Sealer, Secrets
from flhe.schemes.batchcrypt.scheme import BatchCrypt
from flhe.schemes.sash.adder import Seed
from flhe.schemes.sealed import Sealed, Slot


class Roles(NamedTuple):
    """Everybody's part in one round, fresh: nothing has been encrypted yet."""

    adder: Adder
    sealers: list[Sealer]
    opener: Opener


def drawn(key: bytes, rank: int) -> Callable[[int], bytes]:
    """A source of random bytes that gives the same ones each time."""
    stream = Stream(key, rank)

    def draw(count: int) -> bytes:
        out = np.empty(count + 16, np.uint8)
        stream.into(out, count)
        return out[:count].tobytes()

    return draw


@dataclass
class SeedReader:
    """Stands for masking-key agreement: sums the seeds of those who are in a sum, and opens it.

    Seeds are taken from the sealers when they are first needed. Where nothing was encrypted there is
    none: the reader was not told, and has to guess.
    """

    sealers: Sequence[Any]
    guess: Callable[[], Seed]
    opener: Callable[[Seed], Opener]
    seeds: dict[tuple[Slot, int], Seed] = field(default_factory=dict, repr=False)

    def seed(self, slot: Slot, rank: int) -> Seed:
        if (slot, rank) not in self.seeds:
            try:
                self.seeds[slot, rank] = self.sealers[rank].take_seed(slot)
            except (ReuseError, IndexError):
                self.seeds[slot, rank] = self.guess()
        return self.seeds[slot, rank]

    def decrypt(self, total: Sealed) -> NDArray[Any]:
        seeds = [self.seed(total.slot, rank) for rank in total.senders]
        return self.opener(functools.reduce(add, seeds)).decrypt(total)


def roles_of(
    cohort: int,
    key: bytes,
    threads: int,
    replay: bool,
    *,
    scheme: Scheme,
    bits: int | None = None,
    guess: Callable[[Adder], Seed] | None = None,
) -> Roles:
    """Everybody's part by what the scheme declares of its keys; what is drawn comes from key and rank.

    `guess` is a released seed of somebody who was told none; random elements unless given.
    """
    if scheme.agreement == "shares":
        return _sharing(scheme, cohort, key)
    public, own = b"", b""
    if scheme.agreement == "key-pair":
        one_size = isinstance(scheme, BatchCrypt)  # which takes long
        public, own = pair(scheme, key) if one_size else pair(scheme, key, cohort, bits)
    adder: Any = scheme.adder(cohort, bits, public)
    held = [Secrets(key, rank, own) for rank in range(cohort)]

    def chosen(role: Any, rank: int = 0) -> Any:
        """The role with the source of random bytes, where it has one."""
        drawing = replay and "random" in {f.name for f in dataclasses.fields(role)}
        return dataclasses.replace(role, random=drawn(key, rank)) if drawing else role

    def opener(*seed: Seed) -> Any:
        if scheme.reader == "server":
            return chosen(adder.server_opener(*seed, threads=threads))
        return chosen(adder.opener(held[0], *seed, threads=threads))

    sealers = [chosen(adder.sealer(each, threads=threads), each.rank) for each in held]
    if not scheme.per_sum_keys:
        return Roles(adder, sealers, opener())

    def guessed() -> Seed:
        return guess(adder) if guess else random_elements(scheme.elements(cohort))

    return Roles(adder, sealers, SeedReader(sealers, guessed, opener))


@functools.cache
def pair(
    scheme: Scheme, key: bytes, cohort: int = 2, bits: int | None = None
) -> tuple[bytes, bytes]:
    """A key pair that stands for `key`; what is public of it may depend on the size of sums."""
    adder: Any = scheme.adder(cohort, bits)
    made: tuple[bytes, bytes] = adder.new_pair(drawn(key, 1 << 22))
    return made


@dataclasses.dataclass
class ShareReader:
    """Opens by the members' partial decryptions."""

    adder: Any
    held: list[Secrets]

    def decrypt(self, total: Sealed) -> Any:
        partials = {m.rank: self.adder.partial(m, total) for m in self.held}
        return self.adder.opener(
            self.held[0], {rank: data for rank, data in partials.items() if data}
        ).decrypt(total)


@functools.cache
def _shares(scheme: Scheme, cohort: int, key: bytes) -> list[tuple[bytes, bytes]]:
    """Each member's secret, and the public key's name, of a key that stands for `key`."""
    bare: Any = scheme.adder(cohort)
    random = drawn(key, 1 << 22)
    drew, told = zip(*(bare.draw(rank, key[::-1], random) for rank in range(cohort)), strict=True)
    boxes = [bare.reveal(part, told) for part in drew]
    return [
        bare.finish(part, told, [sent[rank] for sent in boxes]) for rank, part in enumerate(drew)
    ]


def _sharing(scheme: Scheme, cohort: int, key: bytes) -> Roles:
    made = _shares(scheme, cohort, key)
    assert len({name for _, name in made}) == 1
    adder = scheme.adder(cohort, public=made[0][1])
    held = [Secrets(key, rank, own) for rank, (own, _) in enumerate(made)]
    return Roles(adder, [adder.sealer(each) for each in held], ShareReader(adder, held))


def reachable(root: object) -> list[object]:
    """Everything that can be reached from `root` through attributes and containers."""
    seen: dict[int, object] = {}
    queue = [root]
    while queue:
        item = queue.pop()
        if id(item) in seen or isinstance(item, type):
            continue
        seen[id(item)] = item
        if isinstance(item, (list, tuple, set, frozenset)):
            queue += item
        elif isinstance(item, dict):
            queue += [*item, *item.values()]
        elif dataclasses.is_dataclass(item):
            queue += [getattr(item, f.name) for f in dataclasses.fields(item)]
        else:
            queue += vars(item).values() if hasattr(item, "__dict__") else []
    return list(seen.values())


def holds(root: object, secrets: list[bytes]) -> bool:
    blobs = [x for x in reachable(root) if isinstance(x, (bytes, bytearray))]
    blobs += [x.tobytes() for x in reachable(root) if isinstance(x, np.ndarray)]
    large = [x for x in reachable(root) if isinstance(x, int) and x >> 64]
    blobs += [x.to_bytes((x.bit_length() + 7) // 8, "big") for x in large]
    return any(secret in blob for blob in blobs for secret in secrets)
